//! The leader generates, followers wait or get the old page, and no visitor gets an expired page;
//! almost always in one process and in virtual time.

use std::time::Duration;

use axum::{Router, routing::get as route};
use perennial::{Perennial, Refresh};

use crate::{
    paused::{Here, Shared, here, origin_behind},
    support::{Crowd, Folder, HANG, Origin, Reply, every, get, page, patient, serve, until},
};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(3600);

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
async fn in_background_no_visitor_waits() {
    let shared = Shared::new();
    let (origin, address) = stale_site(&shared, Refresh::every(SHORT).in_background()).await;
    assert!(all_of_run(
        &Crowd::visit(200, &[address], "/").rest().await,
        1
    ));
    until("it generates", async || origin.begun() == 2).await;
    assert!(all_of_run(
        &Crowd::visit(200, &[address], "/").rest().await,
        1
    ));
    assert_eq!((origin.begun(), origin.ended()), (2, 1));
    origin.let_go();
    until("the new version is served", async || {
        get(address, "/").await.run() >= 2
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn leader_gets_the_old_version_after_the_soft_timeout() {
    let shared = Shared::new();
    let wait = Duration::from_millis(100);
    let (origin, address) = stale_site(&shared, Refresh::every(SHORT).soft_timeout(wait)).await;
    let reply = get(address, "/").await;
    assert_eq!(reply.run(), 1);
    assert!(reply.took >= wait && reply.took < wait + Duration::from_millis(5));
    until("it generates", async || origin.begun() == 2).await;
    assert_eq!(origin.ended(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cold_page_is_generated_once_and_everybody_gets_it() {
    let shared = Shared::new();
    let (origin, address) = site(&shared, Refresh::every(LONG));
    origin.hold();
    let crowd = Crowd::visit(200, &[address], "/");
    until("it generates", async || origin.begun() == 1).await;
    origin.let_go();
    assert!(all_of_run(&crowd.rest().await, 1));
    assert_eq!(origin.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn follower_that_may_not_wait_gets_503_and_the_leader_gets_the_page() {
    let shared = Shared::new();
    for first in [Duration::ZERO, Duration::from_millis(100)] {
        let policy = Refresh::every(LONG).first_wait(first).in_background();
        let (origin, address) = site(&shared, policy);
        origin.hold();
        let path = if first.is_zero() { "/a" } else { "/b" };
        let mut crowd = Crowd::visit(50, &[address], path);
        for reply in crowd.first(49).await {
            assert_eq!(reply.status, 503, "{first:?}");
            assert!(reply.headers.contains_key("retry-after"));
        }
        origin.let_go();
        assert!(all_of_run(&crowd.rest().await, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_finds_what_was_stored() {
    let shared = Shared::new();
    let policy = Refresh::every(LONG).first_wait(Duration::ZERO);
    let (_, before) = site(&shared, policy);
    get(before, "/").await;
    let (origin, after) = site(&shared, policy);
    assert!(all_of_run(
        &Crowd::visit(100, &[after], "/").rest().await,
        1
    ));
    assert_eq!(origin.begun(), 0);
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
async fn beyond_stale_while_revalidate_visitors_wait_for_the_new_version() {
    let shared = Shared::new();
    let (origin, address) = site(&shared, Refresh::every(SHORT).stale_while_revalidate(SHORT));
    get(address, "/").await;
    tokio::time::sleep(3 * SHORT).await;
    origin.hold();
    let crowd = Crowd::visit(20, &[address], "/");
    until("it generates", async || origin.begun() == 2).await;
    origin.let_go();
    // On a slow machine the new version has expired, too, when the last ones come.
    assert!(crowd.rest().await.iter().all(|reply| reply.run() >= 2));
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

/// A process of a new revision has none of the stored pages in its memory.
#[tokio::test(start_paused = true)]
async fn stale_pages_that_are_only_stored_count_against_the_limit() {
    const PAGES: usize = 50;
    const LIMIT: usize = 4;
    let shared = Shared::new();
    let origin = Origin::default();
    let process = |revision| {
        let builder = patient().revision(revision).max_regenerations(LIMIT);
        let layer = shared
            .open(builder)
            .layer(Refresh::every(LONG).in_background());
        here(origin.router().layer(layer))
    };
    let pages: Vec<_> = (0..PAGES).map(|page| format!("/{page}")).collect();
    let old = process("old");
    for page in &pages {
        get(old, page).await;
    }
    let new = process("new");
    origin.hold();
    for (before, page) in pages.iter().enumerate() {
        assert_eq!(get(new, page).await.run(), before + 1);
    }
    until("the limit is reached", async || {
        origin.begun() == PAGES + LIMIT
    })
    .await;
    tokio::time::sleep(SHORT).await;
    assert_eq!(origin.begun(), PAGES + LIMIT);
    origin.let_go();
}

#[tokio::test(start_paused = true)]
async fn a_visitor_who_leaves_cancels_nothing() {
    let shared = Shared::new();
    let (origin, address) = site(&shared, Refresh::every(SHORT).soft_timeout(HANG));
    // Cold, then stale.
    for run in [1, 2] {
        origin.hold();
        let mut visitors = Vec::new();
        until("it generates", async || {
            // The regeneration before may still be ending.
            visitors.push(Crowd::visit(1, &[address], "/"));
            origin.begun() == run
        })
        .await;
        drop(visitors);
        origin.let_go();
        until("it ends", async || origin.ended() == run).await;
        becomes_stale().await;
    }
    origin.hold();
    let mut crowd = Crowd::visit(1, &[address], "/");
    until("it generates", async || {
        crowd.another(address, "/");
        origin.begun() == 3
    })
    .await;
    let others = Crowd::visit(9, &[address], "/").rest().await;
    assert!(
        all_of_run(&others, 2),
        "what was made for the visitors who have left"
    );
    origin.let_go();
    let replies = crowd.rest().await;
    assert_eq!(replies.iter().filter(|reply| reply.run() == 3).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_content_again_renews_the_age() {
    let folder = Folder::new();
    let app = Router::new().route("/", route(async || "always the same"));
    let site = folder.site().await;
    let address = serve(app.layer(site.layer(Refresh::every(SHORT)))).await;
    let stored = async || {
        let pool = sqlx::SqlitePool::connect(&folder.url())
            .await
            .expect("opens");
        sqlx::query_as::<_, (i64, i64, i64)>(
            "SELECT fence, generated_at, retain_until FROM perennial_entry",
        )
        .fetch_one(&pool)
        .await
        .expect("is stored")
    };
    get(address, "/").await;
    let first = stored().await;
    // The content itself is not sent again.
    let pool = sqlx::SqlitePool::connect(&folder.url())
        .await
        .expect("opens");
    let forbid = "CREATE TRIGGER t BEFORE UPDATE OF body ON perennial_entry BEGIN SELECT RAISE(ABORT, 'written'); END";
    sqlx::raw_sql(forbid).execute(&pool).await.expect("is made");
    becomes_stale().await;
    until("it is renewed", async || {
        assert_eq!(get(address, "/").await.text(), "always the same");
        stored().await.0 > first.0
    })
    .await;
    let second = stored().await;
    assert!(second.0 > first.0 && second.1 > first.1 && second.2 > first.2);
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
async fn version_that_expires_during_its_regeneration_is_not_served() {
    let shared = Shared::new();
    let policy = Refresh::every(SHORT)
        .stale_while_revalidate(2 * SHORT)
        .in_background();
    let (origin, address) = site(&shared, policy);
    assert_eq!(get(address, "/").await.run(), 1);
    becomes_stale().await;
    origin.hold();
    let mut early = Crowd::visit(1, &[address], "/");
    until("it generates", async || {
        early.another(address, "/");
        origin.begun() == 2
    })
    .await;
    tokio::time::sleep(4 * SHORT).await;
    let late = Crowd::visit(5, &[address], "/");
    tokio::time::sleep(SHORT).await;
    origin.let_go();
    // On a slow machine the new version has expired, too, when the last ones come.
    assert!(late.rest().await.iter().all(|reply| reply.run() >= 2));
    early.rest().await;
}

#[tokio::test(start_paused = true)]
async fn own_version_does_not_hide_a_fresh_one_of_another_process() {
    let shared = Shared::new();
    let interval = Duration::from_secs(5);
    let origin = Origin::default();
    let [a, b] = [shared.site(), shared.site()]
        .map(|site| origin.router().layer(site.layer(every(interval))));
    let (a, b) = (here(a), here(b));
    assert_eq!(get(a, "/").await.run(), 1);
    assert_eq!(get(b, "/").await.run(), 1);
    tokio::time::sleep(interval).await;
    assert_eq!(get(b, "/").await.run(), 2);
    let a_has = async || get(a, "/").await.run();
    assert_eq!(a_has().await, 2);
}

#[tokio::test(start_paused = true)]
async fn leader_is_not_given_a_version_that_expired_while_it_waited() {
    let shared = Shared::new();
    let policy = Refresh::every(SHORT)
        .stale_while_revalidate(SHORT)
        .soft_timeout(4 * SHORT);
    let (origin, address) = stale_site(&shared, policy).await;
    let crowd = Crowd::visit(1, &[address], "/");
    until("it generates", async || origin.begun() == 2).await;
    tokio::time::sleep(6 * SHORT).await;
    origin.let_go();
    assert!(all_of_run(&crowd.rest().await, 2));
}

#[tokio::test(start_paused = true)]
async fn failed_regeneration_does_not_extend_stale_while_revalidate() {
    let shared = Shared::new();
    let origin = Origin::default();
    let site = shared.site();
    let interval = Duration::from_secs(6);
    let policy = Refresh::every(interval)
        .stale_while_revalidate(Duration::ZERO)
        .cooldown(LONG);
    let address = here(origin.router().layer(site.layer(policy)));
    assert_eq!(get(address, "/").await.run(), 1);
    site.invalidate("/").await.expect("is done");
    origin.status(500);
    // During the end of the first regeneration, a visitor gets the first version.
    until("it has failed", async || {
        assert_eq!(get(address, "/").await.run(), 1);
        origin.ended() == 2
    })
    .await;
    tokio::time::sleep(interval + SHORT).await;
    assert_eq!(get(address, "/").await.status, 503);
    assert_eq!(origin.begun(), 2, "the cooldown is kept");
}

#[tokio::test(start_paused = true)]
async fn failed_regeneration_extends_stale_if_error() {
    let shared = Shared::new();
    let origin = Origin::default();
    let policy = Refresh::every(LONG)
        .stale_while_revalidate(Duration::ZERO)
        .stale_if_error(LONG);
    let address = here(origin.router().layer(shared.site().layer(policy)));
    assert_eq!(get(address, "/").await.run(), 1);
    origin.status(500);
    tokio::time::sleep(LONG + LONG / 2).await;
    assert_eq!(get(address, "/").await.run(), 1);
    assert_eq!(origin.begun(), 2, "a regeneration has failed");
    tokio::time::sleep(LONG).await;
    assert_eq!(get(address, "/").await.status, 500);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_expires_while_its_publish_is_tried_again_is_not_served() {
    let shared = Shared::new();
    let policy = Refresh::every(SHORT)
        .stale_while_revalidate(Duration::from_secs(2))
        .soft_timeout(HANG)
        .first_wait(HANG);
    let (origin, address) = stale_site(&shared, policy).await;
    shared.refuse_publishes_of("/");
    origin.let_go();
    until("it is served unsaved", async || {
        get(address, "/").await.run() == 2
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let replies = Crowd::visit(20, &[address], "/").rest().await;
    // On a slow machine the new version has expired, too, when the last ones come.
    assert!(replies.iter().all(|reply| reply.run() >= 3), "{replies:?}");
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

#[tokio::test(start_paused = true)]
async fn jitter_shortens_each_keys_interval_by_the_same_part_in_all_processes() {
    let shared = Shared::new();
    let origin = Origin::default();
    let policy = Refresh::every(LONG).jitter(0.5);
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let site = shared.site();
        addresses.push(here(origin.router().layer(site.layer(policy))));
    }
    let mut lengths = Vec::new();
    for page in 0..20 {
        let page = format!("/{page}");
        get(addresses[0], &page).await;
        let mut ttls = Vec::new();
        for address in &addresses {
            let reply = get(*address, &page).await;
            let status = reply.headers["cache-status"].to_str().expect("text");
            let ttl = status.strip_prefix("perennial; hit; ttl=").expect(status);
            ttls.push(ttl.parse::<i64>().expect(status));
        }
        let whole = LONG.as_secs() as i64;
        assert!((ttls[0] - ttls[1]).abs() < 60, "{ttls:?}");
        assert!((whole / 2 - 60..=whole).contains(&ttls[0]), "{ttls:?}");
        lengths.push(ttls[0]);
    }
    let (least, most) = (lengths.iter().min(), lengths.iter().max());
    assert!(
        most.zip(least)
            .is_some_and(|(most, least)| most - least > 600),
        "{lengths:?}"
    );
}
