//! Processes that are killed, stopped and terminated by real signals keep the promises, on each
//! database.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    databases::Db,
    program::Gateway,
    support::{Crowd, HANG, Origin, Reply, get, page, until},
};

const EVERY: Duration = Duration::from_secs(1);

on_each_database! {
    one_generation_cold_and_one_stale_for_three_processes
    a_killed_regenerator_is_replaced_after_its_lease
    a_killed_generator_of_a_first_version_is_replaced_and_its_visitors_elsewhere_are_answered
    a_stopped_regenerator_publishes_nothing_after_it_was_overtaken
    a_stopped_generator_of_a_first_version_publishes_nothing_after_it_was_overtaken
    a_graceful_shutdown_under_load_drops_nobody_and_leaves_no_lease
}

on_database! {
    sqlite_file = crate::databases::Db::sqlite();
    eight_processes_start_together_on_no_database
    a_visitor_who_leaves_a_gateway_cancels_nothing
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

async fn a_killed_generator_of_a_first_version_is_replaced_and_its_visitors_elsewhere_are_answered(
    db: Db,
) {
    let origin = Origin::default();
    let address = origin.serve().await;
    let options = "--every 1h --lease 1s";
    let [a, b] = [(); 2].map(|()| Gateway::start(address, db.url(), options));
    origin.hold();
    // The connection breaks.
    let lost = tokio::spawn({
        let a = a.address;
        async move { get(a, "/").await }
    });
    until("a generates", async || origin.begun() == 1).await;
    let crowd = Crowd::visit(20, &[b.address], "/");
    a.signal(Signal::KILL);
    until("b generates", async || origin.begun() == 2).await;
    origin.let_go();
    assert!(all_of_run(&crowd.rest().await, 2));
    lost.abort();
}

/// In each round the leader's process sleeps past its lease, another process publishes, and the
/// leader's process wakes up.
///
/// Without an old version the generator continues and its publish is refused; with one the
/// generator is cancelled.
async fn overtaken(db: &Db, cold: bool) {
    let origin = Origin::default();
    let address = origin.serve().await;
    let options = "--every 1h --lease 1s --in-background";
    let site = db.site().await;
    let [mut a, mut b] = [(); 2].map(|()| Gateway::start(address, db.url(), options));
    for round in 0..2 {
        let path = format!("/{round}");
        if !cold {
            assert_eq!(
                get(a.address, &path).await.run(),
                get(b.address, &path).await.run()
            );
            site.invalidate(&path).await.expect("is done");
        }
        let published = async || db.entry(&path).await.unwrap_or_default();
        let begun = origin.begun();
        let body_of = |run: usize| format!("run {run} of {path}");

        origin.hold();
        let mut of_a = Crowd::visit(1, &[a.address], &path);
        until("a generates", async || {
            if !cold {
                // The process knows now that its version is stale.
                of_a.another(a.address, &path);
            }
            origin.begun() == begun + 1
        })
        .await;
        a.signal(Signal::STOP);
        let mut of_b = Crowd::visit(1, &[b.address], &path);
        until("b generates", async || {
            if !cold {
                // Each visit is answered at once, and one after the lease's end takes over.
                of_b.another(b.address, &path);
            }
            origin.begun() == begun + 2
        })
        .await;
        origin.let_go();
        until("b publishes", async || {
            published().await.1 == body_of(begun + 2)
        })
        .await;
        let (fence, _) = published().await;
        a.signal(Signal::CONT);
        of_a.rest().await;
        of_b.rest().await;
        // No step of process a is late any more when a serves the version of process b or a later
        // one.
        until("a has b's version", async || {
            get(a.address, &path).await.run() >= begun + 2
        })
        .await;

        let (after, body) = published().await;
        assert!(after >= fence, "round {round}: the fence went back");
        assert_ne!(
            body,
            body_of(begun + 1),
            "round {round}: the late publish got through"
        );
        let lock =
            format!("SELECT fence FROM perennial_lock WHERE kind = 'page' AND name = '{path}'");
        let lock = db.int(&lock).await.expect("is there");
        assert!(lock >= after);
        std::mem::swap(&mut a, &mut b);
    }
}

async fn a_stopped_regenerator_publishes_nothing_after_it_was_overtaken(db: Db) {
    overtaken(&db, false).await;
}

async fn a_stopped_generator_of_a_first_version_publishes_nothing_after_it_was_overtaken(db: Db) {
    overtaken(&db, true).await;
}

async fn a_visitor_who_leaves_a_gateway_cancels_nothing(db: Db) {
    use tokio::io::AsyncWriteExt;

    let origin = Origin::default();
    let gateway = Gateway::start(origin.serve().await, db.url(), "--every 1h");
    origin.hold();
    let mut visitor = tokio::net::TcpStream::connect(gateway.address)
        .await
        .expect("connects");
    let asked = visitor
        .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        .await;
    asked.expect("asks");
    until("it generates", async || origin.begun() == 1).await;
    drop(visitor);
    origin.let_go();
    until("it ends", async || origin.ended() == 1).await;
    assert_eq!(get(gateway.address, "/").await.run(), 1);
    assert_eq!(origin.begun(), 1);
}

async fn eight_processes_start_together_on_no_database(db: Db) {
    let origin = Origin::default();
    let address = origin.serve().await;
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let url = db.url().to_owned();
            tokio::task::spawn_blocking(move || Gateway::start(address, &url, "--every 1h"))
        })
        .collect();
    let mut gateways = Vec::new();
    for start in starts {
        gateways.push(
            tokio::time::timeout(HANG, start)
                .await
                .expect("hangs")
                .expect("starts"),
        );
    }
    let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.address).collect();
    assert!(all_of_run(
        &Crowd::visit(80, &addresses, "/").rest().await,
        1
    ));
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
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use std::time::Instant;

    use super::*;

    on_each_server! {
        processes_whose_clocks_differ_behave_alike
    }

    async fn processes_whose_clocks_differ_behave_alike(db: Db) {
        let Some(library) = faketime() else {
            return;
        };
        const INTERVAL: Duration = Duration::from_secs(6);
        let origin = Origin::default();
        let address = origin.serve().await;
        let gateways = ["-1h", "+0", "+1h"].map(|clock| {
            let environment = [
                ("LD_PRELOAD", &*library),
                ("FAKETIME", clock),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ];
            Gateway::start_with(
                address,
                db.url(),
                "--every 6s --lease 5s --in-background",
                &environment,
            )
        });
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

    /// The library that gives a process another clock.
    fn faketime() -> Option<String> {
        let folders = std::fs::read_dir("/usr/lib").expect("a system");
        let mut libraries = folders.map(|folder| {
            folder
                .expect("is there")
                .path()
                .join("faketime/libfaketimeMT.so.1")
        });
        let found = libraries.find(|library| library.exists());
        if found.is_none() {
            assert!(
                std::env::var_os("PERENNIAL_TEST_ALL").is_none(),
                "libfaketime is not installed, and nothing may be skipped"
            );
            eprintln!("SKIPPED: libfaketime is not installed; scripts/test sees to it");
        }
        found.map(|library| library.display().to_string())
    }
}
