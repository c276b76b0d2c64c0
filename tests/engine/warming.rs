//! The first requests, before visitors come.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::Path,
    http::{HeaderMap, Request, StatusCode, header::ACCEPT_LANGUAGE},
    response::Redirect,
    routing::get as route,
};
use perennial::{
    DAY, ErrorKind, Key, Perennial, Refresh, Warmed,
    event::{Bypass, Event, Served},
};
use perennial_testing::{self, advance};

use perennial_testkit::{
    Crowd, Origin, get, rounds, until,
    virtual_time::{Process, Shared, synced},
};

const MINUTE: Duration = Duration::from_mins(1);

fn app(site: &Perennial, origin: &Origin, policy: Refresh) -> Router {
    origin.router().layer(site.layer(policy))
}

fn count(answers: &[Warmed], served: Served) -> usize {
    let same = |answer: &&Warmed| matches!(answer.result, Ok(it) if it == served);
    answers.iter().filter(same).count()
}

/// The paths in their order with the answers, or with the kind of the error.
fn sorted(mut answers: Vec<Warmed>) -> Vec<(String, Result<Served, ErrorKind>)> {
    answers.sort_by(|one, other| one.path.cmp(&other.path));
    let answers = answers.into_iter();
    answers
        .map(|it| (it.path, it.result.map_err(|error| error.kind())))
        .collect()
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
    let report = sorted(other.warm(theirs.clone(), paths).await);
    let outcomes: Vec<_> = report.iter().map(|(path, it)| (&**path, *it)).collect();
    assert_eq!(
        outcomes,
        [
            ("/a", Ok(Served::Generated)),
            ("/b", Ok(Served::Generated)),
            ("/c", Ok(Served::Hit)),
            ("/d", Ok(Served::Generated)),
            ("no path", Err(ErrorKind::Invalid)),
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
        let reply = get(&theirs, path).await;
        let status = reply.header("cache-status");
        assert!(status.contains("hit; ttl="), "{status}");
    }
    assert_eq!(origin.begun(), runs);
}

#[tokio::test(start_paused = true)]
async fn failures_and_uncached_paths_are_told_apart() {
    let shared = Shared::new();
    let (site, origin) = (shared.site(), Origin::default());
    let private = || async { ([("cache-control", "private")], "yours") };
    // Where no layer is involved, the generator runs in the caller's own task.
    let panics = async || -> &'static str { panic!("on purpose") };
    let app = app(&site, &origin, Refresh::every(DAY))
        .route("/panics", route(panics))
        .route("/plain", route(|| async { "no layer" }))
        .route(
            "/private",
            route(private).layer(site.layer(Refresh::every(DAY))),
        );
    origin.status(500);
    let report = site
        .warm(app, ["/fails", "/panics", "/plain", "/private"])
        .await;
    let outcomes: Vec<_> = sorted(report).into_iter().map(|(_, it)| it).collect();
    assert_eq!(
        outcomes,
        [
            Ok(Served::Failed),
            Err(ErrorKind::Generator),
            Err(ErrorKind::Invalid),
            Ok(Served::Bypass(Bypass::Private)),
        ]
    );
}

#[derive(Default)]
struct Counts {
    begun: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
    fails: AtomicBool,
}

/// A site of slow pages. Those with odd numbers fail when told to.
fn counted(policy: Refresh, at_once: usize) -> (Perennial, Router, Arc<Counts>) {
    let site =
        perennial_testing::Database::new().open(Perennial::builder().max_regenerations(at_once));
    let (site, counts) = (site.expect("opens"), Arc::new(Counts::default()));
    let told = Arc::clone(&counts);
    let page = async move |Path(number): Path<usize>| {
        told.begun.fetch_add(1, SeqCst);
        let running = told.running.fetch_add(1, SeqCst) + 1;
        told.most.fetch_max(running, SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        told.running.fetch_sub(1, SeqCst);
        if told.fails.load(SeqCst) && number % 2 == 1 {
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        } else {
            Ok(number.to_string())
        }
    };
    let app = Router::new().route("/{number}", route(page).layer(site.layer(policy)));
    (site, app, counts)
}

fn paths(number: usize) -> impl Iterator<Item = String> {
    (0..number).map(|page| format!("/{page}"))
}

#[tokio::test(start_paused = true)]
async fn stale_pages_are_not_skipped_for_want_of_a_permit() {
    let (site, app, counts) = counted(Refresh::every(MINUTE), 1);
    for _ in 0..2 {
        let report = site.warm(app.clone(), paths(40)).await;
        assert_eq!(count(&report, Served::Generated), 40);
        advance(2 * MINUTE).await;
    }
    assert_eq!(
        [&counts.begun, &counts.most].map(|it| it.load(SeqCst)),
        [80, 1]
    );
}

#[tokio::test(start_paused = true)]
async fn many_pages_end_generated_or_failed_four_at_a_time() {
    let many = rounds(10_000, 1000);
    let (site, app, counts) = counted(Refresh::every(DAY), 4);
    counts.fails.store(true, SeqCst);
    let report = site.regenerate(app, paths(many)).await;
    let ends = [Served::Generated, Served::Failed].map(|served| count(&report, served));
    assert_eq!(ends, [many / 2; 2]);
    assert_eq!(
        [&counts.begun, &counts.most].map(|it| it.load(SeqCst)),
        [many, 4]
    );
}

#[tokio::test(start_paused = true)]
async fn fresh_page_is_regenerated_and_a_failure_is_reported() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let [a, b] = [(); 2].map(|()| Process::new(&shared, &origin));
    assert_eq!([a.run("/p").await, b.run("/p").await], [1; 2]);
    assert_eq!(a.regenerate("/p").await, Some(Served::Generated));
    assert_eq!((origin.begun(), a.run("/p").await), (2, 2));
    synced().await;
    assert_eq!(b.run("/p").await, 2);
    assert_eq!(b.regenerate("/p").await, Some(Served::Generated));
    assert_eq!(b.run("/p").await, 3);

    // `regenerate` must not be content with a version whose generation began before the call.
    origin.hold();
    b.site.invalidate("/p").await.expect("is done");
    let crowd = Crowd::visit(1, &[b.address], "/p");
    until("b generates", async || origin.begun() == 4).await;
    let site = b.site.clone();
    let app = b.address.clone();
    let told = tokio::spawn(async move { site.regenerate(app, ["/p"]).await });
    synced().await;
    assert!(!told.is_finished());
    origin.let_go();
    let told = told.await.expect("no panic");
    assert_eq!(count(&told, Served::Generated), 1);
    crowd.rest().await;
    assert_eq!((origin.begun(), b.run("/p").await), (5, 5));

    // The caller learns of the failure; visitors get the old version.
    origin.status(500);
    assert_eq!(b.regenerate("/p").await, Some(Served::Failed));
    assert_eq!(b.run("/p").await, 5);

    // In the cooldown, the call returns without a run.
    advance(Duration::from_millis(1)).await;
    assert_eq!(b.regenerate("/p").await, Some(Served::Stale));
    assert_eq!(origin.begun(), 6);
}

#[tokio::test(start_paused = true)]
async fn page_that_is_not_stored_says_why() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let layer = || site.layer(Refresh::every(DAY));
    let redirects = route(async || Redirect::to("/elsewhere")).layer(layer());
    let app = Router::new()
        .route(
            "/extended",
            route(async || "a page").layer((Extension("an extension"), layer())),
        )
        .route("/redirects", redirects)
        .route(
            "/status",
            route(async || StatusCode::IM_A_TEAPOT).layer(layer()),
        );
    let report = site
        .regenerate(app, ["/extended", "/redirects", "/status"])
        .await;
    let answers: Vec<_> = sorted(report).into_iter().map(|(_, it)| it).collect();
    let why = [Bypass::UndeclaredExtension, Bypass::Status, Bypass::Status];
    assert_eq!(answers, why.map(|why| Ok(Served::Bypass(why))));
}

#[tokio::test(start_paused = true)]
async fn each_variant_is_regenerated_by_its_own_request() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let runs = Arc::new(AtomicUsize::new(0));
    let page = async move |headers: HeaderMap| {
        let language = headers
            .get(ACCEPT_LANGUAGE)
            .map_or("no", |it| it.to_str().expect("text"));
        format!("{language} {}", runs.fetch_add(1, SeqCst))
    };
    let key = Key::new().header(ACCEPT_LANGUAGE);
    let app = Router::new().route(
        "/p",
        route(page).layer(site.layer(Refresh::every(DAY)).key(key)),
    );
    let request = |language: &str| Request::get("/p").header(ACCEPT_LANGUAGE, language);
    let variants = || ["de", "en"].map(|language| request(language).body(()).expect("a request"));
    for _ in 0..2 {
        let report = site.regenerate(app.clone(), variants()).await;
        assert_eq!(count(&report, Served::Generated), 2);
    }
    // Neither made the other one stale.
    let report = site.warm(app.clone(), variants()).await;
    assert_eq!(count(&report, Served::Hit), 2);
}

/// A restart, and then an outage: what `warm` has read is in memory, stale or fresh.
#[tokio::test(start_paused = true)]
async fn warmed_pages_outlast_an_outage_after_a_restart() {
    const PAGES: usize = 100;
    for (age, hangs) in [(0, false), (0, true), (2, true)] {
        let database = perennial_testing::Database::new();
        let origin = Origin::default();
        let process = || {
            let site = database.open(Perennial::builder()).expect("opens");
            let hour = Refresh::every(60 * MINUTE).in_background();
            let app = app(&site, &origin, hour);
            (site, app)
        };
        let paths: Vec<_> = (0..PAGES).map(|n| format!("/{n}")).collect();
        let (site, first) = process();
        site.warm(first, &paths).await;
        advance(Duration::from_hours(age)).await;
        let (site, restarted) = process();
        site.warm(restarted.clone(), &paths).await;
        if hangs {
            database.hang();
        } else {
            database.fail();
        }
        let begun = tokio::time::Instant::now();
        for path in &paths {
            assert_eq!(get(&restarted, path).await.status, StatusCode::OK, "{path}");
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

/// Two processes that start together: one of them generates each page, and both have it in the end.
#[tokio::test(start_paused = true)]
async fn page_that_another_process_is_making_is_waited_for() {
    let shared = Shared::new();
    let slow = || {
        let generate = async || {
            tokio::time::sleep(Duration::from_secs(2)).await;
            "page"
        };
        Router::new().route("/{page}", route(generate))
    };
    let sites = [shared.site(), shared.site()];
    let apps = sites
        .each_ref()
        .map(|site| slow().layer(site.layer(Refresh::every(DAY))));
    let pages = ["/a", "/b", "/c", "/d", "/e", "/f"];
    let warm = |n: usize| sites[n].warm(apps[n].clone(), pages);
    let (one, other) = tokio::join!(warm(0), warm(1));
    for answers in [one, other] {
        for Warmed { path, result, .. } in answers {
            let served = result.expect("a layer answers");
            let is_there = matches!(served, Served::Generated | Served::Collapsed | Served::Hit);
            assert!(is_there, "{path}: {served}");
        }
    }
}
