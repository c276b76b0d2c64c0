//! Panics in the application's code outside of its generators: a cooldown follows, as after a failure, and
//! no visitor's own request panics.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use axum::{Router, routing::get};
use perennial::{Perennial, Refresh, Schedule};
use perennial_testing::{Database, advance};
use tower::ServiceExt;

const HOUR: Duration = Duration::from_secs(3600);

/// The number of calls, a tenth of a second apart.
const CALLS: usize = 100;

/// The most generators in these ten seconds: the first failures of a page without a version are tried
/// again after 1, 2 and 4 s.
const MOST: usize = 5;

/// An error whose text, or whose end, panics.
#[derive(Debug)]
struct Bad {
    text_panics: bool,
    end_panics: bool,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(!self.text_panics, "a test's panic in `Display`");
        f.write_str("a bad error")
    }
}

impl std::error::Error for Bad {}

impl Drop for Bad {
    fn drop(&mut self) {
        assert!(
            !self.end_panics || std::thread::panicking(),
            "a test's panic in `Drop`"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn error_that_panics_is_a_failure_with_its_cooldown() {
    for (text_panics, end_panics) in [(false, false), (true, false), (false, true)] {
        for has_version in [false, true] {
            let site = Database::new().open(Perennial::builder()).expect("opens");
            let runs = Arc::new(AtomicUsize::new(0));
            let policy = Refresh::every(Duration::ZERO);
            let visit = async |fails: bool| {
                let counted = Arc::clone(&runs);
                let generate = async move || {
                    counted.fetch_add(1, SeqCst);
                    if fails {
                        Err(Bad {
                            text_panics,
                            end_panics,
                        })
                    } else {
                        Ok("content")
                    }
                };
                let content = site.content("key", &policy, generate).await;
                if let Err(error) = content {
                    // Its source is the application's own.
                    std::mem::forget(error);
                }
            };
            if has_version {
                visit(false).await;
            }
            let before = runs.load(SeqCst);
            for _ in 0..CALLS {
                visit(true).await;
                advance(Duration::from_millis(100)).await;
            }
            let failed = runs.load(SeqCst) - before;
            assert!(
                (1..=MOST).contains(&failed),
                "{failed} with {text_panics} {end_panics} {has_version}"
            );
        }
    }
}

#[derive(Debug)]
struct BadSchedule;

impl Schedule for BadSchedule {
    fn period(&self) -> Duration {
        HOUR
    }

    fn next(&self, _: SystemTime) -> Option<SystemTime> {
        panic!("a test's panic in a schedule")
    }
}

#[tokio::test(start_paused = true)]
async fn schedule_that_panics_makes_a_page_stale_after_the_cooldown() {
    let database = Database::new();
    let runs = Arc::new(AtomicUsize::new(0));
    for _process in 0..2 {
        let site = database.open(Perennial::builder()).expect("opens");
        let counted = Arc::clone(&runs);
        let page = get(async move || format!("run {}", counted.fetch_add(1, SeqCst)));
        let layer = site.layer(Refresh::on_schedule(BadSchedule));
        let app = Router::new().route("/", page.layer(layer));
        for _ in 0..CALLS {
            let request = http::Request::get("/").body(axum::body::Body::empty());
            let response = app.clone().oneshot(request.expect("a request")).await;
            assert_eq!(response.expect("answers").status(), 200);
            advance(Duration::from_millis(100)).await;
        }
    }
    // The visits took 20 s, and the cooldown is 30 s long, so the generator ran only once.
    assert_eq!(runs.load(SeqCst), 1);
}
