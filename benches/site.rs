//! A site under load: the statements of a busy page, and a million stored pages.
//!
//! `cargo bench --bench site` prints the rows of a Markdown table.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Body, http::Request, routing::get};
use http_body_util::BodyExt;
use perennial::{Builder, DAY, Perennial, Refresh, sql::Database};
use perennial_store::{Backend, Call, CallFuture};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tower::Service;

/// The amount of work; small when run as a test.
struct Extent {
    load: Duration,
    pages: u32,
    requests: u32,
}

static EXTENT: LazyLock<Extent> = LazyLock::new(|| {
    if std::env::args().any(|argument| argument == "--bench") {
        Extent {
            load: Duration::from_secs(10),
            pages: 1_000_000,
            requests: 100_000,
        }
    } else {
        Extent {
            load: Duration::from_secs(3),
            pages: 1000,
            requests: 1000,
        }
    }
});

#[tokio::main]
pub(crate) async fn main() {
    load().await;
    million().await;
}

/// A page under constant load that is regenerated each second.
async fn load() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let database = Counting::open(&url(&folder)).await;
    let generated = Arc::new(AtomicUsize::new(0));
    let generations = Arc::clone(&generated);
    let page = get(async move || generations.fetch_add(1, Relaxed).to_string());
    let site = database.site(Perennial::builder());
    let layer = site.layer(Refresh::every(Duration::from_secs(1)));
    let app = Router::new().route("/", page.layer(layer)).with_state(());
    ask(&mut app.clone(), "/").await;
    let end = Instant::now() + EXTENT.load;
    database.take();
    let mut visitors = JoinSet::new();
    for _ in 0..8 {
        let mut app = app.clone();
        visitors.spawn(async move {
            let mut requests = 0_u64;
            while Instant::now() < end {
                ask(&mut app, "/").await;
                requests += 1;
                // On a connection, as in a server.
                tokio::task::yield_now().await;
            }
            requests
        });
    }
    let requests: u64 = visitors.join_all().await.into_iter().sum();
    let (syncs, others) = database.take();
    let refreshes = generated.load(Relaxed) - 1;
    let seconds = EXTENT.load.as_secs_f64();
    println!(
        "| a page that is regenerated every second, with {:.0} requests per second in process | {:.1} statements per refresh, {:.1} per second for the \
         sync, {:.6} per request |",
        requests as f64 / seconds,
        others as f64 / refreshes as f64,
        syncs as f64 / seconds,
        (syncs + others) as f64 / requests as f64,
    );
}

/// The database of a site in this folder.
fn url(folder: &TempDir) -> String {
    format!("sqlite://{}", folder.path().join("site.db").display())
}

async fn ask(app: &mut Router, path: &str) -> usize {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    let response = app.call(request).await.expect("infallible");
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.expect("a body");
    body.to_bytes().len()
}

/// More pages than memory has room for.
async fn million() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    drop(Perennial::open(&url(&folder)).await.expect("opens"));
    let pool = sqlx::SqlitePool::connect(&url(&folder))
        .await
        .expect("connects");
    let fill = "WITH RECURSIVE page (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM page WHERE number + 1 < $1)
         INSERT INTO perennial_entry (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, status, headers, body)
         SELECT '/books/' || number, 1, now, now + 1000000000000, now + 1000000000000, 0, 1024, '{}', 200,
            CAST('content-type: text/html' || char(10) || 'content-length: 1024' || char(10) AS BLOB), zeroblob(1024)
         FROM page, (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS now)";
    let fill = sqlx::query(fill).bind(EXTENT.pages).execute(&pool).await;
    assert_eq!(
        fill.expect("fills").rows_affected(),
        u64::from(EXTENT.pages)
    );
    let alone = statement_alone(&pool).await;
    pool.close().await;

    let builder = Perennial::builder()
        .memory_capacity(64 << 20)
        .store_capacity(16 << 30);
    let database = Counting::open(&url(&folder)).await;
    let site = database.site(builder);
    let layer = site.layer(Refresh::every(DAY)).max_keys(usize::MAX);
    let page = get(async || -> &'static str { panic!("it is stored") });
    let app = Router::new()
        .route("/books/{number}", page.layer(layer))
        .with_state(());
    let resident = resident();
    let begun = Instant::now();
    ask(&mut app.clone(), "/books/7").await;
    let first = begun.elapsed();
    let name = format!("{} stored pages of 1 KiB, memory of 64 MiB", EXTENT.pages);
    for (which, pages) in [
        ("a request for a random one of them", EXTENT.pages),
        ("a request for a random one of 10,000", 10_000),
    ] {
        let mut time = Duration::ZERO;
        // A first round fills the memory.
        for _ in 0..2 {
            database.take();
            let start = Instant::now();
            let mut visitors = JoinSet::new();
            for visitor in 0..8 {
                let mut app = app.clone();
                visitors.spawn(async move {
                    for request in 0..EXTENT.requests / 8 {
                        // Spread by a prime, without a repetition.
                        let number = u64::from(request * 8 + visitor) * 15_485_863;
                        let path =
                            format!("/books/{}", number % u64::from(pages.min(EXTENT.pages)));
                        assert_eq!(ask(&mut app, &path).await, 1024);
                    }
                });
            }
            visitors.join_all().await;
            time = start.elapsed() / EXTENT.requests;
        }
        let (_, others) = database.take();
        println!(
            "| {name}: {which} | {time:.1?} per request, {:.3} statements per request |",
            others as f64 / f64::from(EXTENT.requests)
        );
    }
    println!("| {name}: the first answer after a start | {first:.1?} |");
    println!("| {name}: the same rows by sqlx alone, from 8 tasks | {alone:.1?} per row |");
    println!(
        "| {name}: the process's memory, before / after | {} / {} MiB |",
        resident,
        self::resident()
    );
}

/// The time of a row's reading through sqlx, with as many tasks as there are visitors.
async fn statement_alone(pool: &sqlx::SqlitePool) -> Duration {
    let row = "SELECT fence, status, headers, body, metadata FROM perennial_entry WHERE name = ?";
    let start = Instant::now();
    let mut readers = JoinSet::new();
    for reader in 0..8 {
        let pool = pool.clone();
        readers.spawn(async move {
            for request in 0..EXTENT.requests / 8 {
                let number = u64::from(request * 8 + reader) * 15_485_863 % u64::from(EXTENT.pages);
                let row = sqlx::query(row).bind(format!("/books/{number}"));
                row.fetch_one(&pool).await.expect("is stored");
            }
        });
    }
    readers.join_all().await;
    start.elapsed() / EXTENT.requests
}

/// The process's memory in MiB; 0 where that is not to be had.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kibibytes.unwrap_or(0) >> 10
}

/// A database that counts its calls: syncs, and all others.
#[derive(Clone)]
struct Counting {
    store: Arc<dyn Backend>,
    calls: Arc<[AtomicUsize; 2]>,
}

impl Counting {
    async fn open(url: &str) -> Self {
        let database = Database::open(url).await.expect("opens");
        Self {
            store: database.store("perennial_").await.expect("prepares").into(),
            calls: Arc::default(),
        }
    }

    fn site(&self, builder: Builder) -> Perennial {
        builder.with_store(Box::new(self.clone())).expect("opens")
    }

    /// The syncs and the other calls since the last time.
    fn take(&self) -> (usize, usize) {
        let [syncs, others] = &*self.calls;
        (syncs.swap(0, Relaxed), others.swap(0, Relaxed))
    }
}

impl Backend for Counting {
    fn call(&self, call: Call) -> CallFuture<'_> {
        self.calls[usize::from(call.name() != "sync")].fetch_add(1, Relaxed);
        self.store.call(call)
    }
}
