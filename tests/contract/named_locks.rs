//! Locks that are awaited, inspected, broken and pruned: row by row on each database, and otherwise
//! in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use perennial::{ErrorKind, Perennial, locks::Locks, sql::Database};
use perennial_jobs::{Claims, Once, OnceOutcome, SessionLock};
use tokio::{task::JoinSet, time::Instant};

use perennial_testkit::{
    Db, HANG, all_of, on_database, on_each_database, taken, until, virtual_time::Shared, with_pool,
};

on_each_database! {
    locks_that_are_unused_for_long_are_pruned
    work_done_once_runs_in_one_process_and_not_again
    each_call_ends_at_the_statement_limit
}

const LEASE: Duration = Duration::from_secs(6);

async fn locks(db: &Db) -> Locks {
    db.site().await.locks()
}

#[tokio::test(start_paused = true)]
async fn every_waiter_gets_the_lock_in_its_turn() {
    const WAITERS: usize = 10;
    let shared = Shared::new();
    let processes = [shared.locks(), shared.locks()];
    let left = Arc::new(AtomicUsize::new(500));
    let mut waiters = JoinSet::new();
    for waiter in 0..WAITERS {
        let (locks, left) = (processes[waiter % 2].clone(), Arc::clone(&left));
        waiters.spawn(async move {
            let mut turns = 0;
            while left.load(SeqCst) > 0 {
                let lease = locks.lock("one").wait(HANG).await.expect("is free in time");
                tokio::time::sleep(Duration::from_millis(2)).await;
                lease.release().await.expect("is ours");
                turns += 1;
                let _ = left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
                // The previous holder pauses before it tries again, as a process that has to
                // reconnect does.
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            turns
        });
    }
    let turns = waiters.join_all().await;
    assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
    let all: usize = turns.iter().sum();
    let least = *turns.iter().min().expect("some wait");
    assert!(least * WAITERS * 5 > all, "{turns:?}");
}

on_database! {
    sqlite_pool = perennial_testkit::Db::sqlite();
    waiters_for_one_lock_delay_no_other_lock
}

async fn waiters_for_one_lock_delay_no_other_lock(db: Db) {
    let locks = locks(&db).await;
    let busy = locks.lock("busy").await.expect("is free");
    let mut waiting = JoinSet::new();
    for _ in 0..40 {
        let attempt = locks.lock("busy").wait(HANG);
        waiting.spawn(async move { attempt.await.expect("is free in time").release().await });
    }
    for n in 0..25 {
        let name = format!("other {n}");
        let held = taken(&locks, &name).await;
        let attempt = tokio::spawn(locks.lock(&name).wait(HANG).into_future());
        held.release().await.expect("is ours");
        let other = tokio::time::timeout(HANG, attempt).await;
        let other = other.expect("in time").expect("no panic").expect("is free");
        other.release().await.expect("is ours");
    }
    // While so many attempts of this process wait, an attempt that does not wait is refused without
    // asking the database.
    assert!(
        locks
            .lock("busy")
            .wait(Duration::ZERO)
            .await
            .expect_err("is taken")
            .kind()
            == ErrorKind::Taken
    );
    busy.release().await.expect("is ours");
    for released in waiting.join_all().await {
        released.expect("is ours");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_up_learns_the_holder_and_its_action() {
    let shared = Shared::new();
    let [mine, theirs] = [shared.locks().label("web-1\tä"), shared.locks()];
    let lease = mine.lock(["album", "7"]).action("delete").await;
    let lease = lease.expect("is free");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = Instant::now();
    let wait = Duration::from_millis(400);
    let attempt = theirs.lock(["album", "7"]).wait(wait).action("upload");
    let error = attempt.await.expect_err("is taken");
    assert!(start.elapsed() >= wait && start.elapsed() < 2 * wait);
    assert_eq!(error.kind(), ErrorKind::Taken);
    let said = error.to_string();
    for part in [
        "\"album/7\"",
        "400ms",
        "\"upload\"",
        "\"web-1 ä\" has held it for",
        "\"delete\"",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    lease.release().await.expect("is ours");
    let once = theirs.lock(["album", "7"]).wait(Duration::ZERO).await;
    drop(once.expect("is free"));
}

#[tokio::test(start_paused = true)]
async fn lock_with_a_minimum_hold_is_not_free_before() {
    let least = Duration::from_secs(4);
    let locks = Shared::new().locks();
    let job = locks.clone().lease_duration(LEASE).hold_at_least(least);
    for dropped in [false, true] {
        let start = Instant::now();
        let lease = job.lock("job").wait(HANG).await.expect("is free");
        if dropped {
            drop(lease);
        } else {
            lease.release().await.expect("is ours");
        }
        let error = locks.lock("job").wait(Duration::from_millis(100)).await;
        let said = error.expect_err("is not free yet").to_string();
        assert!(dropped || said.contains("may be taken again in"), "{said}");
        drop(locks.lock("job").wait(HANG).await.expect("is free"));
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_extended_is_lost_when_it_ends() {
    let locks = Shared::new()
        .locks()
        .lease_duration(LEASE)
        .manual_extension();
    let lease = taken(&locks, "a").await;
    let start = Instant::now();
    let before = LEASE / 4;
    tokio::time::sleep(before).await;
    lease.extend().await.expect("is ours");
    lease.lost().await;
    // The time counts from the extension.
    let held = start.elapsed();
    assert!(held >= before + LEASE * 9 / 10, "{held:?}");
    until("another gets it", async || {
        locks.try_lock("a").await.expect("answers").is_some()
    })
    .await;
    assert_eq!(
        lease.release().await.expect_err("is lost").kind(),
        ErrorKind::Lost
    );
}

#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_free_and_its_holder_finds_out() {
    let locks = Shared::new().locks().lease_duration(LEASE);
    assert!(!locks.break_lock("a", None).await.expect("answers"));
    let lease = taken(&locks, "a").await;
    assert!(locks.break_lock("a", None).await.expect("answers"));
    let next = taken(&locks, "a").await;
    assert!(next.fence() > lease.fence());
    tokio::time::timeout(HANG, lease.lost())
        .await
        .expect("finds out");
    assert_eq!(
        lease.extend().await.expect_err("is lost").kind(),
        ErrorKind::Lost
    );
    assert_eq!(
        lease.release().await.expect_err("is lost").kind(),
        ErrorKind::Lost
    );
    next.release().await.expect("is not touched by that");
    // Neither does a cooldown hold.
    let job = locks.clone().hold_at_least(Duration::from_secs(60));
    let lease = taken(&job, "a").await;
    lease.release().await.expect("is ours");
    assert!(locks.try_lock("a").await.expect("answers").is_none());
    assert!(locks.break_lock("a", None).await.expect("answers"));
    assert!(locks.try_lock("a").await.expect("answers").is_some());
}

async fn locks_that_are_unused_for_long_are_pruned(db: Db) {
    let locks = locks(&db).await;
    let held = taken(&locks, "held").await;
    let mut fence = 0;
    for name in 0..120 {
        let lease = locks.try_lock(["used", &name.to_string()]).await;
        let lease = lease.expect("answers").expect("is free");
        fence = lease.fence().0;
        lease.release().await.expect("is ours");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    locks
        .prune(Duration::from_secs(3600))
        .await
        .expect("answers");
    let rows = "SELECT count(*) FROM perennial_lock";
    assert_eq!(db.int(rows).await, Some(121));
    // Visitors may choose the names of locks. So rows of released locks go after an hour, even if
    // `prune` is to keep rows for longer.
    let days = Duration::from_secs(90 * 24 * 3600);
    let older = "UPDATE perennial_lock SET acquired_at = acquired_at - 3600000000, expires_at = expires_at - 3600000000
        WHERE owner IS NULL AND name <> 'used/119'";
    assert_eq!(db.execute(older).await, 119);
    locks.prune(days).await.expect("answers");
    assert_eq!(db.int(rows).await, Some(2));
    locks
        .prune(Duration::from_millis(300))
        .await
        .expect("answers");
    assert_eq!(db.int(rows).await, Some(1));
    let again = taken(&locks, ["used", "119"]).await;
    assert!(again.fence().0 > fence);
    held.release().await.expect("is ours");
}

async fn work_done_once_runs_in_one_process_and_not_again(db: Db) {
    let processes = [locks(&db).await, locks(&db).await];
    for round in 0..2 {
        let name = ["mail".to_owned(), round.to_string()];
        let mut tries = JoinSet::new();
        for n in 0..16 {
            let once = Once::new(&processes[n % 2], name.each_ref());
            tries.spawn(async move { once.run(|| async { 7 }).await.expect("answers") });
        }
        let outcomes = tries.join_all().await;
        let ran = outcomes
            .iter()
            .filter(|outcome| **outcome == OnceOutcome::Ran(7));
        assert_eq!(ran.count(), 1, "{outcomes:?}");
        let once = Once::new(&processes[0], name.each_ref());
        let again = once.clone().run(|| async { 7 }).await.expect("answers");
        assert!(
            matches!(again, OnceOutcome::AlreadyDone { since, .. } if since < HANG),
            "{again:?}"
        );
        // The mark is not pruned with unused locks.
        processes[0].prune(Duration::ZERO).await.expect("answers");
        let again = once.clone().run(|| async { 7 }).await.expect("answers");
        assert!(
            matches!(again, OnceOutcome::AlreadyDone { .. }),
            "{again:?}"
        );
        assert!(once.forget().await.expect("answers"));
        assert_eq!(
            once.run(|| async { 8 }).await.expect("answers"),
            OnceOutcome::Ran(8)
        );
    }
    // Work that has crashed is not done again before its retention is over.
    let brief = Once::new(&processes[0], "brief");
    let crashed = brief.clone().run(|| async { panic!("in the middle") });
    assert!(tokio::spawn(crashed).await.is_err());
    let again = brief.clone().run(|| async { 1 }).await.expect("answers");
    assert!(
        matches!(again, OnceOutcome::AlreadyDone { .. }),
        "{again:?}"
    );
    let expire = "UPDATE perennial_lock SET expires_at = 1 WHERE kind = 'once' AND name = 'brief'";
    assert_eq!(db.execute(expire).await, 1);
    let again = brief.run(|| async { 1 }).await.expect("answers");
    assert_eq!(again, OnceOutcome::Ran(1));
}

/// With the limit of a database, of a site's database, and of a site.
async fn each_call_ends_at_the_statement_limit(db: Db) {
    const LIMIT: Duration = Duration::from_millis(700);
    // An SQLite file is there afterwards.
    db.site().await;
    with_pool!(db, pool => {
        let database = Database::from(pool.clone()).statement_timeout(LIMIT);
        let locks = Locks::with_pool(database.clone()).await.expect("prepares");
        let of_database = Perennial::with_pool(database).await.expect("prepares");
        let builder = Perennial::builder().statement_timeout(LIMIT);
        let site = builder.with_pool(pool.clone()).await.expect("prepares");
        let of_site = site.database().expect("has one");
        let _held = all_of(&pool).await;
        let mut errors = Vec::new();
        for locks in [locks, of_database.locks()] {
            errors.push(locks.try_lock("a").await.expect_err("there is no connection"));
        }
        let claimed = Claims::with_pool(of_site.clone(), "job").claim(1).await;
        errors.push(claimed.expect_err("there is no connection"));
        if !db.url().starts_with("sqlite") {
            let tried = SessionLock::try_lock(of_site, "one").await;
            errors.push(tried.expect_err("there is no connection"));
        }
        for error in errors {
            assert!(error.to_string().ends_with("within 700ms"), "{error}");
        }
    });
}
