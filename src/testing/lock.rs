//! A lock of the store in memory.

use super::{memory::micros, rows::Id};
use crate::{
    clock::duration,
    store::{LockRow, Unused},
};

/// If an acquisition is further in the future than this, in microseconds, the clock was set back.
pub(super) const SET_BACK: i64 = 5_000_000;

pub(super) struct Lock {
    pub(super) owner: Option<String>,
    pub(super) fence: i64,
    pub(super) acquired: i64,
    pub(super) expires: i64,
    pub(super) failures: u32,
}

impl Lock {
    /// Moves a lock from before the clock was set back into the present.
    pub(super) fn redate(&mut self, now: i64) {
        if self.expires > now && self.acquired > now + SET_BACK {
            self.expires -= self.acquired - now;
            self.acquired = now;
        }
    }

    pub(super) fn row(&self, (kind, name): &Id, now: i64) -> LockRow {
        LockRow {
            kind: *kind,
            name: name.clone(),
            owner: self.owner.clone(),
            fence: self.fence,
            age: duration(now - self.acquired),
            remaining: duration(self.expires - now),
        }
    }

    /// Takes the lock from its holder.
    pub(super) fn break_up(&mut self) {
        (self.owner, self.fence, self.expires) = (None, self.fence + 1, 0);
    }

    pub(super) fn is_unused(&self, unused: &Unused, has_entry: bool, now: i64) -> bool {
        let retention = match (&self.owner, has_entry) {
            (Some(_), _) => unused.expired,
            (None, true) => unused.released,
            (None, false) => unused.alone,
        };
        self.acquired.max(self.expires) < now.saturating_sub(micros(retention))
    }
}
