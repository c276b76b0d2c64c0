//! Code of the application runs under no lock of Perennial's: a subscriber of the log, a recorder of
//! metrics, a schedule and a value's `Drop` may call the site.
//!
//! Each of these would stop the thread for ever, so the work runs in a thread that is watched.

use std::{
    cell::Cell,
    sync::{Arc, Mutex, OnceLock, mpsc},
    time::{Duration, SystemTime},
};

use axum::{Router, body::Body, http::Request, routing::get as route};
use perennial::{DAY, Error, Perennial, Refresh, Schedule};
use perennial_testing::{self as testing, Database};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;
use tracing::{Event, Subscriber, span};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use perennial_testkit::HANG;

const SECOND: Duration = Duration::from_secs(1);

/// The site that foreign code calls.
#[derive(Clone, Default)]
struct Callee(Arc<OnceLock<(Perennial, Router)>>);

thread_local! {
    /// The site to call from this thread's foreign code.
    static CALLEE: Mutex<Option<Callee>> = const { Mutex::new(None) };
    /// A call of foreign code may cause further events.
    static CALLING: Cell<bool> = const { Cell::new(false) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Does what code of the application may do, as far as it needs no `await`.
fn call_the_site() {
    let callee = CALLEE.with(|callee| callee.lock().expect("not poisoned").clone());
    let Some((site, app)) = callee.as_ref().and_then(|callee| callee.0.get()) else {
        return;
    };
    if CALLING.replace(true) {
        return;
    }
    CALLS.set(CALLS.get() + 1);
    let _ = (
        site.stats(),
        site.subscribe(),
        site.locks(),
        site.revision(),
    );
    for path in ["/a", "/b", "/invented?by=call"] {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let answer = app.clone().oneshot(request);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // A hit is ready at the first poll. An answer that is not ready is dropped, as if the
        // visitor had left.
        let _ = std::pin::pin!(answer).poll(&mut context);
    }
    let generate = async || Ok::<_, Error>("content");
    let content = site.content("called", Refresh::every(DAY), generate);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::pin::pin!(content).poll(&mut context);
    CALLING.set(false);
}

/// Returns true if this thread's subscriber calls a site.
pub(crate) fn is_calling() -> bool {
    CALLEE.with(|callee| callee.lock().expect("not poisoned").is_some())
}

/// A subscriber that calls the site at each event and span.
pub(crate) struct CallsTheSite;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for CallsTheSite {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        call_the_site();
    }

    fn on_new_span(&self, _: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        call_the_site();
    }

    fn on_close(&self, _: span::Id, _: Context<'_, S>) {
        call_the_site();
    }
}

/// Every fifty seconds.
#[derive(Debug)]
struct Calling;

impl Schedule for Calling {
    fn period(&self) -> Duration {
        50 * SECOND
    }

    fn next(&self, after: SystemTime) -> Option<SystemTime> {
        call_the_site();
        Some(after + self.period())
    }
}

/// A value of the application.
#[derive(Serialize, Deserialize)]
struct Value(String);

impl Drop for Value {
    fn drop(&mut self) {
        call_the_site();
    }
}

/// Does everything that has an event, or drops a value.
async fn everything() -> usize {
    let database = Database::new();
    let site = database
        // Room for some pages alone.
        .open(Perennial::builder().memory_capacity(40_000).max_body(8_000))
        .expect("opens");
    let page = async |uri: axum::http::Uri| match uri.path() {
        "/fails" => Err("it failed"),
        _ => Ok("x".repeat(5_000)),
    };
    let layer = site
        .layer(Refresh::on_schedule(Calling))
        .tag("t")
        .max_keys(60);
    let app = Router::new().fallback(route(page)).layer(layer);
    let callee = Callee::default();
    let is_first = callee.0.set((site.clone(), app.clone())).is_ok();
    assert!(is_first, "it is set once");
    CALLEE.with(|it| *it.lock().expect("not poisoned") = Some(callee));
    let visit = async |path: String| {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        app.clone()
            .oneshot(request)
            .await
            .map(drop)
            .expect("answers");
    };
    for path in ["/a", "/b", "/fails", "/a", "/fails"] {
        visit(path.to_owned()).await;
    }
    // Keys are evicted from memory, and there are more keys than the layer stores.
    for n in 0..200 {
        visit(format!("/invented?n={n}")).await;
        let key = format!("value-{n}");
        let value = site.value::<Value, _, _>(&key, Refresh::every(SECOND), async move || {
            Ok::<_, Error>(Value("y".repeat(3_000)))
        });
        drop(value.await.expect("is made"));
    }
    testing::advance(60 * SECOND).await;
    visit("/a".to_owned()).await;
    site.invalidate_tag("t").await.expect("is stored");
    site.purge("/b").await.expect("is purged");
    visit("/b".to_owned()).await;
    // The database fails, and comes back.
    database.fail();
    testing::advance(10 * SECOND).await;
    visit("/a".to_owned()).await;
    visit("/new".to_owned()).await;
    database.recover();
    testing::advance(10 * SECOND).await;
    visit("/a".to_owned()).await;
    // A new process, with the pages of the one before.
    let other = database.open(Perennial::builder()).expect("opens");
    let app = Router::new()
        .fallback(route(page))
        .layer(other.layer(Refresh::on_schedule(Calling)));
    for path in ["/a", "/b", "/a", "/b"] {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        app.clone()
            .oneshot(request)
            .await
            .map(drop)
            .expect("answers");
        testing::advance(2 * SECOND).await;
    }
    let lease = site.locks().try_lock("a lock").await.expect("answers");
    lease
        .expect("is free")
        .release()
        .await
        .expect("is released");
    drop((app, other));
    site.shutdown().await;
    // The values that the site holds are dropped here, while the thread-locals that count the calls
    // still exist.
    let callee = CALLEE.with(|it| it.lock().expect("not poisoned").take());
    drop((site, callee));
    CALLS.get()
}

#[test]
fn code_of_the_application_that_calls_the_site_stops_nothing() {
    crate::listen();
    let (done, ended) = mpsc::channel();
    let work = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        #[cfg(feature = "metrics")]
        let _installed = metrics::set_default_local_recorder(&CallsTheSiteToo);
        let calls = runtime.block_on(everything());
        let _ = done.send(calls);
    });
    let calls = ended
        .recv_timeout(HANG)
        .expect("a lock was held, or the work has panicked");
    assert!(calls > 500, "{calls}");
    work.join().expect("ends");
}

/// A recorder that calls the site.
#[cfg(feature = "metrics")]
struct CallsTheSiteToo;

#[cfg(feature = "metrics")]
impl metrics::Recorder for CallsTheSiteToo {
    fn describe_counter(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }

    fn describe_gauge(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }

    fn describe_histogram(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }

    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        call_the_site();
        metrics::Counter::noop()
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        call_the_site();
        metrics::Gauge::noop()
    }

    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        call_the_site();
        metrics::Histogram::noop()
    }
}
