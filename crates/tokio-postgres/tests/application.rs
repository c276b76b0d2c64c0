//! Applications on deadpool's pools: pages of two processes, and jobs, by the pool that the application has.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::get};
use deadpool_postgres::{Manager, Pool};
use perennial::{DAY, ErrorKind, Perennial, Refresh};
use perennial_jobs::{Claims, Once, OnceOutcome, SessionLock};
use perennial_tokio_postgres::{Deadpool, in_transaction};
use tokio::task::JoinSet;
use tokio_postgres::{Config, NoTls, types::ToSql};
use tower::ServiceExt;

mod server;

/// Longer than anything that is waited for.
const HANG: Duration = Duration::from_secs(60);

struct Shop {
    config: Config,
    generated: Arc<AtomicUsize>,
    _database: server::Created,
}

impl Shop {
    async fn new() -> Option<Self> {
        let (config, database) = server::database().await?;
        let shop = Self {
            config,
            generated: Arc::default(),
            _database: database,
        };
        let tables = "CREATE TABLE product (id INTEGER PRIMARY KEY, price BIGINT NOT NULL);
            INSERT INTO product VALUES (7, 10);
            CREATE TABLE job (id UUID PRIMARY KEY DEFAULT gen_random_uuid(), lock_id TEXT);
            INSERT INTO job SELECT FROM generate_series(1, 3);";
        let client = shop.pool().get().await.expect("connects");
        client.batch_execute(tables).await.expect("are made");
        Some(shop)
    }

    fn pool(&self) -> Pool {
        let manager = Manager::new(self.config.clone(), NoTls);
        let pool = Pool::builder(manager).max_size(4).build();
        pool.expect("no timeouts")
    }

    /// Opens the site by a pool that the application uses, too, as a process of its own would.
    async fn process(&self) -> (Perennial, Pool, Router) {
        let pool = self.pool();
        let site = Perennial::builder()
            .database_patience(HANG / 2)
            .statement_timeout(HANG / 2)
            .with_pool(Deadpool::new(pool.clone()))
            .await
            .expect("makes its tables");
        let (generated, own) = (Arc::clone(&self.generated), pool.clone());
        let price = move || async move {
            generated.fetch_add(1, SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let client = own.get().await.expect("connects");
            let price = "SELECT price FROM product WHERE id = 7";
            let price = client.query_one(price, &[]).await.expect("is there");
            price.get::<_, i64>(0).to_string()
        };
        let policy = Refresh::every(30 * DAY).leader_wait(HANG);
        let layer = site.layer(&policy).tag("product-7");
        let app = Router::new().route("/price", get(price).layer(layer));
        (site, pool, app)
    }
}

async fn visit(app: &Router) -> String {
    let request = Request::get("/price").body(Body::empty());
    let response = app.clone().oneshot(request.expect("a request")).await;
    let body = response.expect("never fails").into_body();
    let body = axum::body::to_bytes(body, 1000).await.expect("is whole");
    String::from_utf8(body.to_vec()).expect("text")
}

fn parameters(values: &[String]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as _).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_generate_a_page_once_for_200_visitors() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let processes = [shop.process().await, shop.process().await];
    let mut visitors = JoinSet::new();
    for visitor in 0..200 {
        let app = processes[visitor % 2].2.clone();
        visitors.spawn(async move { visit(&app).await });
    }
    for price in visitors.join_all().await {
        assert_eq!(price, "10");
    }
    assert_eq!(shop.generated.load(SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_a_transaction_of_the_application_if_it_commits() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let (site, pool, app) = shop.process().await;
    assert_eq!(visit(&app).await, "10");
    let change = "UPDATE product SET price = price + 1 WHERE id = 7";
    let mut client = pool.get().await.expect("connects");
    for (commits, price) in [(false, "10"), (true, "11"), (false, "11"), (true, "12")] {
        let transaction = client.transaction().await.expect("begins");
        transaction.execute(change, &[]).await.expect("is changed");
        let end = async |transaction: deadpool_postgres::Transaction<'_>| {
            if commits {
                transaction.commit().await.expect("is committed");
            } else {
                transaction.rollback().await.expect("is rolled back");
            }
        };
        // The first change is invalidated by a call of `invalidate_in`, and the second one by a statement of
        // the application.
        if shop.generated.load(SeqCst) == 1 {
            let inside = in_transaction(&transaction);
            let invalidation = site.invalidate_in(inside, ["product-7"]).await;
            end(transaction).await;
            invalidation
                .expect("is written")
                .committed()
                .await
                .expect("is applied");
        } else {
            let invalidation = site.invalidation_sql(["product-7"]).expect("a tag");
            let values = parameters(invalidation.values());
            let written = transaction.execute(invalidation.sql(), &values).await;
            assert_eq!(written.expect("is written"), 1);
            end(transaction).await;
            invalidation.committed().await.expect("is applied");
        }
        while visit(&app).await != price {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(shop.generated.load(SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_marked_in_a_transaction_of_the_application() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let (site, pool, _) = shop.process().await;
    let locks = site.locks();
    let mut client = pool.get().await.expect("connects");
    for (commits, marks) in [(false, true), (true, true), (true, false)] {
        let transaction = client.transaction().await.expect("begins");
        let mark = Once::new(&locks, ["mail", "41"]).mark_sql();
        let mark = mark.expect("one statement");
        let values = parameters(mark.values());
        let rows = transaction.query(mark.sql(), &values).await;
        assert_eq!(rows.expect("is run").len() == 1, marks);
        let once = Once::new(&locks, ["mail", "42"]);
        let marked = once.mark_in(in_transaction(&transaction)).await;
        let marked = marked.expect("is run") == OnceOutcome::Ran(());
        assert_eq!(marked, marks);
        if commits {
            transaction.commit().await.expect("is committed");
        } else {
            transaction.rollback().await.expect("is rolled back");
        }
    }
    let after = Once::new(&locks, ["mail", "43"]).after(["mail", "never"]);
    let mark = after.mark_sql().expect("one statement");
    let rows = client.query(mark.sql(), &parameters(mark.values())).await;
    assert!(
        rows.expect("is run").is_empty(),
        "the work before is not done"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_claimed_by_one_worker_each() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let (site, _, _) = shop.process().await;
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
    done.dedup();
    assert_eq!(done.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn session_lock_is_held_by_one_connection_and_ends_with_it() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let (site, pool, _) = shop.process().await;
    let database = site.database().expect("an SQL database");
    let held = SessionLock::try_lock(database.clone(), "nightly").await;
    let held = held.expect("answers").expect("is free");
    let other = SessionLock::try_lock(database.clone(), "nightly").await;
    assert!(other.expect("answers").is_none());
    // The connection of the lock has left the pool.
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(pool.get().await.expect("connects"));
    }
    drop(clients);
    drop(held);
    let begun = std::time::Instant::now();
    while SessionLock::try_lock(database.clone(), "nightly")
        .await
        .expect("answers")
        .is_none()
    {
        assert!(begun.elapsed() < HANG, "the server never freed the lock");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_need_another_pool() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let builder = Perennial::builder().listen();
    let error = builder.with_pool(Deadpool::new(shop.pool())).await;
    let error = error.expect_err("cannot listen");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("a pool of sqlx's"), "{error}");
}
