//! The memory tier: the [entries](CacheEntry) of this process, within a limit in bytes.
//!
//! Invariant: no code of the application runs under the lock of a shard. Evicted keys are reported, and
//! evicted values dropped, only after that lock is free, because a subscriber of the log and the `Drop` of a
//! decoded value are the application's code, and may call the site.

#[cfg(feature = "compression")]
use std::time::Duration;

use foldhash::quality::RandomState;
#[cfg(feature = "compression")]
use quick_cache::sync::EntryAction;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter, sync::Cache};

use crate::{
    cache::{
        CacheEntry, Meta, Page, Version,
        thread_copies::{Changes, Copied},
    },
    event::Observer,
};

/// The approximate size of an entry without its text and content: the version, map entries, counters and
/// pointers.
const OVERHEAD: usize = 256 + size_of::<Page>() + size_of::<Version>();

/// The approximate weight of a small entry.
const SMALL: u64 = 2048;

pub(crate) struct Memory {
    entries: Cache<String, CacheEntry, Weight, RandomState, Evictions>,
    /// Ends the copies of threads.
    changes: Changes,
}

/// Collects what has to leave memory, to be reported afterwards.
#[derive(Clone)]
struct Evictions(Observer);

/// The entries that one call to the cache has evicted. They are dropped after the cache has released its lock.
/// The drop reports the keys, and drops the values of the application.
#[derive(Default)]
struct EvictionBatch {
    observer: Option<Observer>,
    evicted: Vec<String>,
    values: Vec<CacheEntry>,
}

impl Lifecycle<String, CacheEntry> for Evictions {
    type RequestState = EvictionBatch;

    // Unlike `on_evict`, this is not called for a key whose value is only replaced.
    fn before_evict(&self, batch: &mut EvictionBatch, key: &String, _: &mut CacheEntry) {
        batch.observer.get_or_insert_with(|| self.0.clone());
        batch.evicted.push(key.clone());
    }

    fn on_evict(&self, batch: &mut EvictionBatch, _: String, value: CacheEntry) {
        batch.values.push(value);
    }
}

impl Drop for EvictionBatch {
    fn drop(&mut self) {
        if let Some(observer) = &self.observer {
            self.evicted.iter().for_each(|key| observer.evicted(key));
        }
    }
}

#[derive(Clone)]
struct Weight;

impl Memory {
    /// Creates a memory tier of this many bytes, in which a body of up to `largest` bytes fits.
    pub(crate) fn new(bytes: u64, largest: usize, observer: Observer) -> Self {
        // Each shard bounds its own part of the capacity. There are few shards, so that a part has room for
        // some bodies of the largest size.
        let shards = (bytes / (largest as u64).saturating_mul(4).max(1)).clamp(1, 64);
        let options = OptionsBuilder::new()
            .shards(1 << shards.ilog2())
            // The cache remembers as many evicted keys as it has entries, so that a key which soon returns
            // stays for longer.
            .estimated_items_capacity((bytes / SMALL) as usize)
            .ghost_allocation(1.0)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are given");
        let (hasher, evictions) = (RandomState::default(), Evictions(observer));
        Self {
            entries: Cache::with_options(options, Weight, hasher, evictions),
            changes: Changes::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the approximate size of all entries, in bytes.
    pub(crate) fn weight(&self) -> u64 {
        self.entries.weight()
    }

    pub(crate) fn get(&self, key: &str) -> Option<CacheEntry> {
        self.entries.get(key)
    }

    /// Returns the entry of this key as [`get`](Self::get) does. If this thread has served the page often, it
    /// returns the thread's own copy. A copy does not keep decoded values: they are decoded again each time.
    #[inline]
    pub(crate) fn get_or_copy(&self, key: &str) -> Option<CacheEntry> {
        let (copied, hit_count) = self.changes.get(key);
        match copied {
            Copied::Version(version) => Some(CacheEntry::Version(version)),
            Copied::None { is_hot } => {
                let entry = self.entries.get(key)?;
                if is_hot && let CacheEntry::Version(version) = &entry {
                    self.changes.copy(key, hit_count, version);
                }
                Some(entry)
            }
        }
    }

    /// Returns the approximate size of the entry of this key, in bytes, or `None` if there is no entry.
    pub(crate) fn weight_of(&self, key: &str) -> Option<u64> {
        let entry = self.entries.peek(key)?;
        Some(Weight.weight(&key.to_owned(), &entry))
    }

    /// Returns the entries without a version. Reads all entries.
    pub(crate) fn without_version(&self) -> Vec<(String, CacheEntry)> {
        let known = self.entries.iter();
        known
            .filter(|(_, entry)| !matches!(entry, CacheEntry::Version(_)))
            .collect()
    }

    /// Returns true if the condition holds for the metadata of any entry. Reads all entries.
    pub(crate) fn any(&self, mut is_it: impl FnMut(&Meta) -> bool) -> bool {
        self.entries.iter().any(|(_, entry)| match &entry {
            CacheEntry::Version(version) => is_it(&version.page.meta),
            CacheEntry::HitForPass { meta, .. } | CacheEntry::Cooldown { meta, .. } => is_it(meta),
        })
    }

    pub(crate) fn remove(&self, key: &str) {
        self.entries.remove(key);
        self.changes.count(key);
    }

    /// Changes the page of a key in place. Its weight may change.
    #[cfg(feature = "compression")]
    pub(crate) fn change(&self, key: &str, change: impl FnOnce(&Page)) {
        // This never waits: quick_cache waits only for a placeholder, and this crate makes none.
        let _ = self.entries.entry(key, Some(Duration::ZERO), |_, entry| {
            if let CacheEntry::Version(version) = entry {
                change(&version.page);
            }
            EntryAction::Retain(())
        });
        self.changes.count(key);
        // The new weight may exceed the capacity. The cache evicts entries only when its capacity
        // is set, as here, and when an entry is inserted.
        self.entries.set_capacity(self.entries.capacity());
    }

    pub(crate) fn insert(&self, key: &str, entry: CacheEntry) {
        self.entries.insert(key.to_owned(), entry);
        self.changes.count(key);
    }
}

impl Weighter<String, CacheEntry> for Weight {
    fn weight(&self, key: &String, entry: &CacheEntry) -> u64 {
        let content = match entry {
            CacheEntry::Version(version) => {
                let (meta, body) = (&version.page.meta, &version.page.body);
                let tags = meta.stored.tags.iter().map(String::len);
                let parts = meta.stored.parts.iter().map(String::len);
                let holes = meta.stored.holes.as_ref().map_or(0, |holes| holes.weight());
                let metadata = tags.chain(parts).sum::<usize>() + key.len() + holes;
                #[cfg(feature = "compression")]
                let metadata =
                    metadata + body.codings.as_ref().map_or(0, |codings| codings.weight());
                let failure = version.failure.as_ref().map_or(0, |failure| failure.len());
                body.plain.weight() + metadata + failure
            }
            CacheEntry::Cooldown { failure, .. } => {
                failure.as_ref().map_or(0, |failure| failure.len())
            }
            CacheEntry::HitForPass { .. } => 0,
        };
        (OVERHEAD + key.len() + content) as u64
    }
}

#[cfg(all(test, feature = "compression"))]
mod tests {
    use http::header;

    use bytes::Bytes;
    use http::Response;

    use perennial_store::Fence;

    use super::*;
    use crate::{
        cache::{
            Metadata,
            content::codings::Encoded,
            entry::{Origin, Version},
        },
        clock::Tick,
    };

    #[test]
    fn codings_of_a_version_count_in_the_weight_of_memory() {
        let memory = Memory::new(1 << 20, 1 << 16, Observer::default());
        let mut content = Response::new(Bytes::from(vec![b'x'; 1000]));
        let html = http::HeaderValue::from_static("text/html");
        content.headers_mut().insert(header::CONTENT_TYPE, html);
        let entry = |response, fence| {
            let page = Page::new("/", response, Metadata::default(), None);
            CacheEntry::Version(Version::new(page.into(), fence, Tick(0), Origin::Stored).into())
        };
        memory.insert("/", entry(content.clone(), Fence(1)));
        let plain = memory.weight();
        let put = |size| {
            let coded = |size| Response::new(Bytes::from(vec![b'y'; size]));
            memory.change("/", |page| {
                let codings = page.body.codings.as_ref().expect("is compressible");
                codings.put(
                    Encoded::Whole([Some(coded(size)), Some(coded(500))].into()),
                    None,
                );
            });
        };
        put(300);
        let more = memory.weight() - plain;
        assert!(
            (800..800 + 2 * 1500).contains(&more),
            "the bodies and two maps of headers: {more}"
        );
        memory.insert("/", entry(content.clone(), Fence(2)));
        put(2 << 20);
        assert!(memory.weight() <= 1 << 20, "it has to go");
        memory.change("/elsewhere", |_| panic!("there is none"));
        memory.insert("/", entry(content, Fence(3)));
        assert_eq!(memory.weight(), plain);
        memory.remove("/");
        assert_eq!(memory.weight(), 0);
    }

    /// The weights of pages add up to the memory that the allocator has given out for them, so an operator who
    /// sets a capacity gets what was set.
    #[test]
    fn weight_of_pages_is_what_they_take_of_the_allocator() {
        const PAGES: u64 = 1000;

        for size in [1 << 10, 16 << 10, 64 << 10] {
            let memory = Memory::new(1 << 30, 1 << 20, Observer::default());
            // The tables of the cache itself depend on its capacity alone, and are allocated before the
            // measurement.
            let allocated = allocation_counter::measure(|| {
                for n in 0..PAGES {
                    let mut response = Response::new(Bytes::from(vec![b'x'; size]));
                    let headers = response.headers_mut();
                    for (name, value) in [
                        ("content-type", "text/html; charset=utf-8".to_owned()),
                        ("content-length", size.to_string()),
                        ("accept-ranges", "bytes".to_owned()),
                        ("etag", format!("\"p-{n:032x}\"")),
                    ] {
                        let value = http::HeaderValue::try_from(value).expect("a value");
                        headers.insert(name, value);
                    }
                    let key = format!("/books/{n}");
                    let page = Page::new(&key, response, Metadata::default(), None);
                    let version = Version::new(page.into(), Fence(1), Tick(0), Origin::Stored);
                    memory.insert(&key, CacheEntry::Version(version.into()));
                }
            });
            let real = u64::try_from(allocated.bytes_current).expect("grows") / PAGES;
            let counted = memory.weight() / PAGES;
            println!("a page of {size} bytes: {real} bytes of memory, {counted} counted");
            assert!(
                counted.abs_diff(real) * 10 <= real,
                "{counted} counted of {real}"
            );
            if size == 1 << 10 {
                assert!(real <= 3200, "{real}");
            }
        }
    }
}
