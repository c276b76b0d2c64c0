//! Routes that run once at a time: the example in two processes.

use std::time::Duration;

use perennial::locks::Locks;
use rustix::process::Signal;

use perennial_testkit::{Db, Reply, get, on_each_database, program::Program, request, until};

on_each_database! {
    a_killed_process_keeps_its_customer_for_no_longer_than_its_lease
    late_write_of_an_overtaken_process_is_refused
}

/// The answer to a refused sync.
fn assert_refused(reply: &Reply) {
    assert_eq!(reply.status, 409, "{reply:?}");
    assert!(reply.text().contains("sync/bookmarks/ann"), "{reply:?}");
}

async fn a_killed_process_keeps_its_customer_for_no_longer_than_its_lease(db: Db) {
    let [a, b] = [
        Program::start("exclusive", db.url(), "--sync 120s --lease 6s"),
        Program::start("exclusive", db.url(), "--sync 10ms --lease 60s"),
    ];
    let address = a.address;
    tokio::spawn(async move { request(address, "POST", "/sync/ann", &[]).await });
    let sync = async || request(b.address, "POST", "/sync/ann", &[]).await;
    let locks = db.site().await.locks();
    until_taken(&locks, "sync/bookmarks/ann").await;
    // A living process extends its lease.
    let expiry = "SELECT expires_at FROM perennial_lock WHERE name = 'sync/bookmarks/ann'";
    let first = db.int(expiry).await;
    until("it is extended", async || db.int(expiry).await > first).await;
    assert_refused(&sync().await);
    a.signal(Signal::KILL);
    let lock = locks.inspect("sync/bookmarks/ann").await.expect("answers");
    assert!(lock.is_some_and(|lock| lock.remaining <= Duration::from_secs(6)));
    until("b syncs", async || sync().await.status == 200).await;
}

async fn late_write_of_an_overtaken_process_is_refused(db: Db) {
    let [slow, quick] = [
        Program::start("exclusive", db.url(), "--work 6s --lease 1s"),
        Program::start("exclusive", db.url(), "--work 1ms --lease 60s --wait 60s"),
    ];
    let add = |address| {
        tokio::spawn(async move { request(address, "POST", "/albums/7/photos", &[]).await })
    };
    assert_eq!(add(quick.address).await.expect("answers").text(), "1\n");
    let locks = db.site().await.locks();
    until("the lock is free", async || {
        let lock = locks.inspect("album/7").await.expect("answers");
        lock.is_some_and(|lock| lock.holder.is_none())
    })
    .await;
    let held_up = add(slow.address);
    until_taken(&locks, "album/7").await;
    slow.signal(Signal::STOP);
    assert_eq!(add(quick.address).await.expect("answers").text(), "2\n");
    slow.signal(Signal::CONT);
    let late = held_up.await.expect("is answered");
    assert_eq!(late.status, 409, "{late:?}");
    assert_eq!(get(quick.address, "/albums/7").await.text(), "2\n");
}

async fn until_taken(locks: &Locks, name: &str) {
    until("the lock is held", async || {
        let info = locks.inspect(name).await.expect("answers");
        info.is_some_and(|info| info.holder.is_some())
    })
    .await;
}
