//! What to do: functions of values, without a clock and without I/O.

use std::time::Duration;

use crate::store::LockState;

/// How long a process asks nothing more about a key that another process is regenerating.
pub(crate) const RECHECK: Duration = Duration::from_secs(1);

/// The first and the longest pause between two looks of a process that waits for another's first version.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// What a version of this age is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Younger than the interval.
    Fresh,
    /// To be served while it regrows.
    Stale,
    /// Beyond `max_stale`: not to be served.
    Expired,
}

pub(crate) fn freshness(
    age: Duration,
    interval: Duration,
    max_stale: Option<Duration>,
) -> Freshness {
    if age < interval {
        return Freshness::Fresh;
    }
    match max_stale {
        Some(limit) if age - interval > limit => Freshness::Expired,
        _ => Freshness::Stale,
    }
}

/// What a request does that finds a version in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Serve it; nothing else is to be done.
    Serve,
    /// See to it that it is regenerated; meanwhile it may be served.
    Refresh,
}

/// `at_rest`: this process is regenerating the key already, or found not long ago that another one is, or that it is in
/// cooldown.
pub(crate) fn visit(freshness: Freshness, at_rest: impl FnOnce() -> bool) -> Visit {
    match freshness {
        Freshness::Fresh => Visit::Serve,
        Freshness::Stale if at_rest() => Visit::Serve,
        Freshness::Stale | Freshness::Expired => Visit::Refresh,
    }
}

/// What a regeneration does after a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Try the lease, provided that the lock's fence is still this one: whoever published in between has moved it.
    Try { seen: i64 },
    /// The old version goes on being served; ask nothing for so long.
    Leave(Duration),
    /// There is nothing to serve and another process is at it: look again after so long.
    Poll(Duration),
    /// There is nothing to serve, and after a failure nobody may try before so long.
    Cooldown(Duration),
}

/// `servable`: there is an old version. `polls`: how often this regeneration has looked before.
pub(crate) fn turn(lock: &LockState, servable: bool, polls: u32) -> Turn {
    if lock.remaining.is_zero() {
        return Turn::Try { seen: lock.fence };
    }
    match (lock.owned, servable) {
        (true, true) => Turn::Leave(lock.remaining.min(RECHECK)),
        (true, false) => Turn::Poll(backoff(polls).min(lock.remaining)),
        (false, true) => Turn::Leave(lock.remaining),
        (false, false) => Turn::Cooldown(lock.remaining),
    }
}

/// The pause before another look: doubled each time, up to a limit.
pub(crate) fn backoff(polls: u32) -> Duration {
    (POLL.0 * 2_u32.saturating_pow(polls.min(10))).min(POLL.1)
}

/// Whether what the store holds replaces what memory holds. Fences order what was published; a version that was
/// made while the database was away has none of its own and gives way to younger ones only.
pub(crate) fn supersedes(stored_age: Duration, held_age: Option<Duration>) -> bool {
    held_age.is_none_or(|held| stored_age <= held)
}
