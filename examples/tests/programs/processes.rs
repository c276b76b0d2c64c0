//! Processes that are killed, stopped and terminated by real signals keep the promises, on each
//! database.

use std::time::Duration;

use rustix::process::Signal;

use perennial_testkit::{
    Crowd, Db, Origin, Reply, get, on_each_database, page, program::Gateway, until,
};

const EVERY: Duration = Duration::from_secs(1);

on_each_database! {
    one_generation_cold_and_one_stale_for_three_processes
    a_killed_regenerator_is_replaced_after_its_lease
    a_graceful_shutdown_under_load_drops_nobody_and_leaves_no_lease
}

fn all_of_run(replies: &[Reply], run: usize) -> bool {
    replies.iter().all(|reply| reply.run() == run)
}

async fn one_generation_cold_and_one_stale_for_three_processes(db: Db) {
    let site = db.site().await;
    let origin = Origin::default();
    let address = origin.serve().await;
    let options = "--every 1h --wait 60s";
    let gateways: Vec<_> = (0..3)
        .map(|_| Gateway::start(address, db.url(), options))
        .collect();
    let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.address).collect();

    let path = "/page";
    let before = origin.begun();
    origin.hold();
    let crowd = Crowd::visit(60, &addresses, path);
    until("the first version is generated", async || {
        origin.begun() > before
    })
    .await;
    origin.let_go();
    assert!(all_of_run(&crowd.rest().await, before + 1));
    assert_eq!(origin.begun(), before + 1, "cold");

    // A process that has learned of the later invalidation has learned of the earlier one.
    let later = "/page/later";
    let old = get(addresses[0], later).await.run();
    for address in &addresses {
        assert_eq!(get(*address, later).await.run(), old);
    }
    for path in [path, later] {
        site.invalidate(path).await.expect("is done");
    }
    for address in &addresses {
        until("it is stale in every process", async || {
            get(*address, later).await.run() > old
        })
        .await;
    }
    let begun = origin.begun();
    origin.hold();
    let mut crowd = Crowd::visit(60, &addresses, path);
    // All but the leader get the old version.
    assert!(all_of_run(&crowd.first(59).await, before + 1));
    origin.let_go();
    // The leader waits for the new version, but not for a slow database.
    let last = crowd.rest().await;
    assert!(all_of_run(&last, before + 1) || all_of_run(&last, begun + 1));
    for address in &addresses {
        until("the new version is served", async || {
            get(*address, path).await.run() == begun + 1
        })
        .await;
    }
    assert_eq!(origin.begun(), begun + 1, "stale");
}

async fn a_killed_regenerator_is_replaced_after_its_lease(db: Db) {
    let origin = Origin::default();
    let address = origin.serve().await;
    let lease = Duration::from_secs(4);
    let options = "--every 1s --lease 4s --in-background";
    let [a, b] = [(); 2].map(|()| Gateway::start(address, db.url(), options));
    get(a.address, "/").await;
    get(b.address, "/").await;
    tokio::time::sleep(EVERY).await;

    origin.hold();
    until("a generates", async || {
        // The regeneration before may still be ending.
        get(a.address, "/").await;
        origin.begun() == 2
    })
    .await;
    a.signal(Signal::KILL);
    let locks = db.site().await.locks();
    let lock = locks.inspect(page("/")).await.expect("answers");
    assert!(lock.is_some_and(|lock| lock.remaining <= lease));
    until("b generates", async || {
        assert_eq!(
            get(b.address, "/").await.run(),
            1,
            "the old version is served"
        );
        origin.begun() == 3
    })
    .await;
    origin.let_go();
    until("the new version is served", async || {
        get(b.address, "/").await.run() == 3
    })
    .await;
}

async fn a_graceful_shutdown_under_load_drops_nobody_and_leaves_no_lease(db: Db) {
    let origin = Origin::default();
    let address = origin.serve().await;
    let options = "--every 500ms --lease 30s --in-background";
    let [a, b] = [(); 2].map(|()| Gateway::start(address, db.url(), options));
    for path in ["/1", "/2", "/3"] {
        get(a.address, path).await;
    }
    tokio::time::sleep(EVERY).await;
    let held = origin.begun();
    origin.hold();
    // Some visitors wait for a first version, and others have old versions.
    let cold = Crowd::visit(30, &[a.address], "/cold");
    let stale: Vec<_> = ["/1", "/2", "/3"]
        .map(|path| Crowd::visit(20, &[a.address], path))
        .into();
    until("all are being generated", async || {
        for path in ["/1", "/2", "/3"] {
            // The regeneration before may still be ending.
            get(a.address, path).await;
        }
        origin.begun() == held + 4
    })
    .await;
    for crowd in stale {
        assert!(crowd.rest().await.iter().all(|reply| reply.status == 200));
    }
    a.signal(Signal::TERM);
    tokio::time::sleep(Duration::from_millis(300)).await;
    origin.let_go();
    let replies = cold.rest().await;
    assert!(all_of_run(&replies, replies[0].run()), "{replies:?}");
    assert_eq!(a.ended(), Some(0));
    let owned = "SELECT count(*) FROM perennial_lock WHERE owner IS NOT NULL";
    assert_eq!(db.int(owned).await, Some(0), "a lease is left behind");
    assert!(origin.ended() > held, "what was begun was finished");
    for path in ["/1", "/2", "/3", "/cold"] {
        let (_, stored) = db.entry(path).await.expect("is stored");
        let run: usize = stored
            .split(' ')
            .nth(1)
            .and_then(|run| run.parse().ok())
            .expect("a run");
        assert!(run > held, "{path}: {stored}");
        // The remaining process answers.
        assert_eq!(get(b.address, path).await.status, 200);
    }
    b.signal(Signal::INT);
    assert_eq!(b.ended(), Some(0));
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use std::time::Instant;

    use super::*;
    use perennial_testkit::{Folder, clock::Clock};

    perennial_testkit::on_each_server! {
        processes_whose_clocks_differ_behave_alike
    }

    async fn processes_whose_clocks_differ_behave_alike(db: Db) {
        const INTERVAL: Duration = Duration::from_secs(6);
        const HOUR: i64 = 3600;
        let folder = Folder::new();
        let origin = Origin::default();
        let address = origin.serve().await;
        let mut gateways = Vec::new();
        for ahead in [-HOUR, 0, HOUR] {
            let file = folder.path().join(ahead.to_string());
            let Some(clock) = Clock::new(&file).expect("is set") else {
                assert!(
                    std::env::var_os("PERENNIAL_TEST_ALL").is_none(),
                    "libfaketime is not installed, and nothing may be skipped"
                );
                eprintln!("SKIPPED: libfaketime is not installed; scripts/test sees to it");
                return;
            };
            clock.set(ahead).expect("is set");
            let options = "--every 6s --lease 5s --in-background";
            let gateway = Gateway::start_with(address, db.url(), options, &clock.variables());
            gateways.push(gateway);
        }
        let visit_all = async || {
            let mut runs = Vec::new();
            for gateway in &gateways {
                runs.push(get(gateway.address, "/").await.run());
            }
            runs
        };
        for run in 1..=2 {
            until("all have the new version", async || {
                visit_all().await.iter().all(|seen| *seen == run)
            })
            .await;
            assert_eq!(origin.begun(), run, "once for all");
            tokio::time::sleep(INTERVAL + Duration::from_millis(100)).await;
        }
        // No process may see a lease as expired while the lease is being extended.
        origin.hold();
        let start = Instant::now();
        while start.elapsed() < INTERVAL {
            assert!(visit_all().await.iter().all(|seen| *seen == 2));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(origin.begun(), 3);
        origin.let_go();
    }
}
