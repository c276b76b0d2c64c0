//! A named lock has one holder, and its lease is extended, lost and released as documented, on each
//! database.

use std::time::Duration;

use perennial::{Perennial, locks::LockName};

use perennial_testkit::{Db, Folder, HANG, cut_off, on_each_database, until};

/// A short lease, for tests that only wait for its end.
const BRIEF: Duration = Duration::from_secs(1);

on_each_database! {
    lease_that_is_dropped_before_a_shutdown_is_released_by_its_end
    cancelled_call_leaves_no_lock_stuck_and_releases_no_lock_of_another_holder
}

async fn lease_that_is_dropped_before_a_shutdown_is_released_by_its_end(db: Db) {
    use tokio::runtime::Builder;

    let locks = db.site().await.locks();
    for round in 0..4 {
        for current_thread in [true, false] {
            let (url, name) = (db.url().to_owned(), format!("{round} {current_thread}"));
            let process = {
                let name = name.clone();
                std::thread::spawn(move || {
                    let mut runtime = if current_thread {
                        Builder::new_current_thread()
                    } else {
                        Builder::new_multi_thread()
                    };
                    let runtime = runtime.enable_all().build().expect("a runtime");
                    runtime.block_on(async {
                        let site = Perennial::open(&url).await.expect("opens");
                        let locks = site.locks().lease_duration(Duration::from_secs(600));
                        let lease = locks.try_lock(name.as_str()).await.expect("answers");
                        drop(lease.expect("is free"));
                        // A try that is cancelled on its way.
                        drop(cut_off(1, locks.try_lock([&*name, "cut off"])).await);
                        match round % 2 {
                            0 => site.shutdown().await,
                            _ => locks.shutdown().await,
                        }
                    });
                })
            };
            tokio::task::spawn_blocking(|| process.join())
                .await
                .expect("is waited for")
                .expect("no panic");
            for name in [name.as_str().into(), LockName::from([&*name, "cut off"])] {
                let lease = locks.try_lock(name.clone()).await.expect("answers");
                let lease = lease.unwrap_or_else(|| panic!("{name:?} is held"));
                lease.release().await.expect("is ours");
            }
        }
    }
}

#[tokio::test]
async fn lease_whose_runtime_has_ended_or_stands_still_is_lost_when_it_ends() {
    let folder = Folder::new();
    let site = folder.site().await;
    for ends in [true, false] {
        let locks = site.locks().lease_duration(BRIEF);
        let (lease, runtime) = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().expect("a runtime");
            let lease = runtime.block_on(locks.try_lock(format!("{ends}")));
            // The runtime in which the lock was taken has ended, or nobody drives it any more, so
            // the lease is not extended.
            (lease, (!ends).then_some(runtime))
        })
        .join()
        .expect("no panic");
        let lease = lease.expect("answers").expect("is free");
        let guarded = lease.guard(std::future::pending::<()>());
        let guarded = tokio::time::timeout(HANG, guarded).await;
        assert_eq!(
            guarded.expect("ends").expect_err("is lost").kind(),
            perennial::ErrorKind::Lost
        );
        let lost = tokio::time::timeout(HANG, lease.lost()).await;
        lost.expect("resolves again");
        assert_eq!(lease.remaining(), Duration::ZERO);
        drop(lease);
        // A runtime must not be dropped inside another one.
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

#[test]
fn lock_dropped_without_a_runtime_is_free_after_the_lease() {
    let folder = Folder::new();
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let dying = runtime();
    let lease = dying.block_on(async {
        folder
            .site()
            .await
            .locks()
            .lease_duration(BRIEF)
            .try_lock("a")
            .await
    });
    drop(dying);
    drop(lease);
    runtime().block_on(async {
        let locks = folder.site().await.locks();
        until("it is free", async || {
            locks.try_lock("a").await.expect("answers").is_some()
        })
        .await;
    });
}

async fn cancelled_call_leaves_no_lock_stuck_and_releases_no_lock_of_another_holder(db: Db) {
    let lease = Duration::from_secs(600);
    let [ours, others] = [db.site().await, db.site().await];
    let (ours, others) = (
        ours.locks().lease_duration(lease),
        others.locks().lease_duration(lease),
    );
    let free = async || {
        let mut fence = 0;
        until("it is free", async || {
            // Long before the lease would end.
            let taken = others.try_lock("one").await.expect("answers");
            let Some(taken) = taken else { return false };
            fence = taken.fence().0;
            taken.release().await.is_ok()
        })
        .await;
        fence
    };
    // An attempt that was cancelled earlier may still take the lock for a moment, so this one
    // waits.
    let have = async |locks: &perennial::locks::Locks| {
        let wait = Duration::from_secs(30);
        locks.lock("one").wait(wait).await.expect("is free")
    };
    let mut last = 0;
    for polls in 0..8 {
        // Acquire.
        drop(cut_off(polls, ours.try_lock("one")).await);
        let fence = free().await;
        assert!(fence > last);
        let attempt = ours.lock("one").wait(lease).into_future();
        drop(cut_off(polls, attempt).await);
        free().await;
        // Extend.
        let held = have(&ours).await;
        drop(cut_off(polls, held.extend()).await);
        assert!(others.try_lock("one").await.expect("answers").is_none());
        assert!(!held.remaining().is_zero());
        // Release.
        drop(cut_off(polls, held.release()).await);
        free().await;
        // The overtaken holder extends, releases, and drops its lease.
        let old = have(&ours).await;
        assert!(others.break_lock("one", None).await.expect("answers"));
        let new = have(&others).await;
        drop(cut_off(polls, old.extend()).await);
        drop(cut_off(polls, old.release()).await);
        new.extend().await.expect("is theirs all the same");
        assert!(ours.try_lock("one").await.expect("answers").is_none());
        last = new.fence().0;
        new.release().await.expect("is theirs");
    }
}
