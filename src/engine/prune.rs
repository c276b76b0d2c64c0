//! Removes what has long been unused.

use std::time::Duration;

use crate::{
    engine::{Engine, Target, invalidation},
    error::Error,
    lock::PRUNE,
};

const PRUNE_LOCK: &str = "perennial/prune";

/// The least time between two prunings, however short the retention is.
const LEAST: Duration = Duration::from_secs(10);

/// The least time for which a purge is remembered: longer than a generation that had begun before the purge.
const PURGED: Duration = Duration::from_hours(1);

impl Engine {
    /// Removes what has long been unused, in one process a day.
    pub(super) async fn prune(&self) -> Result<(), Error> {
        let Some(lease) = self.locks.take(PRUNE_LOCK, "", None).await? else {
            return Ok(());
        };
        let store = &self.store;
        if self.known.names() > invalidation::MOST {
            // Which says all that they say.
            self.invalidate(Target::Prefix("")).await?;
        }
        let everything = self.known.everything();
        // An entry that is published behind this look was begun after the purges that are forgotten here: they are an hour old.
        let oldest = self.locks.prune_entries().await?;
        let purged = self.settings.retention.max(PURGED);
        store
            .call("prune", |store| {
                store.forget_invalidated(everything, purged, oldest)
            })
            .await?;
        self.locks.prune(self.settings.retention).await?;
        // Until then the lock is in cooldown.
        lease.release_after(self.prune_interval()).await
    }

    pub(super) fn prune_interval(&self) -> Duration {
        self.settings.retention.clamp(LEAST, PRUNE)
    }
}
