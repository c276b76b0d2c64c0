//! Pages with holes: generated once for all visitors, and filled for each of them.

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
    middleware::{Next, from_fn},
    response::{Html, IntoResponse, Response},
    routing::get as route,
};
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use perennial::{
    Mode, Perennial, Refresh,
    event::Outcome,
    layer::{Holes, RefreshLayer},
};
use perennial_testing::{self, advance};
use perennial_testkit::{Reply, get, request, virtual_time::Shared};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tower::ServiceExt;
use tower_cookies::{Cookie, Cookies};
use tower_sessions::{MemoryStore, Session, SessionManagerLayer};

use crate::log_of_this_thread;

const HOUR: Refresh = Refresh::every(Duration::from_secs(3600));

/// What the visitor calls itself, or nothing.
async fn name(visitor: Parts) -> Result<String, &'static str> {
    let name = visitor.headers.get("x-name");
    match name.map(|name| name.to_str().expect("text")) {
        Some("nobody") => Err("there is no such visitor"),
        Some("panics") => panic!("is meant to"),
        Some("hangs") => std::future::pending().await,
        Some("much") => Ok("x".repeat(100 << 20)),
        Some(name) => Ok(name.to_owned()),
        None => Ok("stranger".to_owned()),
    }
}

async fn nonce(_: Parts) -> Result<String, Infallible> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    Ok(format!("n{}", NEXT.fetch_add(1, SeqCst)))
}

/// A page that counts its generations.
struct Site {
    site: Perennial,
    generated: Arc<AtomicUsize>,
}

impl Site {
    fn new() -> Self {
        Self::of(&Shared::new())
    }

    fn of(shared: &Shared) -> Self {
        Self {
            site: shared.site(),
            generated: Arc::default(),
        }
    }

    fn layer(&self) -> RefreshLayer {
        let layer = self.site.layer(HOUR);
        layer.hole_or("name", "somebody", name).hole("nonce", nonce)
    }

    fn app(&self, layer: RefreshLayer) -> Router {
        let generated = Arc::clone(&self.generated);
        let page = async move |holes: Holes| {
            let number = generated.fetch_add(1, SeqCst);
            Html(format!(
                "<p>{number}</p><b>{}</b><i>{}</i><script nonce=\"{}\">let name = {};</script>",
                holes.text("name"),
                holes.text("name"),
                holes.text("nonce"),
                holes.json("name"),
            ))
        };
        Router::new()
            .route("/", route(page).layer(layer))
            .with_state(())
    }
}

async fn visit(app: &Router, name: &str) -> Reply {
    request(app, "GET", "/", &[("x-name", name)]).await
}

/// The page without the nonce, which must be `n` and a number.
fn shown(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    let (before, rest) = reply.text().split_once("nonce=\"n").expect("a nonce");
    let (number, after) = rest.split_once('"').expect("ends");
    number.parse::<usize>().expect("a number");
    format!("{before}{after}")
}

fn page(number: usize, text: &str, json: &str) -> String {
    format!("<p>{number}</p><b>{text}</b><i>{text}</i><script >let name = {json};</script>")
}

#[tokio::test(start_paused = true)]
async fn page_is_generated_once_and_filled_for_each_visitor() {
    let site = Site::new();
    let app = site.app(site.layer());
    for name in ["Ann", "Bob", "Ann"] {
        let reply = visit(&app, name).await;
        assert_eq!(shown(&reply), page(0, name, &format!("\"{name}\"")));
        assert_eq!(reply.header("cache-control"), "private, no-cache");
        for absent in [
            "etag",
            "last-modified",
            "accept-ranges",
            "cdn-cache-control",
            "age",
        ] {
            if absent != "age" {
                assert_eq!(reply.header(absent), "", "{absent}: {reply:?}");
            }
        }
        let length = reply.header("content-length");
        assert!(
            length.is_empty() || length == reply.body.len().to_string(),
            "{reply:?}"
        );
    }
    assert_eq!(site.generated.load(SeqCst), 1);
    let status = visit(&app, "Ann").await;
    assert!(
        status
            .header("cache-status")
            .starts_with("perennial; hit; ttl=")
    );
    assert!(
        status.header("cache-status").ends_with("; detail=holes"),
        "{status:?}"
    );
    let explained = site.site.explain(app, "/").await;
    let explained = explained.expect("answers").expect("has a layer");
    assert_eq!(
        explained.version.expect("is there").holes,
        ["name", "nonce"]
    );
    // What is stored has neither marks nor names.
    let stored = site
        .site
        .stored_response("/")
        .await
        .expect("answers")
        .expect("is stored");
    assert!(!stored.headers().contains_key(header::ETAG), "{stored:?}");
    let stored = String::from_utf8(stored.body().to_vec()).expect("text");
    assert_eq!(
        stored,
        "<p>0</p><b></b><i></i><script nonce=\"\">let name = ;</script>"
    );
}

#[tokio::test(start_paused = true)]
async fn filling_is_escaped_for_its_place() {
    let site = Site::new();
    let app = site.app(site.layer());
    let reply = visit(&app, "</script>\"'&").await;
    assert_eq!(
        shown(&reply),
        page(
            0,
            "&lt;/script&gt;&quot;&#39;&amp;",
            "\"\\u003c/script\\u003e\\\"'\\u0026\""
        )
    );
}

#[tokio::test(start_paused = true)]
async fn text_of_a_visitor_that_looks_like_a_mark_stays_a_text() {
    let site = Site::new();
    let app = site.app(site.layer());
    let like = format!("hole{}000", "0".repeat(32));
    for _ in 0..2 {
        assert_eq!(
            shown(&visit(&app, &like).await),
            page(0, &like, &format!("\"{like}\""))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn hole_that_fails_shows_its_fallback_and_one_line_in_the_log() {
    let log = log_of_this_thread();
    let site = Site::new();
    let app = site.app(site.layer());
    for name in ["nobody", "panics", "hangs", "much", "nobody"] {
        assert_eq!(
            shown(&visit(&app, name).await),
            page(0, "somebody", "\"somebody\""),
            "{name}"
        );
    }
    let told = log.text();
    let told: Vec<_> = told
        .lines()
        .filter(|line| line.contains("a hole of a page"))
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("hole=\"name\"") && told[0].contains("no such visitor"),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn header_and_page_have_the_same_nonce_which_is_never_used_again() {
    let site = Site::new();
    let policy = "script-src 'nonce-{nonce}'; base-uri 'none'";
    let app = site.app(
        site.layer()
            .header_with(header::CONTENT_SECURITY_POLICY, policy),
    );
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        let reply = visit(&app, "Ann").await;
        let (_, rest) = reply.text().split_once("nonce=\"").expect("a nonce");
        let (nonce, _) = rest.split_once('"').expect("ends");
        let header = reply.header("content-security-policy");
        assert_eq!(
            header,
            format!("script-src 'nonce-{nonce}'; base-uri 'none'")
        );
        assert!(seen.insert(nonce.to_owned()), "{nonce} is used again");
    }
    // No old body is combined with a new nonce.
    for (name, value) in [
        ("if-none-match", "*"),
        ("if-modified-since", "Fri, 31 Dec 2100 00:00:00 GMT"),
        ("if-match", "\"a\""),
        ("range", "bytes=0-1"),
    ] {
        let reply = request(&app, "GET", "/", &[(name, value)]).await;
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
        assert!(reply.text().ends_with("</script>"), "{name}");
    }
    // HEAD runs the holes of headers alone.
    let head = request(&app, "HEAD", "/", &[("x-name", "panics")]).await;
    assert_eq!((head.status, &*head.body), (200, &b""[..]));
    assert!(
        head.header("content-security-policy").contains("'nonce-n"),
        "{head:?}"
    );
    assert_eq!(head.header("content-length"), "");
}

#[tokio::test(start_paused = true)]
async fn header_is_never_sent_unfilled_or_with_what_has_no_place_in_it() {
    let site = Site::new();
    for (value, status) in [
        (Ok("abc+/="), 200),
        (Ok("a; b"), 500),
        (Ok("a\r\nb: c"), 500),
        (Ok(""), 500),
        (Err("no"), 500),
    ] {
        let layer = site
            .site
            .layer(HOUR)
            .hole("token", move |_| async move { value.map(str::to_owned) });
        let layer = layer.header_with(
            header::CONTENT_SECURITY_POLICY,
            "script-src 'nonce-{token}'",
        );
        let page = async |holes: Holes| Html(holes.text("token"));
        let app: Router = Router::new()
            .route("/page", route(page).layer(layer))
            .with_state(());
        for _ in 0..2 {
            let reply = get(&app, "/page").await;
            assert_eq!(reply.status, status, "{value:?}: {reply:?}");
            let has_header = !reply.header("content-security-policy").is_empty();
            assert_eq!(has_header, status == 200);
            if status == 500 {
                assert_eq!(reply.header("cache-control"), "no-store");
            }
        }
    }
}

/// A body in frames of a few bytes, with trailers.
fn in_frames(text: &str, length: usize) -> Response {
    let chunks = text
        .as_bytes()
        .chunks(length)
        .map(|chunk| Frame::data(bytes::Bytes::copy_from_slice(chunk)));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-trailer", "here".parse().expect("a value"));
    let frames = chunks
        .chain([Frame::trailers(trailers)])
        .map(Ok::<_, Infallible>);
    let frames: Vec<_> = frames.collect();
    Response::new(Body::new(StreamBody::new(stream::iter(frames))))
}

#[tokio::test(start_paused = true)]
async fn page_that_bypasses_the_cache_is_filled_while_it_is_streamed() {
    for mode in [Mode::On, Mode::Off] {
        let site = Shared::new().open(perennial_testkit::patient().mode(mode));
        let layer = site.layer(HOUR).hole("name", name).bypass_if(|_| true);
        for length in [1, 7, 38, 39, 40, 1000] {
            let page = async move |holes: Holes| {
                let text = format!(
                    "<b>{}</b>hole{}|{}",
                    holes.text("name"),
                    holes.json("name"),
                    holes.text("name")
                );
                in_frames(&text, length)
            };
            let app: Router = Router::new()
                .route("/", route(page).layer(layer.clone()))
                .with_state(());
            let asked = axum::http::Request::get("/")
                .header("x-name", "A&B")
                .body(Body::empty());
            let response = app
                .oneshot(asked.expect("a request"))
                .await
                .expect("never fails");
            assert_eq!(
                response.headers()[header::CACHE_CONTROL],
                "private, no-cache"
            );
            assert!(!response.headers().contains_key(header::CONTENT_LENGTH));
            let body = response.into_body().collect().await.expect("is whole");
            let trailers = body.trailers().cloned().expect("are kept");
            assert_eq!(trailers["x-trailer"], "here");
            assert_eq!(
                body.to_bytes(),
                "<b>A&amp;B</b>hole\"A\\u0026B\"|A&amp;B",
                "{length} {mode:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn streamed_hole_keeps_back_only_what_stands_behind_it() {
    let site = Site::new();
    let gate = Arc::new(Semaphore::new(0));
    let opens = Arc::clone(&gate);
    let slow = move |visitor: Parts| {
        let gate = Arc::clone(&opens);
        async move {
            match visitor.headers["x-name"].to_str() {
                Ok("fails") => return Err("is meant to"),
                Ok("sleeps") => std::future::pending().await,
                _ => gate.acquire().await.expect("is open").forget(),
            }
            Ok("<slow>")
        }
    };
    let layer = || {
        let layer = site.layer().streamed_hole("slow", "later", slow.clone());
        layer.header_with(
            header::CONTENT_SECURITY_POLICY,
            "script-src 'nonce-{nonce}'",
        )
    };
    let page = async |holes: Holes| {
        let (slow, name) = (holes.text("slow"), holes.text("name"));
        Html(format!("<b>{name}</b>{slow}<i>{slow}</i>{name}"))
    };
    let app: Router = Router::new()
        .route("/stored", route(page).layer(layer()))
        .route("/passed", route(page).layer(layer().bypass_if(|_| true)))
        .with_state(());
    let ask = async |method, path: &str, name: &str| {
        let asked = axum::http::Request::builder().method(method).uri(path);
        let asked = asked.header("x-name", name).body(Body::empty());
        let asked = app.clone().oneshot(asked.expect("a request"));
        let response = asked.await.expect("never fails");
        let policy = &response.headers()[header::CONTENT_SECURITY_POLICY];
        assert!(policy.to_str().expect("text").contains("nonce-n"));
        assert!(!response.headers().contains_key(header::CONTENT_LENGTH));
        response.into_body()
    };
    let began = Instant::now();
    for path in ["/stored", "/stored", "/passed"] {
        let mut body = ask("GET", path, "Ann").await;
        let mut seen = Vec::new();
        // The gate is closed, and the page is there up to the hole.
        while let Ok(frame) = timeout(Duration::from_secs(1), body.frame()).await {
            let frame = frame.expect("goes on").expect("never fails");
            seen.extend_from_slice(&frame.into_data().expect("is data"));
        }
        assert_eq!(seen, b"<b>Ann</b>", "{path}");
        gate.add_permits(1);
        let rest = body.collect().await.expect("never fails").to_bytes();
        assert_eq!(rest, "&lt;slow&gt;<i>&lt;slow&gt;</i>Ann", "{path}");
        // When a visitor leaves, the function for the visitor is cancelled, too.
        drop(ask("GET", path, "Bob").await);
        let head = ask("HEAD", path, "Ann").await.collect().await;
        assert_eq!(head.expect("never fails").to_bytes(), "", "{path}");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    for (name, limit) in [("fails", 0), ("sleeps", 30)] {
        for path in ["/stored", "/passed"] {
            let began = Instant::now();
            let body = ask("GET", path, name).await.collect().await;
            let body = body.expect("never fails").to_bytes();
            assert_eq!(body, format!("<b>{name}</b>later<i>later</i>{name}"));
            assert_eq!(began.elapsed().as_secs(), limit, "{name} {path}");
        }
    }
}

/// A function may hold a connection, which a visitor who stops reading must not keep from others.
#[tokio::test(start_paused = true)]
async fn function_of_a_streamed_hole_ends_although_nobody_reads_on() {
    let site = Site::new();
    let connections = Arc::new(Semaphore::new(1));
    let pool = Arc::clone(&connections);
    let slow = move |_: Parts| {
        let pool = Arc::clone(&pool);
        async move {
            let _connection = pool.acquire().await.expect("is open");
            tokio::time::sleep(Duration::from_secs(10)).await;
            "slow"
        }
    };
    let quick = async |_: Parts| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        "quick"
    };
    let layer = || {
        let layer = site.layer().streamed_hole("quick", "", quick);
        layer.streamed_hole("slow", "late", slow.clone())
    };
    let page = async |holes: Holes| {
        let (quick, slow) = (holes.text("quick"), holes.text("slow"));
        Html(format!("1{quick}2{slow}3"))
    };
    let app: Router = Router::new()
        .route("/stored", route(page).layer(layer()))
        .route("/passed", route(page).layer(layer().bypass_if(|_| true)))
        .with_state(());
    for path in ["/stored", "/passed"] {
        let asked = Request::get(path).body(Body::empty()).expect("a request");
        let mut body = app
            .clone()
            .oneshot(asked)
            .await
            .expect("never fails")
            .into_body();
        let mut seen = String::new();
        while !seen.contains("quick") {
            let frame = body.frame().await.expect("goes on").expect("never fails");
            seen += std::str::from_utf8(&frame.into_data().expect("is data")).expect("text");
        }
        assert_eq!(connections.available_permits(), 0, "{path}");
        advance(Duration::from_secs(10)).await;
        assert_eq!(connections.available_permits(), 1, "{path}");
        // A client that reads on after the limit gets what the function had returned by then.
        advance(Duration::from_secs(60)).await;
        let rest = body.collect().await.expect("never fails").to_bytes();
        let whole = seen + std::str::from_utf8(&rest).expect("text");
        assert_eq!(whole, "1quick2slow3", "{path}");
    }
}

/// A header with a filling is its visitor's, whether the page has a mark or not.
#[tokio::test(start_paused = true)]
async fn filled_header_makes_any_response_its_visitors_own() {
    let site = Site::new();
    let layer = || {
        let policy = HOUR.cdn_cache(Duration::from_secs(600));
        let layer = site
            .site
            .layer(policy.browser_cache(Duration::from_secs(60)));
        layer
            .hole("name", name)
            .header_with(header::HeaderName::from_static("x-token"), "{name}")
    };
    let public = [(header::CACHE_CONTROL, "public, max-age=600")];
    let without = async || "the same for all";
    let asked_for = async |holes: Holes| {
        let _ = holes.text("name");
        (StatusCode::NOT_FOUND, "no such book")
    };
    let app: Router = Router::new()
        .route("/without", route(without).layer(layer()))
        .route("/not-found", route(asked_for).layer(layer()))
        .route(
            "/passed",
            route(async move || (public, "page")).layer(layer().bypass_if(|_| true)),
        )
        .route(
            "/no-store",
            route(async || ([(header::CACHE_CONTROL, "no-store")], "page")).layer(layer()),
        )
        .with_state(());
    for path in ["/without", "/not-found", "/passed", "/no-store"] {
        for visitor in ["Ann", "Bob"] {
            let reply = request(&app, "GET", path, &[("x-name", visitor)]).await;
            assert_eq!(reply.header("x-token"), visitor, "{path}: {reply:?}");
            assert_eq!(reply.header("cdn-cache-control"), "", "{path}: {reply:?}");
            let expected = match path {
                "/no-store" => "no-store",
                _ => "private, no-cache",
            };
            assert_eq!(reply.header("cache-control"), expected, "{path}: {reply:?}");
        }
    }
}

/// `bypass_if` may count, or draw lots.
#[tokio::test(start_paused = true)]
async fn function_of_the_application_is_called_once_for_each_request() {
    let site = Site::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let layer = site.layer().bypass_if(move |parts| {
        counted.fetch_add(1, SeqCst);
        parts.headers.contains_key("x-bypass")
    });
    let app = site.app(layer);
    for (number, headers) in [&[][..], &[], &[("x-bypass", "yes")]]
        .into_iter()
        .enumerate()
    {
        request(&app, "GET", "/", headers).await;
        assert_eq!(asked.load(SeqCst), number + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn hole_with_an_extension_gets_that_of_its_visitor_and_the_page_is_stored() {
    #[derive(Clone)]
    struct User(String);

    async fn log_in(mut request: Request, next: Next) -> Response {
        if let Some(name) = request.headers().get("x-name") {
            let user = User(name.to_str().expect("text").to_owned());
            request.extensions_mut().insert(user);
        }
        next.run(request).await
    }
    let site = Site::new();
    let layer = site
        .site
        .layer(HOUR)
        .hole_with("name", async |user: Option<User>| {
            user.map_or("stranger".to_owned(), |User(name)| name)
        });
    let generated = Arc::clone(&site.generated);
    let page = async move |holes: Holes, user: Option<Extension<User>>| {
        assert!(user.is_none(), "the handler sees no visitor");
        generated.fetch_add(1, SeqCst);
        Html(format!("<b>{}</b>", holes.text("name")))
    };
    let app: Router = Router::new()
        .route("/", route(page).layer(layer))
        .layer(from_fn(log_in))
        .with_state(());
    for name in ["Ann", "Bob", "Ann"] {
        assert_eq!(visit(&app, name).await.text(), format!("<b>{name}</b>"));
        assert_eq!(get(&app, "/").await.text(), "<b>stranger</b>");
    }
    assert_eq!(site.generated.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn response_without_marks_is_passed_on_and_stored_as_it_is() {
    let site = Site::new();
    let page = async || "the same for all";
    let layer = || site.layer();
    let app: Router = Router::new()
        .route("/stored", route(page).layer(layer()))
        .route("/passed", route(page).layer(layer().bypass_if(|_| true)))
        .with_state(());
    for _ in 0..2 {
        let stored = get(&app, "/stored").await;
        assert_eq!(stored.text(), "the same for all");
        assert!(stored.header("etag").contains("p-"), "{stored:?}");
        assert_eq!(stored.header("cache-control"), "no-cache");
        let passed = get(&app, "/passed").await;
        assert_eq!(passed.text(), "the same for all");
        assert_eq!(passed.header("content-length"), "16");
    }
}

#[tokio::test(start_paused = true)]
async fn mistake_with_a_mark_fails_the_generation_and_names_the_hole() {
    let log = log_of_this_thread();
    let site = Site::new();
    let own = site.site.clone();
    let upper = async |holes: Holes| holes.text("name").to_uppercase();
    let unknown = async |holes: Holes| holes.text("nmae");
    let in_header = async |holes: Holes| ([("x-name", holes.text("name"))], "page");
    let coded = async |holes: Holes| ([(header::CONTENT_ENCODING, "gzip")], holes.text("name"));
    let in_part = async move |holes: Holes| {
        let part = async move || Ok::<_, Infallible>(format!("Hello {}", holes.text("name")));
        let part = own.content("sidebar", HOUR, part).await;
        part.expect("is made").text().into_owned()
    };
    let not_found = async |holes: Holes| {
        let _ = holes.text("name");
        (StatusCode::NOT_FOUND, "no such book")
    };
    let unused = async |holes: Holes| {
        let _ = holes.text("name");
        holes.unused("name");
        "page"
    };
    let without = async |_: Holes| "never";
    let app: Router = Router::new()
        .route("/upper", route(upper).layer(site.layer()))
        .route("/unknown", route(unknown).layer(site.layer()))
        .route("/header", route(in_header).layer(site.layer()))
        .route("/coded", route(coded).layer(site.layer()))
        .route("/part", route(in_part).layer(site.layer()))
        .route("/unused", route(unused).layer(site.layer()))
        .route("/not-found", route(not_found).layer(site.layer()))
        .route("/without", route(without).layer(site.site.layer(HOUR)))
        .with_state(());
    for (path, said) in [
        ("/upper", "the mark of the hole \"name\" is not in the body"),
        ("/unknown", "the layer has no hole \"nmae\""),
        ("/header", "stands in the header x-name"),
        ("/coded", "Content-Encoding"),
        ("/part", "written in a part of the page"),
    ] {
        let reply = get(&app, path).await;
        assert_eq!(reply.status, 503, "{path}: {reply:?}");
        let log = log.text().replace('\\', "");
        assert!(log.contains(said), "{path}: {log}");
    }
    let reply = get(&app, "/unused").await;
    assert_eq!((reply.status, reply.text()), (200, "page"));
    // The handler may respond without using its marks, if it has nothing to show.
    for status in ["miss; stored", "hit"] {
        let reply = get(&app, "/not-found").await;
        assert_eq!((reply.status, reply.text()), (404, "no such book"));
        assert!(reply.header("cache-status").contains(status), "{reply:?}");
    }
    // Without a hole on the layer, the extractor says what to do.
    let reply = get(&app, "/without").await;
    assert_eq!(reply.status, 500, "{reply:?}");
    assert!(reply.text().contains(".hole("), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_response_is_filled_too() {
    let site = Site::new();
    let page = async |holes: Holes| {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("Sorry, {}", holes.text("name")),
        )
            .into_response()
    };
    let app: Router = Router::new()
        .route("/", route(page).layer(site.layer()))
        .with_state(());
    let reply = visit(&app, "Ann").await;
    assert_eq!((reply.status, reply.text()), (500, "Sorry, Ann"));
    assert_eq!(reply.header("cache-control"), "private, no-cache");
}

#[tokio::test(start_paused = true)]
async fn stale_page_is_filled_and_an_equal_one_is_renewed() {
    let site = Site::new();
    let page = async |holes: Holes| Html(format!("<b>{}</b>", holes.text("name")));
    let app: Router = Router::new()
        .route("/", route(page).layer(site.layer()))
        .with_state(());
    assert_eq!(visit(&app, "Ann").await.text(), "<b>Ann</b>");
    advance(Duration::from_secs(4000)).await;
    assert_eq!(visit(&app, "Bob").await.text(), "<b>Bob</b>");
    let renewed = site.site.stats().regenerations(Outcome::Renewed);
    assert_eq!(
        renewed, 1,
        "the marks of two generations differ, and the page does not"
    );
}

#[tokio::test(start_paused = true)]
async fn hole_that_moves_in_the_same_text_makes_another_page() {
    let site = Site::new();
    let generated = Arc::clone(&site.generated);
    let page = async move |holes: Holes| match generated.fetch_add(1, SeqCst) {
        0 => Html(format!("{}<hr>", holes.text("name"))),
        1 => Html(format!("<hr>{}", holes.text("name"))),
        2 => Html(format!("<hr>{}", holes.html("name"))),
        _ => Html(format!("<hr>{}", holes.html("nonce"))),
    };
    let app: Router = Router::new()
        .route("/", route(page).layer(site.layer()))
        .with_state(());
    for shown in ["&amp;<hr>", "<hr>&amp;", "<hr>&", "<hr>n"] {
        let reply = visit(&app, "&").await;
        assert!(reply.text().starts_with(shown), "{shown}: {reply:?}");
        advance(Duration::from_secs(4000)).await;
    }
    let stored = site.site.stats().regenerations(Outcome::Stored);
    assert_eq!(stored, 4);
}

#[tokio::test(start_paused = true)]
async fn outer_layer_stores_no_page_with_holes() {
    let site = Site::new();
    let inner = async |holes: Holes| Html(format!("<b>{}</b>", holes.text("name")));
    // Either the inner layer stores the page, or it passes the request of the outer layer's generator on to the
    // handler.
    for layer in [
        site.layer(),
        site.layer().bypass_if(|_| true),
        site.layer().max_keys(0),
    ] {
        let inner = Router::new().route("/", route(inner).layer(layer));
        let app: Router = inner.layer(site.site.layer(HOUR).key(perennial::Key::new().host()));
        for name in ["Ann", "Bob", "Ann", "Bob"] {
            assert_eq!(visit(&app, name).await.text(), format!("<b>{name}</b>"));
        }
        site.site.purge_prefix("").await.expect("answers");
    }
}

#[tokio::test(start_paused = true)]
async fn process_without_a_hole_of_a_stored_page_shows_no_empty_spot() {
    let shared = Shared::new();
    let new = Site::of(&shared);
    let old = Site::of(&shared);
    let page = async |holes: Holes| Html(format!("<b>{}</b>", holes.text("name")));
    let plain = async || Html("<b>of before</b>");
    let app: Router = Router::new()
        .route("/", route(page).layer(new.layer()))
        .with_state(());
    let before: Router = Router::new()
        .route("/", route(plain).layer(old.site.layer(HOUR)))
        .with_state(());
    for _ in 0..3 {
        assert_eq!(visit(&app, "Ann").await.text(), "<b>Ann</b>");
        assert_eq!(visit(&before, "Ann").await.text(), "<b>of before</b>");
        advance(Duration::from_secs(4000)).await;
    }
}

/// A deploy that renames a hole, with processes of both revisions for two minutes: neither makes the other one
/// generate more often than it would alone.
#[tokio::test(start_paused = true)]
async fn two_revisions_generate_each_page_once_an_interval_and_leave_each_others_pages() {
    const PAGES: usize = 100;
    const INTERVAL: Duration = Duration::from_secs(10);
    struct Revision {
        site: Perennial,
        app: Router,
        hole: &'static str,
        generated: Arc<Mutex<HashMap<usize, Vec<Instant>>>>,
    }
    let shared = Shared::new();
    let revisions = ["name", "reader"].map(|hole| {
        let site = shared.site();
        let generated = Arc::new(Mutex::new(HashMap::<_, Vec<_>>::new()));
        let log = Arc::clone(&generated);
        let page = async move |holes: Holes, Path(number): Path<usize>| {
            let mut log = log.lock().expect("no panic");
            log.entry(number).or_default().push(Instant::now());
            Html(format!("<p>{number}</p><b>{}</b>", holes.text(hole)))
        };
        let layer = site.layer(Refresh::every(INTERVAL)).hole(hole, name);
        let app = Router::new().route("/{number}", route(page).layer(layer));
        Revision {
            site,
            app,
            hole,
            generated,
        }
    });
    for _second in 0..120 {
        for Revision { app, hole, .. } in &revisions {
            for number in 0..PAGES {
                let reply = request(app, "GET", &format!("/{number}"), &[("x-name", "Ann")]).await;
                let expected = format!("<p>{number}</p><b>Ann</b>");
                assert_eq!(reply.text(), expected, "{hole}: {reply:?}");
            }
        }
        advance(Duration::from_secs(1)).await;
    }
    for Revision {
        site,
        hole,
        generated,
        ..
    } in &revisions
    {
        let generated = generated.lock().expect("no panic");
        assert_eq!(generated.len(), PAGES);
        for (number, times) in &*generated {
            for pair in times.windows(2) {
                let between = pair[1] - pair[0];
                assert!(between >= INTERVAL, "{hole} {number}: {between:?}");
            }
            assert!(times.len() >= 11, "{hole} {number}: {}", times.len());
        }
        // Of the two revisions, the one that first finds the stored page stale stores its own page.
        let apart = site.stats().regenerations(Outcome::KeptApart);
        let stored = site.stats().regenerations(Outcome::Stored)
            + site.stats().regenerations(Outcome::Renewed);
        assert!(apart + stored >= 1100, "{hole}: {apart} and {stored}");
    }
    let apart = |revision: &Revision| revision.site.stats().regenerations(Outcome::KeptApart);
    assert!(revisions.iter().map(apart).sum::<u64>() >= 1100);
    // When the processes of the first revision have ended, the second one stores its pages.
    let [old, new] = revisions;
    drop(old);
    advance(3 * INTERVAL).await;
    let before = shared.generations("/0");
    assert_eq!(visit_path(&new.app, "/0").await, "<p>0</p><b>stranger</b>");
    advance(Duration::from_secs(1)).await;
    assert!(shared.generations("/0") > before, "is stored");
    let restarted = shared.site();
    let layer = restarted
        .layer(Refresh::every(INTERVAL))
        .hole("reader", name);
    let never = async || -> &'static str { panic!("the stored page is read") };
    let app: Router = Router::new().route("/{number}", route(never).layer(layer));
    assert_eq!(visit_path(&app, "/0").await, "<p>0</p><b>stranger</b>");
}

/// In a deploy, the old processes end within minutes; each process would generate a page of a month by itself otherwise.
#[tokio::test(start_paused = true)]
async fn page_of_other_code_is_replaced_when_it_is_older_than_an_hour() {
    let shared = Shared::new();
    let month = Refresh::every(30 * perennial::DAY);
    let process = |hole: &'static str, is_stored: bool| {
        let site = shared.site();
        let page = async move |holes: Holes| Html(format!("{hole}: {}", holes.text(hole)));
        let layer = site.layer(&month).hole(hole, name);
        let layer = layer.store_if(move |_| is_stored);
        let app: Router = Router::new().route("/", route(page).layer(layer));
        (site, app)
    };
    let (old, app) = process("name", true);
    assert_eq!(visit_path(&app, "/").await, "name: stranger");
    assert_eq!(shared.generations("/"), 1);
    // A process that stores nothing must not mark the others' page as one that its code cannot use.
    let (refuses, app) = process("reader", false);
    assert_eq!(visit_path(&app, "/").await, "reader: stranger");
    for (minutes, outcome, generations) in [(58, Outcome::KeptApart, 1), (3, Outcome::Stored, 2)] {
        advance(Duration::from_secs(60 * minutes)).await;
        let (new, app) = process("reader", true);
        assert_eq!(visit_path(&app, "/").await, "reader: stranger");
        advance(Duration::from_secs(1)).await;
        assert_eq!(new.stats().regenerations(outcome), 1, "{minutes}");
        assert_eq!(shared.generations("/"), generations, "{minutes}");
    }
    drop((old, refuses));
}

async fn visit_path(app: &Router, path: &str) -> String {
    get(app, path).await.text().to_owned()
}

#[tokio::test(start_paused = true)]
async fn warming_runs_no_hole() {
    let site = Site::new();
    let page = async |holes: Holes| Html(format!("<b>{}</b>", holes.text("name")));
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let layer = site.site.layer(HOUR).hole("name", move |_| {
        count.fetch_add(1, SeqCst);
        async { Ok::<_, Infallible>("Ann".to_owned()) }
    });
    let app: Router = Router::new()
        .route("/", route(page).layer(layer))
        .with_state(());
    site.site.warm(app.clone(), ["/"]).await;
    assert_eq!(runs.load(SeqCst), 0);
    assert_eq!(visit(&app, "").await.text(), "<b>Ann</b>");
    assert_eq!(
        runs.load(SeqCst),
        1,
        "once for a visitor, wherever it stands"
    );
}

#[test]
fn holes_are_declared_once_and_before_the_headers_that_have_them() {
    let site = Shared::new().site();
    let layer = || site.layer(HOUR).hole("name", name);
    let declared: [&dyn Fn(); 6] = [
        &|| drop(layer().hole("name", name)),
        &|| drop(layer().hole("", name)),
        &|| drop(layer().hole("{", name)),
        &|| drop(layer().header_with(header::LINK, "{nonce}")),
        &|| drop(layer().header_with(header::LINK, "{name")),
        &|| {
            let late = layer().streamed_hole("late", "", name);
            drop(late.header_with(header::LINK, "{late}"));
        },
    ];
    for (number, declare) in declared.iter().enumerate() {
        let declared = std::panic::catch_unwind(std::panic::AssertUnwindSafe(declare));
        assert!(declared.is_err(), "{number}");
    }
    let mut layer = site.layer(HOUR);
    for number in 0..64 {
        layer = layer.hole(&number.to_string(), name);
    }
    let one_more = std::panic::AssertUnwindSafe(move || drop(layer.hole("64", name)));
    assert!(std::panic::catch_unwind(one_more).is_err());
}

/// As a form with a token has it, and a message that is shown once.
#[tokio::test(start_paused = true)]
async fn hole_reads_and_changes_the_session_and_the_cookies_of_its_visitor() {
    async fn csrf(visitor: Parts) -> Result<String, perennial_store::error::BoxError> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let session: &Session = visitor.extensions.get().ok_or("no session")?;
        if let Some(token) = session.get::<String>("csrf").await? {
            return Ok(token);
        }
        let token = format!("token-{}", NEXT.fetch_add(1, SeqCst));
        session.insert("csrf", &token).await?;
        Ok(token)
    }
    async fn flash(visitor: Parts) -> Result<String, &'static str> {
        let cookies: &Cookies = visitor.extensions.get().ok_or("no cookies")?;
        let message = cookies.get("flash").map(|cookie| cookie.value().to_owned());
        if message.is_some() {
            cookies.remove(Cookie::from("flash"));
        }
        Ok(message.unwrap_or_default())
    }
    let site = Site::new();
    let form = async |holes: Holes| Html(format!("{}|{}", holes.text("csrf"), holes.text("flash")));
    let layer = site
        .site
        .layer(HOUR)
        .ignore_extension::<Session>()
        .ignore_extension::<Cookies>();
    let layer = layer.hole("csrf", csrf).hole("flash", flash);
    let bypassed = layer.clone().bypass_if(|_| true);
    let app: Router = Router::new()
        .route("/form", route(form).layer(layer))
        .route("/bypassed", route(form).layer(bypassed))
        .layer(SessionManagerLayer::new(MemoryStore::default()).with_secure(false))
        .with_state(());
    let mut tokens = BTreeSet::new();
    for path in ["/form", "/bypassed", "/form"] {
        let first = get(&app, path).await;
        let (cookie, _) = first
            .header("set-cookie")
            .split_once(';')
            .expect("a session");
        let token = first
            .text()
            .strip_suffix('|')
            .expect("no message")
            .to_owned();
        assert!(
            token.starts_with("token-") && tokens.insert(token.clone()),
            "{token}"
        );
        for other in ["/form", "/bypassed"] {
            let again = request(&app, "GET", other, &[("cookie", cookie)]).await;
            assert_eq!(again.text(), format!("{token}|"), "{path} {other}");
        }
        let told = format!("{cookie}; flash=Saved");
        let told = request(&app, "GET", path, &[("cookie", &told)]).await;
        assert_eq!(told.text(), format!("{token}|Saved"));
        let removed = told.headers.get_all("set-cookie").iter();
        let mut removed =
            removed.filter(|line| line.to_str().is_ok_and(|line| line.starts_with("flash=")));
        assert!(removed.next().is_some(), "{told:?}");
    }
}

mod random {
    use proptest::prelude::*;

    use super::*;

    /// A piece of a page.
    #[derive(Clone, Debug)]
    enum Piece {
        Text(String),
        Name,
        Json,
        Html,
    }

    fn piece() -> impl Strategy<Value = Piece> {
        prop_oneof![
            // Text with the characters that a mark begins with, and marks of another generation.
            "[hole0-9a-f<&]{0,60}".prop_map(Piece::Text),
            "hole[0-9a-f]{32}[0-9]{0,3}".prop_map(Piece::Text),
            Just(Piece::Name),
            Just(Piece::Json),
            Just(Piece::Html),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Of a stored page, and of a streamed one in frames of any length.
        #[test]
        fn each_visitor_sees_the_page_with_its_own_fillings(
            pieces in proptest::collection::vec(piece(), 0..12),
            names in proptest::collection::vec("[!-~]([ -~]{0,10}[!-~])?", 1..4),
            length in 1_usize..90,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            runtime.expect("a runtime").block_on(async move {
                let site = Site::new();
                let written = pieces.clone();
                let page = async move |holes: Holes| {
                    let written = written.iter().map(|piece| match piece {
                        Piece::Text(text) => text.clone(),
                        Piece::Name => holes.text("name"),
                        Piece::Json => holes.json("name"),
                        Piece::Html => holes.html("name"),
                    });
                    in_frames(&written.collect::<String>(), length)
                };
                let passes = site.layer().bypass_if(|_| true);
                let app: Router = Router::new()
                    .route("/stored", route(page.clone()).layer(site.layer()))
                    .route("/passed", route(page).layer(passes))
                    .with_state(());
                for name in &names {
                    let expected = pieces.iter().map(|piece| match piece {
                        Piece::Text(text) => text.clone(),
                        Piece::Name => name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;"),
                        Piece::Json => serde_json::to_string(name).expect("is a text")
                            .replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"),
                        Piece::Html => name.clone(),
                    });
                    let expected: String = expected.collect();
                    for path in ["/stored", "/passed"] {
                        let reply = request(&app, "GET", path, &[("x-name", name)]).await;
                        prop_assert_eq!(reply.status, 200);
                        prop_assert_eq!(reply.text(), &expected);
                    }
                }
                Ok(())
            })?;
        }
    }
}
