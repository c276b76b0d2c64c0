//! Invalidations in transactions of the application's own (the outbox pattern).
//!
//! A transaction writes rows into the outbox, and every sync reads them. From then on the process honours
//! them (see `invalidation.rs`). This module numbers them, which means to give each name an epoch as any
//! other invalidation has, and to remove the row. It does so after the sync, while nobody waits: in
//! batches, of which each statement is a transaction of its own, past rows that the database refuses.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use perennial_store::{Discard, Epoch, Error, Number, Numbered, locked};

use super::commands::{UNKNOWN, wrote};
use crate::{
    cache::Cache,
    clock::Tick,
    timing::{UNNUMBERED_AGAIN, random_unit},
};

/// The number of rows that one call numbers.
const AT_ONCE: usize = 100;

/// What this process knows about the numbering of rows.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Held while rows are numbered. Syncs come once a second, and the numbering may take longer.
    numbering: tokio::sync::Mutex<()>,
    /// Rows that the database did not number, and when to try again.
    refused: Mutex<HashMap<String, Tick>>,
    /// Rows that this process has numbered and could not remove.
    left: Mutex<HashSet<String>>,
}

impl Cache {
    /// Numbers the rows that the latest sync has read, unless this process is numbering rows already.
    pub(crate) async fn number_committed(&self) -> Result<(), Error> {
        let Ok(_numbering) = self.outbox.numbering.try_lock() else {
            return Ok(());
        };
        let mut ids = self.to_number();
        // Two processes that begin at different rows rarely number the same ones.
        let first = (random_unit() * ids.len() as f64) as usize;
        let first = first.min(ids.len());
        ids.rotate_left(first);
        for ids in ids.chunks(AT_ONCE) {
            let numbered = self.number(ids).await?;
            if numbered.rows.is_empty() && numbered.failed.is_empty() {
                // Another process is numbering them.
                break;
            }
        }
        self.discard_left().await
    }

    /// Numbers the rows with these ids after their transaction, and learns of those that another
    /// process has numbered.
    pub(crate) async fn committed(self: &Arc<Self>, ids: &[String]) -> Result<(), Arc<Error>> {
        let epoch = self.number_or_learn(ids).await;
        // Where the numbering fails, the next sync of any process makes up for it.
        wrote(*epoch.as_ref().unwrap_or(&UNKNOWN));
        epoch.map(drop)
    }

    /// Returns the latest epoch of the rows; [`UNKNOWN`] if this process has not numbered all of them.
    async fn number_or_learn(self: &Arc<Self>, ids: &[String]) -> Result<Epoch, Arc<Error>> {
        let (mut rows, mut latest) = (0, Epoch::NONE);
        for ids in ids.chunks(AT_ONCE) {
            let numbered = self.number(ids).await?;
            rows += numbered.rows.len();
            let epochs = numbered.rows.iter().map(|(_, epoch)| *epoch);
            latest = epochs.max().unwrap_or_default().max(latest);
        }
        if rows == ids.len() {
            return Ok(latest);
        }
        self.caught_up().await?;
        Ok(UNKNOWN)
    }

    async fn number(&self, ids: &[String]) -> Result<Numbered, Error> {
        let numbered = self.store.call(Number::new(ids.to_vec())).await?;
        let names = numbered.rows.iter();
        let names: Vec<_> = names
            .map(|(row, epoch)| (row.name.clone(), *epoch))
            .collect();
        self.invalidations.add_all(&names);
        for (name, epoch) in &names {
            self.tell_invalidated(name, *epoch);
        }
        locked(&self.outbox.left).extend(numbered.left.iter().cloned());
        let again = self.now() + UNNUMBERED_AGAIN;
        for (row, error) in &numbered.failed {
            let is_known = locked(&self.outbox.refused)
                .insert(row.id.clone(), again)
                .is_some();
            if !is_known {
                tracing::error!(
                    id = row.id,
                    name = row.name,
                    error,
                    "a row of the outbox cannot be numbered: each process honours it from the time when it first sees it"
                );
            }
        }
        Ok(numbered)
    }

    /// Returns the ids of the rows that are to be numbered now.
    fn to_number(&self) -> Vec<String> {
        let (unnumbered, now) = (self.invalidations.unnumbered(), self.now());
        let all: HashSet<_> = unnumbered.iter().collect();
        let (mut refused, mut left) = (locked(&self.outbox.refused), locked(&self.outbox.left));
        refused.retain(|id, _| all.contains(id));
        left.retain(|id| all.contains(id));
        let is_due = |id: &String| {
            let again = refused.get(id);
            again.is_none_or(|again| now >= *again) && !left.contains(id)
        };
        unnumbered.iter().filter(|id| is_due(id)).cloned().collect()
    }

    /// Removes the rows that were numbered and could not be removed, as somebody had locked them.
    async fn discard_left(&self) -> Result<(), Error> {
        let ids: Vec<_> = locked(&self.outbox.left).iter().cloned().collect();
        for ids in ids.chunks(AT_ONCE) {
            let left = self.store.call(Discard::new(ids.to_vec())).await?;
            let mut all = locked(&self.outbox.left);
            for id in ids.iter().filter(|id| !left.contains(id)) {
                all.remove(id);
            }
        }
        Ok(())
    }
}
