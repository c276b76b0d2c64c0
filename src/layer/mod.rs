//! The Tower layers and their services.

mod admission;
mod body;
mod cache_status;
mod conditional;
mod exclusive;
mod future;
mod idempotency;
mod invalidating;
pub(crate) mod keying;
mod problem;
mod request;
mod response;
mod service;
mod target;

use std::{fmt, sync::Arc};

use http::Extensions;
use tower_layer::Layer;

use crate::{engine::Engine, extensions::Tags, refresh::Refresh};

use admission::Admission;
use keying::Key;

pub use body::ResponseBody;
pub use exclusive::{ExclusiveLayer, ExclusiveService};
pub use future::ResponseFuture;
pub use idempotency::{IdempotencyLayer, IdempotencyService};
pub use invalidating::{InvalidateLayer, InvalidateService};
pub use keying::Asked;
pub use request::GeneratedKey;
pub use service::RefreshService;

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
/// When it generates: a new GET request with what of the path, the query and the headers is in the key (by default the path and the
/// sorted query, no header), an empty body and the extensions of the request that caused it. What isn't in the key is not to be seen, so that one visitor's page can't be stored for another.
/// Extensions are carried because routing keeps its own there, which can't be told apart by type from others: one that
/// tells of the visitor (axum's `ConnectInfo`, a session that an outer middleware has put there) is to be taken out
/// [by name](Self::without_extension), or the layer put outside that middleware. So is one that holds something scarce, as a connection: memory keeps the
/// request that makes a page for as long as the page, for [`regenerate_now`](crate::Perennial::regenerate_now).
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
    engine: Arc<Engine>,
    policy: Refresh,
    key: Arc<Key>,
    hidden: Vec<fn(&mut Extensions)>,
    tags: Tags,
    admission: Arc<Admission>,
    invalidates: bool,
}

impl RefreshLayer {
    pub(crate) fn new(engine: Arc<Engine>, policy: Refresh) -> Self {
        Self {
            policy,
            key: Arc::default(),
            hidden: Vec::new(),
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

    /// Takes the extension of type `T` out of the request that the generator sees.
    pub fn without_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.hidden.push(|extensions| {
            extensions.remove::<T>();
        });
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
