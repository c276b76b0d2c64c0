//! Many rows: each statement of a visitor finds its rows by an index.

use std::time::Instant;

use axum::{
    Router,
    routing::{get, post},
};
use perennial::{DAY, Refresh, event::Served};
use perennial_idempotency::{IdempotencyLayer, Scope};
use perennial_store::{
    BreakLock, Epoch, Evict, Extend, Inspect, Invalidate, LatestNames, NameList, PruneRequests,
    Purge, PurgedUntil, Release, Remove, Revoke,
};

use perennial_testkit::{
    Db, four_digits, on_database, page,
    store::{ask, content, invalidated, lock, publish, renew, stored},
    until,
};

use perennial_driver_tests::{ALL, LEASE, NONE};

/// Prints the time of an action.
async fn timed(what: &str, action: impl Future<Output = ()>) {
    let begun = Instant::now();
    action.await;
    println!("{what}: {:?}", begun.elapsed());
}

/// The number of times that each action is done: more often than a process reads whole tables.
const TURNS: u32 = 6;

/// By default few. With ten million, in some minutes:
///
/// `PERENNIAL_TEST_ROWS=10000000 scripts/with-servers cargo test --release --all-features --test contract \
/// statement_plans:: -- --nocapture`
fn rows() -> u32 {
    let rows = std::env::var("PERENNIAL_TEST_ROWS");
    rows.map_or(20_000, |rows| rows.parse().expect("a number"))
}

#[tokio::test]
async fn no_statement_reads_a_whole_table_on_postgres() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    drop(db.site().await);
    let (rows, hour) = (rows(), 3_600_000_000_i64);
    let now = "(extract(epoch FROM now()) * 1000000)::bigint";
    for fill in [
        format!(
            "INSERT INTO perennial_lock (kind, name, fence, acquired_at, expires_at)
             SELECT 'page', '/books/' || n, 1, {now}, {now} FROM generate_series(1, {rows}) n"
        ),
        format!(
            "INSERT INTO perennial_entry (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, status, headers, body)
             SELECT '/books/' || n, 1, {now}, {now} + {hour}, {now} + {hour}, 0, 100, '{{}}', 200,
                 convert_to('content-type: text/html' || chr(10) || 'content-length: 100' || chr(10), 'UTF8'), convert_to(repeat('x', 100), 'UTF8')
             FROM generate_series(1, {rows}) n"
        ),
        format!(
            "INSERT INTO perennial_request
             SELECT 'public/' || n, 'x', '', {now}, {now} + {hour},
                 CASE WHEN n <= 1000 THEN 1 ELSE {now} + {hour} END
             FROM generate_series(1, {rows}) n"
        ),
        "ANALYZE".to_owned(),
    ] {
        db.execute(&fill).await;
    }
    let scans = async |how: &str| {
        let tables = "relname IN ('perennial_lock', 'perennial_entry', 'perennial_request')";
        let sum = format!("SELECT sum({how})::bigint FROM pg_stat_user_tables WHERE {tables}");
        db.int(&sum).await.expect("is counted")
    };
    let site = db.site().await;
    let page = get(async || "new").layer(site.layer(Refresh::every(DAY)));
    let app = Router::new().route("/books/{number}", page);
    let visit = async |number: u32| {
        let reply = perennial_testkit::get(&app, &format!("/books/{number}")).await;
        reply.header("cache-status").to_owned()
    };
    assert!(visit(1).await.contains("hit"));
    let store = db.database().await.store("perennial_").await;
    let store = store.expect("prepares");
    let once = IdempotencyLayer::new(&site.locks(), |_| Some(Scope::public()));
    let paid = Router::new().route("/pay", post(async || "paid").layer(once));
    let (whole, by_index) = (scans("seq_scan").await, scans("idx_scan").await);
    for turn in 0..TURNS {
        timed("a stored page is read", async {
            assert!(visit(2 + turn).await.contains("hit"));
        })
        .await;
        timed("a new page is generated and stored", async {
            assert!(visit(rows + 1 + turn).await.contains("stored"));
        })
        .await;
        timed("a page is purged", async {
            let key = format!("/books/{}", 100 + turn);
            site.purge(&key).await.expect("is purged");
        })
        .await;
        timed("a page is invalidated and regenerated", async {
            site.invalidate("/books/2").await.expect("is invalidated");
            let done = site.regenerate(app.clone(), ["/books/2"]).await;
            assert!(matches!(done[0].result, Ok(Served::Generated)));
        })
        .await;
        timed("a lock is taken and released", async {
            let lease = site.locks().try_lock("a job").await.expect("answers");
            let lease = lease.expect("is free");
            lease.release().await.expect("is released");
        })
        .await;
        timed("hundred requests are pruned", async {
            let pruned = store.ask(PruneRequests::new(100)).await;
            // The layer prunes, too.
            assert!(pruned.expect("answers") <= 100);
        })
        .await;
        timed("a request runs once, and is repeated", async {
            for _ in 0..2 {
                let key = [("idempotency-key", &*turn.to_string())];
                let reply = perennial_testkit::request(&paid, "POST", "/pay", &key).await;
                assert_eq!(reply.status, 200);
            }
        })
        .await;
    }
    // PostgreSQL counts a connection's scans with a delay of up to a few seconds.
    until("the scans are counted", async || {
        scans("idx_scan").await >= by_index + 8 * i64::from(TURNS)
    })
    .await;
    let more = scans("seq_scan").await - whole;
    assert!(more < i64::from(TURNS), "{more} whole tables were read");
}

#[cfg(feature = "postgres")]
on_database! {
    reads_postgres = perennial_testkit::Db::postgres();
    no_statement_reads_all_rows_of_postgres
}

#[cfg(feature = "mysql")]
on_database! {
    reads_mysql = perennial_testkit::Db::mysql();
    no_statement_reads_all_rows_of_mysql
}

#[cfg(feature = "postgres")]
async fn no_statement_reads_all_rows_of_postgres(db: Db) {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(db.url()).await.expect("opens");
    request_among_many_rows(&db, pool.clone().into()).await;
    // A session's counters are visible after its end.
    pool.close().await;
    let count = async |what| {
        let sql = format!("SELECT sum({what})::bigint FROM pg_stat_user_tables");
        db.int(&sql).await.expect("a number")
    };
    until("what was read is counted", async || {
        count("idx_scan").await >= 20
    })
    .await;
    let read = count("seq_tup_read + idx_tup_fetch").await;
    assert!(read < ROWS, "{read} rows were read");
}

#[cfg(feature = "mysql")]
async fn no_statement_reads_all_rows_of_mysql(db: Db) {
    // A session has counters of its own.
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(1);
    let pool = pool.connect(db.url()).await.expect("opens");
    request_among_many_rows(&db, pool.clone().into()).await;
    let counters = "SHOW SESSION STATUS WHERE Variable_name IN ('Handler_read_key', 'Handler_read_next', 'Handler_read_rnd_next')";
    let counted: Vec<(String, String)> = sqlx::query_as(counters)
        .fetch_all(&pool)
        .await
        .expect("reads");
    let counted: Vec<i64> = counted
        .iter()
        .map(|(_, count)| count.parse().expect("a number"))
        .collect();
    let [by_key, next, any] = counted[..] else {
        panic!("{counted:?}")
    };
    assert!(by_key >= 20, "what was read is counted");
    assert!(next + any < ROWS, "{} rows were read", next + any);
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
const ROWS: i64 = 10_000;

/// The statements of requests and locks, over this number of rows in each table.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn request_among_many_rows(db: &Db, database: perennial::sql::Database) {
    let store = database.store("perennial_").await.expect("prepares");
    let digits = four_digits();
    for (columns, values) in [
        (
            "lock (kind, name, fence, acquired_at, expires_at)",
            "1, 1, 1",
        ),
        ("invalidation (name, epoch)", "1"),
        (
            "entry (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, status, headers, body)",
            "1, 1, 1, 4102444800000000, 0, 0, '', 200, '', ''",
        ),
    ] {
        let kind = if columns.contains("kind") {
            "'page', "
        } else {
            ""
        };
        let sql = format!(
            "INSERT INTO perennial_{columns} SELECT {kind}concat('/page/', a.d, b.d, c.d, d.d), {values}
            FROM {digits}"
        );
        assert_eq!(db.execute(&sql).await, ROWS.cast_unsigned());
    }
    let content = content("of a page");
    for key in ["/page/0815", "/page/4711", "/another"] {
        let name = &page(key);
        assert!(ask(&*store, Evict { excess: 1 }).await > 0);
        ask(&*store, LatestNames::new(NameList::Purged, Epoch::MAX, 10)).await;
        ask(&*store, PurgedUntil {}).await;
        let taken = lock(&*store, name.clone(), LEASE).await;
        assert!(ask(&*store, Extend::new(&taken, LEASE)).await);
        assert!(publish(&*store, &taken, &content).await);
        let (fence, _) = stored(&*store, name).await.expect("is there");
        assert!(ask(&*store, Release::new(&taken, NONE)).await);
        let taken = lock(&*store, name.clone(), LEASE).await;
        assert!(renew(&*store, &taken, fence).await);
        let epoch = ask(&*store, Invalidate::new(vec![key.to_owned()])).await;
        let since = invalidated(&*store, Epoch(epoch.0 - 1), ALL).await;
        assert!(since.iter().any(|(name, _)| name == key));
        assert!(ask(&*store, Remove::new(&taken)).await);
        assert!(ask(&*store, Inspect::new(name)).await.is_some());
        let revoke = Revoke::new(&taken.name, &taken.owner);
        ask(&*store, revoke).await;
        assert!(ask(&*store, BreakLock::new(name, None)).await);
        ask(&*store, Purge::new(key)).await;
    }
}
