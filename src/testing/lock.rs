//! A lock of the store in memory.

use std::time::Duration;

use crate::store::LockRow;

const HOUR: i64 = 3_600_000_000;

/// What happened further in the future was before the clock was set back, in microseconds.
pub(super) const SET_BACK: i64 = 5_000_000;

pub(super) struct Lock {
    pub(super) owner: Option<String>,
    pub(super) fence: i64,
    pub(super) acquired: i64,
    pub(super) expires: i64,
}

impl Lock {
    /// Moves a lock from before the clock was set back into the present.
    pub(super) fn redate(&mut self, now: i64) {
        if self.expires > now && self.acquired > now + SET_BACK {
            self.expires -= self.acquired - now;
            self.acquired = now;
        }
    }

    pub(super) fn row(&self, name: &str, now: i64) -> LockRow {
        LockRow {
            name: name.to_owned(),
            owner: self.owner.clone(),
            fence: self.fence,
            age: time(now - self.acquired),
            remaining: time(self.expires - now),
        }
    }

    pub(super) fn is_unused(&self, name: &str, unused: i64, now: i64) -> bool {
        let keep = match (name.starts_with("idempotency/"), &self.owner) {
            (true, Some(_)) => unused.max(90 * 24 * HOUR),
            (true, None) => HOUR,
            (false, _) => unused,
        };
        self.acquired.max(self.expires) < now.saturating_sub(keep)
    }
}

pub(super) fn time(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
