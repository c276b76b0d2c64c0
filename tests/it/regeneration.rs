//! The leader generates, followers wait or get the old page, and no visitor gets an expired page;
//! almost always in one process and in virtual time.

use std::time::Duration;

use perennial::{Perennial, Refresh};

use crate::{
    paused::{Here, Shared, here, origin_behind},
    support::{Crowd, HANG, Origin, Reply, get, page, patient, until},
};

const SHORT: Duration = Duration::from_millis(300);

/// A process whose pages the origin generates.
fn site(shared: &Shared, policy: Refresh) -> (Origin, Here) {
    origin_behind(&shared.site(), policy)
}

/// A process with a stale page `/` and a held generator.
async fn stale_site(shared: &Shared, policy: Refresh) -> (Origin, Here) {
    let (origin, address) = site(shared, policy);
    assert_eq!(get(address, "/").await.run(), 1);
    becomes_stale().await;
    origin.hold();
    (origin, address)
}

/// Waits for the age of `SHORT`.
async fn becomes_stale() {
    tokio::time::sleep(SHORT + Duration::from_millis(50)).await;
}

fn all_of_run(replies: &[Reply], run: usize) -> bool {
    replies.iter().all(|reply| reply.run() == run)
}

#[tokio::test(start_paused = true)]
async fn a_stale_page_is_generated_once_and_only_the_regenerating_visitor_waits() {
    let shared = Shared::new();
    let (origin, address) = stale_site(&shared, Refresh::every(SHORT).soft_timeout(HANG)).await;
    let mut crowd = Crowd::visit(200, &[address], "/");
    assert!(all_of_run(&crowd.first(199).await, 1));
    assert_eq!((origin.begun(), origin.ended()), (2, 1));
    origin.let_go();
    assert!(all_of_run(&crowd.rest().await, 2));
}

#[tokio::test(start_paused = true)]
async fn interval_zero_serves_stale_and_regenerates_one_at_a_time() {
    let shared = Shared::new();
    let (origin, address) = site(&shared, Refresh::every(Duration::ZERO).soft_timeout(HANG));
    assert_eq!(get(address, "/").await.run(), 1);
    // The next regeneration begins after the release of the lease before.
    until("it regenerates", async || {
        get(address, "/").await.run() == 2
    })
    .await;
    origin.hold();
    let mut visits = Crowd::visit(1, &[address], "/");
    until("it regenerates again", async || {
        visits.another(address, "/");
        origin.begun() == 3
    })
    .await;
    assert!(all_of_run(
        &Crowd::visit(100, &[address], "/").rest().await,
        2
    ));
    origin.let_go();
    let replies = visits.rest().await;
    assert_eq!(replies.iter().filter(|reply| reply.run() == 3).count(), 1);
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
