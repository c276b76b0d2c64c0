//! `perennial::testing` in the test of an application.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use perennial::{Builder, DAY, ErrorKind, Perennial, Refresh};
use perennial_jobs::Once;
use perennial_testing::{Database, advance};
use tokio::time::Instant;

use perennial_testkit::request;
use perennial_testkit::{is_database, taken};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const POLICY: Refresh = Refresh::every(DAY);

fn open(database: &Database) -> Perennial {
    database.open(Perennial::builder()).expect("opens")
}

async fn content(site: &Perennial, content: &'static str) -> String {
    let generated = site.content("key", POLICY, async move || Ok::<_, Infallible>(content));
    generated.await.expect("is served").to_string()
}

#[tokio::test(start_paused = true)]
async fn two_processes_generate_a_page_once() {
    let database = Database::new();
    let (here, there) = (open(&database), open(&database));
    let both = tokio::join!(content(&here, "a"), content(&there, "b"));
    assert_eq!(both.0, both.1);
    assert_eq!(database.generations("key"), 1);
}

#[tokio::test(start_paused = true)]
async fn page_that_failed_with_the_database_is_served_two_seconds_after_the_database_is_back() {
    let database = Database::new();
    assert_eq!(content(&open(&database), "stored").await, "stored");
    // Nothing is in its memory.
    let site = open(&database);
    database.fail();
    let runs = Arc::new(AtomicU32::new(0));
    let visit = async || {
        let runs = Arc::clone(&runs);
        let generator = async move || {
            runs.fetch_add(1, Relaxed);
            Err::<&str, _>("needs the database, too")
        };
        site.content("key", &POLICY, generator).await
    };
    for _ in 0..20 {
        visit().await.expect_err("nothing can be served");
        advance(SECOND).await;
    }
    // After 0, 1, 3, 7 and 15 s.
    assert_eq!(runs.load(Relaxed), 5, "the cooldown doubles");
    database.recover();
    // Tells the site to ask the database.
    drop(visit().await);
    advance(SECOND * 2).await;
    assert_eq!(visit().await.expect("is stored").to_string(), "stored");
    assert_eq!(runs.load(Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn page_is_not_modified_later_than_it_is_sent() {
    let site = open(&Database::new());
    let page = get(|| async { "page" });
    let app = Router::new().route("/", page.layer(site.layer(POLICY)));
    advance(7 * DAY).await;
    perennial_testkit::get(&app, "/").await;
    advance(SECOND).await;
    let reply = perennial_testkit::get(&app, "/").await;
    let time = |name| httpdate::parse_http_date(reply.header(name)).expect("is a date");
    assert!(time("last-modified") < time("date"));
}

#[tokio::test(start_paused = true)]
async fn call_that_hangs_is_carried_out_after_recovery() {
    let database = Database::new();
    let locks = open(&database).locks();
    database.hang();
    let begun = Instant::now();
    let recovered = async {
        advance(3 * SECOND).await;
        database.recover();
    };
    let (lease, ()) = tokio::join!(locks.try_lock("a"), recovered);
    assert!(lease.expect("answers").is_some());
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn call_that_is_given_up_while_the_database_hangs_or_is_slow_is_not_carried_out() {
    let hang: fn(&Database) = Database::hang;
    let slow: fn(&Database) = |database| database.slow_down(MINUTE);
    for condition in [hang, slow] {
        let database = Database::new();
        let site = open(&database);
        condition(&database);
        let begun = Instant::now();
        let error = site.invalidate("key").await.expect_err("is given up");
        assert!(is_database(&error), "{error}");
        assert_eq!(begun.elapsed().as_secs(), 5, "the statement limit");
        let error = site.locks().try_lock("a").await.expect_err("is given up");
        assert!(is_database(&error), "{error}");
        database.recover();
        let taken = open(&database).locks().try_lock("a").await;
        assert!(taken.expect("answers").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn slow_database_delays_each_call() {
    let database = Database::new();
    let locks = open(&database).locks();
    database.slow_down(2 * SECOND);
    let begun = Instant::now();
    let lease = locks.try_lock("a").await.expect("answers");
    assert_eq!(begun.elapsed().as_secs(), 2);
    lease.expect("is free").release().await.expect("is held");
    assert_eq!(begun.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn lock_whose_reply_was_lost_is_free_after_some_seconds() {
    let database = Database::new();
    let locks = open(&database).locks().lease_duration(DAY);
    database.lose_replies();
    let error = locks.try_lock("a").await.expect_err("has no reply");
    assert!(is_database(&error), "{error}");
    database.recover();
    assert!(locks.try_lock("a").await.expect("answers").is_none());
    advance(MINUTE).await;
    let _lease = taken(&locks, "a").await;
}

#[tokio::test(start_paused = true)]
async fn page_is_compressed_when_time_has_passed() {
    let database = Database::new();
    let site = open(&database);
    let page = get(|| async { axum::response::Html("<p>text</p>".repeat(100)) });
    let app = Router::new().route("/", page.layer(site.layer(POLICY)));
    let visit = async || request(&app, "GET", "/", &[("accept-encoding", "gzip")]).await;
    visit().await;
    advance(Duration::from_millis(1)).await;
    assert_eq!(visit().await.header("content-encoding"), "gzip");
}

#[tokio::test]
async fn site_in_memory_has_no_sql_database() {
    let site = open(&Database::new());
    let error = site.database().expect_err("is none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("in memory"), "{error}");
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("a.db").display());
    let pool = sqlx::SqlitePool::connect(&url).await.expect("opens");
    let mut transaction = pool.begin().await.expect("begins");
    let marked = Once::new(&site.locks(), "mail")
        .mark_in(&mut transaction)
        .await;
    let error = marked.expect_err("is another database");
    assert!(error.to_string().contains("in memory"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn site_opens_while_the_database_in_memory_fails() {
    let database = Database::new();
    database.fail();
    let site = open(&database);
    assert_eq!(content(&site, "unsaved").await, "unsaved");
    assert_eq!(database.generations("key"), 0);
    let builder: Builder = Perennial::builder().revision("");
    let error = database.open(builder).expect_err("is empty");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
#[should_panic(expected = "frozen")]
async fn time_that_is_not_paused_is_not_advanced() {
    advance(DAY).await;
}
