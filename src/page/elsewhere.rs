//! The keys that other processes regenerate, until a sync tells of the end.

use std::{collections::BTreeMap, sync::Mutex};

use perennial_store::{Awaited, locked};

use crate::{clock::Tick, page::flight::HeldElsewhere};

#[derive(Default)]
pub(super) struct Elsewhere(Mutex<BTreeMap<String, HeldElsewhere>>);

impl Elsewhere {
    pub(super) fn insert(&self, key: &str, held: HeldElsewhere) {
        locked(&self.0).insert(key.to_owned(), held);
    }

    pub(super) fn contains(&self, key: &str, now: Tick) -> bool {
        locked(&self.0)
            .get(key)
            .is_some_and(|held| now < held.until)
    }

    /// Returns the keys to ask the store about, and forgets those whose leases have expired.
    pub(super) fn awaited(&self, now: Tick) -> Vec<String> {
        let mut keys = locked(&self.0);
        keys.retain(|_, held| now < held.until);
        keys.keys().cloned().collect()
    }

    /// Takes the store's answer about the keys that [`awaited`](Self::awaited) returned at the time
    /// `asked`.
    pub(super) fn tell(&self, awaited: &[String], pages: &[Awaited], asked: Tick) {
        let mut keys = locked(&self.0);
        for (key, page) in awaited.iter().zip(pages) {
            if let Some(held) = keys.get_mut(key) {
                held.told(*page, asked);
            }
        }
    }
}
