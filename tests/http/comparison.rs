//! In development, and where an operator asks: is a page another one for a visitor's own request?

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{
    Extension, Router,
    http::{HeaderMap, HeaderName, Uri, header},
    response::{Html, IntoResponse},
    routing::get as route,
};
use perennial::{
    Key, Mode, Perennial, Refresh,
    entries::{Comparison, Explanation},
    layer::{Holes, RefreshLayer},
};
use perennial_testing::advance;
use perennial_testkit::{patient, request, virtual_time::Shared};
use std::time::Duration;

use crate::log_of_this_thread;

const HOUR: Refresh = Refresh::every(Duration::from_secs(3600));
/// What a browser sends with each request.
const BROWSER: &[(&str, &str)] = &[
    ("accept-language", "de"),
    ("cookie", "theme=dark; id=7"),
    ("user-agent", "a browser"),
    // These headers choose the form in which the page is sent, and not a different page.
    ("accept-encoding", "gzip"),
    ("if-modified-since", "Sat, 28 Nov 2026 12:00:00 GMT"),
    ("range", "bytes=0-0"),
    ("x-proxy", "1"),
];

fn site(mode: Mode) -> Perennial {
    Shared::new().open(patient().mode(mode).explain_token("0123456789abcdef"))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers
        .get(name)
        .map_or("", |it| it.to_str().expect("text"))
}

/// Pages that depend on more or less than they should.
fn app(layer: impl Fn() -> RefreshLayer, runs: &Arc<AtomicUsize>) -> Router {
    let by = |name: &'static str| {
        let runs = Arc::clone(runs);
        async move |headers: HeaderMap| {
            runs.fetch_add(1, SeqCst);
            format!("a page for {}", text(&headers, name))
        }
    };
    let both = async |headers: HeaderMap| {
        format!(
            "{}{}",
            text(&headers, "user-agent"),
            text(&headers, "x-proxy")
        )
    };
    let counted = Arc::clone(runs);
    let random = async move |headers: HeaderMap| {
        format!(
            "{} {}",
            counted.fetch_add(1, SeqCst),
            text(&headers, "cookie")
        )
    };
    let filled = async |holes: Holes| Html(format!("<b>{}</b>", holes.text("name")));
    let private = async |headers: HeaderMap| {
        let page = text(&headers, "cookie").to_owned();
        ([(header::CACHE_CONTROL, "no-store")], page).into_response()
    };
    let forms = async |headers: HeaderMap| {
        let sent = ["accept-encoding", "if-modified-since", "range"];
        format!("{:?}", sent.map(|name| text(&headers, name)))
    };
    let hangs = async |headers: HeaderMap| {
        if headers.contains_key(header::USER_AGENT) {
            std::future::pending::<()>().await;
        }
        "a page"
    };
    let derived = Key::by(|parts| {
        let is_german = parts.headers.get("accept-language")? == "de";
        Some([("currency", if is_german { "EUR" } else { "USD" })])
    });
    let prices = async |uri: Uri| format!("{:?}", uri.query());
    let hole = layer().hole_with("name", async |name: Option<&'static str>| {
        name.unwrap_or("-")
    });
    let in_key = Key::new().header(header::ACCEPT_LANGUAGE);
    Router::new()
        .route("/same", route(async || "a page").layer(layer()))
        .route("/language", route(by("accept-language")).layer(layer()))
        .route("/cookie", route(by("cookie")).layer(layer()))
        .route(
            "/key",
            route(by("accept-language")).layer(layer().key(in_key)),
        )
        .route("/both", route(both).layer(layer()))
        .route("/hangs", route(hangs).layer(layer()))
        .route("/forms", route(forms).layer(layer()))
        .route("/prices", route(prices).layer(layer().key(derived)))
        .route("/random", route(random).layer(layer()))
        .route("/filled", route(filled).layer(hole))
        .route("/private", route(private).layer(layer()))
        .layer(Extension("Ann"))
}

#[tokio::test(start_paused = true)]
async fn developer_is_told_the_header_that_makes_another_page_once() {
    let log = log_of_this_thread();
    let site = site(Mode::Development);
    let runs = Arc::default();
    let layer = || site.layer(HOUR).ignore_extension::<&'static str>();
    let app = app(layer, &runs);
    let told = async |path: &str| {
        let before = log.text().len();
        for _ in 0..2 {
            let reply = request(&app, "GET", path, BROWSER).await;
            assert_eq!(reply.status, 200, "{path}: {reply:?}");
            advance(Duration::from_millis(10)).await;
        }
        let text = log.text()[before..].to_owned();
        let lines = text.lines().filter(|line| line.contains("WARN"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for path in ["/same", "/key", "/random", "/filled", "/forms", "/prices"] {
        let told = told(path).await;
        assert!(told.is_empty(), "{path}: {told:?}");
    }
    for (path, name) in [("/language", "accept-language"), ("/cookie", "cookie")] {
        let told = told(path).await;
        assert_eq!(told.len(), 1, "{path}: {told:?}");
        let header = format!("header=\"{name}\"");
        assert!(
            told[0].contains(&header) && told[0].contains(path),
            "{told:?}"
        );
    }
    let both = told("/both").await;
    assert_eq!(both.len(), 1, "{both:?}");
    assert!(
        both[0].contains("no single header is the reason"),
        "{both:?}"
    );
    // The page is generated once for everybody, once more to see whether each generation differs, and once for
    // the visitor. Then it is generated several times for the visitor, each time without one of the headers,
    // until the result equals the page for everybody.
    let counted = runs.load(SeqCst);
    for path in ["/language", "/cookie", "/key"] {
        site.invalidate(path).await.expect("answers");
        request(&app, "GET", path, BROWSER).await;
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(runs.load(SeqCst), counted + 3, "each page is compared once");
    let private = told("/private").await;
    assert!(
        private.iter().all(|line| !line.contains("differs")),
        "{private:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn production_compares_nothing_unless_an_operator_asks() {
    let log = log_of_this_thread();
    let site = site(Mode::On);
    let runs: Arc<AtomicUsize> = Arc::default();
    let layer = || site.layer(HOUR).ignore_extension::<&'static str>();
    let app = app(layer, &runs);
    for path in ["/language", "/cookie"] {
        request(&app, "GET", path, BROWSER).await;
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(runs.load(SeqCst), 2);
    assert!(
        !log.text().contains("differs by a header"),
        "{}",
        log.text()
    );

    let explain = async |path: &str, compares: bool| {
        let mut headers = BROWSER.to_vec();
        headers.push(("perennial-explain", "0123456789abcdef"));
        if compares {
            headers.push(("perennial-explain-compare", "yes"));
        }
        let reply = request(&app, "GET", path, &headers).await;
        serde_json::from_str::<Explanation>(reply.text())
            .expect("is one")
            .comparison
    };
    for (path, expected) in [
        ("/same", Comparison::Same),
        (
            "/language",
            Comparison::DiffersByHeader("accept-language".to_owned()),
        ),
        ("/cookie", Comparison::DiffersByHeader("cookie".to_owned())),
        ("/key", Comparison::Same),
        ("/forms", Comparison::Same),
        ("/prices", Comparison::Same),
        ("/both", Comparison::DiffersByRequest),
        ("/random", Comparison::DiffersEachTime),
        ("/filled", Comparison::Same),
        ("/private", Comparison::NotCompared),
        ("/hangs", Comparison::NotCompared),
    ] {
        assert_eq!(explain(path, false).await, None, "{path}");
        assert_eq!(explain(path, true).await, Some(expected), "{path}");
    }
    // Nothing of it was stored.
    for path in ["/same", "/key", "/both", "/filled"] {
        let entry = site.entry(path).await.expect("answers");
        assert!(entry.is_none(), "{path}");
    }
    let theme = HeaderName::from_static("x-theme");
    assert!(site.explain(app, format!("/same?{theme}")).await.is_ok());
}
