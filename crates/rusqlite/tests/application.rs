//! Applications on rusqlite: pages of two processes, and jobs, in the file that the application has.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::get};
use perennial::{DAY, ErrorKind, Perennial, Refresh};
use perennial_jobs::{Claims, Once, OnceOutcome};
use perennial_rusqlite::Pool;
use rusqlite::{Connection, params_from_iter};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tower::ServiceExt;

struct Shop {
    folder: TempDir,
    generated: Arc<AtomicUsize>,
}

impl Shop {
    fn new() -> Self {
        let shop = Self {
            folder: tempfile::tempdir().expect("a folder"),
            generated: Arc::default(),
        };
        let table = "CREATE TABLE product (id INTEGER PRIMARY KEY, price INTEGER NOT NULL);
            INSERT INTO product VALUES (7, 10);
            CREATE TABLE job (id INTEGER PRIMARY KEY, lock_id TEXT);
            INSERT INTO job (id) VALUES (1), (2), (3);";
        shop.connection().execute_batch(table).expect("is made");
        shop
    }

    /// A connection of the application's own, as any pool has it.
    fn connection(&self) -> Connection {
        let connection = Connection::open(self.folder.path().join("shop.db")).expect("opens");
        let limit = Duration::from_secs(30);
        connection.busy_timeout(limit).expect("is set");
        connection
    }

    /// Opens the site, as a process of its own would.
    async fn process(&self) -> (Perennial, Router) {
        let pool = Pool::open(self.folder.path().join("shop.db")).expect("opens");
        let site = Perennial::builder()
            .database_patience(Duration::from_secs(30))
            .statement_timeout(Duration::from_secs(30))
            .with_pool(pool)
            .await
            .expect("makes its tables");
        let (generated, path) = (Arc::clone(&self.generated), self.folder.path().to_owned());
        let price = move || async move {
            generated.fetch_add(1, SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let connection = Connection::open(path.join("shop.db")).expect("opens");
            let price = "SELECT price FROM product WHERE id = 7";
            let price: i64 = connection
                .query_row(price, [], |row| row.get(0))
                .expect("is there");
            price.to_string()
        };
        let policy = Refresh::every(30 * DAY).leader_wait(Duration::from_secs(60));
        let layer = site.layer(&policy).tag("product-7");
        let app = Router::new().route("/price", get(price).layer(layer));
        (site, app)
    }
}

async fn visit(app: &Router) -> String {
    let request = Request::get("/price").body(Body::empty());
    let response = app.clone().oneshot(request.expect("a request")).await;
    let body = response.expect("never fails").into_body();
    let body = axum::body::to_bytes(body, 1000).await.expect("is whole");
    String::from_utf8(body.to_vec()).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_generate_a_page_once_for_200_visitors() {
    let shop = Shop::new();
    let processes = [shop.process().await, shop.process().await];
    let mut visitors = JoinSet::new();
    for visitor in 0..200 {
        let (_, app) = &processes[visitor % 2];
        let app = app.clone();
        visitors.spawn(async move { visit(&app).await });
    }
    for price in visitors.join_all().await {
        assert_eq!(price, "10");
    }
    assert_eq!(shop.generated.load(SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_a_transaction_of_the_application_if_it_commits() {
    let shop = Shop::new();
    let (site, app) = shop.process().await;
    assert_eq!(visit(&app).await, "10");
    for (commits, price) in [(false, "10"), (true, "12")] {
        let invalidation = site.invalidation_sql(["product-7"]).expect("a tag");
        let mut connection = shop.connection();
        let transaction = connection.transaction().expect("begins");
        transaction
            .execute("UPDATE product SET price = 12 WHERE id = 7", [])
            .expect("is changed");
        let values = params_from_iter(invalidation.values());
        let written = transaction.execute(invalidation.sql(), values);
        assert_eq!(written.expect("is written"), 1);
        if commits {
            transaction.commit().expect("is committed");
        } else {
            transaction.rollback().expect("is rolled back");
        }
        invalidation.committed().await.expect("is applied");
        // The next visitor waits for the new version for a second at most, and may still get the
        // old one.
        while visit(&app).await != price {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(shop.generated.load(SeqCst), 2);
    let none = site.invalidation_sql([""; 0]).expect("no tag");
    let nothing = shop.connection().execute(none.sql(), []);
    assert_eq!(nothing.expect("is valid"), 0);
    let many = (0..10_001).map(|number| number.to_string());
    let error = site
        .invalidation_sql(many.collect::<Vec<_>>())
        .expect_err("are too many");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let most = (0..10_000).map(|number| number.to_string());
    let most = site
        .invalidation_sql(most.collect::<Vec<_>>())
        .expect("fit");
    let written = shop
        .connection()
        .execute(most.sql(), params_from_iter(most.values()));
    assert_eq!(written.expect("is valid"), 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_marked_in_a_transaction_of_the_application() {
    let shop = Shop::new();
    let (site, _) = shop.process().await;
    let locks = site.locks();
    let once = Once::new(&locks, ["mail", "42"]);
    let mark = once.mark_sql().expect("one statement");
    let mut connection = shop.connection();
    for (commits, marks) in [(false, true), (true, true), (true, false)] {
        let transaction = connection.transaction().expect("begins");
        let mut statement = transaction.prepare(mark.sql()).expect("is valid");
        let mut rows = statement
            .query(params_from_iter(mark.values()))
            .expect("is run");
        let marked = rows.next().expect("is read").is_some();
        assert_eq!(marked, marks);
        drop(rows);
        drop(statement);
        if commits {
            transaction.commit().expect("is committed");
        } else {
            transaction.rollback().expect("is rolled back");
        }
    }
    let again = Once::new(&locks, ["mail", "42"]).run(async || ()).await;
    assert!(
        matches!(again, Ok(OnceOutcome::AlreadyDone { .. })),
        "{again:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_claimed_by_one_worker_each() {
    let shop = Shop::new();
    let (site, _) = shop.process().await;
    let database = site.database().expect("an SQL database");
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let claims = Claims::with_pool(database.clone(), "job");
        workers.spawn(async move {
            let mut done = Vec::new();
            loop {
                let claim = claims.claim(1).await.expect("answers");
                let Some(id) = claim.ids().first().cloned() else {
                    return done;
                };
                claim.complete_by_row(&id).await.expect("is completed");
                done.push(id);
            }
        });
    }
    let mut done: Vec<String> = workers.join_all().await.into_iter().flatten().collect();
    done.sort();
    assert_eq!(done, ["1", "2", "3"]);
}
