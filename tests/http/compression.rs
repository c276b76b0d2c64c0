//! Pages in content codings: the browser's view, and the work of the site.

use std::{
    collections::HashSet,
    io::Read,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, request::Parts},
    response::Html,
    routing::get as route,
};
use perennial::{Refresh, layer::Holes};
use tower_http::compression::CompressionLayer;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, filter::Targets, layer::Context, registry::LookupSpan};

use perennial_testkit::{Folder, Origin, Reply, request, serve, until};

const LONG: Duration = Duration::from_secs(3600);

const CODINGS: [&str; 2] = ["br", "gzip"];

/// The header of today's browsers.
const BROWSER: &str = "gzip, deflate, br";

/// A router whose pages are long and have these headers. It counts its runs in `origin`.
fn router(origin: &Origin, headers: &[(&'static str, &'static str)]) -> Router {
    let headers = headers.iter().map(|(name, value)| {
        let name = HeaderName::from_static(name);
        (name, HeaderValue::from_static(value))
    });
    let (origin, headers) = (origin.clone(), HeaderMap::from_iter(headers));
    Router::new().fallback(route(async move || {
        let (status, text) = origin.run("a page").await;
        (status, headers, page(&text))
    }))
}

fn page(text: &str) -> String {
    let lines = (0..500).map(|line| format!("<li>{} {text}</li>\n", line * line % 97));
    lines.collect()
}

async fn ask(address: std::net::SocketAddr, accepts: &str) -> Reply {
    request(address, "GET", "/", &[("accept-encoding", accepts)]).await
}

/// The requested coding, once the page is available in that coding.
async fn coded(address: std::net::SocketAddr, accepts: &str, coding: &str) -> Reply {
    let mut reply = None;
    until(&format!("there is one in {coding}"), async || {
        let asked = ask(address, accepts).await;
        assert!(["", coding].contains(&text(&asked, "content-encoding")));
        assert!(asked.status == 200 && plain(&asked).starts_with("<li>0 run 1 of"));
        let found = text(&asked, "content-encoding") == coding;
        reply = Some(asked);
        found
    })
    .await;
    reply.expect("is there")
}

fn text<'a>(reply: &'a Reply, name: &str) -> &'a str {
    let mut values = reply.headers.get_all(name).into_iter();
    let value = values.next();
    assert!(values.next().is_none(), "{name} is there twice: {reply:?}");
    value.map_or("", |value| value.to_str().expect("text"))
}

/// The content after decoding.
fn plain(reply: &Reply) -> String {
    let (body, mut plain) = (&*reply.body, String::new());
    let read = match text(reply, "content-encoding") {
        "" => {
            plain = String::from_utf8(body.to_vec()).expect("text");
            Ok(0)
        }
        "br" => brotli::Decompressor::new(body, 4096).read_to_string(&mut plain),
        "gzip" => flate2::read::GzDecoder::new(body).read_to_string(&mut plain),
        other => panic!("{other} was not asked for"),
    };
    read.expect("is readable");
    plain
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_the_same_in_each_coding_with_a_tag_of_its_own() {
    let (folder, origin) = (Folder::new(), Origin::default());
    let layer = folder.site().await.layer(Refresh::every(LONG));
    let html = ("content-type", "text/html; charset=utf-8");
    let address = serve(router(&origin, &[html]).layer(layer)).await;

    // No visitor waits for the compression.
    let first = ask(address, BROWSER).await;
    assert_eq!(text(&first, "content-encoding"), "");
    assert_eq!(plain(&first), page("run 1 of a page"));

    let mut tags = HashSet::new();
    for (accepts, coding) in [
        ("", ""),
        ("identity", ""),
        ("deflate", ""),
        ("identity;q=0, deflate", ""),
        (BROWSER, "br"),
        ("*", "br"),
        ("br;q=0, *", "gzip"),
        ("gzip, identity;q=0.5", "gzip"),
    ] {
        let reply = coded(address, accepts, coding).await;
        assert_eq!(plain(&reply), page("run 1 of a page"), "{accepts}");
        assert_eq!(text(&reply, "vary"), "accept-encoding");
        assert_eq!(text(&reply, "content-type"), html.1);
        assert_eq!(text(&reply, "content-length"), reply.body.len().to_string());
        assert!(coding.is_empty() || reply.body.len() * 5 < first.body.len());
        let tag = text(&reply, "etag");
        tags.insert(tag.to_owned());

        let asked = [("accept-encoding", accepts)];
        let head = request(address, "HEAD", "/", &asked).await;
        for name in [
            "content-encoding",
            "content-length",
            "content-type",
            "etag",
            "vary",
        ] {
            assert_eq!(text(&head, name), text(&reply, name), "HEAD {accepts}");
        }
        for method in ["GET", "HEAD"] {
            let asked = [asked[0], ("if-none-match", tag)];
            let unchanged = request(address, method, "/", &asked).await;
            assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
            assert_eq!(text(&unchanged, "etag"), tag);
            assert_eq!(text(&unchanged, "vary"), "accept-encoding");
            assert_eq!(text(&unchanged, "content-encoding"), "");
            let asked = [asked[0], ("if-none-match", "\"other\"")];
            assert_eq!(request(address, method, "/", &asked).await.status, 200);
        }
        // A compressed body has no ranges, because another release of the encoder may produce other
        // bytes. If the request accepts a coding, even the plain body has no ranges, because an
        // outer layer may compress the response.
        let part = request(address, "GET", "/", &[asked[0], ("range", "bytes=0-4")]).await;
        let (status, ranges) = match (coding, accepts) {
            ("", "" | "identity") => (206, ""),
            ("", _) => (200, ""),
            _ => (200, "none"),
        };
        assert_eq!(
            (part.status, text(&part, "accept-ranges")),
            (status, ranges)
        );
    }
    // There is one tag for each coding, one for the plain page, and a weak one for clients for
    // which an outer layer may encode the plain page.
    assert_eq!(tags.len(), 4, "{tags:?}");
    let weak = tags.iter().filter(|tag| tag.starts_with("W/"));
    assert_eq!(weak.count(), 1, "{tags:?}");
    // A tag belongs to one coding.
    for coding in CODINGS {
        for tag in &tags {
            let asked = [("accept-encoding", coding), ("if-none-match", tag)];
            let reply = request(address, "GET", "/", &asked).await;
            let own = tag.ends_with(&format!("-{coding}\""));
            assert_eq!(reply.status, if own { 304 } else { 200 }, "{coding} {tag}");
        }
    }
    assert_eq!(origin.begun(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unrequested_coding_of_a_service_goes_to_no_other_visitor() {
    let (folder, origin) = (Folder::new(), Origin::default());
    let headers = [("content-encoding", "gzip"), ("vary", "Accept-Encoding")];
    let layer = folder.site().await.layer(Refresh::every(LONG));
    let address = serve(router(&origin, &headers).layer(layer)).await;
    for accepts in ["gzip", "identity", "br"] {
        let runs = origin.begun();
        let reply = ask(address, accepts).await;
        assert_eq!(text(&reply, "content-encoding"), "gzip");
        assert!(
            origin.begun() > runs,
            "{accepts} was answered from what is kept"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_compresses_by_a_header_of_the_key_is_left_to_it() {
    let (folder, origin) = (Folder::new(), Origin::default());
    let key = perennial::Key::new().header(axum::http::header::ACCEPT_ENCODING);
    let layer = folder.site().await.layer(Refresh::every(LONG)).key(key);
    let app = router(&origin, &[("content-type", "text/html")]).layer(CompressionLayer::new());
    let address = serve(app.layer(layer)).await;
    for (run, coding) in (1..).zip(CODINGS) {
        for _ in 0..3 {
            let reply = ask(address, coding).await;
            assert_eq!(text(&reply, "content-encoding"), coding);
            assert_eq!(plain(&reply), page(&format!("run {run} of a page")));
        }
    }
}

/// The keys of the compressions of this program, from the log.
static COMPRESSED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A log layer that records compressions.
pub(crate) fn listener<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let target = Targets::new().with_target("perennial::compression", tracing::Level::DEBUG);
    Compressed.with_filter(target)
}

/// Returns how often a key was compressed.
fn count(key: &str) -> usize {
    let all = COMPRESSED.lock().expect("not poisoned");
    all.iter().filter(|it| *it == key).count()
}

struct Compressed;

impl<S: Subscriber> Layer<S> for Compressed {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Key);
    }
}

struct Key;

impl Visit for Key {
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "key" {
            COMPRESSED.lock().expect("not poisoned").push(value.into());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_compressed_once_and_the_next_one_before_it_is_asked_for() {
    const KEY: &str = "once a version";
    crate::listen();
    let folder = Folder::new();
    let site = folder.site().await;
    let (runs, content) = (Origin::default(), Arc::new(AtomicUsize::new(1)));
    let (made, number) = (runs.clone(), Arc::clone(&content));
    let app = Router::new().fallback(route(async move || {
        made.run("a page").await;
        let number = number.load(SeqCst).to_string();
        ([("content-type", "text/html")], page(&number))
    }));
    let layer = site.layer(Refresh::every(LONG));
    let address = serve(app.layer(layer.key(perennial::Key::name(KEY)))).await;

    assert_eq!(ask(address, "").await.status, 200);
    until("it is compressed", async || count(KEY) == 1).await;
    for accepts in ["", BROWSER, "*", "br", "gzip"].repeat(10) {
        assert_eq!(ask(address, accepts).await.status, 200);
    }
    // If a new generation has the same content, it is not compressed again.
    for run in 2..5 {
        site.invalidate(KEY).await.expect("is invalidated");
        until("it is made again", async || {
            let reply = ask(address, BROWSER).await;
            assert_eq!(text(&reply, "content-encoding"), "br");
            runs.ended() == run
        })
        .await;
    }
    assert_eq!(count(KEY), 1);

    content.store(2, SeqCst);
    site.invalidate(KEY).await.expect("is invalidated");
    ask(address, "").await;
    until("the next one is compressed", async || count(KEY) == 2).await;
    let next = ask(address, BROWSER).await;
    assert_eq!(text(&next, "content-encoding"), "br");
    assert_eq!(plain(&next), page("2"));
}

/// A form with a token: what a visitor sends never meets the compressor.
#[tokio::test(flavor = "multi_thread")]
async fn page_with_holes_is_compressed_once_and_joined_for_each_visitor() {
    async fn form(holes: Holes) -> Html<String> {
        let (name, token) = (holes.text("name"), holes.json("name"));
        Html(format!(
            "<h1>{name}</h1>{}<script>{token}</script>",
            page("a page")
        ))
    }
    let folder = Folder::new();
    let layer = folder.site().await.layer(Refresh::every(LONG));
    let layer = layer.hole("name", async |visitor: Parts| {
        let name = &visitor.headers["x-name"];
        Ok::<_, std::convert::Infallible>(name.to_str().expect("text").to_owned())
    });
    let address = serve(Router::new().route("/", route(form).layer(layer))).await;
    let visit = async |method, name: &str, accepts| {
        let asked = [("x-name", name), ("accept-encoding", accepts)];
        request(address, method, "/", &asked).await
    };
    let expected = |name: &str| {
        let page = page("a page");
        format!("<h1>{name}</h1>{page}<script>\"{name}\"</script>")
    };

    // No visitor waits for the compression.
    let first = visit("GET", "Ann", BROWSER).await;
    assert_eq!(text(&first, "content-encoding"), "");
    assert_eq!(plain(&first), expected("Ann"));
    until("the pieces are compressed", async || {
        let reply = visit("GET", "Ann", "gzip").await;
        assert_eq!(plain(&reply), expected("Ann"));
        text(&reply, "content-encoding") == "gzip"
    })
    .await;

    // Compressed pieces can be joined in gzip, but not in Brotli. So a browser that prefers Brotli
    // gets gzip here.
    for (accepts, coding) in [
        (BROWSER, "gzip"),
        ("*", "gzip"),
        ("br", ""),
        ("gzip;q=0, *", ""),
        ("", ""),
        ("identity", ""),
    ] {
        for name in ["Ann", "Bob", "", &"long".repeat(10_000)] {
            let reply = visit("GET", name, accepts).await;
            assert_eq!(text(&reply, "content-encoding"), coding, "{accepts}");
            assert_eq!(plain(&reply), expected(name), "{accepts} {name}");
            assert_eq!(text(&reply, "vary"), "accept-encoding");
            assert_eq!(text(&reply, "cache-control"), "private, no-cache");
            assert_eq!(text(&reply, "etag"), "");
            let length = reply.body.len();
            assert_eq!(text(&reply, "content-length"), length.to_string());
            assert!(coding.is_empty() || name.len() > 3 || length * 5 < first.body.len());
        }
        let head = visit("HEAD", "Ann", accepts).await;
        assert_eq!(text(&head, "content-encoding"), coding, "HEAD {accepts}");
        assert_eq!(text(&head, "vary"), "accept-encoding");
        assert_eq!(head.body.len(), 0);
    }

    // A visitor's text adds the same length to the compressed page, whether the page contains the
    // same text or not.
    let length = async |name: &str| visit("GET", name, "gzip").await.body.len();
    assert_eq!(length("0 a page</li>").await, length("7 q wxyz</zz>").await);
}
