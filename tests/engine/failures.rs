//! A generator that fails costs no visitor the old page, and is run once a cooldown; in virtual
//! time where time matters.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode, header},
    response::IntoResponse,
    routing::get as route,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use perennial::{Perennial, Refresh, entries::EntryFilter, event::Event};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

use perennial_testkit::{
    Crowd, HANG, every, get, patient, request, until,
    virtual_time::{Shared, here, origin_behind},
};

use crate::log_of_this_thread;

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(3600);
/// A time longer than any test.
const COOLDOWN: Duration = LONG;

async fn becomes_stale() {
    tokio::time::sleep(SHORT + Duration::from_millis(50)).await;
}

/// The failure of a page, after the runs that succeed.
#[derive(Clone, Copy, Debug)]
enum Failing {
    Panic,
    Status(u16),
    /// A status and a header that forbids sharing.
    Private(u16, &'static str, &'static str),
    Hang,
    BrokenBody,
    TooLarge,
}

const LIMIT: usize = 10_000;

/// Counts the runs, and tells whether a hanging run was dropped.
#[derive(Clone, Default)]
struct Runs {
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
}

impl Runs {
    fn begun(&self) -> usize {
        self.begun.load(SeqCst)
    }

    async fn run(self, failing: Failing, healthy: usize) -> axum::response::Response {
        struct SetOnDrop(Arc<AtomicBool>);
        impl Drop for SetOnDrop {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let run = self.begun.fetch_add(1, SeqCst) + 1;
        if run <= healthy {
            return format!("run {run} of it").into_response();
        }
        match failing {
            Failing::Panic => panic!("on purpose"),
            Failing::Status(status) => {
                let status = StatusCode::from_u16(status).expect("a status");
                (status, "failed").into_response()
            }
            Failing::Private(status, name, value) => {
                let status = StatusCode::from_u16(status).expect("a status");
                (status, [(name, value)], "failed").into_response()
            }
            Failing::Hang => {
                let _guard = SetOnDrop(self.dropped);
                std::future::pending().await
            }
            Failing::BrokenBody => {
                let chunks = [
                    Ok(Bytes::from("half")),
                    Err(std::io::Error::other("broken")),
                ];
                Body::new(http_body_util::StreamBody::new(Chunks(chunks.into_iter())))
                    .into_response()
            }
            Failing::TooLarge => vec![b'x'; 3 * LIMIT].into_response(),
        }
    }
}

/// A stream of these frames.
struct Chunks<I>(I);

impl<I: Iterator<Item = Result<Bytes, std::io::Error>> + Unpin> futures_util::Stream for Chunks<I> {
    type Item = Result<http_body::Frame<Bytes>, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let next = self.0.next();
        std::task::Poll::Ready(next.map(|chunk| chunk.map(http_body::Frame::data)))
    }
}

fn failing_site(
    shared: &Shared,
    failing: Failing,
    healthy: usize,
    policy: Refresh,
) -> (Runs, &'static Router) {
    let runs = Runs::default();
    let page = {
        let runs = runs.clone();
        route(async move || runs.run(failing, healthy).await)
    };
    let site = shared.open(patient().max_body(LIMIT));
    let app = Router::new().route("/", page.layer(site.layer(policy)));
    (runs, here(app))
}

#[tokio::test(start_paused = true)]
async fn old_version_outlives_every_failure_and_the_cooldown_holds() {
    for failing in [
        Failing::Panic,
        Failing::Status(500),
        Failing::Status(503),
        Failing::Status(429),
        Failing::Hang,
        Failing::BrokenBody,
    ] {
        let shared = Shared::new();
        let policy = Refresh::every(SHORT).leader_wait(HANG).cooldown(COOLDOWN);
        let policy = policy.generator_timeout(HANG / 2);
        let (runs, address) = failing_site(&shared, failing, 1, policy.clone());
        assert_eq!(get(address, "/").await.run(), 1);
        becomes_stale().await;
        // The leader, too, gets the old version, as soon as the regeneration has failed.
        assert_eq!(get(address, "/").await.run(), 1, "{failing:?}");
        assert_eq!(runs.begun(), 2, "{failing:?}");
        tokio::time::sleep(COOLDOWN / 2).await;
        for reply in Crowd::visit(50, &[address], "/").rest().await {
            assert_eq!((reply.status, reply.run()), (200, 1), "{failing:?}");
        }
        assert_eq!(runs.begun(), 2, "{failing:?}: the cooldown was not kept");

        // Another process respects the cooldown, too.
        let (others, other) = failing_site(&shared, failing, 1, policy.clone());
        assert_eq!(get(other, "/").await.run(), 1, "{failing:?}");
        assert_eq!(
            others.begun(),
            0,
            "{failing:?}: another process did not keep the cooldown"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_cancels_the_generator() {
    let policy = Refresh::every(SHORT).generator_timeout(SHORT);
    let (runs, address) = failing_site(&Shared::new(), Failing::Hang, 0, policy);
    assert_eq!(get(address, "/").await.status, 503);
    assert!(
        runs.dropped.load(SeqCst),
        "the generator's future is dropped"
    );
}

#[tokio::test(start_paused = true)]
async fn followers_are_answered_as_soon_as_the_first_version_fails() {
    let policy = Refresh::every(LONG).cooldown(COOLDOWN);
    let (origin, address) = origin_behind(&Shared::new().site(), policy);
    origin.status(500);
    origin.hold();
    let crowd = Crowd::visit(200, &[address], "/");
    until("all of them wait", async || origin.begun() == 1).await;
    origin.let_go();
    for reply in crowd.rest().await {
        assert_eq!((reply.status, reply.run()), (500, 1));
    }
    assert_eq!(origin.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_first_version_that_cannot_be_shared_is_a_503_for_everybody() {
    for failing in [
        Failing::Panic,
        Failing::Hang,
        Failing::BrokenBody,
        Failing::Private(429, "cache-control", "no-store"),
        Failing::Private(500, "set-cookie", "session=1"),
    ] {
        let shared = Shared::new();
        let policy = Refresh::every(LONG).generator_timeout(SHORT);
        let (runs, address) = failing_site(&shared, failing, 0, policy);
        for reply in Crowd::visit(20, &[address], "/").rest().await {
            assert_eq!(reply.status, 503, "{failing:?}");
            assert!(reply.headers.contains_key("retry-after"), "{failing:?}");
            assert!(!reply.headers.contains_key("set-cookie"), "{failing:?}");
        }
        assert_eq!(runs.begun(), 1, "{failing:?}");
        assert_eq!(shared.entry("/").await, None, "{failing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_reaches_the_visitor_whole_and_is_not_stored() {
    let shared = Shared::new();
    let policy = Refresh::every(SHORT).cooldown(COOLDOWN);
    let (_, address) = failing_site(&shared, Failing::TooLarge, 0, policy.clone());
    for _ in 0..3 {
        for reply in Crowd::visit(5, &[address], "/").rest().await {
            assert_eq!((reply.status, reply.body.len()), (200, 3 * LIMIT));
        }
    }
    assert_eq!(shared.entry("/").await, None);

    // Another process with a higher limit may still store the page.
    let site = shared.open(patient().max_body(4 * LIMIT));
    let app = Router::new().route("/", route(async || vec![b'x'; 3 * LIMIT]));
    let other = here(app.layer(site.layer(&policy)));
    assert_eq!(get(other, "/").await.body.len(), 3 * LIMIT);
    assert!(shared.entry("/").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_body_is_streamed_not_buffered() {
    let endless = route(async || {
        let chunks = std::iter::repeat_with(|| Ok(Bytes::from(vec![b'x'; 1000])));
        Body::new(http_body_util::StreamBody::new(Chunks(chunks)))
    });
    let app = Router::new().route("/", endless);
    let site = Shared::new().open(patient().max_body(LIMIT));
    let app = app.layer(site.layer(Refresh::every(LONG)));
    let response = app.oneshot(Request::new(Body::empty())).await;
    let mut body = response.expect("infallible").into_body();
    let mut read = 0;
    while read < 5 * LIMIT {
        let frame = body.frame().await.expect("endless").expect("unbroken");
        read += frame.into_data().expect("data").len();
    }
}

#[tokio::test(start_paused = true)]
async fn private_response_is_given_to_one_visitor_alone() {
    let cases = [
        (header::SET_COOKIE, "session={run}"),
        (header::CACHE_CONTROL, "private"),
        (header::CACHE_CONTROL, "max-age=60, No-Store"),
        (header::CACHE_CONTROL, "private=\"x\""),
        (header::CACHE_CONTROL, "private, x=\"ü\""),
        (header::VARY, "*"),
    ];
    for (name, value) in cases {
        let shared = Shared::new();
        let runs = Arc::new(AtomicUsize::new(0));
        let own = {
            let (runs, name) = (Arc::clone(&runs), name.clone());
            route(async move |headers: axum::http::HeaderMap| {
                let run = runs.fetch_add(1, SeqCst) + 1;
                let visitor = headers
                    .get("visitor")
                    .map_or("nobody", |it| it.to_str().expect("text"));
                let value = value.replace("{run}", &run.to_string());
                ([(name, value)], format!("for {visitor}"))
            })
        };
        let app = Router::new().route("/", own);
        let address = here(app.layer(shared.site().layer(Refresh::every(LONG))));
        let mut visitors = tokio::task::JoinSet::new();
        for visitor in 0..100 {
            let name = name.clone();
            visitors.spawn(async move {
                let me = visitor.to_string();
                let reply = request(address, "GET", "/", &[("visitor", &me)]).await;
                assert_eq!(reply.text(), format!("for {me}"));
                reply.headers[name].as_bytes().to_owned()
            });
        }
        let mut values = visitors.join_all().await;
        if name == header::SET_COOKIE {
            values.sort();
            values.dedup();
            assert_eq!(values.len(), 100, "a cookie was given twice");
        }
        assert_eq!(shared.entry("/").await, None);
        // One run was the generator's, whose response may not be stored. Then each of the 100
        // visitors had a run of their own.
        assert_eq!(runs.load(SeqCst), 101, "{name}: {value}");
    }
}

#[derive(Debug, PartialEq)]
struct Own(u32);

impl std::fmt::Display for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the shelf {} is empty", self.0)
    }
}

impl std::error::Error for Own {}

/// A generator's error is a failure, and the error of a service that answers itself is its own.
#[tokio::test]
async fn the_inner_error_of_a_bypass_comes_through_as_it_is() {
    let log = log_of_this_thread();
    let site = Shared::new().site();
    let mut events = site.subscribe();
    let layer = site.layer(Refresh::every(LONG));
    let fails = tower::service_fn(async |_: Request<Body>| Err::<Response<Body>, _>(Own(7)));
    let service = layer.clone().bypass_if(|_| true).layer(fails);
    let answer = service.oneshot(Request::new(Body::empty())).await;
    assert_eq!(answer.expect_err("fails"), Own(7));
    let service = layer.layer(fails);
    let answer = service.clone().oneshot(Request::new(Body::empty()));
    let answer = answer.await.expect("is a response");
    assert_eq!(answer.status(), 503);
    // The log, the event and the explanation contain the handler's error.
    let error = "the shelf 7 is empty";
    assert!(log.text().contains(error), "{}", log.text());
    let mut told = std::iter::from_fn(|| events.try_next());
    let is_told = |event| match event {
        Event::Regenerated(ended) => ended.error.as_deref() == Some(error),
        _ => false,
    };
    assert!(told.any(is_told));
    let service = tower::service_fn(move |request: Request<Empty<Bytes>>| {
        service.clone().oneshot(request.map(Body::new))
    });
    let explained = site.explain(service, "/").await.expect("answers");
    let cooldown = explained.expect("a layer answers").cooldown;
    let known = cooldown.and_then(|cooldown| cooldown.error);
    assert_eq!(known.as_deref(), Some(error));
}

/// An old version is served after a failure, which its explanation names.
#[tokio::test(start_paused = true)]
async fn failure_behind_an_old_version_is_explained() {
    let shared = Shared::new();
    let site = shared.site();
    let (origin, app) = origin_behind(&site, every(Duration::from_secs(1)));
    get(app, "/").await;
    origin.status(500);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(get(app, "/").await.status, 200);
    let explained = site.explain(app.clone(), "/").await.expect("answers");
    let cooldown = explained.expect("a layer answers").cooldown;
    let error = cooldown.and_then(|cooldown| cooldown.error);
    let error = error.expect("is known");
    assert!(error.contains("the service answered 500"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn page_that_has_become_private_is_never_shared_again() {
    let shared = Shared::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let page = route(async move || {
        let first = runs.fetch_add(1, SeqCst) == 0;
        let whose = if first { "public" } else { "private" };
        ([(header::CACHE_CONTROL, whose)], whose)
    });
    let policy = Refresh::every(Duration::from_secs(1)).in_background();
    let app = Router::new().route("/", page);
    let process = || here(app.clone().layer(shared.site().layer(&policy)));
    let address = process();
    assert_eq!(get(address, "/").await.text(), "public");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(
        get(address, "/").await.text(),
        "public",
        "in the background"
    );
    tokio::time::sleep(SHORT).await;
    assert_eq!(shared.entry("/").await, None, "the old version is removed");
    // Over some intervals, and in another process.
    let other = process();
    for _ in 0..100 {
        assert_eq!(get(address, "/").await.text(), "private");
        assert_eq!(get(other, "/").await.text(), "private");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Without a version, one failure costs a second, and the cooldown doubles with each, for all
/// processes together.
#[tokio::test(start_paused = true)]
async fn the_first_failures_of_a_page_heal_soon() {
    for processes in [1, 20] {
        let database = perennial_testing::Database::new();
        let begun = Instant::now();
        let runs = Arc::new(Mutex::new(Vec::new()));
        let heals = Arc::new(AtomicBool::new(false));
        let app = || {
            let (runs, heals) = (Arc::clone(&runs), Arc::clone(&heals));
            let site = database.open(Perennial::builder()).expect("opens");
            let page = async move || {
                runs.lock()
                    .expect("not poisoned")
                    .push(begun.elapsed().as_secs());
                if heals.load(SeqCst) {
                    StatusCode::OK
                } else {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
            };
            let layer = site.layer(Refresh::every(LONG));
            Router::new().route("/", route(page).layer(layer))
        };
        let apps: Vec<_> = (0..processes).map(|_| app()).collect();
        for second in 0..100 {
            heals.store(second > 90, SeqCst);
            for app in &apps {
                let reply = get(app, "/").await;
                let again = runs.lock().expect("not poisoned").len();
                let cooldown = (1 << (again - 1).min(5)).min(30);
                if reply.status != 200 {
                    let said: u64 = reply.header("retry-after").parse().expect("seconds");
                    let last = *runs.lock().expect("not poisoned").last().expect("has run");
                    let left = last + cooldown - begun.elapsed().as_secs();
                    assert!(
                        (left..=left + 1).contains(&said),
                        "{said}, {left} of {cooldown}"
                    );
                }
            }
            perennial_testing::advance(Duration::from_secs(1)).await;
        }
        let seconds = runs.lock().expect("not poisoned").clone();
        assert_eq!(seconds.len(), 8, "{processes}: {seconds:?}");
        for (before, after, cooldown) in [
            (0, 1, 1),
            (1, 2, 2),
            (2, 3, 4),
            (3, 4, 8),
            (4, 5, 16),
            (5, 6, 30),
            (6, 7, 30),
        ] {
            let pause = seconds[after] - seconds[before];
            assert!((cooldown..=cooldown + 1).contains(&pause), "{seconds:?}");
        }
        assert_eq!(get(&apps[0], "/").await.status, 200);
    }
}

/// A failure says nothing of the content; any other status is the origin's new answer.
#[tokio::test(start_paused = true)]
async fn a_failure_never_replaces_content_and_a_new_answer_does() {
    for (status, stays) in [
        (408, true),
        (425, true),
        (429, true),
        (500, true),
        (503, true),
        (599, true),
        (302, false),
        (400, false),
        (401, false),
        (403, false),
        (409, false),
    ] {
        let database = perennial_testing::Database::new();
        let site = database.open(Perennial::builder()).expect("opens");
        let fails = Arc::new(AtomicBool::new(false));
        let page = {
            let fails = Arc::clone(&fails);
            async move || {
                if fails.load(SeqCst) {
                    (StatusCode::from_u16(status).expect("a status"), "another")
                } else {
                    (StatusCode::OK, "the page")
                }
            }
        };
        let app = Router::new().route("/", route(page).layer(site.layer(Refresh::every(LONG))));
        assert_eq!(get(&app, "/").await.status, 200);
        fails.store(true, SeqCst);
        site.invalidate("/").await.expect("is invalidated");
        for _ in 0..3 {
            let expected = if stays { 200 } else { status };
            assert_eq!(get(&app, "/").await.status, expected);
            perennial_testing::advance(Duration::from_secs(1)).await;
        }
        let stored = site.entries(&EntryFilter::new()).await.expect("answers");
        let stored = stored.entries.iter().filter(|it| it.status.is_some());
        assert_eq!(stored.count(), usize::from(stays), "{status}");
    }
}
