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

use crate::resource::{
    Invalidations, Page, Version, View,
    state::{Content, Freshness},
};

/// What a key costs beside its own bytes: its version, map entries, counters, pointers.
const OVERHEAD: usize = 256 + size_of::<Page>() + size_of::<Version>();

/// And the request that regenerates it.
const SEED: usize = 1280;

/// What a small entry weighs in all.
const SMALL: u64 = 2048;

pub(crate) struct Memory(Cache<String, View, Weight, RandomState>);

#[derive(Clone)]
struct Weight;

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

    pub(crate) fn get(&self, key: &str) -> Option<View> {
        self.0.get(key)
    }

    /// The pages of a key and its variants, by a look at all that is there.
    pub(crate) fn pages_of(&self, key: &str) -> Vec<Arc<Page>> {
        let is_meant = |it: &str| {
            let rest = it.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        };
        let pages = self.0.iter().filter_map(|(it, view)| match view {
            View::Version(version) if is_meant(&it) => Some(Arc::clone(&version.content)),
            _ => None,
        });
        pages.collect()
    }

    /// Returns true if the invalidation of this name means anything that is there, by a look at all of it.
    pub(crate) fn has(&self, name: &str) -> bool {
        let alone = Invalidations::new(None);
        alone.add(name, i64::MAX);
        self.0.iter().any(|(key, view)| {
            let noted = match &view {
                View::Version(version) => version.content.notes(),
                View::Pass { notes, .. } | View::Cooldown { notes, .. } => notes,
            };
            alone.judge(&key, &noted.notes) != Freshness::Fresh
        })
    }

    pub(crate) fn remove(&self, key: &str) {
        self.0.remove(key);
    }

    /// Changes a page by what may change its weight.
    #[cfg(feature = "compression")]
    pub(super) fn change(&self, key: &str, change: impl FnOnce(&Page)) {
        // With no time to wait: nothing here leaves a place to be filled later.
        let _ = self.0.entry(key, Some(Duration::ZERO), |_, view| {
            if let View::Version(version) = view {
                change(&version.content);
            }
            EntryAction::Retain(())
        });
        // Counted, it may be more than there is room for; only this and an insertion look.
        self.0.set_capacity(self.0.capacity());
    }

    pub(crate) fn insert(&self, key: &str, view: View) {
        self.0.insert(key.to_owned(), view);
    }
}

impl Weighter<String, View> for Weight {
    fn weight(&self, key: &String, view: &View) -> u64 {
        let content = match view {
            View::Version(version) => {
                let page = &version.content;
                let tags = page.notes().notes.tags.iter().map(String::len);
                let seed = page.seed().map_or(0, |_| SEED);
                let notes = tags.sum::<usize>() + key.len() + seed;
                #[cfg(feature = "compression")]
                let notes = notes + page.coded.as_ref().map_or(0, |coded| coded.weight());
                page.plain.weight() + notes
            }
            View::Pass { .. } | View::Cooldown { .. } => 0,
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
    use crate::{
        clock::Tick,
        resource::{
            Notes,
            state::{Origin, Version},
        },
    };

    #[test]
    fn what_a_version_is_coded_in_counts_when_it_is_made_and_when_it_goes() {
        let memory = Memory::new(1 << 20, 1 << 16);
        let mut content = Response::new(Bytes::from(vec![b'x'; 1000]));
        let html = http::HeaderValue::from_static("text/html");
        content.headers_mut().insert(header::CONTENT_TYPE, html);
        let view = |response, fence| {
            let page = Page::new("/", response, Notes::default(), None, None);
            View::Version(Version::new(page.into(), fence, Tick(0), Origin::Stored).into())
        };
        memory.insert("/", view(content.clone(), 1));
        let plain = memory.0.weight();
        let coded = Response::new(Bytes::from(vec![b'y'; 500]));
        memory.change("/", |page| {
            let slots = page.coded.as_ref().expect("is compressible");
            slots.put(crate::http::compression::Coding::Br, Some(coded));
        });
        assert_eq!(memory.0.weight(), plain + 500);
        let heavy = Response::new(Bytes::from(vec![b'y'; 2 << 20]));
        memory.change("/", |page| {
            let slots = page.coded.as_ref().expect("is compressible");
            slots.put(crate::http::compression::Coding::Gzip, Some(heavy));
        });
        assert!(memory.0.weight() <= 1 << 20, "it has to go");
        memory.change("/elsewhere", |_| panic!("there is none"));
        memory.insert("/", view(content, 2));
        assert_eq!(memory.0.weight(), plain);
        memory.remove("/");
        assert_eq!(memory.0.weight(), 0);
    }
}
