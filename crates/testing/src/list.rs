//! The list of the pages of the store in memory.

use super::{
    lock::Lock,
    rows::{Page, Rows, SET_BACK},
};
use perennial_store::{Counted, EntryRow, LockKind, clock::duration};

impl Rows {
    pub(super) fn list(&self, from: &str, most: usize, now: i64) -> Vec<EntryRow> {
        let pages = self.entries.range(from.to_owned()..).take(most);
        pages
            .map(|(name, page)| self.row(name, page, now))
            .collect()
    }

    pub(super) fn latest(&self, most: usize, now: i64) -> Vec<EntryRow> {
        let mut pages: Vec<_> = self.entries.iter().collect();
        pages.sort_by_key(|(_, page)| std::cmp::Reverse(page.generated));
        let pages = pages.into_iter().take(most);
        pages
            .map(|(name, page)| self.row(name, page, now))
            .collect()
    }

    pub(super) fn count(&self, now: i64) -> Counted {
        let pages = self.entries.values();
        Counted {
            pages: self.entries.len() as u64,
            stale: pages.clone().filter(|page| page.stale_at <= now).count() as u64,
            bytes: pages.map(|page| page.content.body().len() as u64).sum(),
        }
    }

    fn row(&self, name: &str, page: &Page, now: i64) -> EntryRow {
        let free = Lock {
            owner: None,
            fence: 0,
            acquired: now,
            expires: now,
            failures: 0,
        };
        EntryRow {
            name: name.to_owned(),
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
                let id = (LockKind::Page, name.to_owned());
                self.locks.get(&id).unwrap_or(&free).row(&id, now)
            },
        }
    }
}
