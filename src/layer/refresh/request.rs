//! From a visitor's request to its resource, or to the reason for a bypass; and from a resource to the
//! generator's request.
//!
//! Invariant: the generator's request is built from the key, and never from the visitor's request. So a page
//! can contain nothing of a visitor except what is in the key and in the shared extensions.

use std::{
    borrow::Cow,
    sync::{Arc, Weak},
};

#[cfg(feature = "axum")]
use axum::extract::{MatchedPath, OriginalUri};
use http::{
    Extensions, HeaderMap, Method, Request, Uri, header, request::Parts, uri::PathAndQuery,
};

#[cfg(feature = "axum")]
use super::routing;
use crate::{
    cache::parts::{self, RunContext},
    event::Bypass,
    http::fields::list,
    key::{Part, normal},
    layer::{Holes, RefreshLayer, refresh::keying::Resource},
};

/// The mark of a generator's request, in its extensions.
#[derive(Clone, Debug)]
pub(super) struct Generating {
    /// The key. An inner layer for the same key would wait for itself, and therefore lets the
    /// request pass.
    key: Arc<str>,
    /// The names of the ignored extensions of the visitor's request.
    pub(super) missed: Arc<[&'static str]>,
    /// The generator's run, once it has begun. A middleware may hand the request to another task, and
    /// keep it for longer than the run lasts.
    pub(super) run: Weak<RunContext>,
}

impl Generating {
    /// Returns true if a layer around this one is generating the content of `key`. Layers between
    /// the two may have other keys.
    fn is_within(&self, layer: &RefreshLayer, key: &str) -> bool {
        let run = || self.run.upgrade();
        *self.key == *key || run().is_some_and(|run| run.is_within(layer.cache.site(), key))
    }
}

/// Returns the run that a request belongs to: a generator's, or one of the application's own requests.
#[inline(always)]
pub(super) fn run_context_of(parts: &Parts) -> Option<Arc<RunContext>> {
    if !parts::is_any_running() {
        return None;
    }
    let generating = parts.extensions.get::<Generating>();
    let run = generating.and_then(|generating| generating.run.upgrade());
    run.or_else(parts::current)
}

/// Returns the resource of a request, or the reason why the request goes to the service.
#[inline]
pub(super) fn resource<'a>(
    parts: &'a Parts,
    layer: &'a RefreshLayer,
) -> Result<Resource<'a>, Bypass> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        layer.hints.other_method(route(parts));
        return Err(Bypass::Method);
    }
    layer.hints.get();
    if layer.bypass_if.iter().any(|bypasses| bypasses(parts)) {
        return Err(Bypass::BypassIf);
    }
    let has_extensions = !parts.extensions.is_empty();
    if has_extensions && !layer.known.knows(&parts.extensions) {
        return Err(undeclared(parts, layer));
    }
    let resource = layer.key.of(parts);
    let resource = resource.ok_or(Bypass::NoKey)?;
    if has_extensions
        && let Some(generating) = parts.extensions.get::<Generating>()
        && generating.is_within(layer, &resource.key)
    {
        return Err(Bypass::OuterLayer);
    }
    Ok(resource)
}

/// Logs that the generator does not see a request's credentials, or its upgrade. It logs nothing if the layer
/// has a `bypass_if`, or has the header in its key.
pub(super) fn hint(parts: &Parts, layer: &RefreshLayer) {
    if !layer.bypass_if.is_empty() {
        return;
    }
    let has = |name| parts.headers.contains_key(&name) && !layer.key.has(&name);
    if has(header::AUTHORIZATION) {
        layer.hints.authorization(route(parts));
    }
    if has(header::COOKIE) {
        layer.hints.cookie(route(parts));
    }
    if is_upgrade(&parts.headers) {
        layer.hints.upgrade(route(parts));
    }
}

/// Returns the reason for the bypass of a request with an extension that the layer does not know.
fn undeclared(parts: &Parts, layer: &RefreshLayer) -> Bypass {
    let names = || layer.known.undeclared(&parts.extensions);
    layer.hints.undeclared(route(parts), names);
    Bypass::UndeclaredExtension
}

/// Returns the path of the route in axum, such as `/books/{id}`.
pub(super) fn matched(extensions: &Extensions) -> Option<&str> {
    #[cfg(feature = "axum")]
    return extensions.get().map(MatchedPath::as_str);
    #[cfg(not(feature = "axum"))]
    {
        let _ = extensions;
        None
    }
}

/// The path of the route, for the log.
pub(in crate::layer) fn route(parts: &Parts) -> &str {
    matched(&parts.extensions).unwrap_or(parts.uri.path())
}

/// Returns the URI of the request as axum's outermost router got the request. Without axum, the
/// present URI.
pub(in crate::layer) fn original_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(OriginalUri(original)) = parts.extensions.get() {
        return original;
    }
    &parts.uri
}

/// Returns true for an upgrade that a server may accept (RFC 9110 §7.8). An offer of h2c does not
/// count, because that upgrade is obsolete (RFC 9113 §3.1), though clients still offer it.
fn is_upgrade(headers: &HeaderMap) -> bool {
    let names =
        |field, name: &str| list(headers, &field).any(|member| member.eq_ignore_ascii_case(name));
    headers.contains_key(header::UPGRADE)
        && names(header::CONNECTION, "upgrade")
        && !names(header::UPGRADE, "h2c")
}

/// Returns true for a request that axum's router has passed on.
pub(super) fn is_routed(parts: &Parts) -> bool {
    !std::ptr::eq(original_uri(parts), &parts.uri)
}

/// Returns the key of a request whose path and query the service sees as `seen`. The key has the
/// normal form of the original path and, each after a `#`, which no path contains:
///
/// - the path as it was sent, if a router has chosen the route and the path was not in its normal form:
///   axum routes `/%61` differently from `/a`;
/// - the path that the service sees, if it is a different one. A nested router sees the path without its
///   prefix, and a middleware may have rewritten the path.
#[inline]
pub(super) fn key_of_original<'a>(parts: &Parts, seen: Cow<'a, str>) -> Cow<'a, str> {
    let original = original_uri(parts);
    // Without axum's router, the original path is the one that the service sees, and `seen` has it in its
    // normal form.
    if std::ptr::eq(original, &parts.uri) {
        return seen;
    }
    let original = original.path();
    let first = normal(original, Part::Path);
    // This is the case of most requests.
    if original == parts.uri.path() && matches!(first, Cow::Borrowed(_)) {
        return seen;
    }
    let (path, query) = seen.split_at(seen.find('?').unwrap_or(seen.len()));
    let mut key = format!("{first}{query}");
    let mut last = &*first;
    if original != first {
        key = format!("{key}#{original}");
        last = original;
    }
    if path != last {
        key = format!("{key}#{path}");
    }
    Cow::Owned(key)
}

/// Returns the generator's request for a resource: a GET with the key's path, query and headers, an
/// empty body, the extensions that the routing gives to this request, and copies of the shared ones.
pub(super) fn to_generate(
    parts: &Parts,
    resource: &Resource<'_>,
    layer: &RefreshLayer,
) -> Result<Request<()>, Bypass> {
    let seen = &*resource.seen;
    let relative = |path_and_query| relative(path_and_query).ok_or(Bypass::NoKey);
    let mut generating = Request::new(());
    *generating.uri_mut() = relative(seen)?;
    layer.key.copy_headers(parts, generating.headers_mut());
    let extensions = generating.extensions_mut();
    #[cfg(feature = "axum")]
    if let Some(OriginalUri(original)) = parts.extensions.get() {
        let query = seen.find('?').map_or("", |at| &seen[at..]);
        let original = relative(&format!("{}{query}", original.path()))?;
        let routed = routing::routed(&parts.extensions, &original);
        *extensions = routed.ok_or_else(|| undeclared(parts, layer))?;
    }
    let missed = layer.known.share(&parts.extensions, extensions).into();
    let key = (&*resource.key).into();
    extensions.insert(Generating {
        key,
        missed,
        run: Weak::new(),
    });
    if !layer.holes.is_empty() {
        extensions.insert(Holes::new(Arc::clone(layer.holes.names())));
    }
    Ok(generating)
}

/// A URI without scheme and authority.
fn relative(path_and_query: &str) -> Option<Uri> {
    PathAndQuery::try_from(path_and_query).ok().map(Uri::from)
}
