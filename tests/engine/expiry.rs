//! Pages and content that end: from an age on they are neither served nor kept, whatever fails.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, http::StatusCode, routing::get as route};
use perennial::{Builder, DAY, ExpireAfter, Generation, Perennial, Refresh, RefreshAfter};
use perennial_testing::{Database, advance};
use perennial_testkit::get;

const SECOND: Duration = Duration::from_secs(1);
/// A page would be served for years.
const POLICY: Refresh = Refresh::every(Duration::from_secs(30))
    .stale_if_error(DAY)
    .cooldown(Duration::from_secs(10))
    .in_background();

fn open(database: &Database, builder: Builder) -> Perennial {
    database.open(builder).expect("opens")
}

#[tokio::test(start_paused = true)]
async fn page_that_has_ended_is_served_by_no_process_even_if_its_generator_fails() {
    let database = Database::new();
    let (runs, fails) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let process = || {
        let site = open(&database, Perennial::builder());
        let (runs, fails) = (Arc::clone(&runs), Arc::clone(&fails));
        let paste = async move || {
            let run = runs.fetch_add(1, SeqCst);
            match fails.load(SeqCst) {
                true => Err(StatusCode::GONE),
                false => Ok((ExpireAfter::new(60 * SECOND), format!("paste {run}"))),
            }
        };
        let app: Router = Router::new()
            .route("/", route(paste).layer(site.layer(POLICY)))
            .with_state(());
        (site, app)
    };
    let (site, app) = process();
    assert_eq!(get(&app, "/").await.text(), "paste 0");
    let (_other_site, other) = process();
    assert_eq!(get(&other, "/").await.text(), "paste 0");
    // Stale, and served while the page is regenerated.
    fails.store(true, SeqCst);
    advance(59 * SECOND).await;
    assert_eq!(get(&app, "/").await.text(), "paste 0");
    advance(SECOND).await;
    for app in [&app, &other, &process().1] {
        assert_eq!(get(app, "/").await.status, StatusCode::GONE);
    }
    // The site's retention, which is much longer, does not keep the row beyond the page's end.
    let entry = site
        .entry("/")
        .await
        .expect("answers")
        .expect("the 410 is stored");
    assert_eq!(entry.status, Some(StatusCode::GONE));
}

/// Several pieces of code may know an end each, and time passes while a page is made.
#[tokio::test(start_paused = true)]
async fn earliest_end_counts_from_when_it_was_said() {
    let database = Database::new();
    let site = open(&database, Perennial::builder());
    let content = async |generation: Generation| {
        generation.expire_after(60 * SECOND);
        generation.expire_after(DAY);
        generation.refresh_after(20 * SECOND);
        generation.refresh_after(DAY);
        tokio::time::sleep(30 * SECOND).await;
        Ok::<_, Infallible>("an invitation")
    };
    let policy = Refresh::every(DAY).leader_wait(DAY);
    let made = site.content("invitation", &policy, content).await;
    assert_eq!(made.expect("is made").text(), "an invitation");
    let ended = async |_: Generation| Err::<&str, _>("has ended");
    advance(29 * SECOND).await;
    assert!(site.content("invitation", &policy, ended).await.is_ok());
    advance(SECOND).await;
    assert!(site.content("invitation", &policy, ended).await.is_err());
}

/// What the response says is one more of them.
#[tokio::test(start_paused = true)]
async fn shortest_age_counts_whether_the_handle_or_the_response_says_it() {
    let database = Database::new();
    let site = open(&database, Perennial::builder());
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let page = async move |generation: Generation| {
        counted.fetch_add(1, SeqCst);
        generation.refresh_after(20 * SECOND);
        generation.expire_after(60 * SECOND);
        (RefreshAfter::new(DAY), ExpireAfter::new(DAY), "a page")
    };
    let policy = Refresh::every(DAY).leader_wait(DAY);
    let app: Router = Router::new().route("/", route(page).layer(site.layer(policy)));
    for (seconds, expected) in [(0, 1), (19, 1), (1, 2)] {
        advance(seconds * SECOND).await;
        assert_eq!(get(&app, "/").await.text(), "a page");
        assert_eq!(runs.load(SeqCst), expected, "{seconds}");
    }
    let entry = site.entry("/").await.expect("answers").expect("is stored");
    assert_eq!(entry.status, Some(StatusCode::OK));
}

#[tokio::test(start_paused = true)]
async fn row_of_what_has_ended_is_removed() {
    let database = Database::new();
    let site = open(&database, Perennial::builder());
    let policy = Refresh::every(DAY);
    let content = async |generation: Generation| {
        generation.expire_after(60 * SECOND);
        Ok::<_, Infallible>("an invitation")
    };
    site.content("invitation", &policy, content)
        .await
        .expect("is made");
    let other = async || Ok::<_, Infallible>("another page");
    let is_stored = async || site.entry("invitation").await.expect("answers").is_some();
    assert!(is_stored().await);
    for _ in 0..3 {
        // The housekeeping is a request's.
        advance(Duration::from_secs(3601)).await;
        site.content("other", &policy, other)
            .await
            .expect("is made");
        advance(SECOND).await;
    }
    assert!(!is_stored().await);
}

#[tokio::test(start_paused = true)]
async fn page_ends_with_the_first_of_its_parts_that_ends() {
    let database = Database::new();
    let site = open(&database, Perennial::builder());
    let runs = Arc::new(AtomicUsize::new(0));
    let (own, counted) = (site.clone(), Arc::clone(&runs));
    let page = async move || {
        let offer = async |generation: Generation| {
            generation.expire_after(100 * SECOND);
            Ok::<_, Infallible>("an offer")
        };
        let offer = own.content("offer", Refresh::every(DAY), offer).await;
        let run = counted.fetch_add(1, SeqCst);
        (
            ExpireAfter::new(DAY),
            format!("{run}: {}", offer.expect("is made")),
        )
    };
    let app: Router = Router::new()
        .route("/", route(page).layer(site.layer(Refresh::every(DAY))))
        .with_state(());
    for (after, run) in [(0, 0), (60, 0), (39, 0), (1, 1), (99, 1), (1, 2)] {
        advance(after * SECOND).await;
        assert_eq!(
            get(&app, "/").await.text(),
            format!("{run}: an offer"),
            "{after}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_ends_later_than_its_interval_is_stale_as_usual() {
    let site = open(&Database::new(), Perennial::builder());
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let page = async move || {
        let run = counted.fetch_add(1, SeqCst).to_string();
        (
            RefreshAfter::new(20 * SECOND),
            ExpireAfter::new(60 * SECOND),
            run,
        )
    };
    let app: Router = Router::new()
        .route("/", route(page).layer(site.layer(POLICY)))
        .with_state(());
    get(&app, "/").await;
    advance(21 * SECOND).await;
    assert_eq!(get(&app, "/").await.text(), "0", "stale");
    advance(SECOND).await;
    assert_eq!(get(&app, "/").await.text(), "1", "regenerated meanwhile");
    let cached = get(&app, "/").await;
    assert_eq!(cached.header("cache-status"), "perennial; hit; ttl=19");
}
