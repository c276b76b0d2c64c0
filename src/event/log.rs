//! The log lines of events.

use tracing::Level;

use super::{Event, Outcome, Regeneration, observer::Frequent};

/// Returns true if the log shows frequent events of this kind.
pub(super) fn is_logged(kind: Frequent) -> bool {
    match kind {
        Frequent::Lock => tracing::enabled!(target: "perennial::lock", Level::DEBUG),
        Frequent::Memory => tracing::enabled!(target: "perennial::memory", Level::DEBUG),
        Frequent::Request => tracing::enabled!(target: "perennial::request", Level::DEBUG),
    }
}

pub(super) fn log(event: &Event) {
    match event {
        Event::RegenerationStarted {
            key,
            layer,
            reason,
            fence,
        } => {
            let reason = reason.as_str();
            tracing::trace!(
                target: "perennial::regeneration",
                key = &**key, layer = &**layer, reason, fence, "the generator starts"
            );
        }
        Event::RegenerationEnded(ended) => regeneration(ended),
        Event::RegenerationSkipped { key, layer, skip } => tracing::trace!(
            target: "perennial::regeneration",
            key = &**key, layer = &**layer, skip = skip.as_str(), "a stale version is not regenerated now"
        ),
        Event::LeaseTakenOver { key, fence } => tracing::info!(
            target: "perennial::regeneration",
            key = &**key, fence, "the lease of a crashed or paused process was taken over"
        ),
        Event::Invalidated { target, epoch } => tracing::debug!(
            target: "perennial::invalidation", name = &**target, epoch, "invalidated"
        ),
        Event::Purged { key } => {
            tracing::debug!(target: "perennial::invalidation", key = &**key, "purged");
        }
        Event::Warmed {
            path,
            outcome,
            done,
            of,
        } => tracing::debug!(
            target: "perennial::regeneration", path = &**path, %outcome, done, of, "warmed"
        ),
        Event::Bypassed {
            path,
            layer,
            detail,
        } => tracing::debug!(
            target: "perennial::request", path = &**path, layer = &**layer, detail, "a request bypasses the cache"
        ),
        Event::DatabaseAway { step, error } => tracing::error!(
            target: "perennial::database",
            step,
            error = &**error,
            "the database fails; versions in memory are still served (logged once until the database works again)"
        ),
        Event::DatabaseBack { step } => {
            tracing::info!(target: "perennial::database", step, "the database works again");
        }
        Event::LockAcquired { kind, name, fence } => tracing::debug!(
            target: "perennial::lock", kind = kind.as_str(), name = &**name, fence, "acquired"
        ),
        Event::LockContended { kind, name } => tracing::debug!(
            target: "perennial::lock", kind = kind.as_str(), name = &**name, "taken by another holder"
        ),
        Event::LockLost {
            kind,
            name,
            fence,
            reason,
        } => tracing::warn!(
            target: "perennial::lock",
            kind = kind.as_str(), name = &**name, fence, "the lease is lost: {reason}"
        ),
        Event::LockBroken { kind, name } => tracing::info!(
            target: "perennial::lock", kind = kind.as_str(), name = &**name, "broken"
        ),
        Event::IdempotentReplay { name } => tracing::debug!(
            target: "perennial::request", name = &**name, "a repeated request gets the stored response"
        ),
        Event::MemoryEvicted { key } => tracing::debug!(
            target: "perennial::memory", key = &**key, "left memory for others"
        ),
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
    let (key, layer, reason) = (&**key, &**layer, reason.as_str());
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let error = error.as_deref().unwrap_or_default();
    let (name, old) = (outcome.as_str(), "; the old version is still served");
    let old = if *serves_old { old } else { "" };
    macro_rules! line {
        ($level:ident, $($message:tt)+) => {
            tracing::$level!(
                target: "perennial::regeneration",
                key, layer, reason, outcome = name, took_ms, bytes, fence, $($message)+
            )
        };
    }
    match outcome {
        Outcome::Stored | Outcome::Unchanged => line!(debug, "regenerated"),
        Outcome::Unsaved => line!(debug, "regenerated, and served unsaved"),
        Outcome::Refused => line!(
            warn,
            "the publish was refused: another process has taken the lock over, or the page was purged"
        ),
        Outcome::LeaseLost => line!(debug, "the lease was lost, and the generator was cancelled"),
        Outcome::Unshareable if error.is_empty() => line!(debug, "the response is not stored"),
        Outcome::Unshareable => line!(
            info,
            "the response is not stored, as {error}: each request goes to the service"
        ),
        Outcome::TooLarge if *serves_old => {
            line!(warn, "the response is too large to be stored{old}");
        }
        Outcome::TooLarge => line!(
            info,
            "the response is too large to be stored: each request goes to the service"
        ),
        Outcome::Failed | Outcome::TimedOut => {
            line!(warn, error, again_in = ?cooldown, "the generator failed{old}");
        }
    }
}
