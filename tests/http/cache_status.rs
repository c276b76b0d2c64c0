//! The reason that Cache-Status gives for each response (RFC 9211).

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, Request, Response, StatusCode, header},
    response::IntoResponse,
};
use perennial::{Key, Perennial, Refresh};
use tower::{Layer, ServiceExt, service_fn};

use perennial_testkit::{
    Ask, Folder, every, get, request,
    virtual_time::{Shared, origin_behind},
};

const LONG: Duration = Duration::from_secs(3600);
const POLICY: Refresh = Refresh::every(LONG);

/// A service whose path decides the answer.
async fn answer(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let header = |name: &str, value: &str| {
        let mut headers = HeaderMap::new();
        let name: header::HeaderName = name.parse().expect("a name");
        headers.insert(name, value.parse().expect("a value"));
        headers
    };
    Ok(match request.uri().path() {
        "/cookie" => (header("set-cookie", "a=b"), "").into_response(),
        "/private" => (header("cache-control", "private"), "").into_response(),
        "/vary" => (header("vary", "cookie"), "").into_response(),
        "/stream" => (header("content-type", "text/event-stream"), "").into_response(),
        "/redirect" => StatusCode::FOUND.into_response(),
        "/large" => "a".repeat(100).into_response(),
        "/large-head" => (header("x", &"a".repeat(2000)), "").into_response(),
        "/failing" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "/failing-alone" => (
            StatusCode::INTERNAL_SERVER_ERROR,
            header("set-cookie", "a=b"),
        )
            .into_response(),
        _ => "small".into_response(),
    })
}

async fn status(service: impl Ask, path: &str, headers: &[(&str, &str)]) -> String {
    let reply = request(service, "GET", path, headers).await;
    let lines = reply.headers.get_all("cache-status").iter();
    let lines: Vec<_> = lines.map(|line| line.to_str().expect("text")).collect();
    lines.join(", ")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_that_is_not_stored_has_its_reason() {
    let folder = Folder::new();
    let url = folder.url();
    let builder = Perennial::builder().max_body(50).max_headers(1000);
    let site = builder.open(&url).await.expect("opens");
    let service = site.layer(POLICY).layer(service_fn(answer));
    for (path, why) in [
        ("/cookie", "private"),
        ("/private", "private"),
        ("/vary", "vary"),
        ("/stream", "event-stream"),
        ("/redirect", "status"),
        ("/large", "too-large"),
        ("/large-head", "too-large"),
    ] {
        for forward in ["miss", "bypass"] {
            let said = status(&service, path, &[]).await;
            assert_eq!(
                said,
                format!("perennial; fwd={forward}; detail={why}"),
                "{path}"
            );
        }
    }
    for (path, expected) in [
        ("/failing", "fwd=miss; detail=failed"),
        ("/failing", "detail=unavailable"),
        ("/failing-alone", "detail=unavailable"),
        ("/failing-alone", "detail=unavailable"),
    ] {
        let said = status(&service, path, &[]).await;
        assert_eq!(said, format!("perennial; {expected}"), "{path}");
    }
    // The response without a page.
    let reply = get(&service, "/failing").await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
    assert!(reply.headers.contains_key("retry-after"));
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let said = status(&service, "/", &upgrade).await;
    assert_eq!(said, "perennial; fwd=miss; stored");
    let extended = service.clone().map_request(|mut request: Request<Body>| {
        request.extensions_mut().insert(7_u8);
        request
    });
    let said = status(&extended, "/", &[]).await;
    let bypass = "perennial; fwd=bypass; detail=undeclared-extension";
    assert_eq!(said, bypass);

    let layer = |key: Key| site.layer(POLICY).key(key);
    let keyless = layer(Key::by(|_| None::<[(&str, &str); 0]>)).layer(service_fn(answer));
    let said = status(&keyless, "/", &[]).await;
    assert_eq!(said, "perennial; fwd=bypass; detail=no-key");
    let full = site.layer(POLICY).max_keys(0).layer(service_fn(answer));
    let said = status(&full, "/many", &[]).await;
    assert_eq!(said, "perennial; fwd=bypass; detail=too-many-keys");
    let twice = site
        .layer(POLICY)
        .layer(site.layer(POLICY).layer(service_fn(answer)));
    let said = status(&twice, "/twice", &[]).await;
    assert_eq!(
        said,
        "perennial; fwd=bypass; detail=outer-layer, perennial; fwd=miss; stored"
    );
    site.shutdown().await;
    let said = status(&service, "/late", &[]).await;
    assert_eq!(said, "perennial; fwd=miss; detail=shutting-down");
}

#[tokio::test(start_paused = true)]
async fn page_that_was_stale_in_the_database_alone_has_fwd_stale() {
    let shared = Shared::new();
    let second = Duration::from_secs(1);
    // A process without the page in memory.
    let said = async || {
        let (_, address) = origin_behind(&shared.site(), every(second));
        let reply = get(address, "/page").await;
        reply.header("cache-status").to_owned()
    };
    assert_eq!(said().await, "perennial; fwd=miss; stored");
    tokio::time::sleep(2 * second).await;
    assert_eq!(said().await, "perennial; fwd=stale; stored");
    shared.site().purge("/page").await.expect("is done");
    assert_eq!(said().await, "perennial; fwd=miss; stored");
}
