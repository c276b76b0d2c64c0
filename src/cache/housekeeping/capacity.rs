//! Keeps the stored pages below the capacity of [`Builder::store_capacity`](crate::Builder::store_capacity).
//! The pages that are removed first are those that nobody has asked for since they became stale.

use perennial_store::{Count, Error, Evict};

use super::Housekeeping;
use crate::timing::CAPACITY_INTERVAL;

/// The name of the lock under which one process of the site removes pages.
const LOCK: &str = "capacity";

impl Housekeeping {
    /// Removes pages for as long as the stored ones take more bytes than the capacity, in the
    /// [order](perennial_store::EVICTION) in which they leave a full store. One process of the site does so,
    /// once a minute.
    pub(super) async fn keep_capacity(&self) -> Result<(), Error> {
        let environment = &self.environment;
        let Some(capacity) = environment.settings.store_capacity else {
            return Ok(());
        };
        let Some(lease) = environment.locks.take_housekeeping(LOCK).await? else {
            return Ok(());
        };
        let stored = environment.store.call(Count {}).await?.weight();
        let mut removed = 0;
        while stored - removed > capacity && !environment.is_shutting_down() {
            let excess = stored - removed - capacity;
            match environment.store.call(Evict { excess }).await? {
                0 => break,
                freed => removed += freed.min(stored - removed),
            }
        }
        if removed > 0 {
            tracing::info!(
                target: "perennial",
                bytes = removed,
                capacity,
                "pages were removed, as the store was full: first those that nobody has asked for since they became stale"
            );
        }
        // The lock stays in cooldown until the next check is due, so that no other process checks earlier.
        lease.release_after(CAPACITY_INTERVAL).await
    }
}
