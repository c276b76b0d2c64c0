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
    a_killed_regenerator_is_replaced_after_its_lease
}

on_database! {
    sqlite_file = crate::databases::Db::sqlite();
    eight_processes_start_together_on_no_database
}

fn all_of_run(replies: &[Reply], run: usize) -> bool {
    replies.iter().all(|reply| reply.run() == run)
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
