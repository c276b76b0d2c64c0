//! Which parts of a request form its key. [`Key`] is the setting, and [`Resource`] is the key of one request
//! with all that belongs to it.
//!
//! Invariant: what is not in the key is not in the generator's request either, so nothing that is specific to
//! one visitor gets into a page that others see.

use std::{borrow::Cow, fmt, sync::Arc};

use form_urlencoded::byte_serialize;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header, request::Parts};
use perennial_store::{
    http_util::{host, only_host},
    name::IntoNames,
};

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

/// Pairs of a name and a value, for [`Key::by`]: an array, a `Vec` or an iterator of them.
///
/// This trait is implemented for all iterators over pairs of strings, and cannot be implemented otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of pairs of a name and a value",
    label = "expected pairs such as `[(\"country\", \"DE\")]`",
    note = "the function of `Key::by` returns `Some([(name, value)])`, or `None` for a request that bypasses the cache"
)]
pub trait IntoPairs: sealed::IntoPairs {}

mod sealed {
    pub trait IntoPairs {
        fn into_pairs(self) -> Vec<(String, String)>;
    }
}

// Without this attribute, the compiler would say that the type is not an iterator.
#[diagnostic::do_not_recommend]
impl<P, N: AsRef<str>, V: AsRef<str>> IntoPairs for P where P: IntoIterator<Item = (N, V)> {}

#[diagnostic::do_not_recommend]
impl<P, N: AsRef<str>, V: AsRef<str>> sealed::IntoPairs for P
where
    P: IntoIterator<Item = (N, V)>,
{
    fn into_pairs(self) -> Vec<(String, String)> {
        let pairs = self.into_iter();
        pairs
            .map(|(name, value)| (name.as_ref().to_owned(), value.as_ref().to_owned()))
            .collect()
    }
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
    ///
    /// ```
    /// # use perennial::Key;
    /// let key = Key::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a key with one name for all requests, for a layer on one route whose path has no
    /// parameters. No [content](crate::Perennial::content) may have the same name.
    ///
    /// ```
    /// # use perennial::Key;
    /// let key = Key::name("home");
    /// ```
    pub fn name(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            // The form in which `invalidate` looks for the name.
            base: Base::Name(canonical(&name).into()),
            ..Self::default()
        }
    }

    /// Returns a key that consists of the path and of named values, which the function derives from a request.
    /// The generator sees these values as its query. `None` lets the request bypass the cache.
    ///
    /// In the example, the key of `/prices` for a visitor from Germany is `/prices?currency=EUR`. The response
    /// has no `Vary` for what the function reads. The pairs that the function returns replace the request's
    /// query: a parameter that the function does not return is not part of the key. A request that bypasses the
    /// cache reaches the service with its own query.
    ///
    /// The function can read extensions of the request, such as a tenant that an outer middleware has
    /// determined. Declare such an extension with
    /// [`share_extension`](crate::layer::RefreshLayer::share_extension).
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.key(perennial::Key::by(|parts| {
    ///     let country = parts.headers.get("x-country")?;
    ///     Some([("currency", if country == "DE" { "EUR" } else { "USD" })])
    /// }));
    /// # }
    /// ```
    pub fn by<P: IntoPairs>(
        function: impl Fn(&Parts) -> Option<P> + Send + Sync + 'static,
    ) -> Self {
        let by = move |parts: &Parts| {
            let mut values = function(parts)?.into_pairs();
            values.sort_by(|a, b| a.0.cmp(&b.0));
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
    ///
    /// ```
    /// # use perennial::Key;
    /// let key = Key::path();
    /// ```
    pub fn path() -> Self {
        Self {
            base: Base::Uri(Query::Only(Vec::new())),
            ..Self::default()
        }
    }

    /// Includes these parameters of the query in the key, and ignores all others. Default: the whole query is part of
    /// the key.
    ///
    /// ```
    /// # use perennial::Key;
    /// let key = Key::new().query(["page", "sort"]);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the key was created by [`name`](Self::name) or by [`by`](Self::by).
    pub fn query(mut self, names: impl IntoNames) -> Self {
        assert!(
            matches!(self.base, Base::Uri(_)),
            "a key by name or by a function has no parameters of the query"
        );
        let names = names.into_names();
        self.base = Base::Uri(Query::Only(names));
        self
    }

    /// Returns a key that consists of the path and the whole query, exactly as the query was sent. The handler
    /// sees the query in that form, too. By default, Perennial sorts the parameters by name and normalises
    /// their percent-encoding, so that two spellings of one query are one page.
    ///
    /// Use this where the order or the spelling of the query matters: for signed URLs, whose signature the handler
    /// checks, and where one parameter is repeated in an order that counts. Each spelling is a page of its own. An
    /// invalidation of any spelling applies to all of them.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.key(perennial::Key::exact_query());
    /// # }
    /// ```
    pub fn exact_query() -> Self {
        Self {
            base: Base::Uri(Query::Exact),
            ..Self::default()
        }
    }

    /// Adds a header to the key, and to the response's `Vary`. Each value of the header is stored as a page of
    /// its own, so let a middleware outside of the layer reduce the many values that occur in requests to a
    /// few.
    ///
    /// ```
    /// # use perennial::Key;
    /// let key = Key::new().header(http::header::ACCEPT_LANGUAGE);
    /// ```
    pub fn header(mut self, name: HeaderName) -> Self {
        if !self.headers.contains(&name) {
            self.headers.push(name);
        }
        self
    }

    /// Adds the host to the key, with its port and in lowercase, for sites that differ by their host name. It is the
    /// host of the request's URI, or else of its `Host` header.
    ///
    /// ```
    /// # use perennial::Key;
    /// let key = Key::new().host();
    /// ```
    ///
    /// A request without a host bypasses the cache. So does one whose URI and `Host` header name two different hosts:
    /// an application that finds its tenant by one of them would generate a page that is stored for the other.
    pub fn host(mut self) -> Self {
        self.host = true;
        self
    }

    /// Returns true for a key by [`Key::by`], whose generator sees the derived values in place of the query.
    pub(super) fn derives_values(&self) -> bool {
        matches!(self.base, Base::By(_))
    }

    /// Returns the key of the request without the parts for headers, host and nesting: the key that
    /// `invalidate` takes.
    pub(super) fn resource(&self, parts: &Parts) -> Option<String> {
        let resource = self.without_variant(parts)?;
        Some(match &self.base {
            Base::Name(name) => name.to_string(),
            // The parts after `#` are the query as it was sent, and the inner path.
            Base::Uri(_) | Base::By(_) => resource.key.split('#').next()?.to_owned(),
        })
    }

    /// Returns the key of a URI without its variant, or `None` if the URI alone does not give the key, or has
    /// no path.
    pub(super) fn of_uri<'a>(&self, uri: &'a Uri) -> Option<Cow<'a, str>> {
        match &self.base {
            Base::Uri(Query::Exact) => key::of_uri(uri, &Query::All),
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
        let Resource { key, seen } = self.without_variant(parts)?;
        if self.headers.is_empty() && !self.host {
            return Some(Resource { key, seen });
        }
        // The parts of a key cannot be confused: a path has no `#`, and an encoded value has no `#`, `&` or `=`.
        let variant = self.variant(&parts.uri, &parts.headers)?;
        Some(Resource {
            key: Cow::Owned(format!("{key}#{variant}")),
            seen,
        })
    }

    /// Returns the resource as if its key did not contain the host and headers, so the key of all variants.
    #[inline]
    fn without_variant<'a>(&'a self, parts: &'a Parts) -> Option<Resource<'a>> {
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
            Base::Uri(Query::Exact) => {
                let normal = key::of_request(&parts.uri, &Query::All, routed)?;
                let key = key_of_original(parts, normal);
                let sent = parts.uri.query().unwrap_or_default();
                let is_normal =
                    key.split('#').next()?.split_once('?').map_or("", |it| it.1) == sent;
                // The text after a `#` distinguishes variants of one page.
                if is_normal {
                    key
                } else {
                    Cow::Owned(format!("{key}#?{sent}"))
                }
            }
            Base::Uri(_) | Base::By(_) => key_of_original(parts, seen.clone()),
        };
        Some(Resource { key, seen })
    }

    /// Returns the parts of the key for the host and the headers, or `None` if the request names no host.
    pub(super) fn variant(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let names_two_hosts = || host(uri, headers).is_some() && only_host(uri, headers).is_none();
        if self.headers.contains(&header::HOST) && names_two_hosts() {
            return None;
        }
        let mut variant = String::new();
        if self.host {
            variant.push_str("host=");
            variant.extend(byte_serialize(&only_host(uri, headers)?));
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
            && let Some(host) = only_host(&from.uri, &from.headers)
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
