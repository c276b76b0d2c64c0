//! The generator's request on routes of every kind. `routing.txt` has what a handler reads of it.

use std::{convert::Infallible, fmt::Write, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    response::{IntoResponse, Response},
    routing::get as route,
};
use perennial::{Key, Perennial, Refresh, layer::RefreshLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::request_extensions::{PLACES, show};
use perennial_testkit::virtual_time::Shared;

const POLICY: Refresh = Refresh::every(Duration::from_secs(3600));

async fn alone(request: Request) -> Result<Response, Infallible> {
    Ok(show(request).await.into_response())
}

/// Sends a visitor's request, and returns the page with its `Cache-Status`.
async fn visit<S>(app: S, uri: &str) -> String
where
    S: Service<Request, Response: IntoResponse, Error = Infallible> + Send,
{
    let request = Request::get(uri).header("cookie", "a=b");
    let request = request.header("host", "example.com");
    let request = request.header("accept-language", "de");
    let request = request.body(Body::from("a body")).expect("a request");
    let response = app.oneshot(request).await.expect("answers");
    let (parts, body) = response.into_response().into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("is read");
    let status = parts.headers["cache-status"].to_str().expect("text");
    format!("{status}: {}", String::from_utf8_lossy(&body))
}

#[tokio::test(start_paused = true)]
async fn generator_sees_the_routing_of_its_own_request() {
    let mut seen = String::new();
    let site = |query: &str| -> (Perennial, RefreshLayer) {
        let site = Shared::new().site();
        let key = Key::new().query([query]);
        let layer = site
            .layer(POLICY)
            .key(key.header("accept-language".parse().expect("a name")));
        (site, layer)
    };
    for (name, place, path) in PLACES {
        let (_site, layer) = site("page");
        let text = visit(place(layer), &format!("{path}?page=2&visitor=7")).await;
        writeln!(seen, "{name}\n    {text}").expect("is written");
    }
    // axum keeps the prefix of a nested service only in a private extension, which the generator's
    // request does not have. So the generator's `MatchedPath` does not contain the prefix.
    let (_site, layer) = site("page");
    let below = Router::new().nest_service("/n", Router::new().route("/a/{b}", route(show)));
    let below = visit(below.layer(layer), "/n/a/b?page=2").await;
    let rewrite = |mut request: Request| {
        *request.uri_mut() = "/b/2?page=3".parse().expect("a URI");
        request
    };
    let (_site, layer) = site("page");
    let around = layer.layer(Router::new().route("/a/{b}", route(show)));
    let (_site, layer) = site("page");
    let rewritten = Router::new().route("/b/{c}", route(show).layer(layer));
    let (_site, layer) = site("page");
    let inside = layer.layer(service_fn(alone)).map_request(rewrite);
    let (_site, layer) = site("page");
    let kinds = [
        ("a layer around a router as a nested service", below),
        ("around a router", visit(around, "/a/1?page=2").await),
        (
            "a URI that is rewritten outside of the router",
            visit(rewritten.map_request(rewrite), "/a/1?page=2").await,
        ),
        (
            "a URI that is rewritten inside of the route",
            visit(Router::new().route_service("/a/{b}", inside), "/a/1?page=2").await,
        ),
        (
            "a service without a router",
            visit(layer.layer(service_fn(alone)), "/a/1?page=2&visitor=7").await,
        ),
    ];
    for (name, text) in kinds {
        writeln!(seen, "{name}\n    {text}").expect("is written");
    }
    let expected = include_str!("routing.txt");
    if seen != expected {
        let path = std::env::temp_dir().join("routing.txt");
        std::fs::write(&path, &seen).expect("is written");
        panic!(
            "differs from tests/http/routing.txt: see {}",
            path.display()
        );
    }
}
