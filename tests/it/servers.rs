//! What only a server can do to its clients.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    databases::Db,
    store::{lock, open},
};

const LEASE: Duration = Duration::from_secs(60);

on_each_server! {
    what_somebody_holds_uncommitted_counts_as_taken_and_is_not_waited_for
}
#[cfg(feature = "postgres")]
on_database! {
    postgres_relative = crate::databases::Db::postgres_relative();
    what_somebody_holds_uncommitted_counts_as_taken_and_is_not_waited_for
}

async fn what_somebody_holds_uncommitted_counts_as_taken_and_is_not_waited_for(db: Db) {
    let store = open(&db).await;
    let free = lock(&*store, "a", LEASE).await;
    store.release(&free, Duration::ZERO).await.expect("answers");
    for (name, change) in [
        (
            "a",
            "UPDATE perennial_lock SET acquired_at = acquired_at + 1 WHERE name = 'a'",
        ),
        (
            "b",
            "INSERT INTO perennial_lock (name, fence, acquired_at, expires_at) VALUES ('b', 1, 1, 1)",
        ),
    ] {
        let held = db.uncommitted(change).await;
        let asked = Instant::now();
        let tried = store.try_lock(name, "me", LEASE, None).await;
        assert_eq!(tried.expect("answers"), None, "{change}");
        // Meant to be 100 ms; a server's own limit is a second at least.
        assert!(asked.elapsed() < Duration::from_secs(1), "{change}");
        held.rollback().await.expect("is undone");
    }
    lock(&*store, "a", LEASE).await;
}
