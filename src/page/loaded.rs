//! The pages that a new process reads in the background of its first requests.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use perennial_store::{Entry, Error, Latest, Read, locked};

use crate::{
    clock::Tick,
    page::{Known, Pages, Version, meta::Description},
    policy::Refresh,
};

/// The most pages that are read.
const MOST: usize = 1000;

/// The most bytes of bodies that one statement reads.
const BATCH: u64 = 1 << 20;

/// The time after which the pages that no visitor has asked for are forgotten.
const STAY: Duration = Duration::from_mins(10);

/// A stored version, and the time of the question to which it was the answer.
type Answered = (Entry, Tick);

#[derive(Default)]
pub(super) struct Loaded(Mutex<State>);

#[derive(Default)]
struct State {
    /// The begin of the read.
    begun: Option<Tick>,
    entries: HashMap<Box<str>, Answered>,
}

impl Pages {
    /// Puts the version of this key, which was read after the start, into memory for its first
    /// visitor, unless memory knows the key.
    pub(super) fn take_loaded(&self, key: &str, policy: &Refresh) {
        let taken = locked(&self.loaded.0).entries.remove(key);
        let Some((entry, asked)) = taken else {
            return;
        };
        if self.memory.get(key).is_none() {
            let version = Version::stored(key, entry, asked, policy, None);
            self.memory.insert(key, Known::Version(Arc::new(version)));
        }
    }

    /// Reads the pages that were generated or read last, once, beside the memory tier: at most a
    /// quarter of its capacity. Ten minutes later, a call forgets those that no visitor has asked
    /// for.
    pub(super) async fn load(&self) -> Result<(), Error> {
        {
            let now = self.now();
            let mut state = locked(&self.loaded.0);
            if let Some(begun) = state.begun {
                if now >= begun + STAY {
                    state.entries = HashMap::new();
                }
                return Ok(());
            }
            // A sync has failed before, and so would this.
            if !self.invalidations.is_complete() {
                return Ok(());
            }
            state.begun = Some(now);
        }
        let mut room = self.settings.memory_capacity / 4;
        if room == 0 {
            return Ok(());
        }
        let (mut batch, mut size) = (Vec::new(), 0);
        for row in self.store.call(Latest { most: MOST }).await? {
            let key = Description::decode(&row.metadata).key;
            let key = key.as_deref().unwrap_or(&row.name);
            let weight = row.bytes + (row.metadata.len() + 2 * key.len()) as u64;
            if self.is_closing() || weight > room {
                break;
            }
            // A value may have changed its type with the program.
            if !key.starts_with('/') || row.bytes > BATCH || self.memory.get(key).is_some() {
                continue;
            }
            room -= weight;
            if size + row.bytes > BATCH {
                self.load_all(mem::take(&mut batch)).await?;
                size = 0;
            }
            size += row.bytes;
            batch.push(row.name);
        }
        self.load_all(batch).await
    }

    async fn load_all(&self, names: Vec<String>) -> Result<(), Error> {
        let asked = self.now();
        for (name, entry) in self.store.call(Read { names }).await? {
            let key = Description::decode(&entry.metadata).key.unwrap_or(name);
            let entries = &mut locked(&self.loaded.0).entries;
            entries.insert(key.into(), (entry, asked));
        }
        Ok(())
    }
}
