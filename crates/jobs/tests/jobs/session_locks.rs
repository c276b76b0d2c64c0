//! A lock that a connection holds has one holder, and is free as soon as the connection ends.

use std::time::{Duration, Instant};

use perennial::ErrorKind;
use perennial_jobs::SessionLock;
use tokio::task::JoinSet;

use perennial_testkit::{Db, HANG, on_database, on_each_server, pool_of, until};

on_each_server! {
    one_of_many_has_the_lock_and_it_is_free_when_it_is_released_or_dropped
    waiter_gets_the_session_lock_or_an_error
    a_lock_whose_connection_is_killed_is_lost_and_free
    a_killed_process_gives_the_lock_up_at_once
    no_two_names_are_one
}

/// A name of the test's own: on MySQL and MariaDB these locks are the server's, which the tests
/// share.
fn one(url: &str) -> String {
    format!("one of {url}")
}

async fn try_one(db: &Db) -> Option<SessionLock> {
    try_lock(db, &one(db.url())).await
}

async fn try_lock(db: &Db, name: &str) -> Option<SessionLock> {
    let pool = pool_of(db.url(), 2).await;
    SessionLock::try_lock(pool, name).await.expect("answers")
}

async fn one_of_many_has_the_lock_and_it_is_free_when_it_is_released_or_dropped(db: Db) {
    let (pool, one) = (pool_of(db.url(), 2).await, one(db.url()));
    for round in 0..5 {
        let mut tries = JoinSet::new();
        for _ in 0..10 {
            let tried = SessionLock::try_lock(pool.clone(), one.clone());
            tries.spawn(async move { tried.await.expect("answers") });
        }
        let mut won: Vec<_> = tries.join_all().await.into_iter().flatten().collect();
        assert_eq!(won.len(), 1, "round {round}");
        let lock = won.remove(0);
        assert_eq!(lock.name(), one);
        assert_eq!(lock.guard(async { 7 }).await.expect("is held"), 7);
        if round % 2 == 0 {
            lock.release().await.expect("is held");
        } else {
            drop(lock);
            until("it is free", async || try_one(&db).await.is_some()).await;
            until("and again", async || {
                match try_one(&db).await {
                    Some(lock) => lock.release().await.is_ok(),
                    // The connection before may still be closing.
                    None => false,
                }
            })
            .await;
        }
    }
}

async fn waiter_gets_the_session_lock_or_an_error(db: Db) {
    let lock = try_one(&db).await.expect("is free");
    let (pool, one) = (pool_of(db.url(), 2).await, one(db.url()));
    let wait = Duration::from_millis(300);
    let start = Instant::now();
    let error = SessionLock::lock(pool.clone(), &*one, wait).await;
    let error = error.expect_err("is taken");
    assert!(
        error.kind() == ErrorKind::Taken && start.elapsed() >= wait,
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains(&format!("{one:?} was not free within 300ms")),
        "{error}"
    );
    let waiting = tokio::spawn(SessionLock::lock(pool, one, HANG));
    tokio::time::sleep(wait).await;
    lock.release().await.expect("is held");
    let lock = waiting.await.expect("no panic").expect("is free in time");
    // Signs of life alone hold the lock.
    let lost = tokio::time::timeout(Duration::from_secs(5), lock.lost()).await;
    lost.expect_err("is held");
    lock.release().await.expect("is held");
}

async fn a_lock_whose_connection_is_killed_is_lost_and_free(db: Db) {
    let lock = try_one(&db).await.expect("is free");
    if db.url().starts_with("postgres") {
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        db.execute(kill).await;
    } else {
        let one = one(db.url());
        let holder = format!("SELECT CAST(IS_USED_LOCK(SHA2('{one}', 256)) AS SIGNED)");
        let holder = db.int(&holder).await.expect("somebody");
        db.execute(&format!("KILL {holder}")).await;
    }
    until("it is free", async || try_one(&db).await.is_some()).await;
    let guarded = lock.guard(std::future::pending::<()>());
    let guarded = tokio::time::timeout(HANG, guarded)
        .await
        .expect("is noticed");
    assert_eq!(guarded.expect_err("is lost").kind(), ErrorKind::Lost);
    lock.lost().await;
    assert_eq!(
        lock.release().await.expect_err("is lost").kind(),
        ErrorKind::Lost
    );
}

async fn a_killed_process_gives_the_lock_up_at_once(db: Db) {
    let mut process = tokio::process::Command::new(std::env::current_exe().expect("has a path"))
        .args([
            "session_locks::holder",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("PERENNIAL_HOLDER", db.url())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("starts");
    until("it is held", async || try_one(&db).await.is_none()).await;
    process.kill().await.expect("is alive");
    // With TCP's keepalive alone, the server would notice only after hours that the client is gone.
    until("it is free", async || try_one(&db).await.is_some()).await;
}

/// A process that holds the lock; not a test.
#[tokio::test]
#[ignore = "is started by the test of killed processes"]
async fn holder() {
    let Ok(url) = std::env::var("PERENNIAL_HOLDER") else {
        return;
    };
    // The test may look just now.
    let lock = SessionLock::lock(pool_of(&url, 1).await, one(&url), HANG).await;
    lock.expect("is free").lost().await;
}

async fn no_two_names_are_one(db: Db) {
    let long = "x".repeat(300);
    let names = [
        "a",
        "A",
        "a ",
        "ä",
        "",
        "' OR 1=1 --",
        "\0",
        "a\0",
        &*long,
        &long[1..],
    ];
    let mut held = Vec::new();
    for name in names {
        held.push(try_lock(&db, name).await.expect("is its own"));
    }
    for name in names {
        assert!(try_lock(&db, name).await.is_none(), "{name:?}");
    }
}

#[cfg(feature = "postgres")]
on_database! { pooled = perennial_testkit::Db::postgres_pooled(); a_pooler_that_shares_its_connections_is_an_error }

#[cfg(feature = "postgres")]
async fn a_pooler_that_shares_its_connections_is_an_error(db: Db) {
    // The first holder cannot notice that there is a pooler. The lock stays with the server's
    // session, so another client finds it held, or finds on the same session the mark of its
    // holder.
    let first = try_one(&db).await.expect("is free");
    let one = one(db.url());
    for name in [&*one, "two"] {
        let pool = pool_of(db.url(), 1).await;
        match SessionLock::try_lock(pool, name).await {
            Ok(None) => assert_eq!(name, one, "by another of the pooler's connections"),
            Ok(Some(_)) => assert_eq!(name, "two", "by another of the pooler's connections"),
            Err(error) => assert!(
                error.to_string().contains("a pooler shares the connection"),
                "{error}"
            ),
        }
    }
    drop(first);
}

#[tokio::test]
async fn sqlite_has_no_session_locks_and_recommends_a_lease() {
    let pool = sqlx::SqlitePool::connect("sqlite::memory:")
        .await
        .expect("opens");
    let error = SessionLock::try_lock(pool, "one")
        .await
        .expect_err("has none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("use a lease"), "{error}");
}
