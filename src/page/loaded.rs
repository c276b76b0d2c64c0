//! The pages that a new process reads in the background of its first requests, so that an outage of
//! the database soon after a restart finds them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use perennial_store::{Entry, Error, Latest, LockKind, LockName, Probe};

use crate::{
    clock::Tick,
    page::{Known, Pages, Version, meta::Description},
    policy::Refresh,
};

/// The most pages that are read.
const MOST: usize = 1000;

/// The largest body that is read.
const LARGEST: u64 = 1 << 20;

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

impl Loaded {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// Puts the version of this key, which was read after the start, into memory for its first visitor.
    pub(super) fn loaded(&self, key: &str, policy: &Refresh) -> Option<Known> {
        let (entry, asked) = self.loaded.state().entries.remove(key)?;
        let version = Version::stored(key, entry, asked, policy, None);
        let known = Known::Version(Arc::new(version));
        self.memory.insert(key, known.clone());
        Some(known)
    }

    /// Reads the pages that were generated last, once, into at most a quarter of the memory. Later
    /// calls forget them.
    pub(super) async fn load(&self) -> Result<(), Error> {
        {
            let now = self.now();
            let mut state = self.loaded.state();
            if let Some(begun) = state.begun {
                if now >= begun + STAY {
                    state.entries = HashMap::new();
                }
                return Ok(());
            }
            state.begun = Some(now);
        }
        let mut room = self.settings.memory_capacity / 4;
        for row in self.store.call(Latest { most: MOST }).await? {
            let key = Description::decode(&row.metadata).key;
            let key = key.unwrap_or(row.name);
            let weight = row.bytes + (row.metadata.len() + 2 * key.len()) as u64;
            if self.is_closing() || weight > room {
                break;
            }
            // A value may have changed its type with the program.
            let is_page = key.starts_with('/');
            if !is_page || row.bytes > LARGEST || self.memory.get(&key).is_some() {
                continue;
            }
            room -= weight;
            let name = LockName::of(LockKind::Page, &*key);
            let asked = self.now();
            let probe = self.store.call(Probe { name, known: 0 });
            if let Some(entry) = probe.await?.entry {
                let entries = &mut self.loaded.state().entries;
                entries.insert(key.into(), (entry, asked));
            }
        }
        Ok(())
    }
}
