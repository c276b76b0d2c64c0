//! The settings of the layer. Its documentation is the place where users read what is stored, and what a
//! handler sees.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Response, request::Parts, response};
use perennial_store::name::IntoNames;
use tower_layer::Layer;

use crate::{
    cache::Cache,
    extensions::Tags,
    http::cdn_tags::CdnTags,
    layer::holes::{HoleFunctions, IntoFilling},
    policy::Refresh,
};

use super::{
    MAX_KEYS,
    admission::Admission,
    compare::Compared,
    extensions::{ExtensionTypes, KnownTypes},
    hints::Hints,
    keying::Key,
    response_extensions::DroppedTypes,
    service::RefreshService,
};

/// Stores responses, and regenerates stale ones. [`Perennial::layer`](crate::Perennial::layer)
/// creates this layer.
///
/// Works with any Tower service for HTTP that is `Clone + Send + 'static`, takes a body type that
/// implements `Default` and answers with a body of `Bytes`, on Tokio. The layered service is always
/// ready: the inner service's readiness is awaited only when that service is called, so it delays
/// no hit.
///
/// # What is stored
///
/// The layer stores responses to GET, which also answer HEAD, each under its [key](Self::key).
/// Their status has to be heuristically cacheable (those of RFC 9110 §15.1 except 206 and 501: 200,
/// 203, 204, 300, 301, 308, 404, 405, 410, 414), and no header may forbid it.
///
/// **Bypass** (hit-for-pass): after a response that may not be stored, the service itself answers
/// all requests for some time. The first such request runs the service twice, once as the generator
/// and once for the visitor. The guide's [table](crate::guide::is_my_page_cached) has the cases and
/// their times.
///
/// **Failure**: after a status of 408, 425, 429 or 500 – 599, a panic, a timeout or an error of the
/// service, the old version [stays](crate::guide::freshness#failures). The text of the error appears
/// in the log, in events, and in the explanation of a page. So the service's error has to be
/// `Into<BoxError>`, as for most layers of tower.
///
/// Before it answers, the layer reads the whole body of a response that may be stored, and of a
/// failure. A request for an upgrade gets the stored page: a route with both a page and a WebSocket
/// needs [`bypass_if`](Self::bypass_if).
///
/// `Date` and `Age` say when the version was generated, and `Cache-Status` (RFC 9211) how the
/// response came about.
///
/// # What the service sees
///
/// The generator does not see the visitor's request, so that no visitor's page is stored for
/// another. It sees a new GET request with the [key's](Self::key) path, query and headers, an empty
/// body, the extensions that axum's routing gives to this request, and copies of the shared
/// extensions. A request that bypasses the cache reaches the service unchanged.
///
/// # Extensions
///
/// An extension of a request may identify its visitor. The layer knows the following extensions:
/// with the feature `axum`, those of axum 0.8's routing and of its `DefaultBodyLimit`, and
/// `ConnectInfo<SocketAddr>`; with the feature `hyper`, which `axum` includes, hyper's `OnUpgrade`;
/// and Perennial's own. A request with any other extension bypasses the cache, until each type is
/// declared by [`ignore_extension`](Self::ignore_extension) or
/// [`share_extension`](Self::share_extension). The layer only counts axum's private extensions, so
/// a middleware that replaces one of them by an extension of its own goes unnoticed.
///
/// A response may have an extension that an outer middleware needs to make the page, and a stored
/// page cannot keep it. So a response with an extension that the layer does not know is not stored,
/// unless the type is declared by [`drop_response_extension`](Self::drop_response_extension).
///
/// # Around a router
///
/// If the layer stands around a router, it stores the responses to each GET of that router, and a
/// hit skips the routing. `axum::serve` then needs two more things, as in this example: the service
/// has to be [shared](https://docs.rs/tower/latest/tower/make/struct.Shared.html) by all
/// connections, and its responses need axum's own body type.
///
/// ```
/// # async fn f(site: perennial::Perennial, router: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// use axum::{body::Body, http::Response};
/// use tower::{ServiceBuilder, make::Shared};
///
/// let app = ServiceBuilder::new()
///     .map_response(|response: Response<_>| response.map(Body::new))
///     .layer(site.layer(perennial::Refresh::every(perennial::DAY)))
///     .service(router);
/// axum::serve(listener, Shared::new(app)).await
/// # }
/// ```
///
/// # Without axum
///
/// The guide has [a whole server](crate::guide::without_axum).
///
/// If the type of the request's body has no `Default`, like hyper's `Incoming`, wrap it in an
/// `Option`. The generator's request then has `None`:
///
/// ```
/// # use bytes::Bytes;
/// # use http_body_util::Full;
/// # use perennial::{DAY, Perennial};
/// use http::{Request, Response};
/// use hyper::body::Incoming;
/// use tower::{BoxError, Service, ServiceBuilder, service_fn};
///
/// async fn page(_: Request<Option<Incoming>>) -> Result<Response<Full<Bytes>>, BoxError> {
///     Ok(Response::new("Hello".into()))
/// }
///
/// # fn f(site: Perennial) -> impl Service<Request<Incoming>> {
/// ServiceBuilder::new()
///     .map_request(|request: Request<Incoming>| request.map(Some))
///     .layer(site.layer(DAY))
///     .service(service_fn(page))
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct RefreshLayer {
    pub(super) cache: Arc<Cache>,
    /// The policy in the site's mode.
    pub(super) policy: Refresh,
    pub(super) key: Arc<Key>,
    pub(super) known: Arc<KnownTypes>,
    pub(super) dropped: Arc<DroppedTypes>,
    pub(super) bypass_if: Vec<Arc<BypassIf>>,
    pub(super) hints: Arc<Hints>,
    pub(super) tags: Tags,
    pub(super) admission: Arc<Admission>,
    pub(super) invalidates: bool,
    pub(super) name: Option<Arc<str>>,
    pub(super) holes: Arc<HoleFunctions>,
    pub(super) store_if: Vec<Arc<StoreIf>>,
    pub(super) cdn_tags: Option<CdnTags>,
    /// Nothing is added to a response without a `Cache-Control` of its own.
    pub(super) leaves_cache_control: bool,
    pub(super) unavailable: Option<Arc<Unavailable>>,
    /// What the development mode has compared.
    pub(super) compared: Arc<Compared>,
}

type BypassIf = dyn Fn(&Parts) -> bool + Send + Sync;
type StoreIf = dyn Fn(&response::Parts) -> bool + Send + Sync;
type Unavailable = dyn Fn(Duration) -> Response<Bytes> + Send + Sync;

impl RefreshLayer {
    pub(crate) fn with_cache(
        cache: Arc<Cache>,
        known: Arc<KnownTypes>,
        dropped: Arc<DroppedTypes>,
        policy: Refresh,
    ) -> Self {
        Self {
            policy: cache.applied(policy),
            key: Arc::default(),
            known,
            dropped,
            bypass_if: Vec::new(),
            hints: Arc::default(),
            tags: Tags::default(),
            admission: Arc::new(Admission::new(MAX_KEYS)),
            cache,
            invalidates: false,
            name: None,
            holes: Arc::default(),
            store_if: Vec::new(),
            cdn_tags: None,
            leaves_cache_control: false,
            unavailable: None,
            compared: Arc::default(),
        }
    }

    /// Sets the name in [events](crate::event::Event) and in the log. Default: the path of the route in axum,
    /// such as `/books/{id}`, or else `other`. Without axum, give each layer a name.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.name("lists");
    /// # }
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().into());
        self
    }

    /// Sets the key of a request. Default: the path and the whole query.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// # use perennial::Key;
    /// let layer = layer.key(Key::new().query("page"));
    /// # }
    /// ```
    pub fn key(mut self, key: Key) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// Adds a tag, or several, to all pages of the layer, for
    /// [`invalidate_tag`](crate::Perennial::invalidate_tag). A handler can add more with [`Tags`] or
    /// [`Generation::tag`](crate::Generation::tag).
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.tag("catalogue");
    /// # }
    /// ```
    pub fn tag(mut self, tags: impl IntoNames) -> Self {
        self.tags = self.tags.and(&tags.into_names());
        self
    }

    /// Limits how many keys the layer stores, so that invented ones do not fill the database. Default: 10,000.
    ///
    /// Each process counts the keys that were requested while its memory had no version of them, and forgets
    /// each after half an hour to an hour. The layer stores up to this many keys that were requested once, and
    /// as many again that were requested more than once. Above the limit, the service itself answers, and a
    /// warning is logged at most once a minute. For an hour after the limit was reached, a new key is stored
    /// only at its second request.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.max_keys(1_000);
    /// # }
    /// ```
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.admission = Arc::new(Admission::new(keys));
        self
    }

    /// Invalidates the pages that a successful unsafe request names (RFC 9111 §4.4). Default: the layer does not do
    /// this.
    ///
    /// When the service answers an unsafe method with 2xx or 3xx, the layer
    /// [invalidates](crate::Perennial::invalidate) the request's own URI, and the URIs of the same host in
    /// `Location` and `Content-Location`. With [`Key::name`](crate::Key::name) and [`Key::by`](crate::Key::by),
    /// it invalidates only the request's own key. GET, HEAD, OPTIONS, QUERY, TRACE and WebDAV's PROPFIND,
    /// REPORT and SEARCH are safe, and all other methods are unsafe.
    ///
    /// ```
    /// # use axum::{Router, routing::get};
    /// # async fn show() {}
    /// # async fn change() {}
    /// # fn f(layer: perennial::layer::RefreshLayer) -> Router {
    /// Router::new().route("/books/{id}", get(show).put(change).layer(layer.invalidate_on_unsafe()))
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the service runs, the layer invalidates the request's own URI.
    pub fn invalidate_on_unsafe(mut self) -> Self {
        self.invalidates = true;
        self
    }

    /// Declares a hole: a spot of the page that differs for each visitor, in a page that is generated once for all
    /// of them.
    ///
    /// The handler writes a mark into the page where the hole is ([`Holes`](crate::layer::Holes)), and runs
    /// once. The function runs once for each visitor, when the stored page is served. It gets the visitor's
    /// request with its headers and extensions, and returns the text for the spot, or a `Result` that contains
    /// it ([`IntoFilling`](crate::layer::IntoFilling)). The [guide](crate::guide::holes) has recipes for a
    /// greeting, a cart, a CSRF token and a nonce.
    ///
    /// ```
    /// # use axum::{Router, routing::get, response::Html};
    /// use axum_extra::extract::CookieJar;
    /// use http::request::Parts;
    /// use perennial::layer::Holes;
    ///
    /// async fn greeting(visitor: Parts) -> String {
    ///     let cookies = CookieJar::from_headers(&visitor.headers);
    ///     cookies.get("name").map_or("stranger", |name| name.value()).to_owned()
    /// }
    ///
    /// async fn books(holes: Holes) -> Html<String> {
    ///     Html(format!("<nav>Hello {}</nav>…", holes.text("greeting")))
    /// }
    ///
    /// # fn f(site: perennial::Perennial) -> Router {
    /// let layer = site.layer(perennial::Refresh::every(perennial::DAY)).hole("greeting", greeting);
    /// Router::new().route("/books", get(books).layer(layer))
    /// # }
    /// ```
    ///
    /// All functions of a page run at the same time, inside of the visitor's own call and before the response
    /// begins. So if a function changes a session or a cookie, the middleware around the layer stores that
    /// change. What a function returns can also be used in a [header](Self::header_with). A function has 5
    /// seconds for its work, and 64 KiB for its text. If it fails, panics or takes longer, its spot stays empty
    /// and the log says so, at most once a minute. [`hole_or`](Self::hole_or) shows something else in that
    /// case.
    ///
    /// A filled page belongs to its visitor: it has `Cache-Control: private, no-cache`, and no entity tag, date,
    /// length or ranges of the stored page. No content delivery network and no outer layer of the site stores it.
    /// `Cache-Status` has `detail=holes`. With the feature `compression`, what stands between the holes is compressed
    /// once for all visitors, by gzip. A filling is never compressed, so that its length tells nothing about a secret
    /// (BREACH).
    ///
    /// # Panics
    ///
    /// Panics if the name is empty, has a brace, or is declared already, and at the 65th hole of a layer.
    pub fn hole<Fut>(
        self,
        name: &str,
        function: impl Fn(Parts) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output: IntoFilling> + Send + 'static,
    {
        self.declare_hole(name, None, false, function)
    }

    /// Declares a [hole](Self::hole) that shows `fallback` if its function fails.
    ///
    /// ```
    /// # use http::request::Parts;
    /// # async fn count_of(visitor: Parts) -> Result<u32, std::io::Error> { Ok(1) }
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// async fn cart(visitor: Parts) -> Result<String, std::io::Error> {
    ///     Ok(count_of(visitor).await?.to_string())
    /// }
    ///
    /// let layer = layer.hole_or("cart", "?", cart);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// As [`hole`](Self::hole) does.
    pub fn hole_or<Fut>(
        self,
        name: &str,
        fallback: impl Into<String>,
        function: impl Fn(Parts) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output: IntoFilling> + Send + 'static,
    {
        self.declare_hole(name, Some(fallback.into()), false, function)
    }

    /// Declares a [hole](Self::hole) whose function gets one extension of the visitor's request. This also
    /// declares that the handler of the page does not need the extension, as
    /// [`ignore_extension`](Self::ignore_extension) does.
    ///
    /// This is what most holes need: a middleware outside of the layer has put a session or a user into the
    /// request. The function gets `None` if the request has no such extension.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// #[derive(Clone)]
    /// struct User { name: String } // the extension of a middleware
    ///
    /// let layer = layer.hole_with("greeting", async |user: Option<User>| match user {
    ///     Some(user) => user.name,
    ///     None => "stranger".to_owned(),
    /// });
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// As [`hole`](Self::hole) does.
    pub fn hole_with<T, Fut>(
        self,
        name: &str,
        function: impl Fn(Option<T>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        T: Clone + Send + Sync + 'static,
        Fut: Future<Output: IntoFilling> + Send + 'static,
    {
        let function = move |visitor: Parts| function(visitor.extensions.get().cloned());
        self.ignore_extension::<T>()
            .declare_hole(name, None, false, function)
    }

    /// Declares a [hole](Self::hole) whose function is slow: the visitor gets the page up to the hole at once,
    /// and the rest of it when the function has ended.
    ///
    /// Use this for what is slow and far down the page, such as recommendations. The function has 30 seconds.
    /// If it fails, the hole shows `fallback`; an error page is no longer possible, because the response has
    /// begun by then.
    ///
    /// The function runs in a task of its own, for which the middleware around the layer does not wait, and
    /// which is cancelled when the visitor leaves. So do not rely on what it changes in a session or in the
    /// cookies of the response: **it may be lost**. What the function returns cannot be used in a header. A
    /// page with such a hole is sent in chunks and without compression.
    ///
    /// ```
    /// # use http::request::Parts;
    /// # async fn search(visitor: &Parts) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.streamed_hole("recommended", "", async |visitor| search(&visitor).await);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// As [`hole`](Self::hole) does.
    pub fn streamed_hole<Fut>(
        self,
        name: &str,
        fallback: impl Into<String>,
        function: impl Fn(Parts) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output: IntoFilling> + Send + 'static,
    {
        self.declare_hole(name, Some(fallback.into()), true, function)
    }

    fn declare_hole<Fut>(
        mut self,
        name: &str,
        fallback: Option<String>,
        is_streamed: bool,
        function: impl Fn(Parts) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output: IntoFilling> + Send + 'static,
    {
        Arc::make_mut(&mut self.holes).declare(name, fallback, is_streamed, function);
        self
    }

    /// Adds a header with [holes](Self::hole) to each response. It replaces a header of the same name. Use it
    /// for a nonce: the hole appears in the Content-Security-Policy and in the page.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// use http::header::CONTENT_SECURITY_POLICY;
    ///
    /// let layer = layer
    ///     .hole("nonce", async |_| uuid::Uuid::new_v4().simple().to_string())
    ///     .header_with(CONTENT_SECURITY_POLICY, "script-src 'nonce-{nonce}'");
    /// # }
    /// ```
    ///
    /// In a header, a filling consists of letters, digits and `+/=-_.~`. The header is never sent without its
    /// filling: if the function fails and has no fallback, or returns other characters, the visitor gets a 500
    /// instead of the page.
    ///
    /// # Panics
    ///
    /// Panics if the braces of the template are unbalanced, or if the template names a hole that is not
    /// declared before it or that is [streamed](Self::streamed_hole).
    pub fn header_with(mut self, name: HeaderName, template: &str) -> Self {
        Arc::make_mut(&mut self.holes).declare_header(name, template);
        self
    }

    /// Lets requests for which the function returns `true` bypass the cache, for example those of visitors who are
    /// logged in. If several functions are set, one `true` is enough. The response gets `Cache-Control: private`,
    /// unless it has a `Cache-Control` of its own.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.bypass_if(|parts| parts.headers.contains_key("x-api-key"));
    /// # }
    /// ```
    pub fn bypass_if(mut self, function: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.bypass_if.push(Arc::new(function));
        self
    }

    /// Stores a response only if the function returns `true` for its head. If you call this several times, all
    /// functions have to return `true`.
    ///
    /// Use it where the handler's response does not say by its headers that it is not worth storing: an empty
    /// search result, an error page with the status 200. The function does not see the body. If the decision
    /// depends on the body, let the handler set a header of its own, and let the function read that. A response
    /// that is not stored goes only to the visitor who caused it, as it does with
    /// [`bypass_if`](Self::bypass_if). If a page is stored already, it is removed. A handler that wants to keep
    /// it answers with a status of 500 to 599. The function can decide only when there is a response. So for
    /// the first request with such a response the service runs twice, once to generate a page and once for the
    /// visitor. After that, the service itself answers all requests for as long as the policy's
    /// [`cooldown`](crate::Refresh::cooldown). If the request alone can decide, use
    /// [`bypass_if`](Self::bypass_if), which does not run the service twice.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.store_if(|head| !head.headers.contains_key("x-incomplete"));
    /// # }
    /// ```
    pub fn store_if(
        mut self,
        function: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.store_if.push(Arc::new(function));
        self
    }

    /// Sends the tags of each page in a header, so that a content delivery network in front of the site can be purged by
    /// tag, and not only by URL. Default: no such header.
    ///
    /// The header has all tags by which the page can be invalidated: those of the layer, of the handler and of
    /// the parts. In a tag, commas, `%` and characters outside of visible ASCII are percent-encoded. Send tags
    /// to the network's API in the same form; [`CdnTags::encode`] returns it. A page gets no such header if it
    /// has more than 256 tags and parts (any invalidation makes such a page stale), or if the header would be
    /// longer than 16 KiB.
    ///
    /// Perennial does not call the network: the guide's chapter on
    /// [operating](crate::guide::operating#a-cdn-in-front) has a task that does.
    ///
    /// ```
    /// # fn f(site: perennial::Perennial) {
    /// use std::time::Duration;
    /// use perennial::{DAY, Refresh, layer::CdnTags};
    ///
    /// let policy = Refresh::every(DAY).cdn_cache(Duration::from_hours(1));
    /// let layer = site.layer(policy).cdn_tags(CdnTags::CacheTag);
    /// # }
    /// ```
    pub fn cdn_tags(mut self, header: CdnTags) -> Self {
        self.cdn_tags = Some(header);
        self
    }

    /// Adds no `Cache-Control` to responses that have none. Default: a stored page gets `no-cache`, and a
    /// response that may be meant for a single visitor gets `private`.
    ///
    /// Use it where the application sets the header in one place outside of the layer, including for stored
    /// pages. The layer still recognises by the handler's headers what it must not store. The policy's
    /// `browser_cache` has no effect then.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.leave_cache_control();
    /// # }
    /// ```
    pub fn leave_cache_control(mut self) -> Self {
        self.leaves_cache_control = true;
        self
    }

    /// Sets the response for visitors who cannot get any version: they have waited for a first version in vain,
    /// or the last generation has failed, its cooldown is not over, and there is no old version. Default: a 503
    /// with `Retry-After`, whose text says when to try again.
    ///
    /// The function gets the time after which another try may succeed. The status should be 503, or another one
    /// that no cache stores. If the response has no `Retry-After`, the layer adds it. If it has no
    /// `Cache-Control`, the layer adds `no-store`.
    ///
    /// ```
    /// # use http::{Response, StatusCode, header};
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// let layer = layer.unavailable_response(|retry_in| {
    ///     let page = format!("<h1>Back in {} seconds</h1>", retry_in.as_secs() + 1);
    ///     Response::builder()
    ///         .status(StatusCode::SERVICE_UNAVAILABLE)
    ///         .header(header::CONTENT_TYPE, "text/html; charset=utf-8")
    ///         .body(page.into())
    ///         .expect("valid headers")
    /// });
    /// # }
    /// ```
    pub fn unavailable_response(
        mut self,
        function: impl Fn(Duration) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.unavailable = Some(Arc::new(function));
        self
    }

    /// Declares several types at once, as a tuple; see [`ignore_extension`](Self::ignore_extension).
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// # #[derive(Clone)] struct Locale;
    /// use tower_cookies::Cookies;
    /// use tower_sessions::Session;
    ///
    /// let layer = layer.ignore_extensions::<(Session, Cookies, Locale)>();
    /// # }
    /// ```
    pub fn ignore_extensions<T: ExtensionTypes>(mut self) -> Self {
        T::ignored_in(Arc::make_mut(&mut self.known));
        self
    }

    /// Declares that the handler does not need the extension of type `T` to generate the page, although the extension
    /// may identify a visitor. Without this, a request that has it bypasses the cache.
    ///
    /// If a type is declared several times, the latest declaration holds, and a declaration on the layer takes
    /// precedence over one on the site.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// # #[derive(Clone)] struct Session;
    /// let layer = layer.ignore_extension::<Session>();
    /// # }
    /// ```
    pub fn ignore_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        Arc::make_mut(&mut self.known).declare::<T>(false);
        self
    }

    /// Declares that the extension of type `T` has the same value for all visitors of a page, such as a pool or a
    /// configuration, and gives it to the handler. It is a clone of the extension of the request that caused the
    /// regeneration.
    ///
    /// An extension that is part of the key, such as a tenant that is added with [`Key::by`](crate::Key::by),
    /// also has one value for each page.
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// # #[derive(Clone)] struct Pool;
    /// let layer = layer.share_extension::<Pool>();
    /// # }
    /// ```
    pub fn share_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        Arc::make_mut(&mut self.known).declare::<T>(true);
        self
    }

    /// Declares that no middleware outside of the layer needs the response's extension of type `T`,
    /// so that a response which has it is stored without it.
    ///
    /// A stored page has no extensions. By default, a response is not stored if it has an extension that the
    /// layer does not know (`detail=response-extension`): an outer middleware may render a page from it. The
    /// layer knows axum's `MatchedPath`, `NestedPath` and `OriginalUri`, what hyper's client adds, tower-http's
    /// `RequestId` and `RequestUri`, [`Tags`], [`RefreshAfter`](crate::RefreshAfter) and
    /// [`ExpireAfter`](crate::ExpireAfter).
    ///
    /// ```
    /// # fn f(layer: perennial::layer::RefreshLayer) {
    /// #[derive(Clone)]
    /// struct RanIn(std::time::Duration); // for the log of an outer middleware
    ///
    /// let layer = layer.drop_response_extension::<RanIn>();
    /// # }
    /// ```
    pub fn drop_response_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        Arc::make_mut(&mut self.dropped).declare::<T>();
        self
    }
}

impl<S> Layer<S> for RefreshLayer {
    type Service = RefreshService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RefreshService::new(inner, self.clone())
    }
}

impl fmt::Debug for RefreshLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshLayer")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
