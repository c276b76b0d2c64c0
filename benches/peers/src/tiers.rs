//! The memory tier's library, beside the other one that would do: quick_cache and moka, each with the hasher and the
//! weights of the engine, and with its defaults apart from that. `cargo run --release -- tiers` prints a table, which
//! record 0026 has.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use foldhash::quality::RandomState;

/// The weight of a page of 1 KiB.
const WEIGHT: usize = 3 << 10;
const KEYS: usize = 100_000;
/// The share of the pages that has room, for the hit ratio.
const ROOM: usize = KEYS / 10;
const ROUNDS: usize = 9;
const GETS: usize = 500_000;

/// The bytes of the values that have not been dropped.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Page(#[expect(dead_code, reason = "takes memory, as a page does")] [u8; 1 << 10]);

impl Page {
    fn new() -> Arc<Self> {
        LIVE.fetch_add(WEIGHT, Relaxed);
        Arc::new(Self([1; 1 << 10]))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        LIVE.fetch_sub(WEIGHT, Relaxed);
    }
}

trait Tier: Send + Sync {
    const NAME: &str;

    fn new(bytes: usize) -> Self;
    fn get(&self, key: &str) -> Option<Arc<Page>>;
    fn insert(&self, key: String, page: Arc<Page>);
    /// Lets what the library does later be done now.
    fn settle(&self) {}
}

#[derive(Clone)]
struct Weight;

impl quick_cache::Weighter<String, Arc<Page>> for Weight {
    fn weight(&self, _: &String, _: &Arc<Page>) -> u64 {
        WEIGHT as u64
    }
}

struct QuickCache(quick_cache::sync::Cache<String, Arc<Page>, Weight, RandomState>);

impl Tier for QuickCache {
    const NAME: &str = "quick_cache 0.7";

    fn new(bytes: usize) -> Self {
        let options = quick_cache::OptionsBuilder::new()
            .shards(2)
            .estimated_items_capacity(bytes / 2048)
            .ghost_allocation(1.0)
            .weight_capacity(bytes as u64)
            .build()
            .expect("both capacities are given");
        Self(quick_cache::sync::Cache::with_options(
            options,
            Weight,
            RandomState::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        ))
    }

    fn get(&self, key: &str) -> Option<Arc<Page>> {
        self.0.get(key)
    }

    fn insert(&self, key: String, page: Arc<Page>) {
        self.0.insert(key, page);
    }
}

struct Moka(moka::sync::Cache<String, Arc<Page>, RandomState>);

impl Tier for Moka {
    const NAME: &str = "moka 0.12";

    fn new(bytes: usize) -> Self {
        let builder = moka::sync::Cache::builder()
            .max_capacity(bytes as u64)
            .weigher(|_: &String, _: &Arc<Page>| WEIGHT as u32);
        Self(builder.build_with_hasher(RandomState::default()))
    }

    fn get(&self, key: &str) -> Option<Arc<Page>> {
        self.0.get(key)
    }

    fn insert(&self, key: String, page: Arc<Page>) {
        self.0.insert(key, page);
    }

    fn settle(&self) {
        self.0.run_pending_tasks();
    }
}

/// Prints the table.
pub(crate) fn measure() {
    println!("| | {} | {} |", QuickCache::NAME, Moka::NAME);
    println!("|---|---|---|");
    row(
        "a lookup of one key, ns",
        one_key::<QuickCache>,
        one_key::<Moka>,
    );
    row(
        "the same by two threads at once, ns of processor time",
        two_threads::<QuickCache>,
        two_threads::<Moka>,
    );
    row(
        "any of 100,000 keys, ns",
        any_key::<QuickCache>,
        any_key::<Moka>,
    );
    row(
        "an insertion into a full tier, ns",
        insertion::<QuickCache>,
        insertion::<Moka>,
    );
    row(
        "hits of 100, Zipf's law and a scan of all keys each 500,000 lookups, room for a tenth",
        hit_ratio::<QuickCache>,
        hit_ratio::<Moka>,
    );
    row(
        "of 100 new pages in a full tier, found by the next lookup",
        |()| published::<QuickCache>(0),
        |()| published::<Moka>(0),
    );
    row(
        "the same after 1,000 lookups of other pages",
        |()| published::<QuickCache>(1000),
        |()| published::<Moka>(1000),
    );
    row(
        "most bytes alive while 200,000 pages are inserted, for 100 of the capacity",
        most_alive::<QuickCache>,
        most_alive::<Moka>,
    );
    row(
        "memory of an entry beside its value, bytes",
        overhead::<QuickCache>,
        overhead::<Moka>,
    );
}

/// Prints the medians of both sides, which take turns.
fn row(name: &str, quick: impl Fn(()) -> f64, moka: impl Fn(()) -> f64) {
    let (mut of_quick, mut of_moka) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_quick.push(quick(()));
        of_moka.push(moka(()));
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[ROUNDS / 2]
    };
    println!(
        "| {name} | {:.1} | {:.1} |",
        median(&mut of_quick),
        median(&mut of_moka)
    );
}

fn key(number: usize) -> String {
    format!("/books/{number}")
}

fn filled<T: Tier>(pages: usize, bytes: usize) -> T {
    let tier = T::new(bytes);
    for number in 0..pages {
        tier.insert(key(number), Page::new());
    }
    tier.settle();
    tier
}

fn per(count: usize, run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_nanos() as f64 / count as f64
}

fn one_key<T: Tier>((): ()) -> f64 {
    let tier: T = filled(1000, 1 << 30);
    let key = key(7);
    per(GETS, || {
        for _ in 0..GETS {
            black_box(tier.get(&key));
        }
    })
}

fn two_threads<T: Tier>((): ()) -> f64 {
    let tier: T = filled(1000, 1 << 30);
    let key = key(7);
    let times = thread::scope(|scope| {
        let run = || {
            per(GETS, || {
                for _ in 0..GETS {
                    black_box(tier.get(&key));
                }
            })
        };
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.map(|thread| thread.join().expect("ran"))
    });
    (times[0] + times[1]) / 2.0
}

/// A sequence of numbers without a pattern that a processor would learn.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A key by Zipf's law with the exponent 1, by the inverse of its continuous form.
    fn zipf(&mut self) -> usize {
        ((KEYS as f64).powf(self.unit()) as usize - 1).min(KEYS - 1)
    }
}

fn any_key<T: Tier>((): ()) -> f64 {
    let tier: T = filled(KEYS, 4 << 30);
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let mut numbers = Numbers(7);
    per(GETS, || {
        for _ in 0..GETS {
            black_box(tier.get(&keys[numbers.next() as usize % KEYS]));
        }
    })
}

fn insertion<T: Tier>((): ()) -> f64 {
    let tier: T = filled(2 * ROOM, ROOM * WEIGHT);
    let count = 100_000;
    let new: Vec<_> = (0..count)
        .map(|number| (key(KEYS + number), Page::new()))
        .collect();
    per(count, || {
        for (key, page) in new {
            tier.insert(key, page);
        }
    })
}

fn hit_ratio<T: Tier>((): ()) -> f64 {
    let tier: T = filled(ROOM, ROOM * WEIGHT);
    let (mut numbers, mut hits) = (Numbers(11), 0);
    let lookups = 1_500_000;
    let visit = |number: usize| {
        let key = key(number);
        let found = tier.get(&key).is_some();
        if !found {
            tier.insert(key, Page::new());
        }
        found
    };
    for lookup in 0..lookups {
        hits += usize::from(visit(numbers.zipf()));
        if lookup % 500_000 == 250_000 {
            for number in 0..KEYS {
                visit(number);
            }
        }
    }
    hits as f64 * 100.0 / lookups as f64
}

/// Inserts new pages into a full tier whose pages are asked for, and returns how many of 100 the next lookup finds.
fn published<T: Tier>(lookups_between: usize) -> f64 {
    let tier: T = filled(2 * ROOM, ROOM * WEIGHT);
    let mut numbers = Numbers(13);
    for _ in 0..200_000 {
        let _ = tier.get(&key(ROOM + numbers.next() as usize % ROOM));
    }
    tier.settle();
    let pages = 200;
    let found = (0..pages).filter(|number| {
        let key = key(KEYS + number);
        tier.insert(key.clone(), Page::new());
        for _ in 0..lookups_between {
            let _ = tier.get(&self::key(ROOM + numbers.next() as usize % ROOM));
        }
        tier.get(&key).is_some()
    });
    found.count() as f64 * 100.0 / pages as f64
}

fn most_alive<T: Tier>((): ()) -> f64 {
    let before = LIVE.load(Relaxed);
    let capacity = ROOM * WEIGHT;
    let tier: T = filled(0, capacity);
    let mut most = 0;
    for number in 0..200_000 {
        tier.insert(key(number), Page::new());
        most = most.max(LIVE.load(Relaxed) - before);
    }
    most as f64 * 100.0 / capacity as f64
}

fn overhead<T: Tier>((): ()) -> f64 {
    let mut tier = None;
    let allocated = allocation_counter::measure(|| tier = Some(filled::<T>(KEYS, 4 << 30)));
    drop(black_box(tier));
    // The value, the counters of its `Arc`, and the text of the key.
    let own = size_of::<Page>() + 2 * size_of::<usize>() + key(KEYS / 2).len();
    allocated.bytes_current as f64 / KEYS as f64 - own as f64
}
