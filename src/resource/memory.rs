//! The in-process tier: what this process knows of each key, bounded in bytes.

use std::sync::Arc;
#[cfg(feature = "compression")]
use std::time::Duration;

use foldhash::quality::RandomState;
#[cfg(feature = "compression")]
use quick_cache::sync::EntryAction;
use quick_cache::{
    OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};

use crate::{
    clock::Tick,
    resource::{Invalidations, Pass, Version, invalidation::Void, version::Standing},
};

/// What a key costs beside its own bytes: its version, map entries, counters, pointers.
const OVERHEAD: usize = 256 + size_of::<Version>();

/// And the request that regenerates it.
const SEED: usize = 1280;

/// What a small entry weighs in all.
const SMALL: u64 = 2048;

pub(crate) struct Memory(Cache<String, Slot, Weight, RandomState>);

#[derive(Clone)]
struct Weight;

/// What is known of a key. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    /// There is a version.
    Version(Arc<Version>),
    /// Until then the service itself answers each request: its responses are not stored.
    Pass {
        until: Tick,
        why: Pass,
        standing: Arc<Standing>,
    },
    /// There is no version that may be served, and after a failure nobody tries before then, unless it is purged.
    Cooldown {
        until: Tick,
        standing: Arc<Standing>,
    },
}

impl Memory {
    /// `bytes` in all; an entry with a body of up to `largest` is kept if it fits in there at all.
    pub(crate) fn new(bytes: u64, largest: usize) -> Self {
        // Each shard bounds its own part: few enough of them that some of the largest fit in each.
        let shards = (bytes / (largest as u64).saturating_mul(4).max(1)).clamp(1, 64);
        let options = OptionsBuilder::new()
            .shards(1 << shards.ilog2())
            // So many keys that have gone are remembered: those that come again stay.
            .estimated_items_capacity((bytes / SMALL) as usize)
            .ghost_allocation(1.0)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are given");
        Self(Cache::with_options(
            options,
            Weight,
            RandomState::default(),
            DefaultLifecycle::default(),
        ))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Slot> {
        self.0.get(key)
    }

    /// The versions of a key and its variants, by a look at all that is there.
    pub(crate) fn versions_of(&self, key: &str) -> Vec<Arc<Version>> {
        let is_meant = |it: &str| {
            let rest = it.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        };
        let versions = self.0.iter().filter_map(|(it, slot)| match slot {
            Slot::Version(version) if is_meant(&it) => Some(version),
            _ => None,
        });
        versions.collect()
    }

    /// Returns true if the invalidation of this name means anything that is there, by a look at all of it.
    pub(crate) fn has(&self, name: &str) -> bool {
        let alone = Invalidations::new(None);
        alone.add(name, i64::MAX);
        self.0.iter().any(|(key, slot)| {
            let notes = match &slot {
                Slot::Version(version) => version.notes(),
                Slot::Pass { standing, .. } | Slot::Cooldown { standing, .. } => standing.notes(),
            };
            alone.void(&key, notes) != Void::No
        })
    }

    pub(crate) fn remove(&self, key: &str) {
        self.0.remove(key);
    }

    /// Changes a version by what may change its weight.
    #[cfg(feature = "compression")]
    pub(super) fn change(&self, key: &str, change: impl FnOnce(&Version)) {
        // With no time to wait: nothing here leaves a place to be filled later.
        let _ = self.0.entry(key, Some(Duration::ZERO), |_, slot| {
            if let Slot::Version(version) = slot {
                change(version);
            }
            EntryAction::Retain(())
        });
        // Counted, it may be more than there is room for; only this and an insertion look.
        self.0.set_capacity(self.0.capacity());
    }

    pub(crate) fn insert(&self, key: &str, slot: Slot) {
        self.0.insert(key.to_owned(), slot);
    }
}

impl Weighter<String, Slot> for Weight {
    fn weight(&self, key: &String, slot: &Slot) -> u64 {
        let content = match slot {
            Slot::Version(version) => {
                let tags = version.notes().tags.iter().map(String::len);
                let seed = version.seed().map_or(0, |_| SEED);
                let notes = tags.sum::<usize>() + key.len() + seed;
                #[cfg(feature = "compression")]
                let notes = notes + version.coded.as_ref().map_or(0, |coded| coded.weight());
                version.plain.weight() + notes
            }
            Slot::Pass { .. } | Slot::Cooldown { .. } => 0,
        };
        (OVERHEAD + key.len() + content) as u64
    }
}

#[cfg(all(test, feature = "compression"))]
mod tests {
    use http::header;

    use bytes::Bytes;
    use http::Response;

    use super::*;
    use crate::resource::Notes;

    #[test]
    fn what_a_version_is_coded_in_counts_when_it_is_made_and_when_it_goes() {
        let memory = Memory::new(1 << 20, 1 << 16);
        let mut content = Response::new(Bytes::from(vec![b'x'; 1000]));
        let html = http::HeaderValue::from_static("text/html");
        content.headers_mut().insert(header::CONTENT_TYPE, html);
        let version = Version::new("/", content.clone(), 1, Tick(0), Notes::default());
        memory.insert("/", Slot::Version(Arc::new(version)));
        let plain = memory.0.weight();
        let coded = Response::new(Bytes::from(vec![b'y'; 500]));
        memory.change("/", |version| {
            let slots = version.coded.as_ref().expect("is compressible");
            slots.put(crate::http::compression::Coding::Br, Some(coded));
        });
        assert_eq!(memory.0.weight(), plain + 500);
        let heavy = Response::new(Bytes::from(vec![b'y'; 2 << 20]));
        memory.change("/", |version| {
            let slots = version.coded.as_ref().expect("is compressible");
            slots.put(crate::http::compression::Coding::Gzip, Some(heavy));
        });
        assert!(memory.0.weight() <= 1 << 20, "it has to go");
        memory.change("/elsewhere", |_| panic!("there is none"));
        let version = Version::new("/", content, 2, Tick(0), Notes::default());
        memory.insert("/", Slot::Version(Arc::new(version)));
        assert_eq!(memory.0.weight(), plain);
        memory.remove("/");
        assert_eq!(memory.0.weight(), 0);
    }
}
