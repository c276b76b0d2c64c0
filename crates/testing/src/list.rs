//! The list of the pages of the store in memory.

use super::{
    lock::Lock,
    rows::{Rows, SET_BACK},
};
use perennial_store::{EntryRow, LockKind, clock::duration};

impl Rows {
    pub(super) fn list(&self, from: &str, most: usize, now: i64) -> Vec<EntryRow> {
        let pages = self.entries.range(from.to_owned()..).take(most);
        let free = Lock {
            owner: None,
            fence: 0,
            acquired: now,
            expires: now,
            failures: 0,
        };
        let rows = pages.map(|(name, page)| EntryRow {
            name: name.clone(),
            fence: page.fence,
            age: duration(now - page.generated),
            undated: page.generated > now + SET_BACK,
            interval: duration(page.stale_at - page.generated),
            epoch: page.epoch,
            status: page.content.status().as_u16(),
            bytes: page.content.body().len() as u64,
            metadata: page.metadata.clone(),
            history: page.history.clone(),
            lock: {
                let id = (LockKind::Page, name.clone());
                self.locks.get(&id).unwrap_or(&free).row(&id, now)
            },
        });
        rows.collect()
    }
}
