//! The layer and its settings.

use std::{fmt, sync::Arc};

use http::request::Parts;
use tower_layer::Layer;

use crate::{extensions::Tags, policy::Refresh, resource::Engine};

use super::{
    admission::Admission, declared::Declared, hints::Hints, keying::Key, service::RefreshService,
};

/// How many keys a layer stores unless it is told otherwise.
const MAX_KEYS: usize = 10_000;

/// Keeps the responses of a service and regenerates them when they are stale; from [`Perennial::layer`](crate::Perennial::layer).
///
/// Works on `Router::layer`, `MethodRouter::layer` and any Tower service for HTTP that is `Clone + Send + 'static`, takes requests whose body has a
/// `Default` (an empty one, for the generator) and answers with bodies of `Bytes`. Its futures need Tokio.
///
/// # What is kept
///
/// Responses to GET, each under its [key](Self::key); by default, under its path and its query: the parameters are sorted by name, those
/// of the same name keep their order. HEAD is answered from what is kept for GET. Other methods and upgrades pass straight through, each request to the service:
/// a route that takes no upgrades can refuse them in a layer outside this one.
///
/// A response is stored when its status is one that RFC 9110 §15.1 calls heuristically cacheable (200 and 404 among them).
/// A status of 500 or more, or 429, is a failure: an old version outlives it, and where there is none it is given to those in this process who wait; others get a 503
/// with `Retry-After` until the cooldown is over. Any other response with `Set-Cookie`, with `private` or `no-store` in
/// `Cache-Control` or `CDN-Cache-Control`, with a `Vary` that names a header outside the key, or of the type
/// `text/event-stream` is given to nobody: the service itself answers each request (hit-for-pass). The process remembers this
/// for the policy's interval, with a line in the log, and removes an older version. Any other status is treated likewise for
/// the cooldown. The first such request costs the service two runs, once as the generator and once for the visitor, as the
/// generator does not see the visitor's request. Each following request costs one. (A failure that says it is somebody's own is given to the request that caused it alone.)
///
/// A `Vary` by `Accept-Encoding` is no such thing where the response has no `Content-Encoding`, so that all can read it. With the feature
/// `compression` the layer itself answers in `br`, `zstd` or `gzip` (RFC 9110 §12.5.3): text of 256 bytes and more that has no `Content-Encoding` and does not
/// say `no-transform`, compressed once a version, off the async threads, from when it is first asked for; until then as it is.
///
/// The layer reads a body whole before it answers, up to [`Builder::max_body`](crate::Builder::max_body); a larger body is
/// streamed to the visitor whose request caused it. The layer reads nothing of an event stream, which never ends: each visitor
/// has a stream of the service's own.
///
/// # Response headers
///
/// `Date` and `Age` say when the version was generated. `Cache-Status` (RFC 9211) is `perennial; hit; ttl=86` for a version
/// from memory or the database (a negative `ttl` is a stale version). For any other response `fwd=` has the reason: `miss`,
/// `stale`, `method` or `bypass`. After it come `stored` and `collapsed`, or the reason why the response is not stored:
///
/// | `detail=` | reason |
/// |---|---|
/// | `upgrade` | the request asks for an upgrade |
/// | `bypass-if` | a function given to [`bypass_if`](Self::bypass_if) returned `true` |
/// | `undeclared-extension` | the request carries an extension that is [not declared](#extensions) |
/// | `no-key` | the request has no key |
/// | `outer-layer` | an outer layer generates the same key |
/// | `too-many-keys` | the key is beyond [`max_keys`](Self::max_keys) |
/// | `private` | the response has `Set-Cookie`, `private` or `no-store` |
/// | `vary` | the response varies by a header outside the key |
/// | `event-stream` | the response is an event stream |
/// | `status` | the status of the response is not stored |
/// | `too-large` | the response exceeds [`max_body`](crate::Builder::max_body) or [`max_headers`](crate::Builder::max_headers) |
/// | `failed` | the generator failed, and there is no old version |
/// | `unavailable` | there is no version yet: 503 |
/// | `purged` | the page was purged while it was generated |
/// | `shutting-down` | the site is [shutting down](crate::Perennial::shutdown), and there is no version |
///
/// # What the service sees
///
/// The generator does not see the visitor's request, so that one visitor's page cannot be stored for another. It sees a new GET request with
/// the parts of the path, the query and the headers that are in the [key](Self::key) (by default the path and the sorted query), an empty
/// body, and the extensions of axum's routing and those that are declared as shared. A request that bypasses the cache reaches the service unchanged.
///
/// # Extensions
///
/// An extension of a request is unsafe until it is declared, as it may identify the visitor. The layer knows the extensions of axum's
/// routing (with the feature `axum`, of axum 0.8), and hides `ConnectInfo<SocketAddr>`, hyper's `OnUpgrade` and Perennial's own from the generator. A
/// request with any other extension bypasses the cache, with `detail=undeclared-extension` and, once for each layer, a warning that names the types. The
/// remedies, on the layer or for the whole site on [`Builder`](crate::Builder):
///
/// | the extension | remedy |
/// |---|---|
/// | identifies the visitor, and the page does not depend on it | [`hide_extension`](Self::hide_extension) |
/// | is equal for all visitors: a pool, a configuration | [`share_extension`](Self::share_extension) |
/// | is there for some visitors, who get a page of their own | [`bypass_if`](Self::bypass_if) |
///
/// Or put the layer outside the middleware that adds the extension. hyper's option `preserve_header_case` adds an extension of a private type: requests of such a
/// server bypass the cache.
///
/// # Logged-in users
///
/// A handler that reads a session or a user generates another page for each visitor. There are three patterns.
///
/// **Logged-in visitors bypass the cache**, and anonymous ones are served from it. An auth middleware that adds an extension for logged-in
/// visitors alone needs no more than `bypass_if`, which says that the bypass is meant:
///
/// ```
/// # async fn f(site: perennial::Perennial) -> axum::Router {
/// use axum::{Extension, Router, extract::Request, middleware::{Next, from_fn}, response::Response, routing::get};
/// use perennial::{DAY, Refresh};
///
/// #[derive(Clone)]
/// struct User(String);
///
/// async fn authenticate(mut request: Request, next: Next) -> Response {
///     if request.headers().contains_key("cookie") { // and the session is valid
///         request.extensions_mut().insert(User("ann".into()));
///     }
///     next.run(request).await
/// }
///
/// async fn books(user: Option<Extension<User>>) -> String {
///     user.map_or("Hello".into(), |Extension(User(name))| format!("Hello {name}"))
/// }
///
/// let layer = site
///     .layer(Refresh::every(DAY))
///     .bypass_if(|parts| parts.extensions.get::<User>().is_some());
/// Router::new()
///     .route("/books", get(books).layer(layer))
///     .layer(from_fn(authenticate))
/// # }
/// ```
///
/// **The page is the same for all**, though a middleware adds an extension to each request, as session middleware does. Hide what identifies the visitor, and share what is
/// equal for all. A handler that extracts a hidden extension all the same generates an error, as without the middleware, and not a visitor's page.
///
/// ```
/// # async fn f(site: perennial::Perennial) -> axum::Router {
/// # async fn imprint() {}
/// use axum::{Extension, Router, routing::get};
/// use perennial::{DAY, Refresh};
///
/// #[derive(Clone)]
/// struct Session;
/// #[derive(Clone)]
/// struct Config { title: &'static str }
///
/// let layer = site
///     .layer(Refresh::every(DAY))
///     .hide_extension::<Session>()
///     .share_extension::<Config>();
/// Router::new()
///     .route("/imprint", get(imprint).layer(layer))
///     .layer(Extension(Session))
///     .layer(Extension(Config { title: "The bookshop" }))
/// # }
/// ```
///
/// **A page of the visitor's own has a part that is the same for all.** Cache that part, by [`content`](crate::Perennial::content), and leave the
/// route without the layer:
///
/// ```
/// # #[derive(Clone)] struct User(String);
/// use axum::{Extension, extract::State};
/// use perennial::{DAY, Perennial, Refresh};
///
/// const TOP_TEN: Refresh = Refresh::every(DAY);
///
/// async fn home(State(site): State<Perennial>, Extension(User(name)): Extension<User>) -> Result<String, String> {
///     let top_ten = site.content("top-10", &TOP_TEN, || async { Ok::<_, std::io::Error>("<ol>…</ol>") });
///     let top_ten = top_ten.await.map_err(|error| error.to_string())?;
///     Ok(format!("Hello {name}. {top_ten}"))
/// }
/// # let _: axum::Router<Perennial> = axum::Router::new().route("/", axum::routing::get(home));
/// ```
///
/// # Around a router
///
/// Where each GET of a router is to be kept, the layer can be put around it in place of on its routes: then a hit doesn't get as far as the
/// routing, which is most of its time. `axum::serve` takes a service that is [shared](https://docs.rs/tower/latest/tower/make/struct.Shared.html) among connections, and axum's own body alone (else
/// it says that `Service<IncomingStream<'_, _>>` is not implemented, or that it expected `Response<Body>`):
///
/// ```
/// # async fn f(site: perennial::Perennial, router: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// use axum::{body::Body, http::Response};
/// use perennial::{DAY, Refresh};
/// use tower::{ServiceBuilder, make::Shared};
///
/// let app = ServiceBuilder::new()
///     .map_response(|response: Response<_>| response.map(Body::new))
///     .layer(site.layer(Refresh::every(DAY)))
///     .service(router);
/// axum::serve(listener, Shared::new(app)).await
/// # }
/// ```
///
/// # Readiness
///
/// The layered service is always ready. The inner one is cloned and its readiness awaited when it is called, so that
/// a limit beneath the layer holds back neither hits nor old versions.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct RefreshLayer {
    pub(super) engine: Arc<Engine>,
    pub(super) policy: Refresh,
    pub(super) key: Arc<Key>,
    pub(super) declared: Arc<Declared>,
    pub(super) bypass_if: Vec<Arc<BypassIf>>,
    pub(super) hints: Arc<Hints>,
    pub(super) tags: Tags,
    pub(super) admission: Arc<Admission>,
    pub(super) invalidates: bool,
}

type BypassIf = dyn Fn(&Parts) -> bool + Send + Sync;

impl RefreshLayer {
    pub(crate) fn new(engine: Arc<Engine>, declared: Arc<Declared>, policy: Refresh) -> Self {
        Self {
            policy,
            key: Arc::default(),
            declared,
            bypass_if: Vec::new(),
            hints: Arc::default(),
            tags: Tags::default(),
            admission: Arc::new(Admission::new(MAX_KEYS)),
            engine,
            invalidates: false,
        }
    }

    /// What of a request is the key, and is seen by the generator. Default: the path and the whole query.
    pub fn key(mut self, key: Key) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// A tag of all that the layer keeps, to be [invalidated](crate::Perennial::invalidate_tag) by; may be called several times. A
    /// handler can add its own by [`Tags`].
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags = self.tags.and(&[tag.into()]);
        self
    }

    /// How many keys the layer stores, so that visitors who invent them don't fill the database. Default: 10,000.
    ///
    /// Each process counts for itself: those that it was asked for since it began, or, when it has run for longer than the
    /// [retention](crate::Builder::retention), in that time or the one before it. Requests for any further one are answered by the service, and nothing of them is
    /// stored; a warning in the log says so, once a minute. Another process may have stored it meanwhile: the limit is for pages that nobody
    /// should have asked for, and well above the number of those that there are.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.admission = Arc::new(Admission::new(keys));
        self
    }

    /// Invalidates the pages that a successful unsafe request names (RFC 9111 §4.4). Default: none.
    ///
    /// An unsafe request has a method other than GET, HEAD, OPTIONS and TRACE. When the service answers one by 2xx or 3xx, the
    /// layer invalidates the request's own URI, as the [key](Self::key) reads that URI, and the URIs in the response's
    /// `Location` and `Content-Location` that have the same host, each in all variants, as
    /// [`invalidate`](crate::Perennial::invalidate) does. With [`Key::name`](crate::Key::name) and
    /// [`Key::by`](crate::Key::by) the layer invalidates the key of the request alone. The response waits for the invalidation,
    /// 5 s at most; if the database fails, the process tries again for a minute. For pages that a request does not name, use
    /// tags: [`invalidates`](crate::Perennial::invalidates).
    ///
    /// Every visitor who may make such a request can cause a regeneration, and a row in the database for each URI.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the service runs (the client has gone), the outcome is unknown, and the layer invalidates
    /// the request's own URI.
    pub fn invalidate_on_unsafe(mut self) -> Self {
        self.invalidates = true;
        self
    }

    /// Lets requests for which the function returns `true` bypass the cache: each goes to the service as it came, and its response to
    /// its visitor alone. Default: none. With several functions, each can do so.
    ///
    /// For logged-in visitors, say. A GET or HEAD for which every function returns `false` is served from the cache, or generates the page without its
    /// cookies and other headers. `Cache-Status` carries `fwd=bypass; detail=bypass-if`.
    ///
    /// ```
    /// # fn f(site: &perennial::Perennial) {
    /// use axum::http::header::COOKIE;
    /// use perennial::{DAY, Refresh};
    ///
    /// let layer = site
    ///     .layer(Refresh::every(DAY))
    ///     .bypass_if(|parts| parts.headers.contains_key(COOKIE));
    /// # }
    /// ```
    pub fn bypass_if(mut self, function: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.bypass_if.push(Arc::new(function));
        self
    }

    /// Declares that the handler generates the page without the extension of type `T`, which may identify a visitor: the extension is
    /// taken out of the generator's request.
    ///
    /// A request that bypasses the cache keeps it. [`Builder::hide_extension`](crate::Builder::hide_extension) declares it for the whole
    /// site; the later declaration of a type, and that of the layer, counts.
    pub fn hide_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        Arc::make_mut(&mut self.declared).declare::<T>(false);
        self
    }

    /// Declares that the extension of type `T` is equal for all visitors, as a pool or a configuration is: the generator sees that of the request which caused
    /// the regeneration. [`Builder::share_extension`](crate::Builder::share_extension) declares it for the whole site.
    ///
    /// Memory holds the extension for as long as the page, and [`regenerate_now`](crate::Perennial::regenerate_now) generates with it. So share
    /// a handle from which the handler reads what is current (a pool, an `Arc<RwLock<_>>`, a `watch::Receiver`), and not a snapshot of data: `regenerate_now`
    /// would store a page of the old snapshot as new. Share nothing scarce, such as a connection.
    pub fn share_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        Arc::make_mut(&mut self.declared).declare::<T>(true);
        self
    }
}

impl<S: 'static> Layer<S> for RefreshLayer {
    type Service = RefreshService<S>;

    /// # Panics
    ///
    /// When `S` is a `Router`, `MethodRouter` or `Route` of another axum than 0.8 (with the feature `axum`): its routing is not known, and two
    /// nested routers would mix up their pages.
    fn layer(&self, inner: S) -> Self::Service {
        #[cfg(feature = "axum")]
        super::routing::refuse_other_axum::<S>();
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
