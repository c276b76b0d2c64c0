//! What a process knows about the time of its lease, and what it does next. These are pure functions, with the
//! time as an argument.
//!
//! Invariant: a process counts a lease as held for no longer than the database does. Each extension counts from
//! the time before it was sent, and never from the answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::{clock::YEAR, fence::LockLoss, timing};

/// The settings of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseSettings {
    /// The length of the lease.
    pub(super) lease: Duration,
    /// The minimum time between two acquisitions, even after a release.
    pub(super) at_least: Duration,
    /// The lease is extended in the background.
    pub(super) extends: bool,
}

impl LeaseSettings {
    pub(super) const DEFAULT: Self = Self {
        lease: timing::DEFAULT_LEASE,
        at_least: Duration::ZERO,
        extends: true,
    };
}

/// A lease in this process's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    settings: LeaseSettings,
    /// The time at which the attempt was made that has taken the lock.
    since: Instant,
    /// The lease holds at least until this time. `None` means that it is lost.
    until: Option<Instant>,
}

/// The result of the latest extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extension {
    Done,
    /// Another owner has the lock.
    Refused,
    /// The database failed, or did not answer while the lease was valid.
    Failed,
}

impl Term {
    pub(super) fn new(settings: LeaseSettings, since: Instant) -> Self {
        let mut term = Self {
            settings,
            since,
            until: None,
        };
        term.until = Some(since + term.length(since));
        term
    }

    /// The length to ask for now.
    pub(super) fn length(&self, now: Instant) -> Duration {
        self.settings.lease.max(self.minimum_left(now))
    }

    /// The cooldown of a release now.
    pub(super) fn cooldown(&self, asked: Duration, now: Instant) -> Duration {
        asked.max(self.minimum_left(now))
    }

    /// Returns the remaining part of the minimum time between two acquisitions.
    fn minimum_left(&self, now: Instant) -> Duration {
        let held = now.duration_since(self.since);
        self.settings.at_least.saturating_sub(held)
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until - now)
    }

    /// Records an extension that was requested at this time. Returns `false` if the lease was lost
    /// before: a loss that the holder has seen is final.
    pub(super) fn extend(&mut self, asked: Instant) -> bool {
        let until = asked + self.length(asked);
        self.until = self.until.map(|before| before.max(until));
        self.until.is_some()
    }

    /// Records the loss of the lease. Returns true if the loss is new.
    pub(super) fn lose(&mut self) -> bool {
        self.until.take().is_some()
    }

    /// Records the loss of a lease that has ended. Returns true if the loss is new.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now) && self.lose()
    }

    /// Returns the pause before the next extension, or why the lease is lost.
    pub(super) fn next(&self, last: Extension, now: Instant) -> Result<Duration, LockLoss> {
        let third = self.settings.lease / 3;
        match last {
            Extension::Done => Ok(third),
            Extension::Refused => Err(LockLoss::TakenOver),
            // Without the pause, an immediate error would be followed by the next one.
            Extension::Failed if !self.remaining(now).is_zero() => Ok(third / 4),
            Extension::Failed => Err(LockLoss::Expired),
        }
    }
}

/// Returns true for a length from 10 ms to a year.
pub const fn is_lease(length: Duration) -> bool {
    length.as_millis() >= 10 && length.as_nanos() <= YEAR.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn settings(lease: Duration, at_least: Duration) -> LeaseSettings {
        LeaseSettings {
            lease,
            at_least,
            extends: true,
        }
    }

    #[test]
    fn lease_is_extended_at_a_third_and_after_a_failure_at_a_twelfth_of_its_length() {
        let start = Instant::now();
        let term = Term::new(settings(12 * S, S), start);
        assert_eq!(term.next(Extension::Done, start + 11 * S), Ok(4 * S));
        assert_eq!(term.next(Extension::Failed, start + 11 * S), Ok(S));
        assert!(term.next(Extension::Failed, start + 12 * S).is_err());
        assert!(term.next(Extension::Refused, start).is_err());
    }

    #[test]
    fn lease_holds_from_the_time_at_which_it_was_asked_for() {
        let start = Instant::now();
        let mut term = Term::new(settings(12 * S, Duration::ZERO), start);
        assert_eq!(term.remaining(start + 5 * S), 7 * S);
        assert!(term.extend(start + 4 * S));
        assert_eq!(term.until(), Some(start + 16 * S));
        // The answer to a later request came first.
        assert!(term.extend(start + 3 * S));
        assert_eq!(term.until(), Some(start + 16 * S));
        assert_eq!(term.remaining(start + 20 * S), Duration::ZERO);
    }

    #[test]
    fn lost_lease_stays_lost() {
        let start = Instant::now();
        let mut term = Term::new(settings(12 * S, Duration::ZERO), start);
        assert!(!term.expire(start + 11 * S));
        assert!(term.expire(start + 12 * S));
        assert!(!term.expire(start + 13 * S) && !term.lose());
        assert!(!term.extend(start + 12 * S));
        assert_eq!(
            (term.until(), term.remaining(start)),
            (None, Duration::ZERO)
        );
    }

    #[test]
    fn lock_is_held_for_its_least_time_by_a_longer_lease_and_then_by_a_cooldown() {
        let start = Instant::now();
        let term = Term::new(settings(12 * S, 60 * S), start);
        assert_eq!(term.remaining(start), 60 * S);
        assert_eq!(term.length(start + 50 * S), 12 * S);
        assert_eq!(term.cooldown(Duration::ZERO, start + 50 * S), 10 * S);
        assert_eq!(term.cooldown(20 * S, start + 50 * S), 20 * S);
        assert_eq!(
            term.cooldown(Duration::ZERO, start + 70 * S),
            Duration::ZERO
        );
    }
}
