//! What is removed from the store: rows whose time is over, and pages above the store's capacity. One
//! process of the site does so at a time, after one of its syncs, while no request waits.

mod capacity;
mod prune;

use crate::{
    cache::environment::Environment,
    clock::Tick,
    ordered::{Ordered, Place},
    timing::{CAPACITY_INTERVAL, SYNC_INTERVAL},
};

/// The housekeeping of a process. It needs the store, the locks and the settings, and nothing of the
/// memory.
pub(crate) struct Housekeeping {
    environment: Environment,
    due: Ordered<Due>,
}

/// The times of this process's next checks. Whether there is anything to do, the locks tell that all
/// processes share.
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
            // A short-lived process does not prune.
            prune: now + interval.min(60 * SYNC_INTERVAL),
        };
        Self {
            environment,
            due: Ordered::new(Place::Last, due),
        }
    }

    /// Does what is due at this time. A failure is logged by the store; another process makes up for it, or
    /// this one at a later sync.
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
