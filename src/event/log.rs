//! The log lines of events.

use tracing::Level;

use super::{Bypass, Event, Outcome, Regeneration, observer::Frequent};

/// Returns true if the log shows frequent events of this kind.
pub(super) fn is_logged(kind: Frequent) -> bool {
    match kind {
        Frequent::Lock => tracing::enabled!(target: "perennial::lock", Level::DEBUG),
        Frequent::Memory => tracing::enabled!(target: "perennial::memory", Level::DEBUG),
        Frequent::Request => tracing::enabled!(target: "perennial::request", Level::DEBUG),
    }
}

pub(super) fn log(event: &Event) {
    // The fields of an event, under their own names: texts and words, and then numbers.
    macro_rules! line {
        ($level:ident, $target:literal, [$($text:ident)*], [$($number:ident)*], $message:literal) => {
            tracing::$level!(
                target: concat!("perennial::", $target),
                $($text = %$text,)* $($number = $number,)* $message
            )
        };
    }
    match event {
        Event::Regenerating {
            key,
            layer,
            reason,
            fence,
        } => line!(trace, "regeneration", [key layer reason], [fence], "the generator starts"),
        Event::Regenerated(ended) => regeneration(ended),
        Event::NotRegenerated {
            key,
            layer,
            outcome,
        } => {
            line!(trace, "regeneration", [key layer outcome], [], "a stale version is not regenerated now")
        }
        Event::LeaseTakenOver { key, fence } => {
            line!(
                info,
                "regeneration",
                [key],
                [fence],
                "the lease of a crashed or paused process was taken over"
            );
        }
        Event::Invalidated { target, epoch } => {
            line!(debug, "invalidation", [target], [epoch], "invalidated");
        }
        Event::Purged { key } => line!(debug, "invalidation", [key], [], "purged"),
        Event::Warmed {
            path,
            served,
            done,
            of,
        } => line!(debug, "regeneration", [path served], [done of], "warmed"),
        Event::Bypassed {
            path,
            layer,
            reason,
        } => line!(debug, "request", [path layer reason], [], "a request bypasses the cache"),
        Event::DatabaseAway { step, error } => line!(
            error,
            "database",
            [step error],
            [],
            "the database fails; versions in memory are still served (logged once until the database works again)"
        ),
        Event::DatabaseBack { step } => {
            line!(info, "database", [step], [], "the database works again")
        }
        Event::LockAcquired { kind, name, fence } => {
            line!(debug, "lock", [kind name], [fence], "acquired");
        }
        Event::LockContended { kind, name } => {
            line!(debug, "lock", [kind name], [], "taken by another holder");
        }
        Event::LockLost {
            kind,
            name,
            fence,
            reason,
        } => line!(warn, "lock", [kind name reason], [fence], "the lease is lost"),
        Event::LockBroken { kind, name } => line!(info, "lock", [kind name], [], "broken"),
        Event::IdempotentReplay { name } => {
            line!(
                debug,
                "request",
                [name],
                [],
                "a repeated request gets the stored response"
            );
        }
        Event::MemoryEvicted { key } => line!(debug, "memory", [key], [], "left memory for others"),
        // A subscriber's event.
        Event::Missed { .. } => {}
    }
}

fn regeneration(ended: &Regeneration) {
    let Regeneration {
        key,
        layer,
        reason,
        outcome,
        took,
        bytes,
        fence,
        error,
        serves_old,
        cooldown,
    } = ended;
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let error = error.as_deref().unwrap_or_default();
    let old = match serves_old {
        true => "; the old version is still served",
        false => "",
    };
    macro_rules! line {
        ($level:ident, $($message:tt)+) => {
            tracing::$level!(
                target: "perennial::regeneration",
                %key, %layer, %reason, %outcome, took_ms, bytes, fence, $($message)+
            )
        };
    }
    match outcome {
        Outcome::Unsaved => line!(debug, "regenerated, and served unsaved"),
        Outcome::Overtaken => line!(
            warn,
            "the publish was refused: another process has taken the lock over, or the page was purged"
        ),
        Outcome::NotStored(Bypass::TooLarge) if *serves_old => {
            line!(warn, "the response is too large to be stored{old}");
        }
        Outcome::NotStored(why) if why.is_of_the_route() || *why == Bypass::TooLarge => {
            line!(
                info,
                "the response is not stored: each request goes to the service"
            );
        }
        Outcome::NotStored(_) => line!(debug, "the response is not stored"),
        Outcome::Failed | Outcome::TimedOut => {
            line!(warn, error, again_in = ?cooldown, "the generator failed{old}");
        }
        _ => line!(debug, "regenerated"),
    }
}
