//! The first requests, before visitors come.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::get as route};
use perennial::{
    DAY, Perennial, Refresh,
    event::{Bypass, Event, Served},
    testing::{self, advance},
};

use crate::{
    databases::Db,
    paused::{Shared, here},
    support::{HANG, Origin, every, get},
};

const MINUTE: Duration = Duration::from_mins(1);

fn app(site: &Perennial, origin: &Origin, policy: Refresh) -> Router {
    origin.router().layer(site.layer(policy))
}

fn count(answers: &[(String, Served)], served: Served) -> usize {
    answers.iter().filter(|(_, it)| *it == served).count()
}

#[tokio::test(start_paused = true)]
async fn missing_and_stale_pages_are_generated_and_fresh_ones_are_read() {
    let shared = Shared::new();
    let (site, origin) = (shared.site(), Origin::default());
    let app = app(&site, &origin, Refresh::every(DAY).in_background());
    let report = site.warm(app.clone(), ["/a", "/b"]).await;
    assert_eq!(count(&report, Served::Generated), 2);
    advance(DAY / 2).await;
    assert_eq!(
        count(&site.warm(app.clone(), ["/c"]).await, Served::Generated),
        1
    );
    advance(DAY / 2).await;

    // A process that begins: two pages are stale, one is fresh, one is missing.
    let other = shared.site();
    let mut events = other.subscribe();
    let theirs = self::app(&other, &origin, Refresh::every(DAY).in_background());
    let paths = ["/a", "/b", "/c", "/d", "no path"];
    let mut report = other.warm(theirs.clone(), paths).await;
    report.sort();
    let outcomes: Vec<_> = report.iter().map(|(path, it)| (&**path, *it)).collect();
    assert_eq!(
        outcomes,
        [
            ("/a", Served::Generated),
            ("/b", Served::Generated),
            ("/c", Served::Hit),
            ("/d", Served::Generated),
            ("no path", Served::Bypass(Bypass::NoKey)),
        ]
    );
    let mut progress = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::Warmed { done, of, .. } = event {
            progress.push((done, of));
        }
    }
    assert_eq!(progress, [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]);
    // Visitors find everything in memory.
    let runs = origin.begun();
    assert_eq!(runs, 6);
    for path in &paths[..4] {
        let status = get(here(theirs.clone()), path).await.headers["cache-status"].clone();
        assert!(
            status.to_str().expect("text").contains("hit; ttl="),
            "{status:?}"
        );
    }
    assert_eq!(origin.begun(), runs);
}

#[tokio::test(start_paused = true)]
async fn failures_and_uncached_paths_are_told_apart() {
    let shared = Shared::new();
    let (site, origin) = (shared.site(), Origin::default());
    let private = || async { ([("cache-control", "private")], "yours") };
    let app = app(&site, &origin, Refresh::every(DAY))
        .route("/plain", route(|| async { "no layer" }))
        .route(
            "/private",
            route(private).layer(site.layer(Refresh::every(DAY))),
        );
    origin.status(500);
    let mut report = site.warm(app, ["/fails", "/plain", "/private"]).await;
    report.sort();
    let outcomes: Vec<_> = report.into_iter().map(|(_, it)| it.to_string()).collect();
    assert_eq!(outcomes, ["failed", "bypass: no-layer", "bypass: private"]);
}

/// Four generators run at once, whatever the number of pages.
#[tokio::test(start_paused = true)]
async fn few_generators_run_at_once() {
    let site = testing::Database::new()
        .open(Perennial::builder())
        .expect("opens");
    let origin = Origin::default();
    origin.hold();
    let app = app(&site, &origin, Refresh::every(DAY));
    let paths: Vec<_> = (0..40).map(|page| format!("/{page}")).collect();
    let warming = tokio::spawn(async move { site.warm(app, paths).await });
    tokio::time::sleep(MINUTE / 2).await;
    assert_eq!(origin.begun(), 4);
    origin.let_go();
    let report = warming.await.expect("no panic");
    assert_eq!(count(&report, Served::Generated), 40);
}

/// Two processes begin at the same time.
async fn one_process_generates_each_page(db: Db) {
    let origin = Origin::default();
    let [one, two] = [db.site().await, db.site().await];
    let paths: Arc<[String]> = (0..20).map(|page| format!("/{page}")).collect();
    let warm = async |site: &Perennial| {
        let app = app(site, &origin, every(HANG));
        site.warm(app, paths.iter()).await
    };
    let (here, there) = tokio::join!(warm(&one), warm(&two));
    assert_eq!(origin.begun(), 20, "{here:?} {there:?}");
    let generated = count(&here, Served::Generated) + count(&there, Served::Generated);
    assert_eq!(generated, 20, "{here:?} {there:?}");
    for report in [here, there] {
        let known = count(&report, Served::Hit)
            + count(&report, Served::Stale)
            + count(&report, Served::Unavailable);
        assert_eq!(known + count(&report, Served::Generated), 20, "{report:?}");
    }
}

on_each_database! {
    one_process_generates_each_page
}
