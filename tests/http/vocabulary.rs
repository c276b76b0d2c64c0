//! One spelling of each word: in the API, `Cache-Status`, the log, metrics, the history and the
//! guide. (The status page and the command line have tests of their own.)

use std::time::Duration;

use axum::{
    Extension, Router,
    body::Body,
    http::{Request, StatusCode, header},
    routing::get,
};
use perennial::{
    Perennial, Refresh,
    entries::EntryState,
    event::{Bypass, Event, Outcome, Reason, Served},
    locks::LockKind,
};
use perennial_testing::{self, advance};

use perennial_testkit::Ask;

use crate::log_of_this_thread;

const INTERVAL: Duration = Duration::from_secs(60);

fn app(site: &Perennial) -> Router {
    let policy = Refresh::every(INTERVAL).in_background();
    let layer = || {
        site.layer(&policy)
            .bypass_if(|parts| parts.headers.contains_key("cookie"))
    };
    let with = |name, value| move || async move { ([(name, value)], "page") };
    Router::new()
        .route("/page", get("page").layer(layer()))
        .route(
            "/fails",
            get(StatusCode::INTERNAL_SERVER_ERROR).layer(layer()),
        )
        .route("/status", get(StatusCode::CREATED).layer(layer()))
        .route("/large", get([0; 1001]).layer(layer()))
        .route("/vary", get(with(header::VARY, "x-a")).layer(layer()))
        .route(
            "/private",
            get(with(header::CACHE_CONTROL, "private")).layer(layer()),
        )
        .route(
            "/stream",
            get(with(header::CONTENT_TYPE, "text/event-stream")).layer(layer()),
        )
        .merge(
            Router::new()
                .route("/user", get("page").layer(layer()))
                .layer(Extension(7_u32)),
        )
        .with_state(())
}

/// Returns how the site has counted a request, and its `Cache-Status`.
async fn visit(site: &Perennial, app: &Router, request: Request<Body>) -> (Served, String) {
    let before = site.stats();
    let (head, _) = app.ask(request).await;
    let status = head.headers["cache-status"]
        .to_str()
        .expect("text")
        .to_owned();
    // Regenerations in the background.
    advance(Duration::from_millis(10)).await;
    let after = site.stats();
    let counted = Served::all().filter(|it| after.requests(*it) > before.requests(*it));
    let counted: Vec<_> = counted.collect();
    assert_eq!(counted.len(), 1, "{counted:?} of {status}");
    (counted[0], status)
}

#[tokio::test(start_paused = true)]
async fn each_place_says_the_same_word() {
    let log = log_of_this_thread();
    #[cfg(feature = "metrics")]
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    #[cfg(feature = "metrics")]
    let handle = recorder.handle();
    #[cfg(feature = "metrics")]
    let _installed = metrics::set_default_local_recorder(&recorder);
    let builder = Perennial::builder().max_body(1000);
    let site = perennial_testing::Database::new()
        .open(builder)
        .expect("opens");
    let (app, mut events) = (app(&site), site.subscribe());

    let get = |path: &str| Request::get(path).body(Body::empty()).expect("a request");
    let mut requests: Vec<_> = ["/page", "/page", "/fails", "/fails"].map(get).into();
    requests.extend(["/status", "/large", "/vary", "/private", "/stream", "/user"].map(get));
    let with_cookie = Request::get("/page").header("cookie", "a=b");
    requests.push(with_cookie.body(Body::empty()).expect("a request"));
    requests.push(
        Request::post("/page")
            .body(Body::empty())
            .expect("a request"),
    );
    let mut answers = Vec::new();
    for request in requests {
        answers.push(visit(&site, &app, request).await);
    }
    advance(INTERVAL).await;
    answers.push(visit(&site, &app, get("/page")).await);
    for (served, status) in &answers {
        let expected = match served {
            Served::Hit => "hit; ttl=5".to_owned(),
            Served::Stale => "hit; ttl=-".to_owned(),
            Served::Generated => "fwd=miss; stored".to_owned(),
            Served::Bypass(Bypass::Method) => "fwd=method".to_owned(),
            Served::Bypass(why) => format!("detail={why}"),
            served => format!("detail={served}"),
        };
        assert!(status.contains(&expected), "{served}: {status}");
    }
    let seen: Vec<_> = answers.iter().map(|(served, _)| *served).collect();
    let bypasses = [
        Bypass::Status,
        Bypass::TooLarge,
        Bypass::Vary,
        Bypass::Private,
        Bypass::EventStream,
        Bypass::UndeclaredExtension,
        Bypass::BypassIf,
        Bypass::Method,
    ];
    let mut expected = vec![
        Served::Generated,
        Served::Hit,
        Served::Failed,
        Served::Unavailable,
    ];
    expected.extend(bypasses.map(Served::Bypass));
    expected.push(Served::Stale);
    assert_eq!(seen, expected);

    let text = log.text();
    while let Some(event) = events.try_next() {
        let line = match event {
            Event::Bypassed { reason, .. } => format!("reason=\"{reason}\""),
            Event::Regenerated(ended) => format!("outcome=\"{}\"", ended.outcome),
            _ => continue,
        };
        assert!(text.contains(&line), "{line} in {text}");
    }
    let page = site
        .entry("/page")
        .await
        .expect("answers")
        .expect("is stored");
    let reasons: Vec<_> = page.history.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::Stale, Reason::Miss]);
    #[cfg(feature = "metrics")]
    {
        site.record_metrics();
        let scraped = handle.render();
        for served in expected {
            let (result, detail) = match served {
                Served::Bypass(why) => (served.as_str(), why.as_str()),
                _ => (served.as_str(), ""),
            };
            let count = site.stats().requests(served);
            let line = format!("{{result=\"{result}\",detail=\"{detail}\"}} {count}");
            assert!(scraped.contains(&line), "{line} in {scraped}");
        }
        let outcome = "reason=\"stale\",outcome=\"renewed\",detail=\"\"} 1";
        assert!(scraped.contains(outcome), "{outcome} in {scraped}");
    }
}

/// The table in the guide.
#[test]
fn guide_has_each_word() {
    let guide = include_str!("../../docs/monitoring/README.md");
    let row = |name: &str| {
        let row = guide
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}` |")));
        let cell = row.and_then(|row| row.trim_end_matches(" |").rsplit(" | ").next());
        let words = cell
            .unwrap_or_else(|| panic!("no row of {name}"))
            .split(' ');
        words
            .map(|word| word.trim_matches('`').to_owned())
            .collect::<Vec<_>>()
    };
    let words = |all: &mut dyn Iterator<Item = &'static str>| {
        let mut words: Vec<_> = all.map(str::to_owned).collect();
        words.dedup();
        words
    };
    assert_eq!(row("Served"), words(&mut Served::all().map(Served::as_str)));
    assert_eq!(row("Bypass"), words(&mut Bypass::all().map(Bypass::as_str)));
    assert_eq!(row("Reason"), words(&mut Reason::all().map(Reason::as_str)));
    assert_eq!(
        row("Outcome"),
        words(&mut Outcome::all().map(Outcome::as_str))
    );
    assert_eq!(
        row("EntryState"),
        words(&mut EntryState::all().map(EntryState::as_str))
    );
    assert_eq!(
        row("LockKind"),
        words(&mut LockKind::all().map(LockKind::as_str))
    );
}

/// Each reason has a row in the chapter, and each warning of the layer begins as the chapter says.
#[test]
fn guide_has_each_bypass_and_each_warning() {
    let chapter = include_str!("../../docs/guide/is-my-page-cached.md");
    for why in Bypass::all().filter(|why| *why != Bypass::Method) {
        assert!(
            chapter.contains(&format!("\n| `{why}` | ")),
            "docs/guide/is-my-page-cached.md has no row of `{why}`"
        );
    }
    let sources = [
        include_str!("../../src/layer/refresh/hints.rs"),
        include_str!("../../src/layer/refresh/disposition.rs"),
        include_str!("../../src/layer/refresh/admission.rs"),
        include_str!("../../src/cache/parts.rs"),
        include_str!("../../src/cache/regeneration/driver.rs"),
        include_str!("../../src/cache/regeneration/generate.rs"),
        include_str!("../../src/cache/missed.rs"),
    ];
    let mut warnings = Vec::new();
    for source in sources {
        for call in source.split("tracing::warn!(").skip(1) {
            let text = call
                .split('"')
                .skip(1)
                .step_by(2)
                .find(|text| text.len() > 30);
            warnings.push(text.expect("a message").to_owned());
        }
    }
    let (_, rows) = chapter
        .split_once("## Warnings in the log")
        .expect("a section");
    let rows: Vec<_> = rows
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|cell| *cell != "the line begins with")
        .collect();
    for warning in &warnings {
        // The table has `…` where the code has a name in braces, for a value.
        let named = |row: &&str| {
            let mut parts = row.split('…');
            parts.all(|part| warning.contains(part))
        };
        assert!(rows.iter().any(named), "{warning}");
    }
    assert_eq!(rows.len(), warnings.len(), "{rows:#?} {warnings:#?}");
}
