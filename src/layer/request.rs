//! Which resource a request asks for, and the request that the generator sees.

use std::{borrow::Cow, sync::Arc};

#[cfg(feature = "axum")]
use axum::extract::OriginalUri;
use http::{
    Extensions, HeaderMap, Method, Request, Uri, header, request::Parts, uri::PathAndQuery,
};

use crate::{
    fields::list,
    key::{self, Query},
    layer::{
        Key,
        cache_status::{Detail, Forward},
    },
};

/// Among the extensions of the request that a generator sees: the key that is being generated.
///
/// A layer for the same key beneath, which would wait for itself, lets the request pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedKey(Arc<str>);

impl GeneratedKey {
    /// The key, as [`Key`] makes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The key of what is asked for, or the reason why the request passes straight through.
pub(super) fn key<'a, B>(request: &'a Request<B>, key: &'a Key) -> Result<Cow<'a, str>, Forward> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Forward::METHOD);
    }
    if is_upgrade(request.headers()) {
        return Err(Forward::bypass(Detail::Upgrade));
    }
    let key = key.of(request).ok_or(Forward::bypass(Detail::NoKey))?;
    match request.extensions().get::<GeneratedKey>() {
        Some(generating) if *generating.0 == key => Err(Forward::bypass(Detail::OuterLayer)),
        _ => Ok(key),
    }
}

/// The path as the visitor wrote it.
pub(super) fn asked_path(parts: &Parts) -> &str {
    asked_uri(&parts.uri, &parts.extensions).path()
}

/// The URI as the visitor wrote it; `seen`: as the service sees it.
#[cfg_attr(not(feature = "axum"), expect(unused_variables))]
pub(super) fn asked_uri<'a>(seen: &'a Uri, extensions: &'a Extensions) -> &'a Uri {
    #[cfg(feature = "axum")]
    if let Some(OriginalUri(asked)) = extensions.get() {
        return asked;
    }
    seen
}

/// The host that is asked, in lowercase (RFC 9112 §3.2.2).
pub(super) fn host(uri: &Uri, headers: &HeaderMap) -> Option<Vec<u8>> {
    let host = match uri.authority() {
        // Without what may stand before the host.
        Some(authority) => authority.as_str().rsplit('@').next()?.as_bytes(),
        None => headers.get(header::HOST)?.as_bytes(),
    };
    Some(host.to_ascii_lowercase())
}

/// An upgrade that a server may take up (RFC 9110 §7.8); that to h2c no longer is one (RFC 9113 §3.1), though clients still offer it.
fn is_upgrade(headers: &HeaderMap) -> bool {
    let names = |field, name: &str| {
        list(headers, &field).any(|member| member.trim().eq_ignore_ascii_case(name))
    };
    headers.contains_key(header::UPGRADE)
        && names(header::CONNECTION, "upgrade")
        && !names(header::UPGRADE, "h2c")
}

#[cfg(not(feature = "axum"))]
pub(super) fn uri_key<'a, B>(request: &'a Request<B>, query: &Query) -> Option<Cow<'a, str>> {
    key::of_uri(request.uri(), query)
}

/// A nested router sees the path without its prefix, and a middleware may have rewritten it, by a cookie say: the key has both what
/// was asked for and, after a `#`, which no path contains, what the service sees.
#[cfg(feature = "axum")]
pub(super) fn uri_key<'a, B>(request: &'a Request<B>, query: &Query) -> Option<Cow<'a, str>> {
    let seen = key::of_uri(request.uri(), query)?;
    match request.extensions().get::<OriginalUri>() {
        Some(OriginalUri(asked)) if asked.path() != request.uri().path() => {
            let (path, query) = seen.split_at(seen.find('?').unwrap_or(seen.len()));
            Some(Cow::Owned(format!("{}{query}#{path}", asked.path())))
        }
        Some(_) | None => Some(seen),
    }
}

/// The request that generates `key`: GET, what of the path, the query and the headers is in the key, an empty body and the
/// extensions but the hidden ones.
pub(super) fn to_generate<B>(
    request: &Request<B>,
    key: &str,
    keying: &Key,
    hidden: &[fn(&mut Extensions)],
) -> Option<Request<()>> {
    let uri = keying.uri(request.uri())?;
    let mut generating = Request::new(());
    *generating.uri_mut() = relative(&uri)?;
    keying.copy_headers(request, generating.headers_mut());
    let extensions = generating.extensions_mut();
    extensions.clone_from(request.extensions());
    for hide in hidden {
        hide(extensions);
    }
    #[cfg(feature = "axum")]
    if let Some(OriginalUri(original)) = extensions.get_mut() {
        let query = uri.find('?').map_or("", |at| &uri[at..]);
        *original = relative(&format!("{}{query}", original.path()))?;
    }
    extensions.insert(GeneratedKey(key.into()));
    Some(generating)
}

/// A URI without scheme and authority.
fn relative(path_and_query: &str) -> Option<Uri> {
    PathAndQuery::try_from(path_and_query).ok().map(Uri::from)
}
