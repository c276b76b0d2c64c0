//! The ceiling of the stored bytes: the pages that nobody has read for longest go first.

use std::{
    collections::HashSet,
    mem,
    sync::{
        Mutex,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use perennial_store::{Count, Error, Evict, Touch, locked, name::bounded};

use crate::{
    clock::Tick,
    page::{Answer, Pages, Version},
    timing::{CAPACITY, READ},
};

/// The lock of the process that removes pages.
const LOCK: &str = "capacity";

/// The most keys that are kept until they are written.
const MOST: usize = 20_000;

/// The keys that this process has read.
#[derive(Default)]
pub(super) struct Reads {
    /// The number of the next write.
    write: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: HashSet<Box<str>>,
    /// The times of the next check and of the next write. `None`: now.
    check_at: Option<Tick>,
    write_at: Option<Tick>,
}

impl Reads {
    /// Returns two values: is a check due, and is a write due?
    fn due(&self, now: Tick) -> (bool, bool) {
        let mut state = locked(&self.state);
        let checks = state.check_at.is_none_or(|at| now >= at);
        if checks {
            state.check_at = Some(now + CAPACITY);
        }
        let writes = !state.keys.is_empty() && state.write_at.is_none_or(|at| now >= at);
        (checks, writes)
    }

    /// Returns the stored names of the keys, and begins anew.
    fn take(&self) -> Vec<String> {
        self.write.fetch_add(1, Relaxed);
        let keys = mem::take(&mut locked(&self.state).keys).into_iter();
        keys.map(|key| bounded(&key).into_owned()).collect()
    }
}

impl Pages {
    /// Notes that a visitor gets this answer.
    #[inline]
    pub(super) fn note_read(&self, key: &str, answer: &Answer) {
        // Once for each write and version in memory.
        if let Answer::Version(version) = answer
            && version.page.read_in.load(Relaxed) != self.reads.write.load(Relaxed)
        {
            self.note_first_read(key, version);
        }
    }

    #[cold]
    fn note_first_read(&self, key: &str, version: &Version) {
        let write = self.reads.write.load(Relaxed);
        if self.settings.store_capacity.is_none() {
            version.page.read_in.store(write, Relaxed);
            return;
        }
        let mut state = locked(&self.reads.state);
        if state.keys.len() < MOST {
            state.keys.insert(key.into());
            version.page.read_in.store(write, Relaxed);
        }
    }

    /// Once a minute, in one process: removes the pages that nobody has read for longest, as long
    /// as the stored ones have more bytes than the ceiling. Above four fifths of the ceiling, each
    /// process first stores which pages it has read since its last such write. Then the time
    /// between two writes is a quarter of the longest time for which a stored page has not been
    /// read, within a minute and an hour.
    pub(super) async fn keep_capacity(&self) -> Result<(), Error> {
        let Some(capacity) = self.settings.store_capacity else {
            return Ok(());
        };
        let (checks, writes) = self.reads.due(self.now());
        if !checks {
            return Ok(());
        }
        let mut stored = None;
        if writes {
            let counted = self.store.call(Count {}).await?;
            stored = Some(counted.weight());
            let full = counted.weight() > capacity / 5 * 4;
            let after = match full {
                true => (counted.unread / 4).clamp(CAPACITY, READ),
                // The store may fill soon, and to count many pages takes its time.
                false => READ.min(CAPACITY * (1 + counted.pages as u32 / 100_000)),
            };
            locked(&self.reads.state).write_at = Some(self.now() + after);
            // Those read while there was room do not count.
            let names = self.reads.take();
            if full {
                self.store.call(Touch { names, after }).await?;
            }
        }
        let Some(lease) = self.locks.take_housekeeping(LOCK).await? else {
            return Ok(());
        };
        let stored = match stored {
            Some(stored) => stored,
            None => self.store.call(Count {}).await?.weight(),
        };
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
                "the pages that nobody has read for longest were removed: the store was full"
            );
        }
        // The lock is in cooldown until the next check.
        lease.release_after(CAPACITY).await
    }
}
