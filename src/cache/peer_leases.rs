//! The keys that other processes regenerate, until a sync tells of the end.

use std::{collections::BTreeMap, sync::Mutex};

use perennial_store::{Awaited, locked};

use crate::{cache::entry::PeerLease, clock::Tick};

#[derive(Default)]
pub(crate) struct PeerLeases(Mutex<BTreeMap<String, PeerLease>>);

impl PeerLeases {
    pub(crate) fn insert(&self, key: &str, held: PeerLease) {
        locked(&self.0).insert(key.to_owned(), held);
    }

    pub(crate) fn contains(&self, key: &str, now: Tick) -> bool {
        locked(&self.0)
            .get(key)
            .is_some_and(|held| now < held.until)
    }

    /// Returns the keys to ask the store about, and forgets those whose leases have expired.
    pub(crate) fn awaited(&self, now: Tick) -> Vec<String> {
        let mut keys = locked(&self.0);
        keys.retain(|_, held| now < held.until);
        keys.keys().cloned().collect()
    }

    /// Takes the store's answer about the keys that [`awaited`](Self::awaited) returned at the time
    /// `asked`.
    pub(crate) fn tell(&self, awaited: &[String], cache: &[Awaited], asked: Tick) {
        let mut keys = locked(&self.0);
        for (key, page) in awaited.iter().zip(cache) {
            if let Some(held) = keys.get_mut(key) {
                held.told(*page, asked);
            }
        }
    }
}
