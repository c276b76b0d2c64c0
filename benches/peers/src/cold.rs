//! The first visitors of pages that nobody has generated: 10,000 of them at once, beside the other caches.
//! `cargo run --release -- cold` prints a table.
//!
//! All is in one process and on one thread, so that the processor time and the allocations are those of the
//! visitors; what SQLite does in its own thread counts for the time. A handler takes 300 ms.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{Request, header},
    routing::get,
};
use http_body_util::BodyExt;
use perennial::{DAY, Perennial, Refresh};
use rustix::time::{ClockId, clock_gettime};
use tokio::{runtime::Builder, sync::watch, task::JoinSet};
use tower::ServiceExt;

use crate::sides::Side;

const VISITORS: usize = 10_000;
const PAGES: usize = 1_000;

/// Prints the table.
pub(crate) fn measure() {
    println!(
        "| 10,000 visitors at once, a handler that takes 300 ms | generations | ms until the last answer | µs of processor time per visitor | allocations per visitor |"
    );
    println!("|---|---|---|---|---|");
    for side in [
        Side::Bare,
        Side::Perennial,
        Side::AxumResponseCache,
        Side::TowerHttpCache,
        Side::Hitbox,
    ] {
        for pages in [1, PAGES] {
            let name = format!("{}: {}", side.name(), missing(pages));
            let generations = Arc::new(AtomicUsize::new(0));
            let router = || async { side.around(slow_pages(&generations)).await };
            storm(&name, pages, &generations, router);
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let database = format!("sqlite://{}", folder.path().join("site.db").display());
    for (name, revision) in [
        ("perennial, a database on disk: 1,000 missing pages", "1"),
        ("perennial, after a restart: 1,000 stored pages", "1"),
        (
            "perennial, after a deploy: 1,000 stored pages of the previous code",
            "2",
        ),
    ] {
        let generations = Arc::new(AtomicUsize::new(0));
        let router = || async {
            let site = Perennial::builder()
                .revision(revision)
                .open(&database)
                .await;
            let layer = site.expect("opens").layer(Refresh::every(DAY));
            slow_pages(&generations).layer(layer)
        };
        storm(name, PAGES, &generations, router);
    }
}

/// Pages `/pages/{number}` whose handler takes 300 ms, and counts.
fn slow_pages(generations: &Arc<AtomicUsize>) -> Router {
    let generations = Arc::clone(generations);
    let page = get(async move || {
        generations.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let headers = [
            (header::CONTENT_TYPE, "text/html"),
            (header::CACHE_CONTROL, "max-age=3600"),
        ];
        (headers, [b'x'; 1 << 10])
    });
    Router::new().route("/pages/{number}", page)
}

fn missing(pages: usize) -> String {
    match pages {
        1 => "one missing page".to_owned(),
        _ => "1,000 missing pages".to_owned(),
    }
}

/// Lets all visitors come at once, and prints what they cost.
fn storm<F: Future<Output = Router>>(
    name: &str,
    pages: usize,
    generations: &AtomicUsize,
    router: impl FnOnce() -> F,
) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let router = runtime.block_on(router());
    let (open, door) = watch::channel(());
    let mut visitors = JoinSet::new();
    for visitor in 0..VISITORS {
        let (router, mut door) = (router.clone(), door.clone());
        let request = Request::get(format!("/pages/{}", visitor % pages));
        let request = request.body(Body::empty()).expect("a request");
        let visit = async move {
            door.changed().await.expect("opens");
            let response = router.oneshot(request).await.expect("answers");
            assert!(response.status().is_success(), "{}", response.status());
            let body = response.into_body().collect().await.expect("is whole");
            assert_eq!(body.to_bytes().len(), 1 << 10);
        };
        visitors.spawn_on(visit, runtime.handle());
    }
    // All of them wait at the door.
    runtime.block_on(tokio::task::yield_now());
    let (begun, time) = (Instant::now(), processor_time());
    let allocated = allocation_counter::measure(|| {
        runtime.block_on(async {
            open.send_replace(());
            while let Some(visit) = visitors.join_next().await {
                visit.expect("is answered");
            }
        });
    });
    let (took, time) = (begun.elapsed(), processor_time() - time);
    println!(
        "| {name} | {} | {} | {:.1} | {:.0} |",
        generations.load(Relaxed),
        took.as_millis(),
        time.as_secs_f64() * 1e6 / VISITORS as f64,
        allocated.count_total as f64 / VISITORS as f64,
    );
}

/// Returns the processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
