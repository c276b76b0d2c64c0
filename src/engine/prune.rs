//! Removes what has been unused for long, and folds invalidations that have become too many.

use std::{sync::Arc, time::Duration};

use tracing::Instrument;

use crate::{
    engine::{Engine, Target},
    error::Error,
    lock::PRUNE,
};

const PRUNE_LOCK: &str = "perennial/prune";

/// The least time between two prunings, however short the retention is.
const LEAST: Duration = Duration::from_secs(10);

/// The least time for which a purge is remembered: longer than a generation that had begun before the purge.
const PURGED: Duration = Duration::from_hours(1);

const FOLD_LOCK: &str = "perennial/fold";

/// The time between two foldings, in all processes together.
const FOLD: Duration = Duration::from_secs(60);

impl Engine {
    /// Removes what has been unused for long, in one process a day.
    pub(super) async fn prune(&self) -> Result<(), Error> {
        let Some(lease) = self.locks.take(PRUNE_LOCK, "", None).await? else {
            return Ok(());
        };
        // An entry that is published behind this look was begun after the purges that are forgotten here: they are an hour old.
        let oldest = self.locks.prune_entries().await?;
        self.forget(oldest).await?;
        self.locks.prune(self.settings.retention).await?;
        // Until then the lock is in cooldown.
        lease.release_after(self.prune_interval()).await
    }

    /// Invalidates everything in place of the names that are known, which can then be forgotten: in the background, in one process.
    pub(super) fn fold(self: &Arc<Self>) {
        let engine = Arc::clone(self);
        let fold = async move {
            let Some(lease) = engine.locks.take(FOLD_LOCK, "", None).await? else {
                return Ok(());
            };
            tracing::warn!(
                "more names have been invalidated than a process keeps: everything is invalidated in their place. Use fewer \
                 tags, or prefixes, where this comes often"
            );
            engine.invalidate(Target::Prefix("")).await?;
            // Purges stay.
            engine.forget(i64::MIN).await?;
            lease.release_after(FOLD).await
        };
        // The store has logged a failure; the next question tries again.
        let fold = async { drop::<Result<(), Error>>(fold.await) };
        self.tasks.spawn(fold.in_current_span());
    }

    /// Forgets the invalidations that one of everything makes needless, and those purges that are not needed, as the entries with the
    /// smallest noted epoch have this one.
    async fn forget(&self, oldest: i64) -> Result<(), Error> {
        let (everything, purged) = (self.known.everything(), self.settings.retention.max(PURGED));
        let mut after = None;
        loop {
            let forget = self.store.call("prune", |store| {
                store.forget_invalidated(everything, purged, oldest, after)
            });
            after = forget.await?;
            if after.is_none() || self.is_closing() {
                return Ok(());
            }
        }
    }

    pub(super) fn prune_interval(&self) -> Duration {
        self.settings.retention.clamp(LEAST, PRUNE)
    }
}
