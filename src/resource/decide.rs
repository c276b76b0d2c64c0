//! What to do: functions of values, without a clock and without I/O.

use std::time::Duration;

use crate::store::LockState;
use crate::timing::RECHECK;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time() -> impl Strategy<Value = Duration> {
        // Few values, so that they often meet.
        (0_u64..40).prop_map(Duration::from_millis)
    }

    proptest! {
        /// The model: a version is fresh before its interval, then stale, and expired beyond `max_stale`.
        #[test]
        fn freshness_is_as_the_model_says(age in time(), interval in time(), max_stale in proptest::option::of(time())) {
            let (age_ms, interval_ms) = (age.as_millis(), interval.as_millis());
            let expires = max_stale.map(|limit| interval_ms + limit.as_millis());
            let model = if age_ms < interval_ms {
                Freshness::Fresh
            } else if expires.is_some_and(|expires| age_ms > expires) {
                Freshness::Expired
            } else {
                Freshness::Stale
            };
            prop_assert_eq!(freshness(age, interval, max_stale), model);
        }

        #[test]
        fn growing_older_never_makes_fresher(a in time(), b in time(), interval in time(), max_stale in proptest::option::of(time())) {
            let rank = |age| match freshness(age, interval, max_stale) {
                Freshness::Fresh => 0,
                Freshness::Stale => 1,
                Freshness::Expired => 2,
            };
            prop_assert!(rank(a.min(b)) <= rank(a.max(b)));
        }

        /// A regeneration is begun exactly when the version is not fresh and either nobody is at it or nothing may be served.
        #[test]
        fn a_visit_regenerates_what_is_not_fresh_unless_at_rest(
            age in time(), interval in time(), max_stale in proptest::option::of(time()), at_rest: bool,
        ) {
            let freshness = freshness(age, interval, max_stale);
            let regenerates = visit(freshness, || at_rest) == Visit::Refresh;
            let model = freshness == Freshness::Expired || (freshness == Freshness::Stale && !at_rest);
            prop_assert_eq!(regenerates, model);
        }

        #[test]
        fn a_turn_is_as_the_model_says(fence: i64, owned: bool, remaining in time(), servable: bool, polls: u32) {
            let lock = LockState { fence, owned, remaining };
            let turn = turn(&lock, servable, polls);
            match turn {
                Turn::Try { seen } => prop_assert!(remaining.is_zero() && seen == fence),
                // In a cooldown nobody asks again before its end; beside a holder, soon enough to find that it has died.
                Turn::Leave(time) => {
                    let limit = if owned { RECHECK } else { Duration::MAX };
                    prop_assert!(servable);
                    prop_assert_eq!(time, remaining.min(limit));
                }
                Turn::Poll(pause) => prop_assert!(!servable && owned && pause <= remaining && pause <= POLL.1),
                Turn::Cooldown(time) => prop_assert!(!servable && !owned && time == remaining),
            }
            // Nobody tries what is taken or in cooldown, and nobody leaves what is free.
            prop_assert_eq!(matches!(turn, Turn::Try { .. }), remaining.is_zero());
        }

        #[test]
        fn pauses_grow_to_a_limit(polls in 0_u32..u32::MAX) {
            prop_assert!(backoff(polls) <= backoff(polls + 1));
            prop_assert!(backoff(polls) >= POLL.0 && backoff(polls) <= POLL.1);
        }

        #[test]
        fn what_is_stored_replaces_what_is_not_younger(stored in time(), held in proptest::option::of(time())) {
            prop_assert_eq!(supersedes(stored, held), held.is_none_or(|held| stored <= held));
        }
    }

    #[test]
    fn nothing_is_ever_fresh_with_an_interval_of_zero() {
        assert_eq!(
            freshness(Duration::ZERO, Duration::ZERO, None),
            Freshness::Stale
        );
    }

    #[test]
    fn the_longest_times_do_not_overflow() {
        let max = Duration::MAX;
        assert_eq!(freshness(max, max, Some(max)), Freshness::Stale);
        assert_eq!(freshness(max, Duration::ZERO, Some(max)), Freshness::Stale);
    }
}
