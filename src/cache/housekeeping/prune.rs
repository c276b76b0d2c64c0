//! Pruning: removes the versions, locks and invalidations that are not needed any more.
//!
//! Invariant: an invalidation stays for as long as any stored version is older than it. Otherwise a process
//! that has not read it would serve that version as valid.

use std::time::Duration;

use perennial_store::{Epoch, Error, PruneEntries, PruneInvalidations};

use super::Housekeeping;
use crate::timing::{INVALIDATION_RETENTION, LONGEST_PRUNE_INTERVAL, SHORTEST_PRUNE_INTERVAL};

/// The name of the lock under which one process prunes for the site.
const LOCK: &str = "prune";

impl Housekeeping {
    /// Removes versions whose own retention is over, locks that nobody uses, and invalidations that are older
    /// than every stored version. One process does so once an hour, or more often if the retention is shorter
    /// than that, as crawlers leave rows that stay only briefly.
    pub(super) async fn prune(&self) -> Result<(), Error> {
        let environment = &self.environment;
        let (store, retention) = (&environment.store, environment.settings.retention);
        let Some(lease) = environment.locks.take_housekeeping(LOCK).await? else {
            return Ok(());
        };
        let oldest = self.prune_entries().await?;
        tracing::debug!(target: "perennial", %oldest, "entries were pruned; invalidations up to this epoch may go");
        let mut after = None;
        loop {
            let prune = PruneInvalidations::new(oldest, INVALIDATION_RETENTION, after);
            after = store.call(prune).await?;
            if after.is_none() || environment.is_shutting_down() {
                break;
            }
        }
        environment.locks.prune(retention).await?;
        // The lock stays in cooldown until the next pruning is due.
        lease.release_after(interval(retention)).await
    }

    /// Removes the versions whose retention is over, and returns the smallest epoch of all versions that
    /// were examined. Invalidations up to that epoch may go: none of the remaining versions is older.
    async fn prune_entries(&self) -> Result<Epoch, Error> {
        let (mut oldest, mut after) = (Epoch::MAX, None);
        while let Some(pruned) = self.environment.store.call(PruneEntries { after }).await? {
            oldest = oldest.min(pruned.oldest);
            after = Some(pruned.last);
        }
        Ok(oldest)
    }
}

/// Returns the time between two prunings of a site.
pub(super) fn interval(retention: Duration) -> Duration {
    retention.clamp(SHORTEST_PRUNE_INTERVAL, LONGEST_PRUNE_INTERVAL)
}
