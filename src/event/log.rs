//! Writes the log. Each event except [`Missed`](super::Event::Missed) becomes one
//! `tracing` event with its fields.

use tracing::Level;

use super::{Bypass, Event, Outcome, Regeneration, observer::Frequent};

/// Returns true if the log shows frequent events of this kind.
pub(super) fn is_logged(kind: Frequent) -> bool {
    match kind {
        Frequent::Memory => tracing::enabled!(target: "perennial::memory", Level::DEBUG),
        Frequent::Request => tracing::enabled!(target: "perennial::request", Level::DEBUG),
    }
}

/// Logs an event with its fields: first strings, then values of the enums in `words.rs`, then a fence.
macro_rules! lines {
    ($event:ident $(
        $variant:ident [$($text:ident)*] [$($word:ident)*] [$($fence:ident)*] $level:ident $target:literal $message:literal;
    )+) => {
        match $event {
            $(Event::$variant { $($text,)* $($word,)* $($fence,)* .. } => tracing::$level!(
                target: concat!("perennial::", $target),
                $($text = &**$text,)* $($word = $word.to_string(),)* $($fence = $fence.0,)* $message
            ),)+
            Event::Invalidated { name, epoch } => {
                tracing::debug!(target: "perennial::invalidation", name = &**name, epoch = epoch.0, "invalidated");
            }
            Event::Warmed { path, served, done, of } => {
                let served = served.map(|served| served.to_string());
                tracing::debug!(
                    target: "perennial::regeneration",
                    path = &**path, served, done, of, "visited"
                );
            }
            Event::Regenerated(ended) => regeneration(ended),
            Event::MissedInvalidation(missed) => {
                tracing::debug!(
                    target: "perennial::invalidation",
                    key = &*missed.key, layer = &*missed.layer, tags = missed.tags.join(", "), bytes = missed.bytes,
                    "the page has changed, and nobody has invalidated it"
                );
            }
            // Events of the store are logged by the store itself. That a subscriber has missed events
            // is of no interest to anybody else.
            Event::DatabaseUnavailable { .. }
            | Event::DatabaseBack { .. }
            | Event::LockAcquired { .. }
            | Event::LockContended { .. }
            | Event::LockLost { .. }
            | Event::LockBroken { .. }
            | Event::IdempotentReplay { .. }
            | Event::Missed { .. } => {}
        }
    };
}

pub(super) fn log(event: &Event) {
    lines! { event
        Regenerating [key layer] [reason] [] trace "regeneration" "the generator starts";
        NotRegenerated [key layer] [outcome] [] trace "regeneration" "a stale version is not regenerated now";
        LeaseTakenOver [key] [] [fence] info "regeneration" "the lease of a crashed or paused process was taken over";
        Purged [key] [] [] debug "invalidation" "purged";
        Bypassed [path layer] [reason] [] debug "request" "a request bypasses the cache";
        MemoryEvicted [key] [] [] debug "memory" "left memory for others";
    }
}

fn regeneration(ended: &Regeneration) {
    macro_rules! line {
        ($level:ident, $($message:tt)+) => {
            tracing::$level!(
                target: "perennial::regeneration",
                key = &*ended.key, layer = &*ended.layer, reason = ended.reason.as_str(), outcome = ended.outcome.to_string(),
                took_ms = u64::try_from(ended.took.as_millis()).unwrap_or(u64::MAX),
                bytes = ended.bytes, fence = ended.fence.map(|fence| fence.0), $($message)+
            )
        };
    }
    let error = ended.error.as_deref().unwrap_or_default();
    let old = if ended.serves_old {
        "; the old version is still served"
    } else {
        ""
    };
    match ended.outcome {
        Outcome::Unsaved => line!(debug, "regenerated, and served unsaved"),
        Outcome::KeptApart => line!(
            debug,
            "regenerated, and served from this process's memory, as a fresh version of other code is stored"
        ),
        Outcome::Overtaken => line!(
            warn,
            "nothing was published: another process has taken the lock over, or the page was purged"
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
