//! The leader generates, followers wait or get the old page, and no visitor gets an expired page;
//! almost always in one process and in virtual time.

use std::time::Duration;

use perennial::{Perennial, Refresh};

use crate::{
    paused::{Shared, here},
    support::{HANG, Origin, get, page, patient, until},
};

const SHORT: Duration = Duration::from_millis(300);

/// Waits for the age of `SHORT`.
async fn becomes_stale() {
    tokio::time::sleep(SHORT + Duration::from_millis(50)).await;
}

#[tokio::test(start_paused = true)]
async fn more_regenerations_at_once_than_allowed_are_skipped() {
    let shared = Shared::new();
    let builder = patient().max_regenerations(2);
    let site = shared.open(builder);
    let origin = Origin::default();
    let policy = Refresh::every(SHORT).in_background();
    let address = here(origin.router().layer(site.layer(policy)));
    let pages: Vec<_> = (0..6).map(|page| format!("/{page}")).collect();
    for page in &pages {
        get(address, page).await;
    }
    becomes_stale().await;
    origin.hold();
    for (before, page) in pages.iter().enumerate() {
        assert_eq!(get(address, page).await.run(), before + 1);
    }
    until("two generate", async || origin.begun() == 6 + 2).await;
    origin.let_go();
    // The permits come back: in the end each page is new.
    until("all are new", async || {
        let mut new = true;
        for page in &pages {
            new &= get(address, page).await.run() > 6;
        }
        new
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_running_regenerations_and_begins_none() {
    shutdown_begins_nothing_more(|site| async move { site.shutdown().await }).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_of_a_sites_locks_shuts_the_site_down() {
    shutdown_begins_nothing_more(|site| async move { site.locks().shutdown().await }).await;
}

async fn shutdown_begins_nothing_more<F: Future<Output = ()> + Send + 'static>(
    shut_down: impl FnOnce(Perennial) -> F,
) {
    let shared = Shared::new();
    let site = shared.site();
    let origin = Origin::default();
    let policy = Refresh::every(SHORT).in_background();
    let address = here(origin.router().layer(site.layer(policy)));
    get(address, "/").await;
    becomes_stale().await;
    origin.hold();
    until("it generates", async || {
        get(address, "/").await;
        origin.begun() == 2
    })
    .await;

    let shutdown = tokio::spawn(shut_down(site.clone()));
    becomes_stale().await;
    assert!(!shutdown.is_finished());
    origin.let_go();
    shutdown.await.expect("ends");
    assert_eq!(origin.ended(), 2);
    let lock = site.locks().inspect(page("/")).await.expect("answers");
    assert!(
        lock.is_some_and(|lock| lock.remaining.is_zero()),
        "the lease was not released"
    );

    becomes_stale().await;
    assert_eq!(get(address, "/").await.run(), 2);
    assert_eq!(
        get(address, "/new").await.run(),
        3,
        "the service itself answers"
    );
    assert_eq!(origin.begun(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_publish_that_fails_takes_no_permit() {
    let shared = Shared::new();
    let builder = patient().max_regenerations(1);
    let site = shared.open(builder);
    let origin = Origin::default();
    let policy = Refresh::every(SHORT).in_background().lease(2 * HANG);
    let address = here(origin.router().layer(site.layer(policy)));
    for page in ["/a", "/b"] {
        get(address, page).await;
    }
    shared.refuse_publishes_of("/a");
    becomes_stale().await;
    for (page, before) in [("/a", 1), ("/b", 2)] {
        until("it regrows", async || {
            get(address, page).await.run() > before
        })
        .await;
    }
    let lock = site.locks().inspect(page("/a")).await.expect("answers");
    assert!(
        lock.is_some_and(|lock| lock.holder.is_some()),
        "it is not tried any more"
    );
}
