//! What is removed from the store: rows that are no longer needed, and pages above the store's capacity.
//!
//! Any process may do this work, after one of its syncs and while no request waits. A lock in the database
//! makes sure that one process does it at a time. The cooldown of that lock keeps it from being done too often.

mod capacity;
mod prune;

use crate::{
    cache::environment::Environment,
    clock::Tick,
    ordered::{Ordered, Place},
    timing::{CAPACITY_INTERVAL, SYNC_INTERVAL},
};

/// The housekeeping of a process. It uses the store, the locks and the settings; it does not touch memory.
pub(crate) struct Housekeeping {
    environment: Environment,
    due: Ordered<Due>,
}

/// The times at which this process next checks whether there is something to remove. Whether there is something
/// to do is decided under the locks that all processes share.
struct Due {
    capacity: Tick,
    prune: Tick,
}

impl Housekeeping {
    pub(crate) fn new(environment: Environment) -> Self {
        let interval = prune::interval(environment.settings.retention);
        let now = environment.now();
        let due = Due {
            capacity: now,
            // The first pruning comes after a minute, or sooner if the interval is shorter. So a process that
            // lives for a moment only, such as a command, does not prune.
            prune: now + interval.min(60 * SYNC_INTERVAL),
        };
        Self {
            environment,
            due: Ordered::new(Place::Last, due),
        }
    }

    /// Does what is due at this time. A failure is logged by the store and has no other consequence: another
    /// process, or this one later, does the work.
    pub(crate) async fn run(&self, now: Tick) {
        let (checks_capacity, prunes) = {
            let mut due = self.due.lock();
            let is_due = (now >= due.capacity, now >= due.prune);
            if is_due.0 {
                due.capacity = now + CAPACITY_INTERVAL;
            }
            if is_due.1 {
                due.prune = now + prune::interval(self.environment.settings.retention) / 8;
            }
            is_due
        };
        if checks_capacity {
            let _ = self.keep_capacity().await;
        }
        if prunes {
            let _ = self.prune().await;
        }
    }
}
