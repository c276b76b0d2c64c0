//! Each thread's own copies of the hottest pages.
//!
//! A hit on a page that all threads serve writes to memory that they share: the lock of the memory tier's
//! shard, and the reference counts of the version, of its headers and of its body. On several cores, these
//! cache lines move from core to core with each hit, which costs more than everything else that a hit does. So
//! a page that one thread has served often is copied as a whole, and the thread then writes only to its own
//! memory. Record 0025 has the figures.
//!
//! Invariant: a copy is used only while nothing in its [group](Changes) of keys has changed in the memory tier
//! since before the copy was made. So a copy is never older than what the tier returns.

use std::{
    cell::RefCell,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use foldhash::fast::FixedState;

use crate::cache::Version;

/// The number of groups of keys. A change of a key ends the copies of its group.
const GROUPS: usize = 64;

/// The number of pages of which a thread keeps copies. Pages whose hashes meet in one slot drive each other out.
const SLOTS: usize = 16;

/// The number of hits of a thread after which it copies a page: fewer cost less than the copy.
const COPIED_AFTER: u32 = 64;

/// After this many hits on a copy, one of them asks the memory tier. Otherwise the tier would evict the hottest
/// pages as unused.
const ASKED_EACH: u32 = 256;

/// The number of changes in each group of keys of a memory tier.
pub(super) struct Changes {
    /// Tells this memory tier from others of the process.
    tier: u64,
    groups: Box<[Group; GROUPS]>,
}

/// The number of changes of a group of keys. Each group has a cache line of its own: every hit reads it, and
/// only changes write it.
#[derive(Default)]
#[repr(align(128))]
struct Group(AtomicU64);

/// What a thread knows about the page that has this slot.
struct Slot {
    tier: u64,
    hash: u64,
    /// The consecutive hits of this thread on the page.
    hits: u32,
    copy: Option<Copy>,
}

struct Copy {
    key: Box<str>,
    /// The number of changes before the copy was made.
    changes: u64,
    version: Arc<Version>,
}

thread_local! {
    static SLOTS_OF_THREAD: RefCell<[Slot; SLOTS]> = const { RefCell::new([const { Slot::EMPTY }; SLOTS]) };
}

impl Slot {
    const EMPTY: Self = Self {
        tier: 0,
        hash: 0,
        hits: 0,
        copy: None,
    };
}

/// The answer of a thread about a page.
pub(super) enum Copied {
    Version(Arc<Version>),
    /// The thread has no copy. If the tier has a version and `is_hot` is true, [`Changes::copy`] makes a copy of
    /// it.
    None {
        is_hot: bool,
    },
}

/// The hash and the number of changes under which a hit was counted. If the thread makes a copy afterwards, it
/// needs them.
#[derive(Clone, Copy)]
pub(super) struct HitCount {
    hash: u64,
    changes: u64,
}

impl Changes {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            tier: NEXT.fetch_add(1, Relaxed),
            groups: Box::new(std::array::from_fn(|_| Group::default())),
        }
    }

    /// Ends all copies of the key. To be called after the change, and before its caller goes on.
    pub(super) fn count(&self, key: &str) {
        self.group(hash(key)).fetch_add(1, Release);
    }

    fn group(&self, hash: u64) -> &AtomicU64 {
        &self.groups[(hash >> 32) as usize % GROUPS].0
    }

    /// Returns this thread's copy of the page, and counts the hit.
    #[inline]
    pub(super) fn get(&self, key: &str) -> (Copied, HitCount) {
        let hash = hash(key);
        // The counter is read before the memory tier is asked. If the entry changes after that, the copy that
        // is made of the tier's answer is no longer used.
        let changes = self.group(hash).load(Acquire);
        let hit_count = HitCount { hash, changes };
        let none = Copied::None { is_hot: false };
        // The thread is ending if its slots are gone.
        let found = SLOTS_OF_THREAD.try_with(|slots| {
            let mut slots = slots.borrow_mut();
            let slot = &mut slots[hash as usize % SLOTS];
            if slot.hash != hash || slot.tier != self.tier {
                let copy = slot.copy.take();
                *slot = Slot {
                    tier: self.tier,
                    hash,
                    hits: 1,
                    copy: None,
                };
                return (none, copy);
            }
            slot.hits = slot.hits.wrapping_add(1);
            match &slot.copy {
                Some(copy) if copy.changes == changes && *copy.key == *key => {
                    if slot.hits.is_multiple_of(ASKED_EACH) {
                        return (Copied::None { is_hot: false }, None);
                    }
                    (Copied::Version(Arc::clone(&copy.version)), None)
                }
                Some(_) => {
                    slot.hits = 1;
                    (none, slot.copy.take())
                }
                None => {
                    let is_hot = slot.hits >= COPIED_AFTER;
                    (Copied::None { is_hot }, None)
                }
            }
        });
        match found {
            Ok((copied, ended)) => {
                drop(ended);
                (copied, hit_count)
            }
            Err(_) => (Copied::None { is_hot: false }, hit_count),
        }
    }

    /// Keeps a copy of the version for this thread, if it is small enough to be copied.
    #[cold]
    pub(super) fn copy(&self, key: &str, hit_count: HitCount, version: &Version) {
        let copy = version.copied().map(|version| Copy {
            key: key.into(),
            changes: hit_count.changes,
            version: Arc::new(version),
        });
        let ended = SLOTS_OF_THREAD.try_with(|slots| {
            let slot = &mut slots.borrow_mut()[hit_count.hash as usize % SLOTS];
            slot.hits = 0;
            std::mem::replace(&mut slot.copy, copy)
        });
        drop(ended);
    }
}

/// Returns the hash of a key, which determines the key's group. All threads use the same hash.
fn hash(key: &str) -> u64 {
    FixedState::default().hash_one(key)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
        thread,
    };

    use bytes::Bytes;
    use http::Response;
    use perennial_store::Fence;

    use crate::{
        cache::{
            CacheEntry, Metadata, Page,
            entry::{Origin, Version},
            memory::Memory,
        },
        clock::Tick,
        event::Observer,
    };

    fn memory() -> Memory {
        Memory::new(64 << 20, 1 << 20, Observer::default())
    }

    fn insert(memory: &Memory, key: &str, fence: i64, size: usize) {
        let response = Response::new(Bytes::from(vec![b'x'; size]));
        let page = Page::new(key, response, Metadata::default(), None);
        let version = Version::new(page.into(), Fence(fence), Tick(0), Origin::Stored);
        memory.insert(key, CacheEntry::Version(version.into()));
    }

    /// Returns the fence of what a hit gets, and whether that is the tier's own version.
    fn hit(memory: &Memory, key: &str) -> Option<(i64, bool)> {
        let CacheEntry::Version(version) = memory.get_or_copy(key)? else {
            panic!("a version was inserted");
        };
        let shared = memory.get(key);
        let is_shared = matches!(&shared, Some(CacheEntry::Version(it)) if std::sync::Arc::ptr_eq(it, &version));
        Some((version.fence.0, is_shared))
    }

    #[test]
    fn page_that_a_thread_serves_often_is_its_own_until_the_page_changes() {
        let memory = memory();
        for fence in 1..4 {
            insert(&memory, "/hot", fence, 1000);
            let hits: Vec<_> = (0..200).filter_map(|_| hit(&memory, "/hot")).collect();
            assert!(hits.iter().all(|(of, _)| *of == fence), "{hits:?}");
            let own = hits.iter().filter(|(_, is_shared)| !is_shared).count();
            assert!((100..200).contains(&own), "{own} of 200 hits got a copy");
        }
        memory.remove("/hot");
        assert_eq!(hit(&memory, "/hot"), None);
        // Too large to be copied.
        insert(&memory, "/large", 1, 100 << 10);
        for _ in 0..200 {
            assert_eq!(hit(&memory, "/large"), Some((1, true)));
        }
    }

    #[test]
    fn pages_of_two_sites_and_of_one_place_are_not_mixed_up() {
        let (one, other) = (memory(), memory());
        for n in 0..50 {
            insert(&one, &format!("/{n}"), n, 10);
            insert(&other, &format!("/{n}"), -n, 10);
        }
        for _ in 0..200 {
            for n in 0..50 {
                let key = format!("/{n}");
                let fences = [&one, &other].map(|memory| hit(memory, &key).map(|it| it.0));
                assert_eq!(fences, [Some(n), Some(-n)]);
            }
        }
    }

    /// Every hit that begins after an insertion has returned gets the inserted version, in each thread.
    #[test]
    fn no_thread_gets_a_version_from_before_a_change_that_has_returned() {
        let (memory, inserted, is_over) = (memory(), AtomicI64::new(0), AtomicBool::new(false));
        insert(&memory, "/", 0, 10);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(SeqCst) {
                        let at_least = inserted.load(SeqCst);
                        let (fence, _) = hit(&memory, "/").expect("is there");
                        assert!(fence >= at_least, "{fence} came after {at_least}");
                    }
                });
            }
            for fence in 1..2000 {
                insert(&memory, "/", fence, 10);
                inserted.store(fence, SeqCst);
                if fence % 10 == 0 {
                    thread::sleep(std::time::Duration::from_micros(200));
                }
            }
            is_over.store(true, SeqCst);
        });
    }
}
