//! Layers of tower-http around the refresh layer and inside of it, beside the same router without
//! Perennial: what a client may put together is always one version in one coding.

use std::{collections::HashMap, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    routing::get as route,
};
use bytes::Bytes;
use perennial_testing as testing;
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::{AllowOrigin, CorsLayer},
    csrf::CsrfLayer,
    decompression::DecompressionLayer,
    limit::RequestBodyLimitLayer,
    map_response_body::MapResponseBodyLayer,
    metrics::InFlightRequestsLayer,
    normalize_path::NormalizePathLayer,
    propagate_header::PropagateHeaderLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    sensitive_headers::SetSensitiveHeadersLayer,
    set_header::SetResponseHeaderLayer,
    set_status::SetStatusLayer,
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

use perennial_testkit::{HANG, Reply, every, request, virtual_time::Shared};

const OWN: HeaderName = HeaderName::from_static("x-own");

type Around = fn(Router) -> Router;

/// Each layer that answers, or changes a response.
const LAYERS: &[(&str, Around)] = &[
    ("none", |app| app),
    ("compression", |app| app.layer(CompressionLayer::new())),
    ("catch-panic", |app| app.layer(CatchPanicLayer::new())),
    ("cors", |app| app.layer(CorsLayer::permissive())),
    ("cors, mirrored", |app| {
        app.layer(CorsLayer::new().allow_origin(AllowOrigin::mirror_request()))
    }),
    ("csrf", |app| app.layer(CsrfLayer::new())),
    ("decompression", |app| app.layer(DecompressionLayer::new())),
    ("limit", |app| app.layer(RequestBodyLimitLayer::new(1000))),
    ("map-response-body", |app| {
        app.layer(MapResponseBodyLayer::new(Body::new))
    }),
    ("metrics", |app| app.layer(InFlightRequestsLayer::pair().0)),
    ("normalize-path", |app| {
        app.layer(NormalizePathLayer::trim_trailing_slash())
    }),
    ("propagate-header", |app| {
        app.layer(PropagateHeaderLayer::new(OWN))
    }),
    ("request-id", |app| {
        app.layer(PropagateRequestIdLayer::x_request_id())
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
    }),
    ("sensitive-headers", |app| {
        app.layer(SetSensitiveHeadersLayer::new([OWN]))
    }),
    ("set-header", |app| {
        let policy = HeaderValue::from_static("default-src 'self'");
        app.layer(SetResponseHeaderLayer::overriding(
            header::CONTENT_SECURITY_POLICY,
            policy,
        ))
    }),
    ("set-header, appended", |app| {
        let vary = HeaderValue::from_static("x-other");
        app.layer(SetResponseHeaderLayer::appending(OWN, vary))
    }),
    ("set-status", |app| {
        app.layer(SetStatusLayer::new(StatusCode::OK))
    }),
    ("timeout", |app| {
        app.layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            HANG,
        ))
    }),
    ("trace", |app| app.layer(TraceLayer::new_for_http())),
];

const KINDS: [&str; 4] = [
    "text/html; charset=utf-8",
    "application/octet-stream",
    "application/pdf",
    "image/png",
];

const CODINGS: [&str; 8] = [
    "",
    "identity",
    "gzip",
    "br",
    "zstd",
    "deflate",
    "gzip, deflate, br, zstd",
    "*;q=0.5, identity",
];

fn pages() -> Router {
    let text: String = (0..300)
        .map(|line| format!("<li>{}</li>\n", line * line))
        .collect();
    let page = |kind: &'static str| {
        let text = text.clone();
        route(async move || ([(header::CONTENT_TYPE, kind)], text))
    };
    KINDS
        .into_iter()
        .enumerate()
        .fold(Router::new(), |app, (number, kind)| {
            app.route(&format!("/{number}"), page(kind))
        })
}

/// One client, which always accepts the same codings.
struct Client<'a> {
    app: &'a Router,
    path: &'a str,
    accepts: &'a str,
}

impl Client<'_> {
    async fn ask(&self, method: &str, headers: &[(&str, &str)]) -> Reply {
        let mut all = headers.to_vec();
        all.push(("origin", "https://example.org"));
        if !self.accepts.is_empty() {
            all.push(("accept-encoding", self.accepts));
        }
        request(self.app, method, self.path, &all).await
    }
}

fn all<'a>(reply: &'a Reply, name: &str) -> Vec<&'a [u8]> {
    let values = reply.headers.get_all(name).iter();
    let mut values: Vec<_> = values
        .flat_map(|it| it.as_bytes().split(|it| *it == b','))
        .collect();
    values.iter_mut().for_each(|it| *it = it.trim_ascii());
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns the content of a reply.
async fn decoded(reply: &Reply) -> Bytes {
    use tower::{Layer, ServiceExt};

    let mut response = http::Response::new(Body::from(reply.body.clone()));
    *response.headers_mut() = reply.headers.clone();
    let coded = tower::service_fn(move |_: http::Request<Body>| {
        let response = std::mem::take(&mut response);
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let service = DecompressionLayer::new().layer(coded);
    let Ok(response) = service.oneshot(http::Request::new(Body::empty())).await;
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    body.expect("is readable").to_bytes()
}

/// The body of each strong tag: RFC 9110 §8.8.1.
#[derive(Default)]
struct Strong(HashMap<String, Bytes>);

impl Strong {
    fn add(&mut self, reply: &Reply, context: &str) {
        let tag = reply.header("etag");
        if reply.status == 200 && tag.starts_with('"') {
            let body = self.0.entry(tag.to_owned()).or_insert(reply.body.clone());
            assert_eq!(body, &reply.body, "{context}: {tag} names two bodies");
        }
    }
}

/// Tests everything that a client may do with a page. `alone` is the same without Perennial.
async fn check(
    client: &Client<'_>,
    alone: &Client<'_>,
    is_outside: bool,
    strong: &mut Strong,
    context: &str,
) {
    let (fresh, bare) = (client.ask("GET", &[]).await, alone.ask("GET", &[]).await);
    assert_eq!(fresh.status, bare.status, "{context}");
    assert_eq!(decoded(&fresh).await, decoded(&bare).await, "{context}");
    strong.add(&fresh, context);
    let head = client.ask("HEAD", &[]).await;
    assert_eq!(
        (head.status, head.body.len()),
        (fresh.status, 0),
        "{context}"
    );
    for name in [
        "vary",
        "etag",
        "content-encoding",
        "content-type",
        "last-modified",
    ] {
        assert_eq!(
            all(&head, name),
            all(&fresh, name),
            "{context}: {name} of a HEAD"
        );
    }
    if is_outside {
        for name in bare.headers.keys().map(HeaderName::as_str) {
            // Each request has an ID of its own, so these values differ; and a page may have more
            // names in `Vary` than the bare response.
            let [is, was] = [&fresh, &bare].map(|reply| all(reply, name));
            let agrees = match name {
                "x-request-id" | "date" => !is.is_empty(),
                "vary" => was.iter().all(|name| is.contains(name)),
                // Perennial's feature `compression` has compressed the page before the outer layer
                // could do so.
                "content-encoding" | "content-length" if cfg!(feature = "compression") => true,
                _ => is == was,
            };
            assert!(agrees, "{context}: {name}: {is:?}, alone {was:?}");
        }
        let bare = alone.ask("HEAD", &[]).await;
        for name in ["vary", "content-encoding"] {
            let [is, was] = [&head, &bare].map(|reply| all(reply, name));
            let is_own = name == "content-encoding" && cfg!(feature = "compression");
            assert!(
                is_own || was.iter().all(|it| is.contains(it)),
                "{context}: HEAD {name} {is:?} {was:?}"
            );
        }
    }
    // The client asks whether its copy is current.
    let tag = fresh.header("etag").to_owned();
    if !tag.is_empty() {
        for method in ["GET", "HEAD"] {
            let reply = client.ask(method, &[("if-none-match", &tag)]).await;
            assert_eq!((reply.status, reply.body.len()), (304, 0), "{context}");
            // If the answer with the page has these headers, a 304 must have them, too (RFC 9110
            // §15.4.5).
            for name in [
                "cache-control",
                "content-location",
                "etag",
                "expires",
                "vary",
            ] {
                assert_eq!(
                    all(&reply, name),
                    all(&fresh, name),
                    "{context}: {name} of a 304"
                );
            }
        }
    }
    // The client has lost its connection, and asks for the rest.
    let date = fresh.header("last-modified").to_owned();
    let conditions = [
        ("if-range", &*tag),
        ("if-match", &tag),
        ("if-unmodified-since", &date),
    ];
    let conditions = conditions
        .into_iter()
        .filter(|(_, value)| !value.is_empty());
    for condition in conditions.map(|it| vec![it]).chain([Vec::new()]) {
        let got = fresh.body.len() / 2;
        let range = format!("bytes={got}-");
        let headers = [&condition[..], &[("range", &range)]].concat();
        let rest = client.ask("GET", &headers).await;
        match rest.status {
            206 => {
                let whole = [&fresh.body[..got], &rest.body].concat();
                assert!(
                    whole == fresh.body,
                    "{context} {condition:?}: spliced from two codings"
                );
            }
            200 => assert_eq!(decoded(&rest).await, decoded(&fresh).await, "{context}"),
            // RFC 9110 §13.1.1: a weak tag never matches.
            412 => assert!(
                condition[0].0 == "if-match" && tag.starts_with("W/"),
                "{context}"
            ),
            status => panic!("{context} {condition:?}: {status}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn layers_around_the_layer_and_inside_of_it_splice_no_bytes_and_lose_no_header() {
    for (name, around) in LAYERS {
        for is_outside in [true, false] {
            // `SetStatus` outside of any service that answers conditional requests turns each 304
            // into an empty 200. The guide says so.
            if is_outside && *name == "set-status" {
                continue;
            }
            let shared = Shared::new();
            let layer = shared.site().layer(every(Duration::from_secs(3600)));
            let alone = around(pages());
            let app = if is_outside {
                around(pages().layer(layer))
            } else {
                around(pages()).layer(layer)
            };
            for (number, kind) in KINDS.into_iter().enumerate() {
                let mut strong = Strong::default();
                let path = format!("/{number}");
                // A miss, a version without a date, and one with a date.
                for round in 0..3 {
                    for accepts in CODINGS {
                        let context = format!(
                            "{name}, outside: {is_outside}, {kind}, accepts {accepts}, round {round}"
                        );
                        let [client, alone] = [&app, &alone].map(|app| Client {
                            app,
                            path: &path,
                            accepts,
                        });
                        check(&client, &alone, is_outside, &mut strong, &context).await;
                    }
                    testing::advance(Duration::from_secs(2)).await;
                }
            }
        }
    }
}
