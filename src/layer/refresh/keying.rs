//! Which parts of a request make its key: [`Key`] is the setting, and [`Resource`] what it yields for one
//! request.
//!
//! Invariant: what is not in the key is not in the generator's request either, so that no visitor's part of a
//! request gets into another one's page.

use std::{borrow::Cow, fmt, sync::Arc};

use form_urlencoded::byte_serialize;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header, request::Parts};
use perennial_store::http_util::host;

use crate::{
    http::fields,
    key::{self, Part, Query, canonical, normal},
    layer::refresh::request::{is_routed, key_of_original},
};

/// The parts of a request that name a resource: requests with the same key get the same content.
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
    /// Returns a key of the path and the whole query.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a key with one name for all requests, for a layer on one route whose path has no
    /// parameters. No [content](crate::Perennial::content) may have the same name.
    pub fn name(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            // The form in which `invalidate` looks for the name.
            base: Base::Name(canonical(&name).into()),
            ..Self::default()
        }
    }

    /// Returns a key of the path and of named values that the function derives from a request,
    /// which the generator sees as the query. `None` lets the request bypass the cache.
    ///
    /// In the example, the key of `/prices` for a visitor from Germany is `/prices?currency=EUR`.
    /// The response has no `Vary` for what the function reads.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.key(perennial::Key::by(|parts| {
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
            let query = query.extend_pairs(values).finish();
            Some(normal(&query, Part::Query).into_owned())
        };
        Self {
            base: Base::By(Arc::new(by)),
            ..Self::default()
        }
    }

    /// Returns a key of the path alone.
    pub fn path() -> Self {
        Self {
            base: Base::Uri(Query::Only(Vec::new())),
            ..Self::default()
        }
    }

    /// Takes these parameters of the query into the key and ignores all others. Default: the whole query.
    ///
    /// # Panics
    ///
    /// Panics for a key by [`name`](Self::name) or by a [function](Self::by).
    pub fn query(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        assert!(
            matches!(self.base, Base::Uri(_)),
            "a key by name or by a function has no parameters of the query"
        );
        let names = names.into_iter().map(Into::into).collect();
        self.base = Base::Uri(Query::Only(names));
        self
    }

    /// Adds a header to the key, and to the response's `Vary`. Let an outer middleware reduce the
    /// values to a few.
    pub fn header(mut self, name: HeaderName) -> Self {
        if !self.headers.contains(&name) {
            self.headers.push(name);
        }
        self
    }

    /// Adds the host with its port to the key, in lowercase: the URI's, or else the `Host`
    /// header's. A request without a host bypasses the cache.
    pub fn host(mut self) -> Self {
        self.host = true;
        self
    }

    /// Returns the key of the request without the parts for headers, host and nesting: the key that
    /// `invalidate` takes.
    pub(super) fn resource(&self, parts: &Parts) -> Option<String> {
        let resource = self.of_any_length(parts)?;
        Some(match &self.base {
            Base::Name(name) => name.to_string(),
            // The parts after `#` are the inner path, the host and the headers.
            Base::Uri(_) | Base::By(_) => resource.key.split('#').next()?.to_owned(),
        })
    }

    /// Returns the key of a URI without its variant, or `None` if the URI alone does not give the key, or has
    /// no path.
    pub(super) fn of_uri<'a>(&self, uri: &'a Uri) -> Option<Cow<'a, str>> {
        match &self.base {
            Base::Uri(query) => key::of_uri(uri, query),
            Base::Name(_) | Base::By(_) => None,
        }
    }

    /// Returns the key of a request. `None` means that the request has no key, or one that is too long, and
    /// bypasses the cache.
    #[inline]
    pub(super) fn of<'a>(&'a self, parts: &'a Parts) -> Option<Resource<'a>> {
        let resource = self.of_any_length(parts)?;
        (resource.key.len() <= key::MAX_KEY_BYTES).then_some(resource)
    }

    #[inline]
    fn of_any_length<'a>(&'a self, parts: &'a Parts) -> Option<Resource<'a>> {
        let routed = || is_routed(parts);
        let seen = match &self.base {
            Base::Uri(query) => key::of_request(&parts.uri, query, routed)?,
            Base::Name(_) => key::of_request(&parts.uri, &Query::Only(Vec::new()), routed)?,
            Base::By(function) => {
                let query = function(parts)?;
                let path = key::of_request(&parts.uri, &Query::Only(Vec::new()), routed)?;
                match &*query {
                    "" => path,
                    query => Cow::Owned(format!("{path}?{query}")),
                }
            }
        };
        let key = match &self.base {
            Base::Name(name) => Cow::Borrowed(&**name),
            Base::Uri(_) | Base::By(_) => key_of_original(parts, seen.clone()),
        };
        if self.headers.is_empty() && !self.host {
            return Some(Resource { key, seen });
        }
        // A path has no `#`, and an encoded value has no `#`, `&` or `=`.
        let variant = self.variant(&parts.uri, &parts.headers)?;
        Some(Resource {
            key: Cow::Owned(format!("{key}#{variant}")),
            seen,
        })
    }

    /// Returns the parts of the key for the host and the headers, or `None` if the request names no host.
    pub(super) fn variant(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let mut variant = String::new();
        if self.host {
            variant.push_str("host=");
            variant.extend(byte_serialize(&host(uri, headers)?));
        }
        for name in &self.headers {
            for value in headers.get_all(name) {
                variant.push('&');
                variant.push_str(name.as_str());
                variant.push('=');
                variant.extend(byte_serialize(value.as_bytes()));
            }
        }
        Some(variant)
    }

    /// Copies the headers of the key into a request for the generator.
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

    /// Adds the headers of the key to `Vary`, for other caches.
    pub(super) fn add_vary(&self, headers: &mut HeaderMap) {
        for name in &self.headers {
            fields::add_vary(headers, name);
        }
    }

    /// Returns true if the header is part of the key.
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
