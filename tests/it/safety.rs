//! No visitor sees, changes or uses up another visitor's resources.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, Method, Response, header},
};
use http_body_util::BodyExt;
use perennial::Refresh;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use tower::{Layer, ServiceExt};

use crate::{
    paused::Shared,
    support::{Folder, patient},
};

const LONG: Duration = Duration::from_secs(3600);

const HOSTILE: &[&str] = &[
    "cookie",
    "authorization",
    "proxy-authorization",
    "host",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-prefix",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method-override",
    "x-method-override",
    "x-real-ip",
    "accept",
    "accept-encoding",
    "accept-language",
    "user-agent",
    "referer",
    "origin",
    "cache-control",
    "pragma",
    "if-none-match",
    "if-modified-since",
    "range",
    "expect",
    "te",
    "connection",
    "content-length",
    "transfer-encoding",
    "cache-status",
    "age",
];

/// By HEAD or not, which path, headers by their place in the list with values, a body.
type SafetyRequest = (bool, u8, Vec<(usize, Vec<u8>)>, Vec<u8>);

fn requests() -> impl Strategy<Value = SafetyRequest> {
    let value = prop_oneof![
        Just(b"no-cache".to_vec()),
        Just(b"evil.example".to_vec()),
        Just(b"bytes=0-1".to_vec()),
        proptest::collection::vec(prop_oneof![Just(9_u8), 32..=126_u8, 128..=255_u8], 0..40),
    ];
    let headers = proptest::collection::vec((0..HOSTILE.len(), value), 0..8);
    let body = proptest::collection::vec(any::<u8>(), 0..20);
    (any::<bool>(), 0..5_u8, headers, body)
}

#[tokio::test]
async fn generator_and_store_see_nothing_of_a_visitor() {
    let runs = Arc::new(AtomicUsize::new(0));
    let leaked = Arc::new(Mutex::new(Vec::new()));
    let generator = {
        let (runs, leaked) = (Arc::clone(&runs), Arc::clone(&leaked));
        Router::new().fallback(async move |request: Request| {
            runs.fetch_add(1, SeqCst);
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("is read").to_bytes();
            if !head.headers.is_empty() || !body.is_empty() || head.method != Method::GET {
                leaked
                    .lock()
                    .expect("not poisoned")
                    .push(format!("{head:?} {body:?}"));
            }
            format!("{} {:?} {body:?}", head.uri, head.headers)
        })
    };
    // Many requests regenerate, as nothing is fresh for long.
    let site = Shared::new().site();
    let policy = Refresh::every(Duration::from_micros(1));
    let service = site.layer(policy).layer(generator);

    let mut runner = TestRunner::new(Config::default());
    let strategy = requests();
    let mut bodies = HashMap::new();
    for _ in 0..4000 {
        let tree = strategy.new_tree(&mut runner).expect("a request");
        let (head, path, headers, body) = tree.current();
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = if head { Method::HEAD } else { Method::GET };
        *request.uri_mut() = format!("/{path}").parse().expect("a URI");
        for (name, value) in headers {
            let name = HeaderName::from_static(HOSTILE[name]);
            request
                .headers_mut()
                .append(name, HeaderValue::from_bytes(&value).expect("a value"));
        }
        let response = service.clone().oneshot(request).await.expect("infallible");
        let status = response.status().as_u16();
        assert!(matches!(status, 200 | 206 | 304 | 412), "{status}");
        let body = response
            .into_body()
            .collect()
            .await
            .expect("is read")
            .to_bytes();
        if status == 200 && !head {
            let first = bodies.entry(path).or_insert_with(|| body.clone());
            assert_eq!(*first, body, "what is stored depends on who asks");
        }
    }
    assert_eq!(*leaked.lock().expect("not poisoned"), Vec::<String>::new());
    assert!(runs.load(SeqCst) > 400, "{} runs", runs.load(SeqCst));
    assert_eq!(bodies.len(), 5);
    site.shutdown().await;
}

#[tokio::test]
async fn headers_over_the_limit_reach_the_visitor_and_are_not_stored() {
    let folder = Folder::new();
    let builder = patient().max_headers(1000);
    let site = builder.open(&folder.url()).await.expect("opens");
    for (length, stored) in [(800, true), (1200, false)] {
        let service = site.layer(Refresh::every(LONG)).layer(tower::service_fn(
            move |_: Request<Body>| async move {
                let mut response = Response::new(Body::from("a page"));
                let long = HeaderValue::try_from("x".repeat(length)).expect("a value");
                response.headers_mut().insert("x-long", long);
                Ok::<_, std::convert::Infallible>(response)
            },
        ));
        for round in 0..2 {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = format!("/{length}").parse().expect("a URI");
            let response = service.clone().oneshot(request).await.expect("infallible");
            assert_eq!(response.headers()["x-long"].len(), length);
            let kept = response.headers().contains_key(header::ETAG);
            assert_eq!(kept, stored, "{length}, round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn badly_framed_response_is_not_stored_and_replaces_nothing() {
    let folder = Folder::new();
    let site = folder.site().await;
    let framings: &[(&[(&str, &str)], bool)] = &[
        (&[("content-length", "6")], true),
        (&[("content-length", "6"), ("content-length", "6")], true),
        (&[("content-length", "6, 6")], true),
        (&[("transfer-encoding", "chunked")], true),
        (&[("content-length", "5")], false),
        (&[("content-length", "7")], false),
        (&[("content-length", "6"), ("content-length", "7")], false),
        (&[("content-length", "+6")], false),
        (&[("content-length", "six")], false),
        (
            &[("content-length", "6"), ("transfer-encoding", "chunked")],
            false,
        ),
        (&[("transfer-encoding", "xchunked")], false),
        (&[("transfer-encoding", "gzip")], false),
    ];
    for (n, (headers, stored)) in framings.iter().enumerate() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let policy = Refresh::every(Duration::ZERO).on_miss(perennial::OnMiss::Unavailable);
        let service = site
            .layer(policy)
            .layer(tower::service_fn(move |_: Request<Body>| {
                let sound = counted.fetch_add(1, SeqCst) < n % 2;
                async move {
                    let mut response =
                        Response::new(Body::from(if sound { "before" } else { "a page" }));
                    for (name, value) in headers.iter().filter(|_| !sound) {
                        let value = HeaderValue::from_static(value);
                        response.headers_mut().append(*name, value);
                    }
                    Ok::<_, std::convert::Infallible>(response)
                }
            }));
        // With an old version, and without one.
        let (mut status, mut body) = (0, None);
        while runs.load(SeqCst) <= n % 2 {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = format!("/{n}").parse().expect("a URI");
            let response = service.clone().oneshot(request).await.expect("infallible");
            status = response.status().as_u16();
            assert!(!response.headers().contains_key("transfer-encoding"));
            body = Some(
                response
                    .into_body()
                    .collect()
                    .await
                    .expect("is read")
                    .to_bytes(),
            );
        }
        let body = body.expect("was asked");
        match (*stored, n % 2) {
            (true, _) => assert_eq!((status, &*body), (200, &b"a page"[..]), "{headers:?}"),
            (false, 0) => assert_eq!(status, 503, "{headers:?}"),
            (false, _) => assert_eq!((status, &*body), (200, &b"before"[..]), "{headers:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_who_invents_keys_fills_neither_the_database_nor_the_memory() {
    const KEYS: usize = 50;
    let folder = Folder::new();
    let site = folder.site().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let generator = {
        let runs = Arc::clone(&runs);
        Router::new().fallback(async move |request: Request| {
            runs.fetch_add(1, SeqCst);
            let cookie = request.headers().get(header::COOKIE).cloned();
            format!("{} {cookie:?}", request.uri())
        })
    };
    let service = site
        .layer(Refresh::every(LONG))
        .max_keys(KEYS)
        .layer(generator);
    let ask = async |path: String| {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path.parse().expect("a URI");
        let cookie = HeaderValue::from_static("me");
        request.headers_mut().insert(header::COOKIE, cookie);
        let response = service.clone().oneshot(request).await.expect("infallible");
        let status = response.headers()["cache-status"].clone();
        let body = response
            .into_body()
            .collect()
            .await
            .expect("is read")
            .to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    };
    for key in 0..4 * KEYS {
        let (_, body) = ask(format!("/{key}")).await;
        // Visitors get responses of their own for keys beyond the limit.
        assert_eq!(body.contains("me"), key >= KEYS, "{body}");
    }
    let begun = runs.load(SeqCst);
    for key in 0..4 * KEYS {
        let (status, _) = ask(format!("/{key}")).await;
        let status = status.to_str().expect("text");
        assert_eq!(status.contains("hit"), key < KEYS, "{status}");
    }
    assert_eq!(
        runs.load(SeqCst),
        begun + 3 * KEYS,
        "each is answered by the service"
    );
    site.shutdown().await;
    let pool = sqlx::SqlitePool::connect(&folder.url())
        .await
        .expect("opens");
    for table in ["entry", "lock"] {
        let count = format!("SELECT count(*) FROM perennial_{table}");
        let count = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(count));
        let count = count.fetch_one(&pool).await.expect("counts");
        assert_eq!(count, KEYS as i64, "{table}");
    }
}
