//! The cost of the lock on each server: contended tries a second beside `SELECT 1` a second, in one
//! run and as a ratio; the write-ahead log, dead tuples and sizes of the tables afterwards. The time, the
//! server's processor time and the log that a regeneration costs, and how many a server sustains; and the
//! report of a site with many pages.
//!
//! ```text
//! scripts/with-servers cargo bench --bench database --all-features
//! ```

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use perennial::{
    locks::{LockKind, LockName},
    sql::Database,
};
use perennial_store::{
    Backend, Count, Epoch, Fence, Held, Latest, LeaseRow, NewEntry, Publish, Release, Sizes,
    TryLock,
};
use sqlx::{
    AnyConnection, AssertSqlSafe, Connection, Executor, any::AnyPoolOptions, pool::PoolOptions,
};
use tokio::{task::JoinSet, time::Instant};

const CONNECTIONS: u32 = 16;
const ROUNDS: usize = 5;
const LEASE: Duration = Duration::from_secs(3600);

/// The amount of work; small when run as a test.
#[derive(Clone, Copy)]
struct Extent {
    turn: Duration,
    failed: usize,
    churned: u32,
    pages: usize,
}

#[tokio::main]
pub(crate) async fn main() {
    let extent = if std::env::args().any(|argument| argument == "--bench") {
        Extent {
            turn: Duration::from_secs(1),
            failed: 4000,
            churned: 4000,
            pages: 4000,
        }
    } else {
        Extent {
            turn: Duration::from_millis(20),
            failed: 40,
            churned: 100,
            pages: 20,
        }
    };
    sqlx::any::install_default_drivers();
    let mut none = true;
    for (name, variable) in [
        ("PostgreSQL", "PERENNIAL_TEST_POSTGRES_URL"),
        ("MySQL/MariaDB", "PERENNIAL_TEST_MYSQL_URL"),
    ] {
        if let Ok(url) = std::env::var(variable) {
            println!("{name}, {CONNECTIONS} connections");
            measure(&url, extent).await;
            pages(&url, extent.pages).await;
            sustained(&url, extent.turn * 5).await;
            none = false;
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    println!("SQLite");
    let file = folder.path().join("site.db");
    let url = format!("sqlite://{}", file.display());
    pages(&url, extent.pages).await;
    sustained(&url, extent.turn * 5).await;
    if none {
        println!("no server is known: run this with scripts/with-servers");
    }
}

async fn measure(url: &str, extent: Extent) {
    let Extent {
        turn,
        failed,
        churned,
        ..
    } = extent;
    let select = AnyPoolOptions::new().max_connections(CONNECTIONS);
    let select = select.connect(url).await.expect("connects");
    let database = pool_of(url, CONNECTIONS).await;
    let store: Arc<dyn Backend> = database.store("bench_").await.expect("prepares").into();
    let mut admin = AnyConnection::connect(url).await.expect("connects");
    let held = take(&*store, "held").await.expect("is free");

    // The sides take turns, so that a noisy machine affects both.
    let select: Arc<dyn Fn() -> Task + Send + Sync> = Arc::new(move || {
        let select = select.clone();
        Box::pin(async move {
            let one = sqlx::query("SELECT 1").execute(&select).await;
            one.expect("answers");
        })
    });
    let contended = Arc::clone(&store);
    let contended: Arc<dyn Fn() -> Task + Send + Sync> = Arc::new(move || {
        let store = Arc::clone(&contended);
        Box::pin(async move { assert!(take(&*store, "held").await.is_none()) })
    });
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let selects = rate(Arc::clone(&select), turn).await;
        let tries = rate(Arc::clone(&contended), turn).await;
        ratios.push((tries / selects, tries, selects));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, tries, selects) = ratios[ROUNDS / 2];
    println!(
        "  failed attempts to acquire a held lock: {tries:.0} per second; SELECT 1 through the same kind of pool: {selects:.0}; ratio {ratio:.2}"
    );

    let postgres = url.starts_with("postgres");
    if postgres {
        int(
            &mut admin,
            "SELECT 1::bigint FROM (SELECT pg_switch_wal()) s",
        )
        .await;
        let position = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
        let before = int(&mut admin, position).await;
        for _ in 0..failed {
            assert!(take(&*store, "held").await.is_none());
        }
        let after = int(&mut admin, position).await;
        println!(
            "  {failed} failed attempts write {} bytes to the write-ahead log",
            after - before
        );
    }
    assert!(
        store
            .ask(Release::new(&held, Duration::ZERO))
            .await
            .expect("answers")
    );

    let start = Instant::now();
    for _ in 0..churned {
        let lease = take(&*store, "churned").await.expect("is free");
        assert!(
            store
                .ask(Release::new(&lease, Duration::ZERO))
                .await
                .expect("answers")
        );
    }
    let took = start.elapsed().as_secs_f64();
    println!(
        "  one lock acquired and released {churned} times in a row: {:.0} per second",
        f64::from(churned) / took
    );
    if postgres {
        // The server's counters reach its statistics a moment later.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'bench_lock'";
        let dead = int(&mut admin, dead).await;
        let hot = "SELECT (100 * n_tup_hot_upd / greatest(n_tup_upd, 1))::bigint FROM pg_stat_user_tables WHERE relname = 'bench_lock'";
        let hot = int(&mut admin, hot).await;
        let size = int(
            &mut admin,
            "SELECT pg_total_relation_size('bench_lock')::bigint",
        )
        .await;
        println!(
            "  dead tuples afterwards: {dead}; updates in place (HOT): {hot} %; table and index: {} KiB",
            size / 1024
        );
    }
    drop_tables(&mut admin).await;
}

/// Publishes pages of 20 KiB, new and again, and reads what the report of the site shows.
async fn pages(url: &str, number: usize) {
    let database = pool_of(url, 1).await;
    let store = database.store("bench_").await.expect("prepares");
    let mut admin = AnyConnection::connect(url).await.expect("connects");
    let mut fences = vec![0; number];
    for (what, seed, renews) in [
        ("a first page", 1, false),
        ("a changed page", 1 << 32, false),
        ("an unchanged page", 1 << 32, true),
    ] {
        let before = log_position(&mut admin, url).await;
        let (start, server) = (Instant::now(), server_time(url));
        for (page, fence) in fences.iter_mut().enumerate() {
            let lease = take(&*store, page_name(page)).await.expect("is free");
            let content = incompressible(20 << 10, seed + page as u64);
            publish(&*store, &lease, content, renews.then_some(Fence(*fence))).await;
            *fence = lease.fence.0;
        }
        let took = start.elapsed() / u32::try_from(number).expect("few");
        let log = log_position(&mut admin, url).await.zip(before);
        let log = log.map(|(after, before)| (after - before) / number as i64);
        let server = server_time(url).saturating_sub(server) / number as u32;
        let log = log.map_or_else(String::new, |bytes| {
            format!(", and {bytes} bytes of its log")
        });
        println!(
            "  {what} of 20 KiB, with its lock: {took:.1?}{}{log}",
            of_server(server)
        );
    }
    let mut took = [Duration::ZERO; ROUNDS];
    for took in &mut took {
        let start = Instant::now();
        store.ask(Count {}).await.expect("answers");
        store.ask(Held {}).await.expect("answers");
        store.ask(Latest { limit: 200 }).await.expect("answers");
        store.ask(Sizes {}).await.expect("answers");
        *took = start.elapsed();
    }
    took.sort_unstable();
    let median = took[ROUNDS / 2];
    println!("  the four statements of a status report with {number} pages: {median:.1?}");
    let sizes = store.ask(Sizes {}).await.expect("answers");
    println!("  sizes in bytes: {sizes:?}");
    drop_tables(&mut admin).await;
}

/// Regenerates pages of 1 KiB through all connections at once: each acquires, publishes and releases.
async fn sustained(url: &str, turn: Duration) {
    let database = pool_of(url, CONNECTIONS).await;
    let store: Arc<dyn Backend> = database.store("bench_").await.expect("prepares").into();
    let mut admin = AnyConnection::connect(url).await.expect("connects");
    let pages = Arc::new(AtomicUsize::new(0));
    let regenerate: Arc<dyn Fn() -> Task + Send + Sync> = Arc::new(move || {
        let (store, number) = (Arc::clone(&store), pages.fetch_add(1, Relaxed));
        Box::pin(async move {
            // No two tasks work on the same page at once.
            let name = page_name(number % 1000);
            let lease = take(&*store, name).await.expect("is free");
            publish(
                &*store,
                &lease,
                incompressible(1 << 10, 1 + number as u64),
                None,
            )
            .await;
        })
    });
    let (start, server) = (Instant::now(), server_time(url));
    let rate = rate(regenerate, turn).await;
    let share =
        server_time(url).saturating_sub(server).as_secs_f64() / start.elapsed().as_secs_f64();
    println!(
        "  pages of 1 KiB through {CONNECTIONS} connections: {rate:.0} regenerations per second, {:.0} commits per second{}",
        3.0 * rate,
        of_server(Duration::from_secs_f64(share / rate))
    );
    drop_tables(&mut admin).await;
}

/// The server's part of the time of a regeneration, where it is known.
fn of_server(time: Duration) -> String {
    match time {
        Duration::ZERO => String::new(),
        time => format!("; the server's processors take {time:.1?} for each"),
    }
}

fn page_name(page: usize) -> LockName {
    LockName::of(LockKind::Page, format!("/page/{page}"))
}

/// Publishes a page, in place of the one of `renews` if that has the same content, and releases its lock.
async fn publish(store: &dyn Backend, lease: &LeaseRow, content: Bytes, renews: Option<Fence>) {
    let entry = NewEntry {
        content: Response::new(content),
        renews,
        epoch: Epoch::NONE,
        interval: LEASE,
        metadata: "{}".to_owned(),
        history: "a line of some hundred bytes\n".repeat(4),
        retention: LEASE,
        lasting: true,
    };
    let published = store.ask(Publish::new(lease, entry)).await;
    assert!(published.expect("answers"));
    let released = store.ask(Release::new(lease, Duration::ZERO)).await;
    assert!(released.expect("answers"));
}

/// The processor time of the database's processes until now; zero for SQLite, and for a server of another machine.
fn server_time(url: &str) -> Duration {
    let names: &[&str] = match url.split(':').next() {
        Some("sqlite") | None => return Duration::ZERO,
        Some("mysql") => &["(mariadbd)", "(mysqld)"],
        _ => &["(postgres)"],
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    let ticks: u64 = stats
        .filter(|stat| names.iter().any(|name| stat.contains(name)))
        .filter_map(|stat| {
            // proc_pid_stat(5): the name in parentheses may have spaces; the times are the 14th and the 15th
            // fields.
            let fields: Vec<&str> = stat[stat.rfind(')')?..].split_whitespace().collect();
            let ticks = |field: usize| fields.get(field - 2)?.parse::<u64>().ok();
            Some(ticks(14)? + ticks(15)?)
        })
        .sum();
    // Linux counts in hundredths of a second.
    Duration::from_millis(ticks * 10)
}

/// Returns bytes that a database cannot compress (xorshift64).
fn incompressible(length: usize, mut seed: u64) -> Bytes {
    let words = (0..length / 8).map(|_| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    });
    words.collect::<Vec<_>>().concat().into()
}

/// Returns the number of bytes of log that the server has written.
async fn log_position(admin: &mut AnyConnection, url: &str) -> Option<i64> {
    let sql = match url.split(':').next()? {
        "sqlite" => return None,
        "mysql" => {
            "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status WHERE variable_name = 'INNODB_OS_LOG_WRITTEN'"
        }
        _ => "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint",
    };
    Some(int(admin, sql).await)
}

async fn drop_tables(admin: &mut AnyConnection) {
    for table in [
        "bench_outbox",
        "bench_process",
        "bench_request",
        "bench_lock",
        "bench_entry",
        "bench_invalidation",
        "bench_schema",
    ] {
        let drop = format!("DROP TABLE {table}");
        admin
            .execute(sqlx::raw_sql(AssertSqlSafe(drop)))
            .await
            .expect("is dropped");
    }
}

async fn pool_of(url: &str, connections: u32) -> Database {
    if url.starts_with("postgres") {
        let pool = PoolOptions::<sqlx::Postgres>::new().max_connections(connections);
        pool.connect(url).await.expect("connects").into()
    } else if url.starts_with("sqlite") {
        Database::open(url).await.expect("opens")
    } else {
        let pool = PoolOptions::<sqlx::MySql>::new().max_connections(connections);
        pool.connect(url).await.expect("connects").into()
    }
}

async fn take(store: &dyn Backend, name: impl Into<LockName>) -> Option<LeaseRow> {
    static OWNERS: AtomicUsize = AtomicUsize::new(0);
    let owner = format!("{}-{}", std::process::id(), OWNERS.fetch_add(1, Relaxed));
    let name = name.into();
    let tried = store.ask(TryLock::new(&name, &owner, LEASE, None)).await;
    let fence = tried.expect("answers").fence;
    fence.map(|fence| LeaseRow { name, owner, fence })
}

async fn int(connection: &mut AnyConnection, sql: &'static str) -> i64 {
    let row = sqlx::query_scalar::<_, i64>(sql)
        .fetch_one(connection)
        .await;
    row.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns the rate per second, with as many tasks as connections.
async fn rate(task: Arc<dyn Fn() -> Task + Send + Sync>, turn: Duration) -> f64 {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let task = Arc::clone(&task);
        tasks.spawn(async move {
            let mut done = 0_u32;
            while start.elapsed() < turn {
                task().await;
                done += 1;
            }
            done
        });
    }
    let done: u32 = tasks.join_all().await.into_iter().sum();
    f64::from(done) / start.elapsed().as_secs_f64()
}
