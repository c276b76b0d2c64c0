//! The statements of several processes while pages regenerate for eight seconds, the time until the
//! other processes serve the new versions, and the time until no process serves an invalidated one.
//!
//! ```text
//! scripts/with-servers --volatile cargo bench --bench fleet --all-features
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use perennial::{Generation, Perennial, Refresh, sql::Database};
use perennial_store::{Backend, Call, CallFuture, Publish, Reply};
use tokio::{task::JoinSet, time::Instant};

/// The pause between two requests for the same page in a process.
const PAUSE: Duration = Duration::from_millis(50);
/// The policy of the pages that regenerate for eight seconds: no visitor waits for them.
const IN_BACKGROUND: Refresh = VISITED.in_background();
/// The policy of the invalidated pages: the visitor who starts a regeneration waits for it.
const VISITED: Refresh = Refresh::every(Duration::from_secs(3600));
/// The concurrent visitors of a process.
const VISITORS: usize = 16;
/// The tag that all pages have.
const TAG: &str = "catalogue";

/// The statements of a process.
#[derive(Default)]
struct Statements {
    counts: BTreeMap<&'static str, usize>,
    /// The times at which pages were published.
    published: HashMap<String, Instant>,
}

/// A database that counts.
#[derive(Clone)]
struct Counting {
    store: Arc<dyn Backend>,
    statements: Arc<Mutex<Statements>>,
}

impl Counting {
    fn statements(&self) -> MutexGuard<'_, Statements> {
        self.statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Counting {
    fn call(&self, call: Call) -> CallFuture<'_> {
        *self.statements().counts.entry(call.name()).or_default() += 1;
        Box::pin(async move {
            let key = match &call {
                Call::Publish(Publish { lease, .. }) => Some(lease.name.as_str().to_owned()),
                _ => None,
            };
            let reply = self.store.call(call).await?;
            if let (Some(key), Reply::Publish(true)) = (key, &reply) {
                self.statements().published.insert(key, Instant::now());
            }
            Ok(reply)
        })
    }
}

struct Process {
    site: Perennial,
    database: Counting,
}

/// What a generator makes, and how long it takes.
struct Origin {
    is_new: AtomicBool,
    generator: Duration,
}

#[tokio::main]
pub(crate) async fn main() {
    let all = std::env::args().any(|argument| argument == "--bench");
    println!(
        "| database | processes | pages | statements per second | syncs | reads | writes | time until another process serves the new version: median | 99 % |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("site.db");
    let mut databases = vec![("SQLite", format!("sqlite://{}", file.display()))];
    for (name, variable) in [
        ("PostgreSQL", "PERENNIAL_TEST_POSTGRES_URL"),
        ("MySQL/MariaDB", "PERENNIAL_TEST_MYSQL_URL"),
    ] {
        databases.extend(std::env::var(variable).ok().map(|url| (name, url)));
    }
    let generator = Duration::from_millis(if all { 8000 } else { 50 });
    let cases: &[_] = if all {
        &[(1, 100), (10, 100)]
    } else {
        &[(2, 3)]
    };
    for (name, url) in &databases {
        for (processes, pages) in cases {
            let prefix = format!("fleet_{processes}_{pages}_");
            let row = run(url, &prefix, *processes, *pages, generator).await;
            println!("| {name} | {processes} | {pages} | {row} |");
        }
    }
    println!();
    println!(
        "| one tag, 3 processes with {VISITORS} visitors each | pages | last old answer after a purge | after an invalidation |"
    );
    println!("|---|---|---|---|");
    for (name, url) in &databases {
        for pages in if all { [1, 10_000] } else { [1, 3] } {
            let purged = invalidation(url, &format!("purged_{pages}_"), pages, true).await;
            let stale = invalidation(url, &format!("stale_{pages}_"), pages, false).await;
            let shown = |last_old: Duration| match last_old {
                Duration::ZERO => "none after the call".to_owned(),
                after => format!("{after:.2?}"),
            };
            println!(
                "| {name} | {pages} | {} | {} |",
                shown(purged),
                shown(stale)
            );
        }
    }
}

/// Changes all pages of a tag at once in one of three processes, whose visitors ask for all pages again and
/// again. Returns the time until the last process has given its last old answer.
async fn invalidation(url: &str, prefix: &str, pages: usize, purge: bool) -> Duration {
    let origin = Arc::new(Origin {
        is_new: AtomicBool::new(false),
        generator: Duration::ZERO,
    });
    let mut processes = Vec::new();
    for number in 0..3 {
        let process = process(url, prefix).await;
        // Each process's visitors begin with a different page.
        let first = number * pages / 3;
        let keys = (0..pages).map(|page| format!("page/{}", (first + page) % pages));
        let keys: Arc<[String]> = keys.collect();
        last_old_answer(&process.site, &keys, &origin).await;
        processes.push((process, keys));
    }
    origin.is_new.store(true, Relaxed);
    let begun = Instant::now();
    let site = &processes[0].0.site;
    let changed = if purge {
        site.purge_tag(TAG).await
    } else {
        site.invalidate_tag(TAG).await
    };
    changed.expect("is done");
    let mut visits = JoinSet::new();
    for (process, keys) in &processes {
        let (site, keys, origin) = (process.site.clone(), keys.clone(), Arc::clone(&origin));
        visits.spawn(async move { last_old_answer(&site, &keys, &origin).await });
    }
    let last = visits.join_all().await.into_iter().flatten().max();
    for (process, _) in &processes {
        process.site.shutdown().await;
    }
    last.map_or(Duration::ZERO, |last| last - begun)
}

/// Lets visitors ask for the pages, each of them for its share, until all answers are as new as the origin.
/// Returns the time of the last old one.
async fn last_old_answer(
    site: &Perennial,
    keys: &Arc<[String]>,
    origin: &Arc<Origin>,
) -> Option<Instant> {
    let mut visits = JoinSet::new();
    for visitor in 0..VISITORS {
        let (site, keys, origin) = (site.clone(), Arc::clone(keys), Arc::clone(origin));
        visits.spawn(async move {
            let mut last = None;
            loop {
                let (round, mut all_new) = (Instant::now(), true);
                for key in keys.iter().skip(visitor).step_by(VISITORS) {
                    if !ask(&site, key, VISITED, &origin).await && origin.is_new.load(Relaxed) {
                        (last, all_new) = (Some(Instant::now()), false);
                    }
                }
                if all_new {
                    return last;
                }
                tokio::time::sleep_until(round + PAUSE).await;
            }
        });
    }
    visits.join_all().await.into_iter().flatten().max()
}

async fn process(url: &str, prefix: &str) -> Process {
    let database = Database::open(url).await.expect("opens");
    let database = Counting {
        store: database.store(prefix).await.expect("prepares").into(),
        statements: Arc::default(),
    };
    let builder = Perennial::builder().max_regenerations(usize::MAX);
    let site = builder.with_store(Box::new(database.clone()));
    Process {
        site: site.expect("opens"),
        database,
    }
}

/// Asks for a page, and returns true if it is the new version.
async fn ask(site: &Perennial, key: &str, policy: Refresh, origin: &Arc<Origin>) -> bool {
    let origin = Arc::clone(origin);
    let generate = async move |generation: Generation| {
        generation.tag(TAG);
        if !origin.is_new.load(Relaxed) {
            return Ok::<_, Infallible>(Bytes::from_static(b"old"));
        }
        tokio::time::sleep(origin.generator).await;
        Ok(Bytes::from_static(b"new"))
    };
    let content = site.content(key, &policy, generate).await;
    content.expect("is there").into_bytes() == "new"
}

async fn run(url: &str, prefix: &str, count: usize, pages: usize, generator: Duration) -> String {
    let origin = Arc::new(Origin {
        is_new: AtomicBool::new(false),
        generator,
    });
    let keys: Arc<Vec<String>> = Arc::new((0..pages).map(|page| format!("page/{page}")).collect());
    let mut processes = Vec::new();
    for _ in 0..count {
        let process = process(url, prefix).await;
        for key in &*keys {
            ask(&process.site, key, IN_BACKGROUND, &origin).await;
        }
        processes.push(process);
    }
    origin.is_new.store(true, Relaxed);
    processes[0]
        .site
        .invalidate_prefix("")
        .await
        .expect("is done");
    for process in &processes {
        *process.database.statements() = Statements::default();
    }
    let begun = Instant::now();
    let mut visits = JoinSet::new();
    for process in &processes {
        let (site, keys, origin) = (process.site.clone(), Arc::clone(&keys), Arc::clone(&origin));
        visits.spawn(async move {
            let mut served = HashMap::new();
            while served.len() < keys.len() {
                let round = Instant::now();
                for key in &*keys {
                    if ask(&site, key, IN_BACKGROUND, &origin).await {
                        served.entry(key.clone()).or_insert_with(Instant::now);
                    }
                }
                tokio::time::sleep_until(round + PAUSE).await;
            }
            served
        });
    }
    let served = visits.join_all().await;
    let seconds = begun.elapsed().as_secs_f64();
    let (mut counts, mut late) = (BTreeMap::new(), Vec::new());
    for (process, served) in processes.iter().zip(&served) {
        for (name, count) in &process.database.statements().counts {
            *counts.entry(*name).or_insert(0) += count;
        }
        for other in &processes {
            let statements = other.database.statements();
            if !Arc::ptr_eq(&other.database.statements, &process.database.statements) {
                let of = |(key, at): (&String, &Instant)| served[key].checked_duration_since(*at);
                late.extend(statements.published.iter().filter_map(of));
            }
        }
    }
    for process in &processes {
        process.site.shutdown().await;
    }
    late.sort_unstable();
    let part = |part: f64| {
        let at = late.len().saturating_sub(1) as f64 * part;
        late.get(at as usize).map_or(0, Duration::as_millis)
    };
    let of = |names: &[&str]| -> usize { names.iter().filter_map(|name| counts.get(name)).sum() };
    let rate = |count: usize| format!("{:.1}", count as f64 / seconds);
    format!(
        "{} | {} | {} | {} | {} ms | {} ms",
        rate(counts.values().sum()),
        rate(of(&["sync"])),
        rate(of(&["probe"])),
        rate(of(&["try-lock", "extend", "publish", "release"])),
        part(0.5),
        part(0.99)
    )
}
