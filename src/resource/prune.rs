//! Pruning: removes versions and locks that have been unused for long, and folds a long
//! invalidation list.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tracing::Instrument;

use crate::{
    error::Error,
    lock::Locks,
    resource::{Pages, Target},
    store::{PruneEntries, PruneInvalidations},
    timing::{BRIEF_RETENTION, FOLD, PRUNE, PRUNE_LEAST, PURGE_MEMORY},
};

/// The lock of the process that prunes for a site.
const PRUNE_LOCK: &str = "prune";

/// The lock of the process that prunes more often, while keys are stored briefly.
const BRIEF_LOCK: &str = "prune-brief";

const FOLD_LOCK: &str = "fold";

/// Removes entries whose own retention is over, and locks that have had no holder for the time
/// `retention`. Does nothing while another run holds the housekeeping lock `name`, or if a run has
/// completed within `pause`. `forget` is called with the smallest epoch of all entries.
async fn prune(
    locks: &Locks,
    name: &str,
    retention: Duration,
    pause: Duration,
    forget: impl AsyncFnOnce(i64) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(lease) = locks.take_housekeeping(name).await? else {
        return Ok(());
    };
    // The forgotten purges are at least an hour old. The generator of a version that is published
    // after this scan began later than they did, so the version does not need them.
    let oldest = prune_entries(locks).await?;
    forget(oldest).await?;
    locks.prune(retention).await?;
    // The lock is in cooldown until the next pruning.
    lease.release_after(pause).await
}

/// Removes the entries whose retention is over. Returns the smallest epoch in the metadata of any
/// entry.
async fn prune_entries(locks: &Locks) -> Result<i64, Error> {
    let (mut oldest, mut after) = (i64::MAX, None);
    while let Some(pruned) = locks.store().call(PruneEntries { after }).await? {
        oldest = oldest.min(pruned.oldest);
        after = Some(pruned.last);
    }
    Ok(oldest)
}

impl Pages {
    /// Removes unused versions and locks: in one process a day, or once in each retention if that
    /// is shorter; in an hour in which this process has stored keys briefly, once more.
    pub(super) async fn prune(&self) -> Result<(), Error> {
        let (retention, pause) = (self.settings.retention, self.prune_interval());
        let name = match self.has_stored_briefly() {
            true => BRIEF_LOCK,
            false => PRUNE_LOCK,
        };
        let forget = async |oldest| self.forget(oldest).await;
        prune(&self.locks, name, retention, pause, forget).await
    }

    /// Folds the invalidation list: one invalidation of everything replaces the invalidated keys,
    /// prefixes and tags. Purges and revisions stay. Runs in the background, in one process.
    pub(super) fn fold(self: &Arc<Self>) {
        let pages = Arc::clone(self);
        let fold = async move {
            let Some(lease) = pages.locks.take_housekeeping(FOLD_LOCK).await? else {
                return Ok(());
            };
            tracing::warn!(
                "more names have been invalidated than a process stores: everything is \
                 invalidated in their place. If this happens often, use fewer tags, or prefixes"
            );
            pages.invalidate(Target::Prefix("")).await?;
            // Purges stay.
            pages.forget(i64::MIN).await?;
            lease.release_after(FOLD).await
        };
        // The store has logged a failure; the next sync tries again.
        let fold = async { drop::<Result<(), Error>>(fold.await) };
        self.locks.tasks().spawn(fold.in_current_span());
    }

    /// Forgets the invalidations that an invalidation of everything replaces, and the purges that
    /// are older than `oldest`, the smallest epoch of any entry.
    async fn forget(&self, oldest: i64) -> Result<(), Error> {
        let (everything, purged) = (
            self.invalidations.everything(),
            self.settings.retention.max(PURGE_MEMORY),
        );
        let mut after = None;
        loop {
            let forget = self
                .store
                .call(PruneInvalidations::new(everything, purged, oldest, after));
            after = forget.await?;
            if after.is_none() || self.is_closing() {
                return Ok(());
            }
        }
    }

    pub(super) fn prune_interval(&self) -> Duration {
        let usual = self.settings.retention.clamp(PRUNE_LEAST, PRUNE);
        match self.has_stored_briefly() {
            true => usual.min(BRIEF_RETENTION),
            false => usual,
        }
    }

    fn has_stored_briefly(&self) -> bool {
        self.now().0 < self.brief_until.load(Relaxed)
    }

    /// Prunes more often until the rows that are stored briefly now are gone.
    pub(super) fn stores_briefly(&self) {
        let until = self.now() + 3 * BRIEF_RETENTION;
        self.brief_until.store(until.0, Relaxed);
    }
}
