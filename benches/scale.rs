//! What a site of many processes asks of its database: the real engine, a store in memory that counts, and time that passes as fast as
//! there is nothing to do.
//!
//! `cargo bench --bench scale` prints the table of `docs/scale.md`, the largest row after some minutes.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use perennial::{
    Perennial, Refresh,
    store::{Edition, Entry, LeaseRow, LockRow, LockState, Probe, Pruned, Store, StoreFuture},
};
use tokio::{task::JoinSet, time::Instant};

/// A site, and how it is asked.
#[derive(Clone, Copy)]
struct Case {
    processes: usize,
    keys: usize,
    interval: u64,
    /// How long a generator takes, in seconds.
    generator: u64,
    /// Requests a second to each process.
    requests: usize,
}

const fn case(
    processes: usize,
    keys: usize,
    interval: u64,
    generator: u64,
    requests: usize,
) -> Case {
    Case {
        processes,
        keys,
        interval,
        generator,
        requests,
    }
}

const CASES: [Case; 9] = [
    case(1, 100, 60, 1, 100),
    case(10, 100, 60, 1, 100),
    case(10, 100, 60, 1, 1000),
    case(10, 100, 60, 8, 1000),
    case(100, 100, 60, 1, 100),
    case(100, 100, 60, 1, 1000),
    case(100, 100, 600, 1, 100),
    case(100, 1000, 600, 1, 1000),
    case(1000, 10_000, 600, 1, 20),
];

/// So often a second a process gets requests.
const STEPS: u32 = 20;
const STEP: Duration = Duration::from_millis(1000 / STEPS as u64);

/// What a statement takes.
const ROUND_TRIP: Duration = Duration::from_millis(1);

fn main() {
    println!(
        "| processes | keys | interval | generator | requests a second | reads a second | of the model | writes a second | of the model | refused tries a second | requests a statement |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let all = std::env::args().any(|argument| argument == "--bench");
    let runs = if all { CASES.len() } else { 1 };
    for case in &CASES[..runs] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        runtime.expect("a runtime").block_on(run(*case));
    }
}

async fn run(case: Case) {
    let store = Arc::new(Counting::new());
    let policy = Refresh::every(Duration::from_secs(case.interval)).in_background();
    let mut random = Random(7);
    // As they have become over time: some older, some newer.
    for key in 0..case.keys {
        store.fill(
            &name(key),
            Duration::from_micros(random.below(case.interval * 1_000_000)),
        );
    }
    let sites: Vec<Perennial> = (0..case.processes)
        .map(|_| {
            let store = Box::new(Shared(Arc::clone(&store)));
            Perennial::builder()
                .memory(1 << 30)
                .regenerations(usize::MAX)
                .with_store(store)
                .expect("opens")
        })
        .collect();
    // One interval, in which each process comes to know what there is; and one that counts.
    for counts in [false, true] {
        store.take();
        let mut processes = JoinSet::new();
        for (number, site) in sites.iter().cloned().enumerate() {
            let mut random = Random(random.below(u64::MAX));
            processes.spawn(async move {
                // They don't keep step.
                let offset = STEP * number as u32 / case.processes as u32;
                let start = Instant::now() + offset;
                for step in 0..case.interval as u32 * STEPS {
                    tokio::time::sleep_until(start + STEP * step).await;
                    for _ in 0..case.requests / STEPS as usize {
                        let key = name(random.below(case.keys as u64) as usize);
                        let content = site.content(&key, &policy, || generate(case.generator));
                        content.await.expect("is there");
                    }
                }
            });
        }
        processes.join_all().await;
        if counts {
            row(case, store.take());
        }
    }
}

async fn generate(time: u64) -> Result<Bytes, Infallible> {
    tokio::time::sleep(Duration::from_secs(time)).await;
    Ok(Bytes::from_static(b"content"))
}

fn row(case: Case, [reads, writes, refused]: [u64; 3]) {
    let Case {
        processes,
        keys,
        interval,
        generator,
        requests: rate,
    } = case;
    let requests = (processes * rate) as u64 * interval;
    let second = |count: u64| count as f64 / interval as f64;
    // How often a process that is asked for a key looks for a newer version: in each second in which another one makes it, and when that
    // has been made; it can't be more often than it is asked.
    let asked = rate as f64 * (interval + generator) as f64 / keys as f64;
    let looks = (1.0 + generator as f64).min(asked);
    // A version is as old as it is since it was made.
    let regenerations = keys as f64 / (interval + generator) as f64;
    let reads_modelled = regenerations * (processes - 1) as f64 * looks + processes as f64;
    // A lease is extended at a third of its 15 s.
    let writes_modelled = (3 + generator / 5) as f64 * regenerations;
    println!(
        "| {processes} | {keys} | {interval} s | {generator} s | {:.0} | {:.1} | {:.0} % of {reads_modelled:.1} | {:.1} | {:.0} % of {writes_modelled:.1} | {:.1} | {:.0} |",
        second(requests),
        second(reads),
        100.0 * second(reads) / reads_modelled,
        second(writes),
        100.0 * second(writes) / writes_modelled,
        second(refused),
        requests as f64 / (reads + writes + refused) as f64,
    );
}

fn name(key: usize) -> String {
    format!("part/{key}")
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) % limit
    }
}

/// An answer, after a while.
fn answer<'a, T: Send + 'a>(answer: T) -> StoreFuture<'a, T> {
    Box::pin(async move {
        tokio::time::sleep(ROUND_TRIP).await;
        Ok(answer)
    })
}

/// What a database does for one site, in memory, by virtual time.
struct Counting {
    start: Instant,
    locks: Mutex<HashMap<String, LockRowAt>>,
    entries: Mutex<HashMap<String, EntryAt>>,
    reads: AtomicU64,
    writes: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct LockRowAt {
    fence: i64,
    owner: Option<String>,
    expires: i64,
}

struct EntryAt {
    fence: i64,
    generated: i64,
    content: Response<Bytes>,
    notes: String,
}

/// Greater than any interval: times are counted from there.
const EPOCH: i64 = 1_000_000_000_000_000;

impl Counting {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            locks: Mutex::default(),
            entries: Mutex::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn now(&self) -> i64 {
        EPOCH + self.start.elapsed().as_micros() as i64
    }

    fn fill(&self, key: &str, age: Duration) {
        let entry = EntryAt {
            fence: 1,
            generated: EPOCH - age.as_micros() as i64,
            content: Response::new(Bytes::from_static(b"content")),
            notes: "epoch=0".to_owned(),
        };
        self.entries
            .lock()
            .expect("not poisoned")
            .insert(key.to_owned(), entry);
    }

    /// Reads, writes and refused tries, which write nothing, since the last call.
    fn take(&self) -> [u64; 3] {
        [&self.reads, &self.writes, &self.refused].map(|count| count.swap(0, Relaxed))
    }

    /// What is done while the lock still carries this fence.
    fn fenced(
        &self,
        lease: &LeaseRow,
        act: impl FnOnce(&mut LockRowAt) -> bool,
    ) -> StoreFuture<'_, bool> {
        self.writes.fetch_add(1, Relaxed);
        let mut locks = self.locks.lock().expect("not poisoned");
        let lock = locks
            .get_mut(&lease.name)
            .filter(|lock| lock.fence == lease.fence);
        let done = lock.is_some_and(act);
        answer(done)
    }
}

struct Shared(Arc<Counting>);

impl Store for Shared {
    fn probe<'a>(&'a self, key: &'a str, name: &'a str, known: i64) -> StoreFuture<'a, Probe> {
        let (store, now) = (&*self.0, self.0.now());
        store.reads.fetch_add(1, Relaxed);
        let entries = store.entries.lock().expect("not poisoned");
        let entry = entries.get(key).filter(|entry| entry.fence > known);
        let entry = entry.map(|entry| Entry {
            fence: entry.fence,
            age: micros(now - entry.generated),
            content: entry.content.clone(),
            notes: entry.notes.clone(),
        });
        let locks = store.locks.lock().expect("not poisoned");
        let lock = locks
            .get(name)
            .map_or(LockState::default(), |lock| LockState {
                fence: lock.fence,
                owned: lock.owner.is_some(),
                remaining: micros(lock.expires - now),
            });
        answer(Probe {
            entry,
            lock,
            ..Probe::default()
        })
    }

    fn try_lock<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>> {
        let (store, now) = (&*self.0, self.0.now());
        let mut locks = store.locks.lock().expect("not poisoned");
        let lock = locks.entry(name.to_owned()).or_default();
        let is_seen = lock.fence == 0 || seen.is_none_or(|seen| seen == lock.fence);
        let fence = (lock.expires <= now && is_seen).then(|| {
            lock.fence = now.max(lock.fence + 1);
            lock.owner = Some(owner.to_owned());
            lock.expires = now + length.as_micros() as i64;
            lock.fence
        });
        let count = if fence.is_some() {
            &store.writes
        } else {
            &store.refused
        };
        count.fetch_add(1, Relaxed);
        answer(fence)
    }

    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool> {
        let expires = self.0.now() + length.as_micros() as i64;
        self.0.fenced(lease, |lock| {
            lock.expires = expires;
            true
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool> {
        let expires = self.0.now() + cooldown.as_micros() as i64;
        self.0.fenced(lease, |lock| {
            (lock.owner, lock.expires) = (None, expires);
            true
        })
    }

    fn publish<'a>(
        &'a self,
        key: &'a str,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
    ) -> StoreFuture<'a, bool> {
        let entry = EntryAt {
            fence: lease.fence,
            generated: self.0.now(),
            content: edition.content.clone(),
            notes: edition.notes.to_owned(),
        };
        self.0.fenced(lease, |_| {
            self.0
                .entries
                .lock()
                .expect("not poisoned")
                .insert(key.to_owned(), entry);
            true
        })
    }

    fn renew<'a>(
        &'a self,
        key: &'a str,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
        _known: i64,
    ) -> StoreFuture<'a, bool> {
        self.publish(key, lease, edition)
    }

    fn invalidated(&self, _since: i64) -> StoreFuture<'_, Vec<(String, i64)>> {
        self.0.reads.fetch_add(1, Relaxed);
        answer(Vec::new())
    }

    // What nothing here asks for.

    fn remove<'a>(&'a self, _: &'a str, _: &'a LeaseRow) -> StoreFuture<'a, bool> {
        unreachable!("the simulation does not ask for it")
    }

    fn invalidate<'a>(&'a self, _: &'a str) -> StoreFuture<'a, i64> {
        unreachable!("the simulation does not ask for it")
    }

    fn purge<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, ()> {
        unreachable!("the simulation does not ask for it")
    }

    fn inspect<'a>(&'a self, _: &'a str) -> StoreFuture<'a, Option<LockRow>> {
        unreachable!("the simulation does not ask for it")
    }

    fn held(&self) -> StoreFuture<'_, Vec<LockRow>> {
        unreachable!("the simulation does not ask for it")
    }

    fn break_lock<'a>(&'a self, _: &'a str) -> StoreFuture<'a, bool> {
        unreachable!("the simulation does not ask for it")
    }

    // Seldom, and for a process that runs for longer.

    fn prune_entries<'a>(&'a self, _: Option<&'a str>) -> StoreFuture<'a, Option<Pruned>> {
        answer(None)
    }

    fn prune_locks<'a>(
        &'a self,
        _: Duration,
        _: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>> {
        answer(None)
    }

    fn forget_invalidated(&self, _: i64, _: Duration, _: i64) -> StoreFuture<'_, ()> {
        answer(())
    }
}

fn micros(time: i64) -> Duration {
    Duration::from_micros(u64::try_from(time).unwrap_or(0))
}
