//! A clock that stands still: leases that are tried in the same microsecond.

use perennial_store::{Fence, Release, TryLock};
use perennial_testkit::{
    Db, on_database,
    store::{ask, content, lock, publish, uuid},
};

use perennial_driver_tests::{LEASE, NONE};

on_database! {
    mysql_frozen = perennial_testkit::Db::mysql_with(&["SET timestamp = 1900000000.5"]);
    one_of_several_tries_in_a_microsecond_gets_the_lock
}

async fn one_of_several_tries_in_a_microsecond_gets_the_lock(db: Db) {
    let store = db.store().await;
    let mut last = Fence::NONE;
    for _ in 0..3 {
        let lease = lock(&*store, "a", LEASE).await;
        assert!(lease.fence > last);
        last = lease.fence;
        for seen in [None, Some(last), Some(Fence(last.0 - 1))] {
            let other = ask(&*store, TryLock::new("a", uuid(), LEASE, seen)).await;
            assert_eq!(other.fence, None);
            let again = ask(&*store, TryLock::new("a", &lease.owner, LEASE, seen)).await;
            assert_eq!(again.fence, Some(last));
        }
        assert!(publish(&*store, &lease, &content("1")).await);
        assert!(ask(&*store, Release::new(&lease, NONE)).await);
    }
}
