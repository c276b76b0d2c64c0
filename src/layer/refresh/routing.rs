//! The extensions that axum's routing adds to a request. They are found by sending a request through a small
//! router of the axum release that the program is linked with.

use std::{
    pin::pin,
    sync::LazyLock,
    task::{Context, Poll, Waker},
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, NestedPath, OriginalUri},
    response::Response,
    routing::any,
};
use http::{Extensions, Request, Uri};
use tower_service::Service;

use super::type_names;

/// The number of private extensions that axum's router adds to each request: the parameters of the
/// path.
static PRIVATE: LazyLock<usize> = LazyLock::new(|| {
    let fallback = run(Router::new().fallback(echo_extensions), &Uri::default());
    fallback.map_or(0, |extensions| extensions.len() - 1)
});

/// Returns how many of a request's extensions come along with an `OriginalUri`: the `OriginalUri` itself, and
/// axum's private extensions except those of [`count_private`].
pub(super) fn count(extensions: &Extensions) -> usize {
    if is_routed(extensions) {
        1 + *PRIVATE
    } else {
        0
    }
}

/// Returns the number of axum's further private extensions in a request. Code cannot name their types. If a
/// release of axum or `http` names them differently, such requests bypass the cache.
pub(super) fn count_private(extensions: &Extensions) -> usize {
    usize::from(is_in_nested_service(extensions)) + usize::from(has_body_limit(extensions))
}

/// Returns true if the request has the private extension that stands for a `MatchedPath` below
/// `nest_service`.
pub(super) fn is_in_nested_service(extensions: &Extensions) -> bool {
    extensions.get::<MatchedPath>().is_none()
        && is_routed(extensions)
        && type_names::has(extensions, "axum::extract::matched_path::MatchedNestedPath")
}

/// Returns true if the request has the private extension of `DefaultBodyLimit`, which says how large a body may
/// be. This extension is harmless: the limit is the same for all visitors of a route, and a GET has no body.
fn has_body_limit(extensions: &Extensions) -> bool {
    type_names::has(
        extensions,
        "axum_core::extract::default_body_limit::DefaultBodyLimitKind",
    )
}

/// Returns the names of the types that axum's routing adds to each request and that code cannot
/// name.
pub(super) fn private_names() -> Vec<String> {
    let fallback = run(Router::new().fallback(echo_extensions), &Uri::default());
    let mut names = type_names::all(&fallback.unwrap_or_default());
    names.extend(
        [
            "axum::extract::matched_path::MatchedNestedPath",
            "axum_core::extract::default_body_limit::DefaultBodyLimitKind",
        ]
        .map(str::to_owned),
    );
    names
}

/// Returns true for a request that axum's router has passed on.
fn is_routed(extensions: &Extensions) -> bool {
    extensions.get::<OriginalUri>().is_some()
}

/// Returns the extensions that the route of a visitor's request gives to a request for `uri`, without any
/// extension of the visitor's own. To find them, the request is sent through a small router: first one with a
/// single route, then one with a nested router. `None` means that neither gives the visitor's `MatchedPath` and
/// `NestedPath`.
pub(super) fn routed(visitor: &Extensions, uri: &Uri) -> Option<Extensions> {
    let matched = visitor.get().map(MatchedPath::as_str);
    let nested = visitor.get().map(NestedPath::as_str);
    let router = Router::new().without_v07_checks();
    let router = match (matched, nested) {
        (None, None) => router.fallback(echo_extensions),
        (Some(route), None) => router.route(single(route)?, any(echo_extensions)),
        (None, Some(prefix)) if is_in_nested_service(visitor) => {
            router.nest_service(prefix, any(echo_extensions))
        }
        (None, Some(prefix)) => router.nest(prefix, Router::new().fallback(echo_extensions)),
        (Some(route), Some(prefix)) => {
            match single(route)?.strip_prefix(prefix.trim_end_matches('/'))? {
                "" | "/" => router.nest_service(prefix, any(echo_extensions)),
                rest if !rest.starts_with('/') => return None,
                rest => {
                    let inner = Router::new().without_v07_checks();
                    router.nest(prefix, inner.route(rest, any(echo_extensions)))
                }
            }
        }
    };
    let routed = run(router, uri)?;
    let is_same = routed.get().map(MatchedPath::as_str) == matched
        && routed.get().map(NestedPath::as_str) == nested;
    is_same.then_some(routed)
}

/// Returns the path of a route, or `None` if something comes after its wildcard. axum joins the paths in that
/// way if a router is itself the service of a route with a wildcard.
fn single(route: &str) -> Option<&str> {
    let wildcard = route.find("{*").map_or("", |at| &route[at..]);
    (!wildcard.contains('/')).then_some(route)
}

/// Returns the extensions that a router adds to a GET.
fn run(mut router: Router, uri: &Uri) -> Option<Extensions> {
    let request = Request::get(uri).body(Body::empty()).ok()?;
    // Nothing in the router waits.
    match pin!(router.call(request)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(mut response)) => Some(std::mem::take(response.extensions_mut())),
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}

/// Answers with the extensions of the request.
async fn echo_extensions(request: Request<Body>) -> Response {
    let mut response = Response::default();
    *response.extensions_mut() = request.into_parts().0.extensions;
    response
}
