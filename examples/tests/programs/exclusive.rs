//! Routes that run once at a time: the example in two processes.

use std::time::Duration;

use perennial::locks::Locks;
use rustix::process::Signal;
use tokio::task::JoinSet;

use crate::{
    databases::Db,
    program::Program,
    support::{Reply, get, request, until},
};

on_each_database! {
    an_albums_count_stays_right_on_two_processes
    a_killed_process_keeps_its_customer_for_no_longer_than_its_lease
    late_write_of_an_overtaken_process_is_refused
}

// The database makes no difference.
on_database! {
    sqlite_file = crate::databases::Db::sqlite();
    without_the_lock_the_count_goes_wrong
}

fn two(db: &Db, options: &str) -> [Program; 2] {
    [(); 2].map(|()| Program::start("exclusive", db.url(), options))
}

/// 50 changes at once, at two processes in turn: 30 photos more and 20 less.
async fn fifty_changes(programs: &[Program; 2]) -> Vec<Reply> {
    let mut changes = JoinSet::new();
    for change in 0..50 {
        let method = if change % 5 < 3 { "POST" } else { "DELETE" };
        let address = programs[change % 2].address;
        // Three spellings of one album.
        let album = ["7", "07", "%37"][change % 3];
        let path = format!("/albums/{album}/photos");
        changes.spawn(async move { request(address, method, &path, &[]).await });
    }
    changes.join_all().await
}

async fn an_albums_count_stays_right_on_two_processes(db: Db) {
    let programs = two(&db, "--work 2ms --wait 60s");
    for reply in fifty_changes(&programs).await {
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let count = get(programs[1].address, "/albums/7").await;
    assert_eq!(count.text(), "10\n");
}

async fn without_the_lock_the_count_goes_wrong(db: Db) {
    let programs = two(&db, "--work 50ms --unlocked");
    let first = request(programs[0].address, "POST", "/albums/7/photos", &[]).await;
    assert_eq!(first.text(), "1\n");
    // Otherwise the other test could not fail.
    let mut right = 1;
    until("the count goes wrong", async || {
        for reply in fifty_changes(&programs).await {
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        right += 10;
        let count = get(programs[1].address, "/albums/7").await;
        count.text() != format!("{right}\n")
    })
    .await;
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
