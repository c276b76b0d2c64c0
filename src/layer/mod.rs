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
/// with `Retry-After` until the cooldown is over. Any other response with `Set-Cookie`, with
/// `Cache-Control: private` or `no-store`, or with a `Vary` that names what is not in the key is given to nobody: each request is answered by the service itself, which
/// is remembered for the policy's interval, and an older version is removed. So is any
/// other status, remembered for the cooldown. (A failure that says it is somebody's own is given to the request that caused it alone.)
///
/// A `Vary` by `Accept-Encoding` is no such thing where the response has no `Content-Encoding`, so that all can read it. With the feature
/// `compression` the layer itself answers in `br`, `zstd` or `gzip` (RFC 9110 §12.5.3): text of 256 bytes and more that has no `Content-Encoding` and does not
/// say `no-transform`, compressed once a version, off the async threads, from when it is first asked for; until then as it is.
///
/// A body is read whole before it is given out: a route whose response never ends, as an event stream, is not to be layered.
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
