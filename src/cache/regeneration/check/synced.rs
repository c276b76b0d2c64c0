//! The knowledge of a process that a sync changes: invalidations, and the other process's lease.

use crate::cache::{
    entry::PeerLease,
    regeneration::check::{content::Marks, database::Database, process::Process, setup::NOW},
};

impl Process {
    /// Returns true if the other process holds the lease, as far as this process knows.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some_and(|held| NOW < held.until)
    }

    /// Learns by a sync whether the other process still holds the lease.
    pub(crate) fn tell(&mut self, database: &Database) {
        self.held = self.held.filter(|held| NOW < held.until);
        self.held = self.as_synced(database);
    }

    /// Returns the effect of a sync on what this process knows of the lease.
    pub(crate) fn as_synced(&self, database: &Database) -> Option<PeerLease> {
        let mut held = self.held?;
        held.on_sync(database.peer_lease_state(), NOW);
        Some(held).filter(|held| NOW < held.until)
    }

    /// Returns true if a sync tells the process something.
    pub(crate) fn is_behind(&self, database: &Database) -> bool {
        let was_synced = self.is_held() && self.as_synced(database) != self.held;
        self.known.marks != database.marks || !self.known.complete || was_synced
    }

    pub(crate) fn learn(&mut self, marks: Marks) {
        if marks.purged > self.known.marks.purged {
            self.cooling = NOW;
        }
        self.known.marks.learn(marks);
    }
}
