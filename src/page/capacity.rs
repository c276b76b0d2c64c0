//! The ceiling of the stored bytes: the pages that nobody has read for longest go first.

use std::{
    collections::HashSet,
    mem,
    sync::{Mutex, PoisonError, atomic::Ordering::Relaxed},
};

use perennial_store::{Count, Error, Evict, Touch, name::bounded};

use crate::{
    clock::Tick,
    page::{Answer, Pages},
    timing::{CAPACITY, READ},
};

/// The lock of the process that removes pages.
const LOCK: &str = "capacity";

/// The most keys that are kept until they are written.
const MOST: usize = 20_000;

/// The keys that this process has read.
#[derive(Default)]
pub(super) struct Reads(Mutex<State>);

#[derive(Default)]
struct State {
    keys: HashSet<Box<str>>,
    /// The time of the latest write.
    written: Option<Tick>,
    /// The time of the latest check.
    checked: Option<Tick>,
}

impl Reads {
    /// Returns the stored names of the keys to write, if a check is due.
    fn due(&self, now: Tick) -> Option<Vec<String>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .checked
            .is_some_and(|checked| now < checked + CAPACITY)
        {
            return None;
        }
        state.checked = Some(now);
        let written = *state.written.get_or_insert(now);
        if now < written + READ && state.keys.len() < MOST {
            return Some(Vec::new());
        }
        state.written = Some(now);
        let keys = mem::take(&mut state.keys).into_iter();
        Some(keys.map(|key| bounded(&key).into_owned()).collect())
    }
}

impl Pages {
    /// Notes that a visitor gets this answer.
    #[inline]
    pub(super) fn note_read(&self, key: &str, answer: &Answer, now: Tick) {
        if self.settings.store_capacity.is_some()
            && let Answer::Version(version) = answer
        {
            let period = now.0.div_euclid(READ.as_micros() as i64);
            // Once in a period for each version in memory.
            if version.page.read_in.load(Relaxed) != period {
                let mut state = self.reads.0.lock().unwrap_or_else(PoisonError::into_inner);
                if state.keys.len() < MOST {
                    state.keys.insert(key.into());
                    version.page.read_in.store(period, Relaxed);
                }
            }
        }
    }

    /// Once a minute, in one process: removes the pages that nobody has read for longest, as long as
    /// the stored ones have more bytes than the ceiling. Above four fifths of the ceiling each process
    /// first stores, once an hour, which pages it has read.
    pub(super) async fn keep_capacity(&self) -> Result<(), Error> {
        let Some(capacity) = self.settings.store_capacity else {
            return Ok(());
        };
        let Some(names) = self.reads.due(self.now()) else {
            return Ok(());
        };
        if !names.is_empty() && self.weigh().await? > capacity / 5 * 4 {
            self.store.call(Touch { names }).await?;
        }
        let Some(lease) = self.locks.take_housekeeping(LOCK).await? else {
            return Ok(());
        };
        let (before, mut weight) = (self.weigh().await?, 0);
        while before - weight > capacity && !self.is_closing() {
            let excess = before - weight - capacity;
            match self.store.call(Evict { excess }).await? {
                0 => break,
                freed => weight += freed.min(before - weight),
            }
        }
        if weight > 0 {
            tracing::info!(
                target: "perennial",
                bytes = weight,
                capacity,
                "the pages that nobody has read for longest were removed: the store was full"
            );
        }
        // The lock is in cooldown until the next check.
        lease.release_after(CAPACITY).await
    }

    async fn weigh(&self) -> Result<u64, Error> {
        let counted = self.store.call(Count {}).await?;
        Ok(counted.weight())
    }
}
