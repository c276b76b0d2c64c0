//! Which resource a request asks for, and the request that the generator sees.

use std::{borrow::Cow, sync::Arc};

#[cfg(feature = "axum")]
use axum::extract::{MatchedPath, OriginalUri};
use http::{HeaderMap, Method, Request, Uri, header, request::Parts, uri::PathAndQuery};

use crate::{
    http::{cache_status::Forward, fields::list},
    layer::{RefreshLayer, refresh::keying::Resource},
};

/// Among the extensions of the request that a generator sees: the key that is being generated.
///
/// A layer for the same key beneath, which would wait for itself, lets the request pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedKey(Arc<str>);

impl GeneratedKey {
    /// The key, as [`Key`](crate::Key) makes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The resource that a request asks for, or the reason for which it goes to the service.
pub(super) fn resource<'a>(
    parts: &'a Parts,
    layer: &'a RefreshLayer,
) -> Result<Resource<'a>, Forward> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        layer.hints.other_method(route(parts));
        return Err(Forward::METHOD);
    }
    if is_upgrade(&parts.headers) {
        return Err(Forward::bypass("upgrade"));
    }
    if layer.bypass_if.iter().any(|bypasses| bypasses(parts)) {
        return Err(Forward::bypass("bypass-if"));
    }
    if !parts.extensions.is_empty() && !layer.declared.knows(&parts.extensions) {
        return Err(undeclared(parts, layer));
    }
    let resource = layer.key.of(parts);
    let resource = resource.ok_or(Forward::bypass("no-key"))?;
    match parts.extensions.get::<GeneratedKey>() {
        Some(generating) if *generating.0 == resource.key => Err(Forward::bypass("outer-layer")),
        _ => Ok(resource),
    }
}

/// The request has an extension that the layer does not know.
fn undeclared(parts: &Parts, layer: &RefreshLayer) -> Forward {
    let types = layer.declared.unknown(&parts.extensions);
    layer.hints.undeclared(route(parts), &types);
    Forward::bypass("undeclared-extension")
}

/// The path of the route, for the log.
pub(in crate::layer) fn route(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(path) = parts.extensions.get::<MatchedPath>() {
        return path.as_str();
    }
    parts.uri.path()
}

/// The path as the visitor wrote it.
pub(in crate::layer) fn asked_path(parts: &Parts) -> &str {
    asked_uri(parts).path()
}

/// The URI as the visitor wrote it.
pub(in crate::layer) fn asked_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(OriginalUri(asked)) = parts.extensions.get() {
        return asked;
    }
    &parts.uri
}

/// The host that is asked, in lowercase (RFC 9112 §3.2.2).
pub(in crate::layer) fn host(uri: &Uri, headers: &HeaderMap) -> Option<Vec<u8>> {
    let host = match uri.authority() {
        // Without what may stand before the host.
        Some(authority) => authority.as_str().rsplit('@').next()?.as_bytes(),
        None => headers.get(header::HOST)?.as_bytes(),
    };
    Some(host.to_ascii_lowercase())
}

/// An upgrade that a server may take up (RFC 9110 §7.8); that to h2c no longer is one (RFC 9113 §3.1), though clients still offer it.
fn is_upgrade(headers: &HeaderMap) -> bool {
    let names =
        |field, name: &str| list(headers, &field).any(|member| member.eq_ignore_ascii_case(name));
    headers.contains_key(header::UPGRADE)
        && names(header::CONNECTION, "upgrade")
        && !names(header::UPGRADE, "h2c")
}

/// The key of a request whose path and query the service sees as `seen`. A nested router sees the path without its prefix, and a
/// middleware may have rewritten it, by a cookie say: then the key has both what was asked for and, after a `#`, which no path
/// contains, what the service sees.
pub(super) fn asked_for<'a>(parts: &Parts, seen: Cow<'a, str>) -> Cow<'a, str> {
    let asked = asked_uri(parts);
    // Mostly it is the same one.
    if std::ptr::eq(asked, &parts.uri) || asked.path() == parts.uri.path() {
        return seen;
    }
    let (path, query) = seen.split_at(seen.find('?').unwrap_or(seen.len()));
    Cow::Owned(format!("{}{query}#{path}", asked.path()))
}

/// The request that generates a resource: GET, what of the path, the query and the headers is in the key, an empty body, and the
/// extensions of the routing and the shared ones.
pub(super) fn to_generate(
    parts: &Parts,
    resource: &Resource<'_>,
    layer: &RefreshLayer,
) -> Result<Request<()>, Forward> {
    if !layer.declared.knows_exactly(&parts.extensions) {
        return Err(undeclared(parts, layer));
    }
    let seen = &*resource.seen;
    let relative = |path_and_query| relative(path_and_query).ok_or(Forward::bypass("no-key"));
    let mut generating = Request::new(());
    *generating.uri_mut() = relative(seen)?;
    layer.key.copy_headers(parts, generating.headers_mut());
    let extensions = generating.extensions_mut();
    extensions.clone_from(&parts.extensions);
    layer.declared.hide(extensions);
    #[cfg(feature = "axum")]
    if let Some(OriginalUri(original)) = extensions.get_mut() {
        let query = seen.find('?').map_or("", |at| &seen[at..]);
        *original = relative(&format!("{}{query}", original.path()))?;
    }
    extensions.insert(GeneratedKey((&*resource.key).into()));
    Ok(generating)
}

/// A URI without scheme and authority.
fn relative(path_and_query: &str) -> Option<Uri> {
    PathAndQuery::try_from(path_and_query).ok().map(Uri::from)
}
