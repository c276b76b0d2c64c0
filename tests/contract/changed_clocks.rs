//! The clock of the database is set back or forward.

use std::time::Duration;

use perennial_store::{Extend, Fence, Probe, Release, TryLock};
use perennial_testkit::{
    Db, HANG, page,
    store::{ask, content, lock, open, publish, uuid},
};

use crate::{LEASE, NONE};

contract! {
    a_cooldown_does_not_end_when_the_clock_is_set_back
    a_holder_whose_clock_is_right_keeps_its_lock
    entry_from_before_the_clock_was_set_back_has_no_age
}

/// Sets the clock of a database in memory forward, or back for negative `seconds`. In an SQL
/// database, changes the rows as a changed clock would.
pub(crate) async fn shift_clock(db: &Db, seconds: i64) {
    if let Some(database) = db.memory() {
        let by = Duration::from_secs(seconds.unsigned_abs());
        match seconds {
            0.. => database.set_clock_forward(by),
            _ => database.set_clock_back(by),
        }
        return;
    }
    let by = seconds * 1_000_000;
    for table in [
        format!(
            "perennial_lock SET acquired_at = acquired_at - ({by}),
            expires_at = CASE WHEN expires_at = 0 THEN 0 ELSE expires_at - ({by}) END"
        ),
        format!(
            "perennial_entry SET generated_at = generated_at - ({by}), stale_at = stale_at - ({by}), retain_until = retain_until - ({by})"
        ),
        format!(
            "perennial_request SET begun_at = begun_at - ({by}), expires_at = expires_at - ({by}),
            retain_until = retain_until - ({by})"
        ),
    ] {
        db.execute(&format!("UPDATE {table}")).await;
    }
}

async fn entry_from_before_the_clock_was_set_back_has_no_age(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, page("/p"), LEASE).await;
    assert!(publish(&*store, &lease, &content("1")).await);
    let entry = async || {
        let probe = ask(&*store, Probe::new(page("/p"), Fence::NONE)).await;
        probe.entry.expect("is there")
    };
    // The largest difference between clocks.
    shift_clock(&db, -2).await;
    let ahead = entry().await;
    assert!(!ahead.age_unknown && ahead.age < LEASE, "{ahead:?}");
    shift_clock(&db, -3600).await;
    assert!(entry().await.age_unknown);
    shift_clock(&db, 2 * 3600).await;
    let dated = entry().await;
    assert!(!dated.age_unknown && dated.age >= LEASE - HANG, "{dated:?}");
}

async fn a_cooldown_does_not_end_when_the_clock_is_set_back(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", LEASE).await;
    assert!(ask(&*store, Release::new(&lease, LEASE)).await);
    for seconds in [30, 3600, 400 * 24 * 3600] {
        shift_clock(&db, -seconds).await;
        for seen in [None, Some(lease.fence)] {
            let tried = ask(&*store, TryLock::new("a", uuid(), LEASE, seen)).await;
            assert_eq!(tried.fence, None, "{seconds} s");
        }
        let probe = ask(&*store, Probe::new("a", Fence::NONE)).await;
        assert!(!probe.lock.owned && probe.lock.remaining > NONE);
    }
}

async fn a_holder_whose_clock_is_right_keeps_its_lock(db: Db) {
    let store = open(&db).await;
    let held = lock(&*store, "a", LEASE).await;
    for seconds in [0, 4, 3600] {
        // Each node of a cluster has a clock of its own.
        shift_clock(&db, -seconds).await;
        for seen in [None, Some(held.fence)] {
            let tried = ask(&*store, TryLock::new("a", uuid(), LEASE, seen)).await;
            assert_eq!(tried.fence, None);
            let probe = ask(&*store, Probe::new("a", Fence::NONE)).await;
            assert!(probe.lock.owned && probe.lock.remaining > LEASE / 2);
        }
        let again = ask(&*store, TryLock::new("a", &held.owner, LEASE, None)).await;
        assert_eq!(again.fence, Some(held.fence));
    }
    assert!(publish(&*store, &held, &content("1")).await);
    assert!(ask(&*store, Extend::new(&held, LEASE)).await);
    assert!(ask(&*store, Release::new(&held, NONE)).await);
}
