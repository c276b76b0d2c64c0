//! The longest wait for a database that has stopped answering, in virtual time.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    routing::{get, post},
};
use http_body_util::BodyExt;
use perennial::{
    Perennial, Refresh,
    store::{Edition, LeaseRow, LockRow, Probe, Pruned, Store, StoreFuture},
};
use tokio::time::Instant;
use tower::ServiceExt;
use tower_http::timeout::TimeoutLayer;

const INTERVAL: Duration = Duration::from_secs(60);
const POLICY: Refresh = Refresh::every(INTERVAL);
/// Tokio's timers count whole milliseconds.
const GRAIN: Duration = Duration::from_millis(2);

/// A store that grants every lock, keeps nothing, and stops answering when it is told to.
#[derive(Clone, Default)]
pub(crate) struct Silent(Arc<AtomicBool>);

impl Silent {
    pub(crate) fn stop(&self) {
        self.0.store(true, SeqCst);
    }

    fn site(&self, patience: Duration) -> Perennial {
        let builder = Perennial::builder().database_patience(patience);
        builder.with_store(Box::new(self.clone())).expect("opens")
    }

    fn answer<T: Send + 'static>(&self, answer: T) -> StoreFuture<'static, T> {
        if self.0.load(SeqCst) {
            Box::pin(std::future::pending())
        } else {
            Box::pin(std::future::ready(Ok(answer)))
        }
    }
}

macro_rules! answers {
    ($($step:ident($($argument:ty),*) -> $type:ty = $answer:expr;)*) => {
        impl Store for Silent {
            $(answers!(@ $step($($argument),*) -> $type = $answer);)*
        }
    };
    (@ $step:ident() -> $type:ty = $answer:expr) => {
        fn $step(&self) -> StoreFuture<'_, $type> { self.answer($answer) }
    };
    (@ $step:ident($a:ty) -> $type:ty = $answer:expr) => {
        fn $step<'a>(&'a self, _: $a) -> StoreFuture<'a, $type> { self.answer($answer) }
    };
    (@ $step:ident($a:ty, $b:ty) -> $type:ty = $answer:expr) => {
        fn $step<'a>(&'a self, _: $a, _: $b) -> StoreFuture<'a, $type> { self.answer($answer) }
    };
    (@ $step:ident($a:ty, $b:ty, $c:ty) -> $type:ty = $answer:expr) => {
        fn $step<'a>(&'a self, _: $a, _: $b, _: $c) -> StoreFuture<'a, $type> {
            self.answer($answer)
        }
    };
    (@ $step:ident($a:ty, $b:ty, $c:ty, $d:ty) -> $type:ty = $answer:expr) => {
        fn $step<'a>(&'a self, _: $a, _: $b, _: $c, _: $d) -> StoreFuture<'a, $type> {
            self.answer($answer)
        }
    };
}

answers! {
    probe(&'a str, &'a str, i64) -> Probe = Probe::default();
    try_lock(&'a str, &'a str, Duration, Option<i64>) -> Option<i64> = Some(1);
    extend(&'a LeaseRow, Duration) -> bool = true;
    release(&'a LeaseRow, Duration) -> bool = true;
    publish(&'a str, &'a LeaseRow, &'a Edition<'a>) -> bool = true;
    renew(&'a str, &'a LeaseRow, &'a Edition<'a>, i64) -> bool = true;
    remove(&'a str, &'a LeaseRow) -> bool = true;
    invalidate(&'a str) -> i64 = 1;
    invalidated(i64, usize) -> Vec<(String, i64)> = Vec::new();
    invalidated_for_long(&'a str, usize) -> Vec<(String, i64)> = Vec::new();
    purge(&'a str, &'a str) -> () = ();
    reclaim(&'a [&'a LeaseRow]) -> () = ();
    prune_entries(Option<&'a str>) -> Option<Pruned> = None;
    inspect(&'a str) -> Option<LockRow> = None;
    held() -> Vec<LockRow> = Vec::new();
    break_lock(&'a str) -> bool = true;
    prune_locks(Duration, Option<&'a str>) -> Option<String> = None;
    forget_invalidated(i64, Duration, i64, Option<i64>) -> Option<i64> = None;
}

/// Runs the visit; it waits for the patience and not longer.
async fn waits<T>(patience: Duration, visit: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = visit.await;
    let took = begun.elapsed();
    assert!(
        patience <= took && took <= patience + GRAIN,
        "{patience:?}: {took:?}"
    );
    answer
}

async fn content(site: &Perennial, content: &'static str) -> String {
    let generated = site.content("key", &POLICY, async move || Ok::<_, Infallible>(content));
    generated.await.expect("is served").to_string()
}

const PATIENCES: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(700),
    Duration::from_secs(3),
];

#[tokio::test(start_paused = true)]
async fn stale_version_is_served_when_the_patience_ends() {
    for patience in PATIENCES {
        let store = Silent::default();
        let site = store.site(patience);
        assert_eq!(content(&site, "old").await, "old");
        tokio::time::sleep(INTERVAL).await;
        store.stop();
        assert_eq!(waits(patience, content(&site, "new")).await, "old");
        // The question that nobody answers is still under way: no other visitor waits for it.
        assert_eq!(waits(Duration::ZERO, content(&site, "new")).await, "old");
    }
}

#[tokio::test(start_paused = true)]
async fn fresh_version_of_a_process_that_slept_is_served_when_the_patience_ends() {
    for patience in PATIENCES {
        let store = Silent::default();
        let site = store.site(patience);
        assert_eq!(content(&site, "old").await, "old");
        tokio::time::sleep(INTERVAL / 2).await;
        store.stop();
        assert_eq!(waits(patience, content(&site, "new")).await, "old");
    }
}

#[tokio::test(start_paused = true)]
async fn generated_version_is_served_unsaved_when_the_patience_ends() {
    for patience in PATIENCES {
        let store = Silent::default();
        let site = store.site(patience);
        let generator = {
            let store = store.clone();
            async move || {
                store.stop();
                Ok::<_, Infallible>("new")
            }
        };
        let served = waits(patience, site.content("key", &POLICY, generator)).await;
        assert_eq!(served.expect("is served").to_string(), "new");
    }
}

#[tokio::test(start_paused = true)]
async fn response_of_an_exclusive_route_is_sent_when_the_patience_ends() {
    for patience in PATIENCES {
        let store = Silent::default();
        let site = store.site(patience);
        let service = {
            let store = store.clone();
            post(async move || store.stop()).layer(site.exclusive(|_| "import".into()))
        };
        let router = Router::new().route("/import", service);
        let request = Request::post("/import").body(Body::empty());
        let response = waits(patience, router.oneshot(request.expect("a request"))).await;
        assert_eq!(response.expect("is infallible").status(), 200);
    }
}

/// The default is documented.
#[tokio::test(start_paused = true)]
async fn half_a_second_is_the_default() {
    let store = Silent::default();
    let site = Perennial::builder().with_store(Box::new(store.clone()));
    let site = site.expect("opens");
    assert_eq!(content(&site, "old").await, "old");
    tokio::time::sleep(INTERVAL).await;
    store.stop();
    let visit = waits(Duration::from_millis(500), content(&site, "new"));
    assert_eq!(visit.await, "old");
}

/// The soft timeout's default is below the timeouts that sites usually have around their routes.
#[tokio::test(start_paused = true)]
async fn stale_page_is_served_before_an_outer_timeout_of_two_seconds() {
    let slow = Arc::new(AtomicBool::new(false));
    let page = {
        let slow = Arc::clone(&slow);
        get(async move || {
            if slow.swap(true, SeqCst) {
                tokio::time::sleep(Duration::from_secs(30)).await;
                return "new";
            }
            "old"
        })
    };
    let site = Silent::default().site(Duration::from_millis(500));
    let limit = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(2));
    let app = Router::new()
        .route("/", page.layer(site.layer(POLICY)))
        .layer(limit);
    let visit = async || {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("infallible");
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body");
        (status, body.to_bytes())
    };
    assert_eq!(visit().await, (StatusCode::OK, "old".into()));
    tokio::time::sleep(INTERVAL).await;
    // The one who regenerates, and two who come meanwhile.
    for _ in 0..3 {
        assert_eq!(visit().await, (StatusCode::OK, "old".into()));
    }
    tokio::time::sleep(INTERVAL / 2).await;
    assert_eq!(visit().await, (StatusCode::OK, "new".into()));
}
