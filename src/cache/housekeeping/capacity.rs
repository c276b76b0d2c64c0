//! The ceiling of the stored bytes: pages go first that nobody has asked for since they became stale.

use std::sync::Mutex;

use perennial_store::{Count, Error, Evict, locked};

use crate::{cache::Cache, clock::Tick, timing::CAPACITY};

/// The lock of the process that removes cache.
const LOCK: &str = "capacity";

/// The time of this process's next check. `None`: now.
#[derive(Default)]
pub(crate) struct CapacityCheck(Mutex<Option<Tick>>);

impl CapacityCheck {
    fn is_due(&self, now: Tick) -> bool {
        let mut next = locked(&self.0);
        let is_due = next.is_none_or(|next| now >= next);
        if is_due {
            *next = Some(now + CAPACITY);
        }
        is_due
    }
}

impl Cache {
    /// Once a minute, in one process: removes pages in the [order](perennial_store::EVICTION) in which they
    /// leave a full store, as long as the stored ones have more bytes than the ceiling.
    pub(crate) async fn keep_capacity(&self) -> Result<(), Error> {
        let Some(capacity) = self.settings.store_capacity else {
            return Ok(());
        };
        if !self.capacity_check.is_due(self.now()) {
            return Ok(());
        }
        let Some(lease) = self.locks.take_housekeeping(LOCK).await? else {
            return Ok(());
        };
        let stored = self.store.call(Count {}).await?.weight();
        let mut removed = 0;
        while stored - removed > capacity && !self.is_closing() {
            let excess = stored - removed - capacity;
            match self.store.call(Evict { excess }).await? {
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
        // The lock is in cooldown until the next check.
        lease.release_after(CAPACITY).await
    }
}
