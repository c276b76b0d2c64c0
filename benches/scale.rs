//! The statements of a site with many processes: the real engine, a store in memory that counts,
//! and virtual time.
//!
//! `cargo bench --bench scale` prints the counts beside the model of `docs/scale.md`, the largest row after
//! some minutes.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use perennial::{Perennial, Refresh};
use perennial_store::{Backend, Call, CallFuture, Probe, Reply, TryLockResult, error::BoxError};
use perennial_testing::Memory;
use tokio::{task::JoinSet, time::Instant};

/// A site and its visitors.
#[derive(Clone, Copy)]
struct Case {
    processes: usize,
    keys: usize,
    interval: u64,
    /// The time of a generator, in seconds.
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

/// The number of steps in a second. Each process gets a part of its requests in each step.
const STEPS: u32 = 20;
const STEP: Duration = Duration::from_millis(1000 / STEPS as u64);

/// The time of a statement.
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
    // The pages have different ages, as in a site that has been running for some time.
    for key in 0..case.keys {
        let age = Duration::from_micros(random.below(case.interval * 1_000_000));
        let content = Response::new(Bytes::from_static(b"content"));
        store.memory.fill(&name(key), age, content);
    }
    let sites: Vec<Perennial> = (0..case.processes)
        .map(|_| {
            let store = Box::new(Arc::clone(&store));
            Perennial::builder()
                .memory_capacity(1 << 30)
                .max_regenerations(usize::MAX)
                .with_store(store)
                .expect("opens")
        })
        .collect();
    // The first interval fills the memories of the processes. Only the second interval is measured.
    for counts in [false, true] {
        store.take();
        let mut processes = JoinSet::new();
        for (number, site) in sites.iter().cloned().enumerate() {
            let (mut random, policy) = (Random(random.below(u64::MAX)), policy.clone());
            processes.spawn(async move {
                // The processes are not in step.
                let offset = STEP * number as u32 / case.processes as u32;
                let start = Instant::now() + offset;
                for step in 0..case.interval as u32 * STEPS {
                    tokio::time::sleep_until(start + STEP * step).await;
                    for _ in 0..case.requests / STEPS as usize {
                        let key = name(random.below(case.keys as u64) as usize);
                        let content = site.content(&key, &policy, move || generate(case.generator));
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
    // Computes how often a process probes a key in one interval: once to find the lease of another
    // process, and once for the new version, but not more often than requests come.
    let asked = rate as f64 * (interval + generator) as f64 / keys as f64;
    let looks = 2_f64.min(asked);
    // The age counts from the generation.
    let regenerations = keys as f64 / (interval + generator) as f64;
    let reads_modelled = regenerations * (processes - 1) as f64 * looks + processes as f64;
    // A lease of 15 s is extended whenever a third of it is over.
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

/// A store in memory that counts its calls.
struct Counting {
    memory: Memory,
    reads: AtomicU64,
    writes: AtomicU64,
    refused: AtomicU64,
}

impl Counting {
    fn new() -> Self {
        Self {
            memory: Memory::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Reads, writes and refused tries, which write nothing, since the last call.
    fn take(&self) -> [u64; 3] {
        [&self.reads, &self.writes, &self.refused].map(|count| count.swap(0, Relaxed))
    }
}

/// Counts a call, and answers after a while.
impl Counting {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let reply = self.memory.apply(&call);
        let count = match (&call, &reply) {
            (Call::Probe(Probe { .. }) | Call::Invalidated(_), _) => &self.reads,
            (_, Reply::TryLock(TryLockResult { fence: None, .. })) => &self.refused,
            _ => &self.writes,
        };
        count.fetch_add(1, Relaxed);
        tokio::time::sleep(ROUND_TRIP).await;
        Ok(reply)
    }
}

impl Backend for Counting {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(self.answer(call))
    }
}
