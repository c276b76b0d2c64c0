//! Pruning: removes versions, locks and invalidations that are not needed any more.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use perennial_store::{Error, PruneEntries, PruneInvalidations};

use crate::{
    page::Pages,
    timing::{BRIEF_RETENTION, INVALIDATION_MEMORY, PRUNE, PRUNE_LEAST},
};

/// The lock of the process that prunes for a site.
const PRUNE_LOCK: &str = "prune";

/// The lock of the process that prunes more often, while there are rows that stay briefly.
const BRIEF_LOCK: &str = "prune-brief";

impl Pages {
    /// Removes versions whose own retention is over, unused locks, and invalidations that are older
    /// than each version. One process does so once a day, or once in each retention if that is
    /// shorter. While there are rows that stay briefly, one process does so each hour: versions that
    /// say that there is no such page, keys beyond a layer's limit, and locks without a version.
    pub(super) async fn prune(&self) -> Result<(), Error> {
        let name = match self.has_brief_rows() {
            true => BRIEF_LOCK,
            false => PRUNE_LOCK,
        };
        let Some(lease) = self.locks.take_housekeeping(name).await? else {
            return Ok(());
        };
        let (mut oldest, mut after) = (i64::MAX, None);
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

    pub(super) fn prune_interval(&self) -> Duration {
        let usual = self.settings.retention.clamp(PRUNE_LEAST, PRUNE);
        match self.has_brief_rows() {
            true => usual.min(BRIEF_RETENTION),
            false => usual,
        }
    }

    fn has_brief_rows(&self) -> bool {
        self.now().0 < self.brief_until.load(Relaxed)
    }

    /// Prunes more often until the rows that are left now, and soon are of no use, are gone.
    pub(super) fn leaves_brief_rows(&self) {
        let until = self.now() + 3 * BRIEF_RETENTION;
        self.brief_until.store(until.0, Relaxed);
    }
}
