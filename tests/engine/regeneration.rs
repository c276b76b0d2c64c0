//! The leader generates, followers wait or get the old page, and no visitor gets an expired page;
//! almost always in one process and in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    response::IntoResponse,
    routing::get as route,
};
use perennial::{Perennial, Refresh};
use perennial_testing::{self as testing, Database};
use tokio::task::JoinSet;
use tower::ServiceExt;

use perennial_testkit::{
    Crowd, Folder, HANG, Origin, get, page, patient, rounds, serve_origin, until,
    virtual_time::{Shared, here},
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
    let address = here(origin.router().layer(site.layer(&policy)));
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
    let address = here(origin.router().layer(site.layer(&policy)));
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
    let policy = Refresh::every(SHORT)
        .in_background()
        .lease_duration(2 * HANG);
    let address = here(origin.router().layer(site.layer(&policy)));
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

/// From the publish on, the regeneration is over: a request that finds the page stale before the
/// lease is released starts the next one, though nobody else comes. In a database that takes its
/// time, so that the release does.
#[tokio::test(start_paused = true)]
async fn stale_page_is_regenerated_although_its_lease_is_being_released() {
    let database = Database::new();
    database.slow_down(Duration::from_millis(100));
    let site = database.open(Perennial::builder()).expect("opens");
    let origin = Origin::default();
    // Stale at once.
    let policy = Refresh::every(Duration::ZERO).in_background();
    let app = here(origin.router().layer(site.layer(&policy)));
    for round in 0..5 {
        let path = format!("/{round}");
        let crowd = Crowd::visit(10, &[app], &path).rest().await;
        assert!(
            crowd.iter().all(|reply| reply.run() == 2 * round + 1),
            "{crowd:?}"
        );
        // The visitors got their answers after the publish. The release of the lock takes some time
        // longer, and must not delay this request.
        let again = get(app, &path).await;
        assert_eq!(again.run(), 2 * round + 1);
        assert!(
            again.took < Duration::from_millis(50),
            "nobody waits: {again:?}"
        );
        testing::advance(Duration::from_secs(1)).await;
        assert_eq!(
            origin.begun(),
            2 * round + 2,
            "the last visitor's regeneration"
        );
    }
}

/// The same after a failure, without a cooldown.
#[tokio::test(start_paused = true)]
async fn failed_page_is_generated_again_although_its_lease_is_being_released() {
    let database = Database::new();
    database.slow_down(Duration::from_millis(100));
    let site = database.open(Perennial::builder()).expect("opens");
    let origin = Origin::default();
    origin.status(500);
    let policy = Refresh::every(Duration::from_secs(60)).cooldown(Duration::ZERO);
    let app = here(origin.router().layer(site.layer(&policy)));
    for run in 1..5 {
        assert_eq!(get(app, "/").await.run(), run);
    }
}

/// In real time, on a file.
#[tokio::test(flavor = "multi_thread")]
async fn invalidated_page_is_regenerated_by_the_next_visit_however_soon_it_comes() {
    let folder = Folder::new();
    let site = folder.site().await;
    let policy = Refresh::every(Duration::from_secs(3600)).in_background();
    let (origin, address) = serve_origin(&site, policy).await;
    for round in 0..rounds(100, 20) {
        let page = format!("/{round}");
        get(address, &page).await;
        site.invalidate(&page).await.expect("is stored");
        get(address, &page).await;
        until("the invalidated page is regenerated", async || {
            origin.ended() == 2 * (round + 1)
        })
        .await;
    }
}

/// When a hit-for-pass ends, one request finds out whether the response may be stored now, and the
/// others pass, for as long as that takes (Varnish: hit-for-miss).
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_response_that_was_not_stored_the_last_time() {
    const RUN: Duration = Duration::from_secs(2);
    let private = ([("set-cookie", "a=b")], StatusCode::OK);
    let created = ([("x-own", "1")], StatusCode::CREATED);
    for (headers, status) in [private, created] {
        let site = Shared::new().site();
        let page = route(async move || {
            tokio::time::sleep(RUN).await;
            (status, headers, "page")
        });
        let policy = Refresh::every(Duration::from_secs(10));
        let app = here(Router::new().route("/", page.layer(site.layer(&policy))));
        get(app, "/").await;
        let mut visits = JoinSet::new();
        for _ in 0..600 {
            visits.spawn(get(app, "/"));
            testing::advance(Duration::from_millis(100)).await;
        }
        let replies = visits.join_all().await;
        let waited = replies.iter().filter(|reply| reply.took > RUN).count();
        // One probe each ten seconds.
        assert!(
            (1..=7).contains(&waited),
            "{waited} of {} waited",
            replies.len()
        );
        assert!(replies.iter().all(|reply| reply.took <= 2 * RUN));
    }
}

/// The same in several processes: where another one finds out, nobody waits for that.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_another_process_that_tries_to_store_a_response_again() {
    const RUN: Duration = Duration::from_secs(2);
    let shared = Shared::new();
    let processes: Vec<_> = (0..4)
        .map(|_| {
            let page = route(async || {
                tokio::time::sleep(RUN).await;
                ([("set-cookie", "a=b")], "page")
            });
            let layer = shared.site().layer(Refresh::every(Duration::from_secs(60)));
            here(Router::new().route("/", page.layer(layer)))
        })
        .collect();
    for process in &processes {
        get(*process, "/").await;
    }
    testing::advance(Duration::from_secs(120)).await;
    let visits = Crowd::visit(20, &processes, "/").rest().await;
    let waited = visits.iter().filter(|reply| reply.took > RUN).count();
    assert_eq!(waited, 1, "the one whose request was tried");
    assert!(visits.iter().all(|reply| reply.took <= 2 * RUN));
}

/// A page that may be stored again is stored by the probe.
#[tokio::test(start_paused = true)]
async fn response_that_may_be_stored_again_is_stored_by_the_probe() {
    let site = Shared::new().site();
    let is_private = Arc::new(AtomicBool::new(true));
    let page = {
        let is_private = Arc::clone(&is_private);
        route(async move || {
            tokio::time::sleep(Duration::from_secs(2)).await;
            if is_private.load(SeqCst) {
                ([("cache-control", "private")], "page").into_response()
            } else {
                "page".into_response()
            }
        })
    };
    let policy = Refresh::every(Duration::from_secs(10));
    let app = here(Router::new().route("/", page.layer(site.layer(&policy))));
    get(app, "/").await;
    is_private.store(false, SeqCst);
    testing::advance(Duration::from_secs(11)).await;
    let crowd = Crowd::visit(20, &[app], "/").rest().await;
    let passed = crowd
        .iter()
        .filter(|reply| reply.header("cache-status").contains("detail=private"));
    assert_eq!(passed.count(), 19);
    testing::advance(Duration::from_millis(10)).await;
    let next = get(app, "/").await;
    assert!(
        next.header("cache-status").contains("; hit"),
        "{next:?} {crowd:?}"
    );
}

/// An extension that counts its clones: the layer makes one for each request that it prepares for a
/// generator.
struct Prepared(Arc<AtomicUsize>);

impl Clone for Prepared {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, SeqCst);
        Self(Arc::clone(&self.0))
    }
}

/// Those who wait for another one's regeneration prepare no request of their own.
#[tokio::test(start_paused = true)]
async fn ten_thousand_visitors_of_a_missing_page_prepare_one_request() {
    let site = Shared::new().site();
    let handler = async || {
        tokio::time::sleep(SHORT).await;
        "the page"
    };
    let layer = site
        .layer(Refresh::every(HANG))
        .share_extension::<Prepared>();
    let app = Router::new().route("/{page}", route(handler).layer(layer));
    let prepared = Arc::new(AtomicUsize::new(0));
    let visit = || {
        let mut request = Request::get("/a").body(Body::empty()).expect("a URI");
        request
            .extensions_mut()
            .insert(Prepared(Arc::clone(&prepared)));
        app.clone().oneshot(request)
    };
    let mut visitors = JoinSet::new();
    for _ in 0..10_000 {
        visitors.spawn(visit());
    }
    while let Some(response) = visitors.join_next().await {
        let response = response.expect("ends").expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(prepared.load(SeqCst), 1);
}
