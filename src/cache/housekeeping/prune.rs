//! Pruning: removes versions, locks and invalidations that are not needed any more.

use std::time::Duration;

use perennial_store::{Epoch, Error, PruneEntries, PruneInvalidations};

use crate::{
    cache::Cache,
    timing::{INVALIDATION_MEMORY, PRUNE, PRUNE_LEAST},
};

/// The lock of the process that prunes for a site.
const PRUNE_LOCK: &str = "prune";

impl Cache {
    /// Removes versions whose own retention is over, unused locks, and invalidations that are older
    /// than each version. One process does so once an hour, or once in each retention if that is
    /// shorter: crawlers leave rows that stay briefly.
    pub(crate) async fn prune(&self) -> Result<(), Error> {
        let Some(lease) = self.locks.take_housekeeping(PRUNE_LOCK).await? else {
            return Ok(());
        };
        let (mut oldest, mut after) = (Epoch::MAX, None);
        while let Some(pruned) = self.store.call(PruneEntries { after }).await? {
            oldest = oldest.min(pruned.oldest);
            after = Some(pruned.last);
        }
        let mut after = None;
        loop {
            let prune = PruneInvalidations::new(oldest, INVALIDATION_MEMORY, after);
            after = self.store.call(prune).await?;
            if after.is_none() || self.is_closing() {
                break;
            }
        }
        self.locks.prune(self.settings.retention).await?;
        // The lock is in cooldown until the next pruning.
        lease.release_after(self.prune_interval()).await
    }

    pub(crate) fn prune_interval(&self) -> Duration {
        self.settings.retention.clamp(PRUNE_LEAST, PRUNE)
    }
}
