//! The list of the pages of the store in memory.

use super::{
    lock::Lock,
    rows::{Rows, SET_BACK},
};
use crate::{clock::duration, name::LockKind, store::EntryRow};

impl Rows {
    pub(super) fn list(&self, from: &str, most: usize, now: i64) -> Vec<EntryRow> {
        let from = (LockKind::Page, from.to_owned());
        let pages = self.entries.range(from..).take(most);
        let pages = pages.filter(|((kind, _), _)| *kind == LockKind::Page);
        let free = Lock {
            owner: None,
            fence: 0,
            acquired: now,
            expires: now,
            failures: 0,
        };
        let rows = pages.map(|(id, page)| EntryRow {
            name: id.1.clone(),
            fence: page.fence,
            age: duration(now - page.generated),
            undated: page.generated > now + SET_BACK,
            interval: duration(page.stale_at - page.generated),
            epoch: page.epoch,
            status: page.content.status().as_u16(),
            bytes: page.content.body().len() as u64,
            metadata: page.metadata.clone(),
            history: page.history.clone(),
            lock: self.locks.get(id).unwrap_or(&free).row(id, now),
        });
        rows.collect()
    }
}
