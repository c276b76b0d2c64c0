//! Invalidations in the application's own transactions (the outbox pattern).
//!
//! A transaction writes rows into the outbox, and every sync reads them. From then on the process honours them
//! (see `invalidation_list`). This module *numbers* the rows: it gives each name an epoch, like that of any
//! other invalidation, and removes the row. That happens after the sync, while nobody waits for it, and in
//! batches. Each statement is a transaction of its own, so a row that the database refuses does not hold up the
//! others.

use std::collections::{HashMap, HashSet};

use perennial_store::{Discard, Epoch, Error, Number, Numbered};
use tokio::sync::MutexGuard;

use crate::{
    cache::environment::Environment,
    clock::Tick,
    event::Event,
    ordered::{Ordered, Place},
    timing::{OUTBOX_RETRY_INTERVAL, random_unit},
};

/// The number of rows that one operation numbers.
const NUMBERING_BATCH: usize = 100;

/// The numbering of the outbox by this process.
pub(super) struct Outbox {
    environment: Environment,
    /// Held while rows are numbered. A sync that finds it held skips the numbering: syncs come once a second,
    /// and the numbering may take longer.
    numbering: tokio::sync::Mutex<()>,
    to_do_again: Ordered<ToDoAgain>,
}

#[derive(Default)]
struct ToDoAgain {
    /// Rows that the database has refused to number, each with the time of the next attempt.
    refused: HashMap<String, Tick>,
    /// Rows that this process has numbered, and could not remove because somebody had locked them.
    left: HashSet<String>,
}

impl Outbox {
    pub(super) fn new(environment: Environment) -> Self {
        Self {
            environment,
            numbering: tokio::sync::Mutex::default(),
            to_do_again: Ordered::new(Place::Last, ToDoAgain::default()),
        }
    }

    /// Numbers the rows that the latest sync has read, unless this process is numbering rows already.
    pub(super) async fn number_seen(&self) -> Result<(), Error> {
        let Ok(numbering) = self.numbering.try_lock() else {
            return Ok(());
        };
        self.number_under(numbering).await
    }

    /// Numbers the rows that the latest sync has read, after this process's other numbering.
    pub(super) async fn number_all_seen(&self) -> Result<(), Error> {
        self.number_under(self.numbering.lock().await).await
    }

    async fn number_under(&self, _numbering: MutexGuard<'_, ()>) -> Result<(), Error> {
        let mut ids = self.to_number();
        // Processes begin at random rows, so that two of them rarely number the same ones.
        let first = (random_unit() * ids.len() as f64) as usize;
        let first = first.min(ids.len());
        ids.rotate_left(first);
        for ids in ids.chunks(NUMBERING_BATCH) {
            let numbered = self.number(ids).await?;
            if numbered.rows.is_empty() && numbered.failed.is_empty() {
                // Nothing was numbered and nothing was refused, so another process is numbering these rows.
                break;
            }
        }
        self.discard_left().await
    }

    /// Numbers the rows with these ids. Returns the latest of their epochs, or `None` if another process has
    /// numbered some of them, whose epochs this one does not know.
    pub(super) async fn number_all(&self, ids: &[String]) -> Result<Option<Epoch>, Error> {
        let (mut rows, mut latest) = (0, Epoch::NONE);
        for ids in ids.chunks(NUMBERING_BATCH) {
            let numbered = self.number(ids).await?;
            rows += numbered.rows.len();
            let epochs = numbered.rows.iter().map(|(_, epoch)| *epoch);
            latest = epochs.max().unwrap_or_default().max(latest);
        }
        Ok((rows == ids.len()).then_some(latest))
    }

    async fn number(&self, ids: &[String]) -> Result<Numbered, Error> {
        let Environment {
            store,
            list,
            observer,
            ..
        } = &self.environment;
        let numbered = store.call(Number::new(ids.to_vec())).await?;
        let names = numbered.rows.iter();
        let names: Vec<_> = names
            .map(|(row, epoch)| (row.name.clone(), *epoch))
            .collect();
        list.add_all(&names);
        for (name, epoch) in names {
            let name = name.into();
            observer.emit(Event::Invalidated { name, epoch });
        }
        let again = self.environment.now() + OUTBOX_RETRY_INTERVAL;
        let mut to_do_again = self.to_do_again.lock();
        to_do_again.left.extend(numbered.left.iter().cloned());
        let mut new = Vec::new();
        for (row, error) in &numbered.failed {
            let before = to_do_again.refused.insert(row.id.clone(), again);
            if before.is_none() {
                new.push((row, error));
            }
        }
        drop(to_do_again);
        for (row, error) in new {
            tracing::error!(
                id = row.id,
                name = row.name,
                error,
                "a row of the outbox cannot be numbered: each process honours it from the time when it first sees it"
            );
        }
        Ok(numbered)
    }

    /// Returns the ids of the rows that are to be numbered now.
    fn to_number(&self) -> Vec<String> {
        let (unnumbered, now) = (self.environment.list.unnumbered(), self.environment.now());
        let all: HashSet<_> = unnumbered.iter().collect();
        let mut to_do_again = self.to_do_again.lock();
        let ToDoAgain { refused, left } = &mut *to_do_again;
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
        let ids: Vec<_> = self.to_do_again.lock().left.iter().cloned().collect();
        for ids in ids.chunks(NUMBERING_BATCH) {
            let discard = Discard::new(ids.to_vec());
            let left = self.environment.store.call(discard).await?;
            let mut to_do_again = self.to_do_again.lock();
            for id in ids.iter().filter(|id| !left.contains(id)) {
                to_do_again.left.remove(id);
            }
        }
        Ok(())
    }
}
