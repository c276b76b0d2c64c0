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

/// Logs an event with its own fields: first texts and words, then numbers.
macro_rules! lines {
    ($event:ident $(
        $variant:ident [$($text:ident)*] [$($number:ident)*] $level:ident $target:literal $message:literal;
    )+) => {
        match $event {
            $(Event::$variant { $($text,)* $($number,)* .. } => tracing::$level!(
                target: concat!("perennial::", $target),
                $($text = %$text,)* $($number = %$number,)* $message
            ),)+
            Event::Warmed { path, served, done, of } => {
                let served = served.map(|served| served.to_string());
                tracing::debug!(target: "perennial::regeneration", %path, served, done, of, "visited");
            }
            Event::Regenerated(ended) => regeneration(ended),
            // A subscriber's event.
            Event::Missed { .. } => {}
        }
    };
}

pub(super) fn log(event: &Event) {
    lines! { event
        Regenerating [key layer reason] [] trace "regeneration" "the generator starts";
        NotRegenerated [key layer outcome] [] trace "regeneration" "a stale version is not regenerated now";
        LeaseTakenOver [key] [fence] info "regeneration" "the lease of a crashed or paused process was taken over";
        Invalidated [target] [epoch] debug "invalidation" "invalidated";
        Purged [key] [] debug "invalidation" "purged";
        Bypassed [path layer reason] [] debug "request" "a request bypasses the cache";
        DatabaseAway [step error] [] error "database"
            "the database fails; versions in memory are still served (logged once until the database works again)";
        DatabaseBack [step] [] info "database" "the database works again";
        LockAcquired [kind name] [fence] debug "lock" "acquired";
        LockContended [kind name] [] debug "lock" "taken by another holder";
        LockLost [kind name reason] [fence] warn "lock" "the lease is lost";
        LockBroken [kind name] [] info "lock" "broken";
        IdempotentReplay [name] [] debug "request" "a repeated request gets the stored response";
        MemoryEvicted [key] [] debug "memory" "left memory for others";
    }
}

fn regeneration(ended: &Regeneration) {
    macro_rules! line {
        ($level:ident, $($message:tt)+) => {
            tracing::$level!(
                target: "perennial::regeneration",
                key = %ended.key, layer = %ended.layer, reason = %ended.reason, outcome = %ended.outcome,
                took_ms = u64::try_from(ended.took.as_millis()).unwrap_or(u64::MAX),
                bytes = ended.bytes, fence = ended.fence.map(|fence| fence.0), $($message)+
            )
        };
    }
    let error = ended.error.as_deref().unwrap_or_default();
    let old = match ended.serves_old {
        true => "; the old version is still served",
        false => "",
    };
    match ended.outcome {
        Outcome::Unsaved => line!(debug, "regenerated, and served unsaved"),
        Outcome::Overtaken => line!(
            warn,
            "the publish was refused: another process has taken the lock over, or the page was purged"
        ),
        Outcome::NotStored(Bypass::TooLarge) if ended.serves_old => {
            line!(warn, "the response is too large to be stored{old}");
        }
        Outcome::NotStored(why) if why.is_of_the_route() || why == Bypass::TooLarge => {
            line!(
                info,
                "the response is not stored: each request goes to the service"
            );
        }
        Outcome::NotStored(_) => line!(debug, "the response is not stored"),
        Outcome::Failed | Outcome::TimedOut => {
            line!(warn, error, again_in = ?ended.cooldown, "the generator failed{old}");
        }
        _ => line!(debug, "regenerated"),
    }
}
