//! Whatever visitors, origins and rows say: no panic, no hang, no growth, and a sound answer.
//!
//! `scripts/fuzz` runs these tests for longer.

mod middleware_stacks;

use std::{
    env,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header},
};
use bytes::Bytes;
use perennial::{DAY, Perennial, Refresh, entries::EntryFilter};
use perennial_store::{Epoch, LeaseRow, NewEntry, Publish, Release, TryLock};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};

use perennial_testkit::{
    Ask, page,
    virtual_time::{Shared, here},
};

/// The body of each page, whose parts tell where they are from.
const BODY: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

/// The longest time of an answer, in virtual time.
const HANG: Duration = Duration::from_secs(3600);

/// Tries many values: as many as proptest does by default, or for the seconds in the environment.
fn each<S: Strategy<Value: Debug>>(values: S, test: impl AsyncFn(S::Value)) {
    let seconds = env::var("PERENNIAL_FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("is a number"));
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        // A failure prints the smallest value that fails, and needs no file.
        let config = Config {
            failure_persistence: None,
            ..Config::default()
        };
        let done = TestRunner::new(config).run(&values, |value| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build();
            let test = async { tokio::time::timeout(HANG, test(value)).await };
            let answered = runtime.expect("starts").block_on(test);
            answered.expect("no hang");
            Ok(())
        });
        done.unwrap_or_else(|failure| panic!("{failure}"));
        if Instant::now() >= end {
            return;
        }
    }
}

/// Text that is made of these words in any order, and of any bytes that a header may have.
fn said(words: &'static [&'static str]) -> impl Strategy<Value = HeaderValue> {
    let word = prop_oneof![
        8 => select(words).prop_map(|word| word.as_bytes().to_vec()),
        2 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        1 => vec(prop_oneof![Just(9_u8), 32..=126_u8, 128..=255_u8], 0..4),
    ];
    vec(word, 0..8)
        .prop_map(|words| HeaderValue::from_bytes(&words.concat()).expect("has such bytes"))
}

fn headers(
    fields: &'static [(&'static str, &'static [&'static str])],
) -> impl Strategy<Value = HeaderMap> {
    let field = select(fields).prop_flat_map(|(name, words)| (Just(name), said(words)));
    vec(field, 0..5).prop_map(|fields| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), value);
        }
        headers
    })
}

const DATES: &[&str] = &[
    "Sun, 06 Nov 1994 08:49:37 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT",
    "Sun Nov  6 08:49:37 1994",
    "Sun, 06 Nov 9999 08:49:37 GMT",
    "GMT",
    "-1",
];

const OF_VISITORS: &[(&str, &[&str])] = &[
    (
        "range",
        &[
            "bytes",
            "=",
            "-",
            ",",
            " ",
            "0",
            "5",
            "35",
            "36",
            "lines",
            "18446744073709551615",
        ],
    ),
    ("if-range", &["\"v1\"", "W/", "\"", DATES[0], DATES[3]]),
    (
        "if-none-match",
        &["\"v1\"", "W/", "*", ",", " ", "\"", "\"v2\""],
    ),
    ("if-modified-since", DATES),
    (
        "accept-encoding",
        &[
            "gzip", "br", "identity", "*", ";q=", "0", "1", "0.5", ",", " ", ";",
        ],
    ),
    (
        "cache-control",
        &[
            "no-cache",
            "no-store",
            "max-age",
            "=",
            "only-if-cached",
            ",",
            "max-stale",
            "min-fresh",
        ],
    ),
];

fn with_page(policy: impl Into<Refresh>) -> (Perennial, &'static Router) {
    let site = Shared::new().site();
    let layer = site.layer(policy);
    let answer = async || {
        let headers = [
            ("etag", "\"v1\""),
            ("last-modified", DATES[0]),
            ("content-type", "text/plain"),
        ];
        (headers, BODY.repeat(100))
    };
    let app = Router::new().fallback(answer).layer(layer);
    (site, here(app))
}

#[test]
fn any_condition_and_range_gets_a_sound_answer() {
    let requests = (any::<bool>(), headers(OF_VISITORS));
    each(requests, async |(head, fields)| {
        let (_site, address) = with_page(Refresh::every(DAY));
        let whole = BODY.repeat(100);
        // The first visitor generates, and the second one hits.
        for _ in 0..2 {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = "/".parse().expect("a URI");
            if head {
                *request.method_mut() = Method::HEAD;
            }
            *request.headers_mut() = fields.clone();
            let (parts, body) = address.ask(request).await;
            let encoded = parts.headers.contains_key(header::CONTENT_ENCODING);
            match parts.status {
                StatusCode::OK if head => assert_eq!(body.len(), 0),
                StatusCode::OK => assert!(encoded || body == whole),
                StatusCode::PARTIAL_CONTENT => is_part(&parts.headers, &body, &whole, head),
                StatusCode::NOT_MODIFIED => assert_eq!(body.len(), 0),
                StatusCode::GATEWAY_TIMEOUT => {}
                status => panic!("{status} for {fields:?}"),
            }
        }
    });
}

/// A single part is where its header says.
fn is_part(headers: &HeaderMap, body: &Bytes, whole: &str, head: bool) {
    let Some(range) = headers.get(header::CONTENT_RANGE) else {
        return;
    };
    let range = range.to_str().expect("is text");
    let (from, rest) = range
        .strip_prefix("bytes ")
        .and_then(|it| it.split_once('-'))
        .expect("is a range");
    let (to, all) = rest.split_once('/').expect("has a length");
    let [from, to, all] = [from, to, all].map(|it| it.parse::<usize>().expect("is a number"));
    if !headers.contains_key(header::CONTENT_ENCODING) {
        assert_eq!(all, whole.len());
        if !head {
            assert_eq!(body, &whole[from..=to]);
        }
    }
    assert!(from <= to && to < all, "{range}");
}

const OF_ORIGINS: &[(&str, &[&str])] = &[
    (
        "cache-control",
        &[
            "max-age",
            "=",
            "s-maxage",
            "no-store",
            "no-cache",
            "private",
            "public",
            ",",
            " ",
            "stale-while-revalidate",
            "stale-if-error",
            "must-revalidate",
            "immutable",
            "\"",
            "-",
            ";",
            "/",
            "PRIVATE",
            "No-Store",
        ],
    ),
    (
        "cdn-cache-control",
        &[
            "max-age", "=", "no-store", "private", ",", ";", " ", "?1", "?0", "\"",
        ],
    ),
    ("expires", DATES),
    ("date", DATES),
    ("age", &["0", "-", "9"]),
    ("vary", &["*", ",", "accept-encoding", "cookie", " "]),
    ("set-cookie", &["a=b", ";", "Max-Age="]),
    ("etag", &["\"", "W/", "v1"]),
    ("last-modified", DATES),
    ("content-type", &["text/html", ";", "charset", "=", "\""]),
    ("content-encoding", &["gzip", "br", ",", "identity"]),
    ("content-length", &["3", "7", "-"]),
];

#[test]
fn any_headers_of_an_origin_leave_private_pages_private() {
    let policies = [Refresh::from_headers(DAY), Refresh::every(DAY)];
    let answers = (select(policies.to_vec()), headers(OF_ORIGINS));
    each(answers, async |(policy, fields)| {
        let runs = Arc::new(AtomicUsize::new(0));
        let site = Shared::new().site();
        let (counted, said) = (Arc::clone(&runs), fields.clone());
        let answer = move || {
            let mut response = Response::new(Body::from(BODY));
            *response.headers_mut() = said.clone();
            counted.fetch_add(1, SeqCst);
            async { response }
        };
        let app = Router::new().fallback(answer);
        let address = here(app.layer(site.layer(policy)));
        let misled = fields.contains_key(header::CONTENT_LENGTH);
        for _ in 0..2 {
            let (parts, body) = address.ask(Request::new(Body::empty())).await;
            // A body of another length than announced was cut off, or can be read in two ways.
            let failed = misled && parts.status.is_server_error();
            assert!(failed || parts.status == StatusCode::OK && body == BODY);
        }
        // With `from_headers`, a `CDN-Cache-Control` that is valid decides alone, and
        // `must-understand` is not among the words here.
        let targeted = policy == policies[0] && fields.contains_key("cdn-cache-control");
        let forbids = |field: &str| fields.get_all(field).iter().any(is_forbidding);
        let is_private = !targeted && (forbids("cache-control") || forbids("cdn-cache-control"));
        let cookie = fields.contains_key(header::SET_COOKIE);
        if (is_private || cookie) && !misled {
            // Each visitor got a page of its own, perhaps after one that may not be shared.
            assert!(runs.load(SeqCst) >= 2, "{fields:?}");
        }
    });
}

/// Returns true for `private` or `no-store` as a word, well formed or not.
fn is_forbidding(value: &HeaderValue) -> bool {
    let text = String::from_utf8_lossy(value.as_bytes()).to_lowercase();
    let mut words = text.split(|it: char| !it.is_ascii_alphanumeric() && !"-_".contains(it));
    words.any(|word| word == "private" || word == "no-store")
}

#[test]
fn any_row_is_served_or_generated_again() {
    let metadata = prop_oneof![
        "\\PC{0,40}",
        "\\{(\"(took|layer|revision|provisional|tags)\":([a-z0-9-]{0,20}|\"[a-z]{0,9}\"|\\[\"a\"\\]),?){0,4}\\}",
    ];
    let numbers = (any::<i64>(), any::<u64>());
    let row = (
        numbers,
        metadata,
        "[ -~\n]{0,60}",
        headers(OF_ORIGINS),
        200..600_u16,
    );
    each(
        row,
        async |((epoch, interval), metadata, history, fields, status)| {
            let shared = Shared::new();
            let (store, name) = (shared.store(), page("/"));
            let fence = store.ask(TryLock::new(&name, "hostile", HANG, None)).await;
            let lease = LeaseRow {
                name,
                owner: "hostile".to_owned(),
                fence: fence.expect("answers").fence.expect("is free"),
            };
            let mut content = Response::new(Bytes::from_static(b"a row"));
            *content.headers_mut() = fields;
            *content.status_mut() = StatusCode::from_u16(status).expect("is a status");
            let entry = NewEntry {
                content,
                renews: None,
                epoch: Epoch(epoch),
                interval: Duration::from_micros(interval),
                metadata,
                history,
                retention: DAY,
                lasting: true,
            };
            assert!(
                store
                    .ask(Publish::new(&lease, entry))
                    .await
                    .expect("answers")
            );
            store
                .ask(Release::new(&lease, Duration::ZERO))
                .await
                .expect("answers");

            let site = shared.site();
            let generated = Arc::new(Mutex::new(false));
            let noted = Arc::clone(&generated);
            let answer = move || {
                *noted.lock().expect("not poisoned") = true;
                async { "generated" }
            };
            let app = Router::new().fallback(answer);
            let address = here(app.layer(site.layer(Refresh::every(DAY))));
            let (parts, body) = address.ask(Request::new(Body::empty())).await;
            if *generated.lock().expect("not poisoned") {
                assert_eq!(body, "generated");
            } else {
                assert_eq!((parts.status.as_u16(), &*body), (status, &b"a row"[..]));
            }
            let entries = site.entries(&EntryFilter::new()).await.expect("answers");
            assert_eq!(entries.entries.len(), 1);
            site.entry("/").await.expect("answers");
        },
    );
}
