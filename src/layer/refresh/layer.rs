//! The layer and its settings.

use std::{fmt, sync::Arc};

use http::request::Parts;
use tower_layer::Layer;

use crate::{extensions::Tags, page::Pages, policy::Refresh};

use super::{
    admission::Admission, extensions::KnownTypes, hints::Hints, keying::Key,
    service::RefreshService,
};

/// The default limit on the number of keys that a layer stores.
const MAX_KEYS: usize = 10_000;

/// Stores the responses of a service, and regenerates stale ones; from
/// [`Perennial::layer`](crate::Perennial::layer).
///
/// Works with `Router::layer`, `MethodRouter::layer` and any Tower service for HTTP that is
/// `Clone + Send + 'static`, takes requests whose body has a `Default` (an empty body, for the generator)
/// and answers with bodies of `Bytes`. The futures need Tokio.
///
/// # What is stored
///
/// The layer stores responses to GET, each under its [key](Self::key). A stored response to GET
/// also answers HEAD. Other methods go straight to the service. A request for an upgrade gets the
/// stored page, too, as otherwise any visitor could pass by the cache; a route with both a page and a
/// WebSocket declares [`bypass_if`](Self::bypass_if). A route that is a WebSocket alone needs
/// nothing: its response to a request without an upgrade is not stored.
///
/// | status of the response | header of the response | treatment |
/// |---|---|---|
/// | 200, 203, 204, 300, 301, 308, 404, 405, 410, 414 (heuristically cacheable, RFC 9110 §15.1) | none of the headers below | stored |
/// | the same | `Set-Cookie`, or `private` or `no-store` anywhere in `Cache-Control` or `CDN-Cache-Control` (with [`from_headers`](crate::Refresh::from_headers), a valid `CDN-Cache-Control` decides alone, by RFC 9213) | bypass for the interval: `detail=private` |
/// | the same | a `Vary` that names a header outside the key | bypass for the interval: `detail=vary` |
/// | the same | `Content-Type: text/event-stream` | bypass for the interval: `detail=event-stream` |
/// | the same | larger than [`max_body`](crate::Builder::max_body) or [`max_headers`](crate::Builder::max_headers) | the old version stays; without one, bypass for the cooldown: `detail=too-large` |
/// | 408, 425, 429, 500 and above | any | failure |
/// | any other | any | bypass for the cooldown: `detail=status` |
///
/// **Bypass** (hit-for-pass): the response is given to no other visitor, the old version is
/// removed, and the service itself answers each request. The first such request runs the service
/// twice, once as the generator and once for the visitor, as the generator does not see the
/// visitor's request. Each further request runs the service once.
///
/// **Failure**, as are a panic, a timeout and an error of the service: the old version stays. Any
/// other status is the origin's new answer: a 401, a 403 or a redirect removes the page. Without an
/// old version, the visitors who wait in this process get the failed response, unless a header above
/// makes it one visitor's own. Other visitors get 503 with `Retry-After` until the cooldown ends.
///
/// `Vary: Accept-Encoding` is allowed in a response without `Content-Encoding`, which every client
/// can read. With the feature `compression` the layer itself answers in `br` or `gzip` (RFC 9110
/// §12.5.3). It compresses text of 256 bytes or more that has neither `Content-Encoding` nor
/// `no-transform`. A version is compressed once, when it enters memory: one version at a time, off
/// the async threads. Visitors get the uncompressed page until then.
///
/// The layer reads a body whole before it answers, up to
/// [`Builder::max_body`](crate::Builder::max_body), and nothing of a larger one that says its
/// length. The layer reads nothing of an event stream, which never ends: each visitor has a stream
/// of the service's own.
///
/// # Response headers
///
/// `Date` and `Age` say when the version was generated. `Cache-Status` (RFC 9211) is `perennial;
/// hit; ttl=86` for a version from memory or the database (a negative `ttl` is a stale version). In
/// another response, except for a 503 of the layer's own, `fwd=` has the reason: `miss`, `stale`,
/// `method` or `bypass`. `stored` and `collapsed` follow where they apply, and `detail=` if the
/// response is not stored: a word of [`Bypass`](crate::event::Bypass), `failed` or `unavailable`.
///
/// # What the service sees
///
/// The generator does not see the visitor's request, so that one visitor's page cannot be stored
/// for another. The generator sees a new GET request with the [key's](Self::key) parts of the path,
/// query and headers (by default the path and the sorted query), an empty body, the extensions that
/// axum's routing gives to this new request, and copies of the shared extensions. A request that
/// bypasses the cache reaches the service unchanged.
///
/// # Extensions
///
/// An extension of a request is unsafe until it is declared, as it may identify the visitor. The
/// layer knows the extensions of axum's routing (with the feature `axum`, of axum 0.8),
/// `ConnectInfo<SocketAddr>`, hyper's `OnUpgrade` and Perennial's own. A request with more extensions
/// bypasses the cache, with `detail=undeclared-extension` and, once for each layer, a warning that
/// names the types. The extensions are counted, so a middleware that also removes one is not
/// noticed: its visitor gets the page of all visitors. The remedies, on the layer or for the whole
/// site on [`Builder`](crate::Builder):
///
/// | the extension | remedy |
/// |---|---|
/// | identifies the visitor, and the page does not depend on it | [`ignore_extension`](Self::ignore_extension) |
/// | is equal for all visitors: a pool, a configuration | [`share_extension`](Self::share_extension) |
/// | is there for some visitors, who get a page of their own | [`bypass_if`](Self::bypass_if) |
///
/// Or put the layer outside the middleware that adds the extension. hyper's option
/// `preserve_header_case` adds an extension of a private type: requests of such a server bypass the
/// cache.
///
/// # Logged-in users
///
/// A handler that reads a session or a user generates another page for each visitor. There are
/// three patterns.
///
/// **Logged-in visitors bypass the cache**, and anonymous visitors are served from the cache. An
/// auth middleware that adds an extension for logged-in visitors alone needs no more than
/// `bypass_if`, which declares the bypass as intended:
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
/// **The page is the same for all**, though a middleware adds an extension to each request, as
/// session middleware does. Ignore an extension that identifies the visitor, and share an extension
/// that is equal for all visitors. A handler that extracts an ignored extension generates an error
/// page, as without the middleware, and never a visitor's page.
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
///     .ignore_extension::<Session>()
///     .share_extension::<Config>();
/// Router::new()
///     .route("/imprint", get(imprint).layer(layer))
///     .layer(Extension(Session))
///     .layer(Extension(Config { title: "The bookshop" }))
/// # }
/// ```
///
/// **A page of the visitor's own has a part that is the same for all.** Cache that part, by
/// [`content`](crate::Perennial::content), and leave the route without the layer:
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
/// The layer can stand around a router in place of on its routes, if each GET of the router is to
/// be stored. A hit then skips the routing, which takes most of a hit's time. `axum::serve` needs a
/// service that is [shared](https://docs.rs/tower/latest/tower/make/struct.Shared.html) among
/// connections, and axum's own body. (Without them the compiler says that
/// `Service<IncomingStream<'_, _>>` is not implemented, or that it expected `Response<Body>`.)
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
/// The layered service is always ready. The inner service is cloned, and its readiness awaited, for
/// each call of the inner service, so that an inner limit delays neither hits nor old versions.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct RefreshLayer {
    pub(super) pages: Arc<Pages>,
    /// The policy in the site's mode.
    pub(super) policy: Refresh,
    pub(super) key: Arc<Key>,
    pub(super) known: Arc<KnownTypes>,
    pub(super) bypass_if: Vec<Arc<BypassIf>>,
    pub(super) hints: Arc<Hints>,
    pub(super) tags: Tags,
    pub(super) admission: Arc<Admission>,
    pub(super) invalidates: bool,
    pub(super) name: Option<Arc<str>>,
}

type BypassIf = dyn Fn(&Parts) -> bool + Send + Sync;

impl RefreshLayer {
    pub(crate) fn with_pages(pages: Arc<Pages>, known: Arc<KnownTypes>, policy: Refresh) -> Self {
        Self {
            policy: pages.applied(policy),
            key: Arc::default(),
            known,
            bypass_if: Vec::new(),
            hints: Arc::default(),
            tags: Tags::default(),
            admission: Arc::new(Admission::new(MAX_KEYS)),
            pages,
            invalidates: false,
            name: None,
        }
    }

    /// Sets the name of the layer in [events](crate::Event) and in the log. Default: the path of
    /// the route in axum, such as `/books/{id}`, or else `other`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().into());
        self
    }

    /// Sets the key of a request. Apart from the path and the declared extensions, the generator
    /// sees nothing else of the request. Default: the path and the whole query.
    pub fn key(mut self, key: Key) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// Adds a tag to all pages of the layer, for
    /// [`invalidate_tag`](crate::Perennial::invalidate_tag). A handler can add further tags by
    /// [`Tags`].
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags = self.tags.and(&[tag.into()]);
        self
    }

    /// Sets the number of keys that the layer stores, so that visitors who invent keys do not fill
    /// the database. Default: 10,000.
    ///
    /// Each process counts the keys that were requested when its memory had no version of them, and
    /// forgets a key after half an hour to an hour without such a request. This many keys that were
    /// asked for once are stored, and this many that were asked for again: a visitor who invents
    /// keys keeps out no page that others visit. The service itself answers requests for further
    /// keys, and their responses are not stored; a warning says so once a minute. Choose a limit
    /// well above the number of existing pages.
    ///
    /// For an hour after a key was refused, a new key is stored when it is asked for again, and its
    /// row is retained for an hour, whatever its interval, and pruned within the next. So a visitor
    /// who invents keys stores this many if each is asked for once, and at most five times as many
    /// if each is asked for again, however long that goes on, with as many rows of locks.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.admission = Arc::new(Admission::new(keys));
        self
    }

    /// Invalidates the pages that a successful unsafe request names (RFC 9111 §4.4). Default: none.
    ///
    /// An unsafe request has a method other than GET, HEAD, OPTIONS and TRACE. When the service
    /// answers one by 2xx or 3xx, the layer invalidates the request's own URI, as the
    /// [key](Self::key) reads that URI, and the URIs of the same host and the absolute paths in the
    /// response's `Location` and `Content-Location`, each in all variants, as
    /// [`invalidate`](crate::Perennial::invalidate) does. With [`Key::name`](crate::Key::name) and
    /// [`Key::by`](crate::Key::by) the layer invalidates only the key that it computes for the
    /// unsafe request; `Location` and `Content-Location` have no effect. The response waits for the
    /// invalidation, 5 s at most; if the database fails, the process tries again for a minute. For
    /// pages that a request does not name, use tags:
    /// [`invalidate_on_success`](crate::Perennial::invalidate_on_success).
    ///
    /// Every visitor who may send such a request can cause a regeneration, and a row in the
    /// database for each URI.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the service runs (the client has gone), the outcome is
    /// unknown, and the layer invalidates the request's own URI.
    pub fn invalidate_on_unsafe(mut self) -> Self {
        self.invalidates = true;
        self
    }

    /// Lets a request for which the function returns `true` bypass the cache: the request goes to
    /// the service unchanged, and the response to its visitor alone. Default: no function. After
    /// several calls, a request bypasses the cache if any of the functions returns `true`.
    ///
    /// Logged-in visitors are the usual case. A GET or HEAD for which every function returns
    /// `false` is served from the cache, or generates the page without the visitor's cookies and
    /// other headers. The `Cache-Status` of a request that bypasses is `fwd=bypass;
    /// detail=bypass-if`. Without a `Cache-Control` of its own, its response gets `private`, so that
    /// a cache in front of the site does not share it either.
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

    /// Declares that the handler generates the page without the extension of type `T`, which may
    /// identify a visitor.
    ///
    /// A request that bypasses the cache keeps the extension.
    /// [`Builder::ignore_extension`](crate::Builder::ignore_extension) declares the type for the whole
    /// site. A later declaration of the type replaces an earlier one, and the layer's replaces the
    /// site's.
    pub fn ignore_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        Arc::make_mut(&mut self.known).declare::<T>(false);
        self
    }

    /// Declares that the extension of type `T` is equal for all visitors, such as a pool or a
    /// configuration. The generator sees the extension of the request that caused the regeneration.
    /// [`Builder::share_extension`](crate::Builder::share_extension) declares the type for the
    /// whole site.
    ///
    /// The extension is cloned for each run of the generator.
    pub fn share_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        Arc::make_mut(&mut self.known).declare::<T>(true);
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
