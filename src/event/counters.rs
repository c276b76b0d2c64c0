//! Counters of requests and regenerations.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use super::Outcome;

/// The number of shards. Threads beyond this number share shards.
const SHARDS: usize = 32;

/// The way in which a request was served, in the terms of `Cache-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Hit,
    Stale,
    Generated,
    Collapsed,
    Bypass,
    Unavailable,
}

/// The numbers of requests to a site's layers in this process, each counted once, by the terms of
/// `Cache-Status` (RFC 9211).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requests {
    /// Requests that were answered by a fresh stored version.
    pub hit: u64,
    /// Requests that were answered by a stale stored version. Not included in `hit`.
    pub stale: u64,
    /// Requests that waited for their own regeneration.
    pub generated: u64,
    /// Requests that waited for another request's regeneration.
    pub collapsed: u64,
    /// Requests that the layer forwarded to the service without the cache, with `fwd=bypass` or
    /// `fwd=method`.
    pub bypass: u64,
    /// Requests without a version in time: 503.
    pub unavailable: u64,
}

impl Requests {
    /// Returns each number with the name of its field.
    pub fn by_result(self) -> [(&'static str, u64); 6] {
        [
            ("hit", self.hit),
            ("stale", self.stale),
            ("generated", self.generated),
            ("collapsed", self.collapsed),
            ("bypass", self.bypass),
            ("unavailable", self.unavailable),
        ]
    }
}

/// The figures of a site in this process, since the site was opened; from
/// [`Perennial::stats`](crate::Perennial::stats).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The requests to the site's layers.
    pub requests: Requests,
    /// The regenerations that are running.
    pub running: usize,
    /// The number of keys in memory.
    pub memory_entries: usize,
    /// The approximate size of the versions in memory, in bytes, with their headers and compressed
    /// forms.
    pub memory_bytes: u64,
    /// The capacity of memory, in bytes.
    pub memory_capacity: u64,
    /// The keys that had to leave memory for others.
    pub memory_evictions: u64,
    /// False while a step in the database fails: from the step's first failure until the same step
    /// succeeds again, or another one a minute or more after the last failure.
    pub database_available: bool,
    pub(crate) regenerations: [u64; Outcome::ALL.len()],
}

impl Stats {
    /// Returns the number of regenerations with this outcome.
    pub fn regenerations(&self, outcome: Outcome) -> u64 {
        self.regenerations[outcome as usize]
    }
}

/// The counters of one shard. A cache line of its own, so that no two cores write to one line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([AtomicU64; 6]);

#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: [Shard; SHARDS],
    regenerations: [AtomicU64; Outcome::ALL.len()],
    evictions: AtomicU64,
}

impl Counters {
    /// Counts a request, on the shard of this thread.
    #[inline]
    pub(crate) fn served(&self, served: Served) {
        self.requests[shard()].0[served as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn regenerated(&self, outcome: Outcome) {
        self.regenerations[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn evicted(&self) {
        self.evictions.fetch_add(1, Relaxed);
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    pub(crate) fn requests(&self) -> Requests {
        let sum = |served: Served| {
            let shards = self.requests.iter();
            shards
                .map(|shard| shard.0[served as usize].load(Relaxed))
                .sum()
        };
        Requests {
            hit: sum(Served::Hit),
            stale: sum(Served::Stale),
            generated: sum(Served::Generated),
            collapsed: sum(Served::Collapsed),
            bypass: sum(Served::Bypass),
            unavailable: sum(Served::Unavailable),
        }
    }

    pub(crate) fn regenerations(&self) -> [u64; Outcome::ALL.len()] {
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
        assert_eq!((requests.hit, requests.unavailable), (5000, 50));
        assert_eq!(
            (requests.stale, requests.generated, requests.collapsed),
            (0, 0, 0)
        );
    }

    #[test]
    fn each_outcome_has_a_counter_and_a_name_of_its_own() {
        let counters = Counters::default();
        for (number, outcome) in Outcome::ALL.into_iter().enumerate() {
            for _ in 0..=number {
                counters.regenerated(outcome);
            }
        }
        assert_eq!(counters.regenerations(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let mut names = Outcome::ALL.map(Outcome::as_str);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
