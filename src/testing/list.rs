//! The list of the pages of the store in memory.

use std::time::Duration;

use super::{
    lock::{SET_BACK, time},
    rows::Rows,
};
use crate::{
    name::LockKind,
    store::{EntryRow, LockRow},
};

impl Rows {
    pub(super) fn list(&self, from: &str, most: usize, now: i64) -> Vec<EntryRow> {
        let from = (LockKind::Page, from.to_owned());
        let pages = self.entries.range(from..).take(most);
        let pages = pages.filter(|((kind, _), _)| *kind == LockKind::Page);
        let rows = pages.map(|(id, page)| EntryRow {
            name: id.1.clone(),
            fence: page.fence,
            age: time(now - page.generated),
            undated: page.generated > now + SET_BACK,
            status: page.content.status().as_u16(),
            bytes: page.content.body().len() as u64,
            metadata: page.metadata.clone(),
            history: page.history.clone(),
            lock: match self.locks.get(id) {
                Some(lock) => lock.row(id, now),
                None => LockRow {
                    kind: LockKind::Page,
                    name: id.1.clone(),
                    owner: None,
                    fence: 0,
                    age: Duration::ZERO,
                    remaining: Duration::ZERO,
                },
            },
        });
        rows.collect()
    }
}
