//! Removes what has long been unused.

use std::time::Duration;

use crate::{
    engine::{Engine, Target, invalidation},
    error::Error,
    lock::PRUNE,
};

const PRUNE_LOCK: &str = "perennial/prune";

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
        store
            .call("prune", |store| {
                store.forget_invalidated(everything, self.settings.retention)
            })
            .await?;
        self.locks.prune_entries().await?;
        self.locks.prune(self.settings.retention).await?;
        // Until then the lock is in cooldown.
        lease.release_after(self.prune_interval()).await
    }

    pub(super) fn prune_interval(&self) -> Duration {
        self.settings.retention.min(PRUNE)
    }
}
