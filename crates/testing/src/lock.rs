//! A row of the table of locks in memory.

use super::{memory::micros, rows::Id};
use perennial_store::{Fence, LockRow, Unused, clock::duration};

pub(super) struct Lock {
    pub(super) owner: Option<String>,
    pub(super) fence: Fence,
    pub(super) acquired: i64,
    pub(super) expires: i64,
    pub(super) failures: u32,
}

/// A lock that was never held.
impl Default for Lock {
    fn default() -> Self {
        Self {
            owner: None,
            fence: Fence::NONE,
            acquired: 0,
            expires: 0,
            failures: 0,
        }
    }
}

impl Lock {
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
        (self.owner, self.fence, self.expires) = (None, self.fence.next(), 0);
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
