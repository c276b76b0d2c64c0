//! The clock of the database is set back or forward.

use perennial_store::{Extend, Fence, Probe, Release, TryLock};

use crate::{
    HANG, LEASE, NONE, TestDatabase,
    store::{ask, content, lock, page, publish, uuid},
};

pub async fn entry_from_before_the_clock_was_set_back_has_no_age(db: impl TestDatabase) {
    let store = db.store().await;
    let lease = lock(&*store, page("/p"), LEASE).await;
    assert!(publish(&*store, &lease, &content("1")).await);
    let entry = async || {
        let probe = ask(&*store, Probe::new(page("/p"), Fence::NONE)).await;
        probe.entry.expect("is there")
    };
    // The largest difference between clocks.
    db.shift_clock(-2).await;
    let ahead = entry().await;
    assert!(!ahead.age_unknown && ahead.age < LEASE, "{ahead:?}");
    db.shift_clock(-3600).await;
    assert!(entry().await.age_unknown);
    db.shift_clock(2 * 3600).await;
    let dated = entry().await;
    assert!(!dated.age_unknown && dated.age >= LEASE - HANG, "{dated:?}");
}

pub async fn a_cooldown_does_not_end_when_the_clock_is_set_back(db: impl TestDatabase) {
    let store = db.store().await;
    let lease = lock(&*store, "a", LEASE).await;
    assert!(ask(&*store, Release::new(&lease, LEASE)).await);
    for seconds in [30, 3600, 400 * 24 * 3600] {
        db.shift_clock(-seconds).await;
        for seen in [None, Some(lease.fence)] {
            let tried = ask(&*store, TryLock::new("a", uuid(), LEASE, seen)).await;
            assert_eq!(tried.fence, None, "{seconds} s");
        }
        let probe = ask(&*store, Probe::new("a", Fence::NONE)).await;
        assert!(!probe.lock.owned && probe.lock.remaining > NONE);
    }
}

pub async fn a_holder_whose_clock_is_right_keeps_its_lock(db: impl TestDatabase) {
    let store = db.store().await;
    let held = lock(&*store, "a", LEASE).await;
    for seconds in [0, 4, 3600] {
        // Each node of a cluster has a clock of its own.
        db.shift_clock(-seconds).await;
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
