//! The counters behind [`Stats`]. Every hit increments one of them, so the counters are sharded: threads do not
//! write to the same cache line.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use serde::{Deserialize, Deserializer};

use super::{Bypass, Outcome, Served};

/// The number of shards. Threads beyond this number share shards.
const SHARDS: usize = 32;

const SERVED: usize = Served::COUNT;
const OUTCOMES: usize = Outcome::COUNT;

/// The figures of a site in this process; from [`Perennial::stats`](crate::Perennial::stats).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Stats {
    #[serde(serialize_with = "by_served", deserialize_with = "read_by_served")]
    pub(crate) requests: [u64; SERVED],
    #[serde(serialize_with = "by_outcome", deserialize_with = "read_by_outcome")]
    pub(crate) regenerations: [u64; OUTCOMES],
    /// The regenerations that are running.
    pub running: usize,
    /// The number of keys in memory.
    pub memory_entries: usize,
    /// The approximate size of the versions in memory, in bytes.
    pub memory_bytes: u64,
    /// The capacity of memory, in bytes.
    pub memory_capacity: u64,
    /// The [capacity](crate::Builder::store_capacity) of the store, in bytes.
    pub store_capacity: Option<u64>,
    /// How many keys had to leave memory to make room for others.
    pub memory_evictions: u64,
    /// How many pages were found [changed although nobody had invalidated
    /// them](crate::event::Event::MissedInvalidation).
    pub missed_invalidations: u64,
    /// Whether the database answers. The value becomes false at the first failure of a call. It becomes true
    /// again when a call of the same kind succeeds, or when any call succeeds more than a minute after the last
    /// failure.
    pub database_available: bool,
}

impl Stats {
    /// Returns the number of requests to the site's layers that were answered in this way.
    pub fn requests(&self, served: Served) -> u64 {
        self.requests[slot(served)]
    }

    /// Returns the number of requests that the service itself answered, for any reason.
    pub fn bypassed(&self) -> u64 {
        Bypass::all()
            .map(|why| self.requests(Served::Bypass(why)))
            .sum()
    }

    /// Returns the number of regenerations that have ended.
    pub fn ended(&self) -> u64 {
        let began = Outcome::all().filter(|outcome| outcome.has_begun());
        began.map(|outcome| self.regenerations(outcome)).sum()
    }

    /// Returns the number of regenerations with this outcome.
    pub fn regenerations(&self, outcome: Outcome) -> u64 {
        self.regenerations[position(Outcome::all(), &outcome)]
    }
}

/// Returns the index of the counter; for hits, without a search.
#[inline]
fn slot(served: Served) -> usize {
    match served {
        Served::Hit => 0,
        Served::Stale => 1,
        served => position(Served::all(), &served),
    }
}

fn position<T: PartialEq>(mut all: impl Iterator<Item = T>, value: &T) -> usize {
    // Each value is one of all values.
    all.position(|it| it == *value).unwrap_or(0)
}

fn by_served<S: serde::Serializer>(counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Served::all().zip(counts))
}

fn by_outcome<S: serde::Serializer>(counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Outcome::all().zip(counts))
}

fn read_by_served<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u64; SERVED], D::Error> {
    let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let mut requests = [0; SERVED];
    for (count, served) in requests.iter_mut().zip(Served::all()) {
        *count = counts.get(&served.to_string()).copied().unwrap_or(0);
    }
    Ok(requests)
}

fn read_by_outcome<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<[u64; OUTCOMES], D::Error> {
    let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let mut regenerations = [0; OUTCOMES];
    for (count, outcome) in regenerations.iter_mut().zip(Outcome::all()) {
        *count = counts.get(&outcome.to_string()).copied().unwrap_or(0);
    }
    Ok(regenerations)
}

/// The counters of one shard. Shards share no cache line, so that up to `SHARDS` threads do not
/// write to one line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([AtomicU64; SERVED]);

#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: [Shard; SHARDS],
    regenerations: [AtomicU64; OUTCOMES],
    evictions: AtomicU64,
    missed_invalidations: AtomicU64,
}

impl Counters {
    /// Counts a request, on the shard of this thread.
    #[inline]
    pub(crate) fn served(&self, served: Served) {
        self.requests[shard()].0[slot(served)].fetch_add(1, Relaxed);
    }

    pub(super) fn regenerated(&self, outcome: Outcome) {
        self.regenerations[position(Outcome::all(), &outcome)].fetch_add(1, Relaxed);
    }

    pub(super) fn missed_invalidation(&self) {
        self.missed_invalidations.fetch_add(1, Relaxed);
    }

    pub(crate) fn missed_invalidations(&self) -> u64 {
        self.missed_invalidations.load(Relaxed)
    }

    pub(super) fn evicted(&self) {
        self.evictions.fetch_add(1, Relaxed);
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    pub(crate) fn requests(&self) -> [u64; SERVED] {
        std::array::from_fn(|slot| {
            let shards = self.requests.iter();
            shards.map(|shard| shard.0[slot].load(Relaxed)).sum()
        })
    }

    pub(crate) fn regenerations(&self) -> [u64; OUTCOMES] {
        self.regenerations
            .each_ref()
            .map(|counter| counter.load(Relaxed))
    }
}

/// Returns the shard of this thread.
#[inline]
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // The thread is ending if its cell is gone.
    SHARD
        .try_with(|own| {
            if own.get() == usize::MAX {
                own.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
            }
            own.get()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn requests_of_all_threads_are_counted_once() {
        let counters = Arc::new(Counters::default());
        let threads: Vec<_> = (0..50)
            .map(|_| {
                let counters = Arc::clone(&counters);
                thread::spawn(move || {
                    for _ in 0..100 {
                        counters.served(Served::Hit);
                    }
                    counters.served(Served::Unavailable);
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("counts");
        }
        let requests = counters.requests();
        let [hits, unavailable] = [Served::Hit, Served::Unavailable].map(slot);
        assert_eq!((requests[hits], requests[unavailable]), (5000, 50));
        assert_eq!(requests.iter().sum::<u64>(), 5050);
    }

    #[test]
    fn each_word_has_a_counter_of_its_own() {
        let slots: Vec<_> = Served::all().map(slot).collect();
        assert_eq!(slots, (0..SERVED).collect::<Vec<_>>());
        let counters = Counters::default();
        for (number, outcome) in (0..).zip(Outcome::all()) {
            for _ in 0..number {
                counters.regenerated(outcome);
            }
        }
        let expected: [u64; OUTCOMES] = std::array::from_fn(|number| number as u64);
        assert_eq!(counters.regenerations(), expected);
    }
}
