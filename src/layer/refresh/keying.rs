//! What of a request is the key.

use std::{borrow::Cow, fmt, sync::Arc};

use form_urlencoded::byte_serialize;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header, request::Parts};

use crate::{
    http::fields,
    key::{self, Query},
    layer::refresh::request::{asked_for, host},
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

/// Returns a query, without the `?`.
type By = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// The key of a request, with the path and the query that the generator sees.
#[derive(Debug)]
pub(super) struct Resource<'a> {
    pub(super) key: Cow<'a, str>,
    pub(super) seen: Cow<'a, str>,
}

impl Resource<'_> {
    pub(super) fn into_owned(self) -> Resource<'static> {
        Resource {
            key: Cow::Owned(self.key.into_owned()),
            seen: Cow::Owned(self.seen.into_owned()),
        }
    }
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

    /// One name for all requests: for a layer on one route whose path has no parameters. The generator sees the path, without a query.
    ///
    /// Content has the same kind of keys: use a name for one of them only.
    pub fn name(name: impl Into<Arc<str>>) -> Self {
        Self {
            base: Base::Name(name.into()),
            ..Self::default()
        }
    }

    /// The path and a query that the function makes of a request, from named values: the generator sees that query in place of the visitor's.
    /// `None` lets the request bypass the cache.
    ///
    /// The values are encoded, and sorted by name. The key of the example's page is `/prices?currency=EUR`, for
    /// [`invalidate`](crate::Perennial::invalidate) too, and its handler reads the currency by `Query`. A layer that sees a request without the prefix of a nested
    /// router gives the function the URI without that prefix.
    ///
    /// ```
    /// # fn f(site: &perennial::Perennial) {
    /// use perennial::{DAY, Key, Refresh};
    ///
    /// let layer = site.layer(Refresh::every(DAY)).key(Key::by(|parts| {
    ///     let country = parts.headers.get("x-country")?;
    ///     Some([("currency", if country == "DE" { "EUR" } else { "USD" })])
    /// }));
    /// # }
    /// ```
    pub fn by<Q, N, V>(function: impl Fn(&Parts) -> Option<Q> + Send + Sync + 'static) -> Self
    where
        Q: IntoIterator<Item = (N, V)>,
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let by = move |parts: &Parts| {
            let mut values: Vec<_> = function(parts)?.into_iter().collect();
            values.sort_by(|a, b| a.0.as_ref().cmp(b.0.as_ref()));
            let mut query = form_urlencoded::Serializer::new(String::new());
            Some(query.extend_pairs(values).finish())
        };
        Self {
            base: Base::By(Arc::new(by)),
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

    /// The key that stands for all variants of what a request asks for.
    pub(super) fn resource(&self, parts: &Parts) -> Option<String> {
        let resource = self.of(parts)?;
        Some(match &self.base {
            Base::Name(name) => name.to_string(),
            // Without what a nested router makes of it.
            Base::Uri(_) | Base::By(_) => resource.key.split('#').next()?.to_owned(),
        })
    }

    /// The key that stands for all variants of what a URI names, if it is its path that counts.
    pub(super) fn of_uri<'a>(&self, uri: &'a Uri) -> Option<Cow<'a, str>> {
        match &self.base {
            Base::Uri(query) => key::of_uri(uri, query),
            Base::Name(_) | Base::By(_) => None,
        }
    }

    /// The key of a request. `None`: it has none and bypasses the cache.
    pub(super) fn of<'a>(&'a self, parts: &'a Parts) -> Option<Resource<'a>> {
        let seen = match &self.base {
            Base::Uri(query) => key::of_uri(&parts.uri, query)?,
            Base::Name(_) => key::of_uri(&parts.uri, &Query::Only(Vec::new()))?,
            Base::By(function) => {
                let query = function(parts)?;
                let path = key::of_uri(&parts.uri, &Query::Only(Vec::new()))?;
                match &*query {
                    "" => path,
                    query => Cow::Owned(format!("{path}?{query}")),
                }
            }
        };
        let key = match &self.base {
            Base::Name(name) => Cow::Borrowed(&**name),
            Base::Uri(_) | Base::By(_) => asked_for(parts, seen.clone()),
        };
        if self.headers.is_empty() && !self.host {
            return Some(Resource { key, seen });
        }
        // A path has no `#`, and what follows no `#`, `&` or `=` of a visitor's.
        let mut key = key.into_owned();
        key.push('#');
        if self.host {
            let host = host(&parts.uri, &parts.headers)?;
            key.push_str("host=");
            key.extend(byte_serialize(&host));
        }
        for name in &self.headers {
            for value in parts.headers.get_all(name) {
                key.push('&');
                key.push_str(name.as_str());
                key.push('=');
                key.extend(byte_serialize(value.as_bytes()));
            }
        }
        Some(Resource {
            key: Cow::Owned(key),
            seen,
        })
    }

    /// Puts into a request to generate what of the headers is in the key.
    pub(super) fn copy_headers(&self, from: &Parts, to: &mut HeaderMap) {
        for name in &self.headers {
            for value in from.headers.get_all(name) {
                to.append(name, fields::copied(value));
            }
        }
        if self.host
            && let Some(host) = host(&from.uri, &from.headers)
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
