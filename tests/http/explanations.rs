//! Explanations of answers: each word, for no work and with the token alone.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::Request,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use perennial::{
    Builder, Key, Mode, Perennial, Refresh,
    entries::{Explanation, VersionState},
    event::{Bypass, Event, Served},
};
use perennial_testing::{Database, advance};
use tokio::sync::Semaphore;

const TOKEN: &str = "a token that nobody guesses";
const HOUR: Duration = Duration::from_hours(1);

#[derive(Clone)]
struct User;

fn header(name: header::HeaderName, value: &'static str) -> impl IntoResponse {
    ([(name, value)], "page")
}

struct Site {
    site: Perennial,
    app: Router,
    runs: Arc<AtomicUsize>,
    /// The permits of the route `/slow`.
    slow: Arc<Semaphore>,
}

impl Site {
    fn new(database: &Database, builder: Builder) -> Self {
        let site = database.open(builder).expect("opens");
        let runs = Arc::new(AtomicUsize::new(0));
        let slow = Arc::new(Semaphore::new(0));
        let layer = || site.layer(Refresh::every(HOUR));
        let counted = Arc::clone(&runs);
        let count = move || counted.fetch_add(1, Relaxed);
        let answer = |response: fn() -> axum::response::Response| {
            let count = count.clone();
            get(move || async move {
                count();
                response()
            })
        };
        let page = || answer(|| "page".into_response());
        let waits = Arc::clone(&slow);
        let counts = count.clone();
        let waiting = get(move || async move {
            counts();
            waits.acquire().await.expect("is open").forget();
            "page"
        });
        let app = Router::new()
            .route("/page", page().layer(layer().tag("list")))
            .route("/slow", waiting.layer(layer()))
            .route(
                "/failing",
                answer(|| StatusCode::INTERNAL_SERVER_ERROR.into_response()).layer(layer()),
            )
            .route("/members", page().layer(layer().bypass_if(|_| true)))
            .route(
                "/session",
                page()
                    .layer::<_, Infallible>(layer())
                    .layer(Extension(User)),
            )
            .route(
                "/keyless",
                page().layer(layer().key(Key::by(|_| None::<[(&str, &str); 0]>))),
            )
            .route("/crowded", page().layer(layer().max_keys(0)))
            .route(
                "/cookie",
                answer(|| header(header::SET_COOKIE, "a=b").into_response()).layer(layer()),
            )
            .route(
                "/varied",
                answer(|| header(header::VARY, "accept-language").into_response()).layer(layer()),
            )
            .route(
                "/events",
                answer(|| header(header::CONTENT_TYPE, "text/event-stream").into_response())
                    .layer(layer()),
            )
            .route(
                "/odd",
                answer(|| StatusCode::IM_A_TEAPOT.into_response()).layer(layer()),
            )
            .route(
                "/large",
                answer(|| vec![b'x'; 100_000].into_response()).layer(layer()),
            )
            .route("/plain", page());
        Self {
            site,
            app,
            runs,
            slow,
        }
    }

    async fn visit(&self, path: &str) {
        perennial_testkit::get(&self.app, path).await;
    }

    async fn explain(&self, path: &str) -> Explanation {
        let (runs, rows) = (self.runs.load(Relaxed), self.rows().await);
        let explanation = self.site.explain(self.app.clone(), path).await;
        let explanation = explanation.expect("answers").expect("has a layer");
        assert_eq!((runs, rows), (self.runs.load(Relaxed), self.rows().await));
        explanation
    }

    async fn rows(&self) -> usize {
        self.site.latest(1000).await.expect("answers").len()
    }
}

fn bypass(why: Bypass) -> Served {
    Served::Bypass(why)
}

#[tokio::test(start_paused = true)]
async fn each_answer_is_explained_before_and_as_it_comes() {
    let database = Database::new();
    let small = || Perennial::builder().max_body(50_000);
    let site = Site::new(&database, small());
    for (path, before, after) in [
        ("/page", Served::Generated, Served::Hit),
        ("/failing", Served::Generated, Served::Unavailable),
        ("/cookie", Served::Generated, bypass(Bypass::Private)),
        ("/varied", Served::Generated, bypass(Bypass::Vary)),
        ("/events", Served::Generated, bypass(Bypass::EventStream)),
        ("/odd", Served::Generated, bypass(Bypass::Status)),
        ("/large", Served::Generated, bypass(Bypass::TooLarge)),
        (
            "/members",
            bypass(Bypass::BypassIf),
            bypass(Bypass::BypassIf),
        ),
        (
            "/session",
            bypass(Bypass::UndeclaredExtension),
            bypass(Bypass::UndeclaredExtension),
        ),
        ("/keyless", bypass(Bypass::NoKey), bypass(Bypass::NoKey)),
        (
            "/crowded",
            bypass(Bypass::TooManyKeys),
            bypass(Bypass::TooManyKeys),
        ),
    ] {
        assert_eq!(site.explain(path).await.served, before, "{path}");
        site.visit(path).await;
        assert_eq!(site.explain(path).await.served, after, "{path}");
    }
    let plain = site.site.explain(site.app.clone(), "/plain").await;
    assert_eq!(plain.expect("answers"), None);
    for text in ["no path", "page"] {
        let wrong = site.site.explain(site.app.clone(), text).await;
        let wrong = wrong.expect_err("is no path").to_string();
        assert!(wrong.contains("/books"), "{wrong}");
    }

    // Another process finds the version in the database.
    let other = Site::new(&database, small());
    let explanation = other.explain("/page").await;
    assert_eq!(explanation.served, Served::Hit);
    assert_eq!(explanation.key.as_deref(), Some("/page"));
    let version = explanation.version.expect("is found");
    assert!(!version.in_memory);
    assert_eq!(version.tags, ["list"]);
    assert_eq!(version.interval, HOUR);
    assert_eq!(other.explain("/failing").await.served, Served::Unavailable);
    site.site.invalidate_tag("list").await.expect("is stored");
    let explanation = site.explain("/page").await;
    assert_eq!(explanation.served, Served::Stale);
    let version = explanation.version.expect("is found");
    assert_eq!(version.state, VersionState::Invalidated);
    site.site.purge("/page").await.expect("is purged");
    assert_eq!(site.explain("/page").await.served, Served::Generated);
    site.visit("/page").await;
    advance(2 * HOUR).await;
    assert_eq!(site.explain("/page").await.served, Served::Stale);

    let running = tokio::spawn({
        let app = site.app.clone();
        async move { perennial_testkit::get(&app, "/slow").await }
    });
    while site.explain("/slow").await.served != Served::Collapsed {
        advance(Duration::from_millis(10)).await;
    }
    site.slow.add_permits(1);
    running.await.expect("ends");
    assert_eq!(site.explain("/slow").await.served, Served::Hit);

    let off = Site::new(&database, small().mode(Mode::Off));
    assert_eq!(off.explain("/page").await.served, bypass(Bypass::Off));
    site.site.shutdown().await;
    let new = site.explain("/page?new").await.served;
    assert_eq!(new, bypass(Bypass::ShuttingDown));
}

/// An operator sees that the page is old because its handler fails, and what the handler does not see.
#[tokio::test(start_paused = true)]
async fn page_that_stays_stale_after_failures_is_explained() {
    let database = Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let page = get(move || async move {
        match count.fetch_add(1, Relaxed) {
            0 => "page".into_response(),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "no column `amount`").into_response(),
        }
    });
    let app = Router::new().route("/page", page.layer(site.layer(Refresh::every(HOUR))));
    let mut events = site.subscribe();
    perennial_testkit::get(&app, "/page").await;
    advance(2 * HOUR).await;
    perennial_testkit::get(&app, "/page").await;
    let explanation = site.explain(app.clone(), "/page").await;
    let explanation = explanation.expect("answers").expect("has a layer");
    assert_eq!(explanation.served, Served::Stale);
    let cooldown = explanation.cooldown.as_ref().expect("has failed");
    assert_eq!(cooldown.failures, 1);
    assert!(!cooldown.left.is_zero());
    let asked = Request::get("/page").header(header::COOKIE, "a=b").body(());
    let explanation = site.explain(app, asked.expect("a request")).await;
    let explanation = explanation.expect("answers").expect("has a layer");
    assert_eq!(explanation.hidden_headers, ["cookie"]);
    // The log and the events contain the beginning of the handler's response.
    let error = loop {
        if let Some(Event::Regenerated(ended)) = events.next().await
            && let Some(error) = ended.error.clone()
        {
            break error;
        }
    };
    assert_eq!(
        &*error,
        "the service answered 500 Internal Server Error: no column `amount`"
    );
}

/// Memory has the cooldown of a failure, and the database the version that another process has
/// generated since.
#[tokio::test(start_paused = true)]
async fn version_of_another_process_is_explained_after_a_cooldown() {
    let database = Database::new();
    let [failing, other] = [500, 200].map(|status| {
        let site = database.open(Perennial::builder()).expect("opens");
        let status = StatusCode::from_u16(status).expect("a status");
        let page = get(async move || (status, "page")).layer(site.layer(Refresh::every(HOUR)));
        (site, Router::new().route("/page", page))
    });
    perennial_testkit::get(&failing.1, "/page").await;
    let explained = async || {
        let explained = failing.0.explain(failing.1.clone(), "/page").await;
        explained.expect("answers").expect("has a layer").served
    };
    assert_eq!(explained().await, Served::Unavailable);
    advance(Duration::from_secs(2)).await;
    perennial_testkit::get(&other.1, "/page").await;
    assert_eq!(explained().await, Served::Hit);
}

#[tokio::test(start_paused = true)]
async fn token_alone_gets_an_explanation_and_reaches_no_handler() {
    let database = Database::new();
    let site = database.open(Perennial::builder().explain_token(TOKEN));
    let site = site.expect("opens");
    let layer = || site.layer(Refresh::every(HOUR));
    let handler =
        async |headers: HeaderMap| format!("{}", headers.contains_key("perennial-explain"));
    let app = Router::new().route("/", get(handler).layer(layer())).route(
        "/members",
        get(handler)
            .post(handler)
            .layer(layer().bypass_if(|_| true)),
    );
    let ask = async |method: &str, path: &str, token: Option<&str>| {
        let token = token.map(|token| ("perennial-explain", token));
        perennial_testkit::request(&app, method, path, token.as_slice()).await
    };
    for token in [None, Some(""), Some("wrong"), Some(&TOKEN[1..])] {
        for (method, path) in [("GET", "/"), ("GET", "/members"), ("POST", "/members")] {
            let reply = ask(method, path, token).await;
            assert_eq!(reply.text(), "false", "{token:?} {path}");
        }
    }
    for (method, path, served) in [
        ("GET", "/", "hit"),
        ("GET", "/members", "bypass: bypass-if"),
        ("POST", "/members", "bypass: method"),
    ] {
        let reply = ask(method, path, Some(TOKEN)).await;
        let explanation: Explanation = serde_json::from_str(reply.text()).expect("is JSON");
        assert_eq!(explanation.served.to_string(), served, "{explanation:?}");
        assert_eq!(reply.header("cache-control"), "private, no-store");
    }
    let short = database.open(Perennial::builder().explain_token("short"));
    let short = short.expect_err("is refused").to_string();
    assert!(short.contains("16 bytes"), "{short}");
    let debug = format!("{:?}", Perennial::builder().explain_token(TOKEN));
    assert!(!debug.contains(TOKEN));
}
