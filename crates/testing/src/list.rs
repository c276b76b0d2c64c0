//! The operations that list, count and evict pages, over the tables in memory.

use super::{
    lock::Lock,
    rows::{PageRow, Rows, STEP},
};
use perennial_store::{
    Counted, EVICTION, EntryRow, LockKind, ROW_OVERHEAD, VISITED_AGAIN, clock::duration,
    sql::dialect::SET_BACK,
};

impl Rows {
    pub(super) fn list(&self, from: &str, limit: usize, now: i64) -> Vec<EntryRow> {
        let pages = self.entries.range(from.to_owned()..).take(limit);
        pages
            .map(|(name, page)| self.row(name, page, now))
            .collect()
    }

    pub(super) fn latest(&self, limit: usize, now: i64) -> Vec<EntryRow> {
        let mut pages: Vec<_> = self.entries.iter().collect();
        pages.sort_by_key(|(_, page)| std::cmp::Reverse(page.generated));
        let pages = pages.into_iter().take(limit);
        pages
            .map(|(name, page)| self.row(name, page, now))
            .collect()
    }

    pub(super) fn count(&self, now: i64) -> Counted {
        let pages = self.entries.values();
        Counted {
            pages: self.entries.len() as u64,
            stale: pages.clone().filter(|page| page.stale_at <= now).count() as u64,
            bytes: pages.clone().map(PageRow::size).sum(),
        }
    }

    pub(super) fn evict(&mut self, excess: u64, now: i64) -> u64 {
        let in_use = |name: &str| {
            let lock = self.locks.get(&(LockKind::Page, name.to_owned()));
            lock.is_some_and(|lock| {
                lock.owner.is_some() && lock.expires > now
                    || lock.failures > 0 && lock.expires > now - VISITED_AGAIN
            })
        };
        for group in EVICTION {
            let span = now.saturating_add(group.after)..=now.saturating_add(group.until);
            let is_in_it = |page: &PageRow| {
                page.regenerated == group.regenerated
                    && span.contains(&page.stale_at)
                    && page.stale_at != *span.start()
            };
            let pages = self.entries.iter();
            let pages = pages.filter(|(name, page)| is_in_it(page) && !in_use(name));
            let mut pages: Vec<_> = pages
                .map(|(name, page)| (page.stale_at, name.clone(), page.size()))
                .collect();
            pages.sort_unstable();
            let mut freed = 0;
            for (_, name, bytes) in pages.into_iter().take(STEP) {
                if freed >= excess {
                    break;
                }
                freed += bytes + ROW_OVERHEAD;
                self.entries.remove(&name);
            }
            if freed > 0 {
                return freed;
            }
        }
        0
    }

    fn row(&self, name: &str, page: &PageRow, now: i64) -> EntryRow {
        let free = Lock {
            acquired: now,
            ..Lock::default()
        };
        EntryRow {
            name: name.to_owned(),
            fence: page.fence,
            age: duration(now - page.generated),
            age_unknown: page.generated > now + SET_BACK,
            interval: duration(page.stale_at - page.generated),
            epoch: page.epoch,
            status: page.content.status().as_u16(),
            bytes: page.size(),
            metadata: page.metadata.clone(),
            history: page.history.clone(),
            lock: {
                let id = (LockKind::Page, name.to_owned());
                self.locks.get(&id).unwrap_or(&free).row(&id, now)
            },
        }
    }
}
