//! What of a request is the key.

use std::{borrow::Cow, fmt, sync::Arc};

use form_urlencoded::byte_serialize;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request, Uri, header};

use crate::{
    fields,
    key::{self, Query},
    layer::request::host,
    lock::IDEMPOTENCY_PREFIX,
};

/// What of a request names the resource that it asks for, and is therefore all of it that the generator sees.
///
/// Requests with the same key get the same content. By default it is the path and the whole query.
///
/// ```
/// # fn f(site: &perennial::Perennial) {
/// use perennial::{DAY, Key, Refresh};
///
/// let layer = site
///     .layer(Refresh::every(DAY))
///     .key(Key::new().query(["page"]).header(axum::http::header::ACCEPT_LANGUAGE));
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a key does nothing until a layer is given it"]
pub struct Key {
    base: Base,
    headers: Vec<HeaderName>,
    host: bool,
}

#[derive(Clone)]
enum Base {
    Uri(Query),
    Name(Arc<str>),
    By(Arc<By>),
}

type By = dyn Fn(&Asked<'_>) -> Option<String> + Send + Sync;

/// What [`Key::by`] is told of a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Asked<'a> {
    /// As the layer sees it: a nested router takes its prefix away.
    pub uri: &'a Uri,
    /// All headers.
    pub headers: &'a HeaderMap,
    /// What outer layers have said of it.
    pub extensions: &'a Extensions,
}

impl Default for Base {
    fn default() -> Self {
        Self::Uri(Query::All)
    }
}

impl Key {
    /// The path and the whole query.
    pub fn new() -> Self {
        Self::default()
    }

    /// Always this name: for a layer on one route, which needs no more. The generator sees the path, without a query.
    ///
    /// Content has the same kind of keys: a name is to be used for one of them only. One that begins with `idempotency/`, which is Perennial's own, keeps nothing:
    /// requests pass straight through.
    pub fn name(name: impl Into<Arc<str>>) -> Self {
        Self {
            base: Base::Name(name.into()),
            ..Self::default()
        }
    }

    /// What the function makes of the request; `None` lets it pass straight through, as does what begins with `idempotency/`, which is Perennial's own. The generator sees the path, without a query, and the key as a
    /// [`GeneratedKey`](crate::layer::GeneratedKey) among its extensions.
    pub fn by(function: impl Fn(&Asked<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            base: Base::By(Arc::new(function)),
            ..Self::default()
        }
    }

    /// The path and, of the query, these parameters only; all others are ignored. In place of a [`name`](Self::name) or
    /// [`by`](Self::by).
    pub fn query<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        self.base = Base::Uri(Query::Only(names));
        self
    }

    /// The path alone. In place of a [`name`](Self::name) or [`by`](Self::by).
    pub fn no_query(self) -> Self {
        self.query::<String>([])
    }

    /// And this header, which the response then names in `Vary` (RFC 9110 §12.5.5). Each value that visitors send is a resource of its own:
    /// leave to few values what can be left to an outer middleware.
    pub fn header(mut self, name: HeaderName) -> Self {
        if !self.headers.contains(&name) {
            self.headers.push(name);
        }
        self
    }

    /// And the host, in lowercase: that of the URI where it has one, as in HTTP/2, else the `Host` header (RFC 9112 §3.2.2). For a server that answers to several
    /// names.
    pub fn host(mut self) -> Self {
        self.host = true;
        self
    }

    /// The key without its headers and host.
    fn base<'a, B>(&'a self, request: &'a Request<B>) -> Option<Cow<'a, str>> {
        Some(match &self.base {
            Base::Uri(query) => super::request::uri_key(request, query)?,
            Base::Name(name) => Cow::Borrowed(&**name),
            Base::By(function) => Cow::Owned(function(&Asked {
                uri: request.uri(),
                headers: request.headers(),
                extensions: request.extensions(),
            })?),
        })
    }

    /// The key that stands for all variants of what a request asks for.
    pub(super) fn resource<B>(&self, request: &Request<B>) -> Option<String> {
        let base = self.base(request)?;
        Some(match &self.base {
            // Without what a nested router makes of it.
            Base::Uri(_) => base.split('#').next()?.to_owned(),
            Base::Name(_) | Base::By(_) => base.into_owned(),
        })
    }

    /// The key that stands for all variants of what a URI names, if it is its path that counts.
    pub(super) fn of_uri<'a>(&self, uri: &'a Uri) -> Option<Cow<'a, str>> {
        match &self.base {
            Base::Uri(query) => key::of_uri(uri, query),
            Base::Name(_) | Base::By(_) => None,
        }
    }

    /// The key of a request. `None`: it has none and passes straight through.
    pub(super) fn of<'a, B>(&'a self, request: &'a Request<B>) -> Option<Cow<'a, str>> {
        let base = self.base(request)?;
        if base.starts_with(IDEMPOTENCY_PREFIX) {
            // The answers to somebody's requests are kept there.
            tracing::debug!(%base, "a request passes, as its key is Perennial's own");
            return None;
        }
        if self.headers.is_empty() && !self.host {
            return Some(base);
        }
        // A path has no `#`, and what follows no `#`, `&` or `=` of a visitor's.
        let mut key = base.into_owned();
        key.push('#');
        if self.host {
            let host = host(request.uri(), request.headers())?;
            key.push_str("host=");
            key.extend(byte_serialize(&host));
        }
        for name in &self.headers {
            for value in request.headers().get_all(name) {
                key.push('&');
                key.push_str(name.as_str());
                key.push('=');
                key.extend(byte_serialize(value.as_bytes()));
            }
        }
        Some(Cow::Owned(key))
    }

    /// The path and query that the generator sees.
    pub(super) fn uri<'a>(&self, uri: &'a Uri) -> Option<Cow<'a, str>> {
        match &self.base {
            Base::Uri(query) => key::of_uri(uri, query),
            Base::Name(_) | Base::By(_) => key::of_uri(uri, &Query::Only(Vec::new())),
        }
    }

    /// Puts into a request to generate what of the headers is in the key.
    pub(super) fn copy_headers<B>(&self, from: &Request<B>, to: &mut HeaderMap) {
        for name in &self.headers {
            for value in from.headers().get_all(name) {
                // Copied, as it may be a part of the buffer in which the whole request was read, and memory keeps it.
                if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                    to.append(name, value);
                }
            }
        }
        if self.host
            && let Some(host) = host(from.uri(), from.headers())
            && let Ok(host) = HeaderValue::try_from(host)
        {
            to.insert(header::HOST, host);
        }
    }

    /// Says to other caches which headers decide on the content, where the response doesn't.
    pub(super) fn say_vary(&self, headers: &mut HeaderMap) {
        for name in &self.headers {
            fields::say_vary(headers, name);
        }
    }

    /// Whether what a header says may decide on the content.
    pub(super) fn has(&self, header: &HeaderName) -> bool {
        self.headers.contains(header) || (self.host && header == header::HOST)
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(query) => query.fmt(f),
            Self::Name(name) => name.fmt(f),
            Self::By(_) => f.write_str("by a function"),
        }
    }
}
