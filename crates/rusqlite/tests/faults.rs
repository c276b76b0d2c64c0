//! A site on rusqlite whose file is locked, broken, full or gone, and whose processes are killed.

#![cfg(unix)]

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::get};
use perennial::{Perennial, Refresh};
use perennial_rusqlite::Pool;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::ServiceExt;

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

/// A wait that no busy machine exceeds.
const HANG: Duration = Duration::from_secs(60);

struct Shop {
    folder: TempDir,
    begun: Arc<AtomicUsize>,
}

impl Shop {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            begun: Arc::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    fn connection(&self) -> Connection {
        let connection = Connection::open(self.path()).expect("opens");
        connection.busy_timeout(HANG / 2).expect("is set");
        connection
    }

    async fn site(&self) -> Perennial {
        Self::site_of(Pool::open(self.path()).expect("opens")).await
    }

    /// A limit on the file's size takes the place of a full disk, as only root can fill a disk for a test.
    async fn site_with_a_small_file(&self) -> Perennial {
        let path = self.path();
        let pool = Pool::with(2, move || {
            let connection = Connection::open(&path)?;
            connection.busy_timeout(HANG / 2)?;
            connection.pragma_update(None, "max_page_count", 60)?;
            Ok(connection)
        });
        Self::site_of(pool.expect("opens")).await
    }

    async fn site_of(pool: Pool) -> Perennial {
        let site = Perennial::builder().database_patience(HANG / 2);
        site.with_pool(pool).await.expect("makes its tables")
    }

    /// Pages whose bodies are the numbers of their generations.
    fn pages(&self, site: &Perennial, policy: Refresh) -> Router {
        let begun = Arc::clone(&self.begun);
        let page = async move || (begun.fetch_add(1, SeqCst) + 1).to_string();
        Router::new().route("/{page}", get(page).layer(site.layer(&policy)))
    }

    fn begun(&self) -> usize {
        self.begun.load(SeqCst)
    }
}

/// Returns the number of the generation that a visitor sees.
async fn visit(app: &Router, path: &str) -> usize {
    let request = Request::get(path).body(Body::empty());
    let response = app.clone().oneshot(request.expect("a request")).await;
    let body = response.expect("never fails").into_body();
    let body = axum::body::to_bytes(body, 1000).await.expect("is whole");
    let body = String::from_utf8(body.to_vec()).expect("text");
    body.parse().unwrap_or_else(|_| panic!("{path}: {body}"))
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let waited = timeout(HANG, async {
        while !is().await {
            sleep(SHORT / 10).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writers_lock_delays_no_warm_page_and_the_site_recovers() {
    let shop = Shop::new();
    let policy = Refresh::every(SHORT).in_background().cooldown(SHORT);
    let app = shop.pages(&shop.site().await, policy);
    assert_eq!(visit(&app, "/warm").await, 1);

    let writer = shop.connection();
    writer.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let locked = Instant::now();
    sleep(2 * SHORT).await;
    while locked.elapsed() < 6 * SECOND {
        let asked = Instant::now();
        let run = visit(&app, "/warm").await;
        assert_eq!(run, 1, "without the lock nobody regenerates");
        assert!(asked.elapsed() < 5 * SECOND, "{:?}", asked.elapsed());
        sleep(SHORT).await;
    }
    // A page of which no process has a version is generated once, and is served although it cannot be stored.
    let mut visitors = JoinSet::new();
    for _ in 0..20 {
        let app = app.clone();
        visitors.spawn(async move { visit(&app, "/cold").await });
    }
    assert_eq!(visitors.join_all().await, [2; 20]);
    assert_eq!(shop.begun(), 2);

    writer.execute_batch("ROLLBACK").expect("unlocks");
    for path in ["/warm", "/cold"] {
        until("it regrows", async || visit(&app, path).await > 2).await;
    }
    let stored = "SELECT count(*) FROM perennial_entry WHERE CAST(body AS TEXT) > '2'";
    until("both are stored", async || {
        let stored = writer.query_row(stored, [], |row| row.get::<_, i64>(0));
        stored.expect("is counted") == 2
    })
    .await;
}

#[derive(Clone, Copy, Debug)]
enum Loss {
    Garbage,
    Removed,
    TablesDropped,
    ReadOnly,
    Full,
}

#[tokio::test(flavor = "multi_thread")]
async fn warm_pages_are_served_and_cold_ones_generated_whatever_happens_to_the_file() {
    for loss in [
        Loss::Garbage,
        Loss::Removed,
        Loss::TablesDropped,
        Loss::ReadOnly,
        Loss::Full,
    ] {
        let shop = Shop::new();
        let site = match loss {
            Loss::Full => shop.site_with_a_small_file().await,
            _ => shop.site().await,
        };
        let policy = Refresh::every(SHORT).in_background().cooldown(SHORT);
        let app = shop.pages(&site, policy);
        assert_eq!(visit(&app, "/warm").await, 1);
        lose(&shop, loss);
        sleep(2 * SHORT).await;
        for _ in 0..5 {
            visit(&app, "/warm").await;
            sleep(SHORT).await;
        }
        let before = shop.begun();
        let app = shop.pages(&site, Refresh::every(LONG));
        let mut visitors = JoinSet::new();
        for _ in 0..20 {
            let app = app.clone();
            visitors.spawn(async move { visit(&app, "/cold").await });
        }
        visitors.join_all().await;
        // If the visitors come one after the other, the first one starts a generation, and its
        // version is fresh for all others.
        let runs = shop.begun() - before;
        assert!((1..=2).contains(&runs), "{loss:?}: {runs} generations");
    }
}

fn lose(shop: &Shop, loss: Loss) {
    let refuse = "SELECT RAISE(ABORT, 'read-only'); END;";
    let statements = match loss {
        Loss::Garbage | Loss::Removed => {
            for file in std::fs::read_dir(shop.folder.path()).expect("lists") {
                let file = file.expect("a file").path();
                if let Loss::Removed = loss {
                    std::fs::remove_file(file).expect("removes");
                    continue;
                }
                // SQLite trusts the content of its shared memory file. If that were overwritten, it would
                // map more and more memory.
                if file.to_string_lossy().ends_with("-shm") {
                    continue;
                }
                let length = std::fs::metadata(&file).expect("is there").len();
                let spoilt = std::fs::OpenOptions::new().write(true).open(file);
                let garbage = vec![0x5a; length.max(8192) as usize];
                let written = spoilt.expect("opens").write_all(&garbage);
                written.expect("is written");
            }
            return;
        }
        Loss::TablesDropped => "DROP TABLE perennial_entry; DROP TABLE perennial_lock".to_owned(),
        // Root can write every file. Tables that refuse writes come closest to a read-only file.
        Loss::ReadOnly => format!(
            "CREATE TRIGGER a BEFORE INSERT ON perennial_lock BEGIN {refuse}
             CREATE TRIGGER b BEFORE UPDATE ON perennial_lock BEGIN {refuse}"
        ),
        Loss::Full => "CREATE TABLE filler AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 64)
            SELECT randomblob(4000) AS page FROM n"
            .to_owned(),
    };
    shop.connection()
        .execute_batch(&statements)
        .expect(&statements);
}

/// A statement waits for another writer for longer than its caller, and is carried out when nobody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn late_try_leaves_no_lock_behind() {
    let shop = Shop::new();
    let pool = Pool::open(shop.path()).expect("opens");
    let builder = Perennial::builder().statement_timeout(SECOND);
    let site = builder.with_pool(pool).await.expect("makes its tables");
    let locks = site.locks().lease_duration(LONG);
    let writer = shop.connection();
    writer.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let asked = Instant::now();
    locks.try_lock("import").await.expect_err("is late");
    assert!(asked.elapsed() < HANG / 4, "{:?}", asked.elapsed());
    writer.execute_batch("ROLLBACK").expect("unlocks");
    let other = shop.site().await.locks();
    until("the lock is free", async || {
        let taken = other.try_lock("import").await.expect("answers");
        taken.is_some()
    })
    .await;
}

/// A process of the same site, which holds a lock and then has an open transaction.
struct Holder(Child);

impl Holder {
    fn start(shop: &Shop) -> Self {
        let program = std::env::current_exe().expect("has a path");
        let child = Command::new(program)
            .args(["holder", "--exact", "--ignored", "--nocapture"])
            .env("PERENNIAL_TEST_FILE", shop.path())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        assert!(lines.any(|line| line.expect("text") == "holds"));
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().expect("is killed");
        self.0.wait().expect("ends");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

/// No test: the process that is killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "is started by the test that kills it"]
async fn holder() {
    let Ok(path) = std::env::var("PERENNIAL_TEST_FILE") else {
        return;
    };
    let pool = Pool::open(&path).expect("opens");
    let site = Perennial::with_pool(pool).await.expect("opens");
    let locks = site.locks().lease_duration(SECOND);
    let lease = locks.try_lock("import").await.expect("answers");
    let lease = lease.expect("is free");
    let writer = Connection::open(&path).expect("opens");
    let change = "BEGIN IMMEDIATE; UPDATE product SET price = 12";
    writer.execute_batch(change).expect("is changed");
    println!("holds");
    sleep(HANG).await;
    drop(lease);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_process_held_is_taken_over() {
    let shop = Shop::new();
    let product = "CREATE TABLE product (price INTEGER); INSERT INTO product VALUES (10)";
    shop.connection().execute_batch(product).expect("is made");
    let site = shop.site().await;
    for _ in 0..3 {
        let mut holder = Holder::start(&shop);
        let app = shop.pages(&site, Refresh::every(LONG));
        holder.kill();
        until("its lease ends", async || {
            let taken = site.locks().try_lock("import").await;
            taken.expect("answers").is_some()
        })
        .await;
        let (path, before) = (format!("/{}", shop.begun()), shop.begun());
        assert_eq!(visit(&app, &path).await, before + 1);
        let price = "SELECT price FROM product";
        let price = shop
            .connection()
            .query_row(price, [], |row| row.get::<_, i64>(0));
        assert_eq!(price.expect("is read"), 10, "nobody committed it");
    }
}
