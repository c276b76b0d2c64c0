//! The layer for routes that run once at a time.

mod service;

use std::{fmt, sync::Arc, time::Duration};

use http::{StatusCode, request::Parts};
use perennial_store::{LockName, Locks};
use tower::Layer;

use crate::timing::EXCLUSIVE_WAIT;

pub use service::ExclusiveService;

/// Lets the service run once at a time for each name, in all processes together: uploads to one
/// album, or syncs of one customer. Any other program may take the same lock.
///
/// ```
/// # use axum::{Router, routing::post};
/// # async fn sync() {}
/// # #[derive(Clone)]
/// # struct Customer { id: String }
/// # fn f(locks: perennial_jobs::Locks) -> Router {
/// use std::time::Duration;
///
/// use perennial_jobs::ExclusiveLayer;
///
/// let one_device = ExclusiveLayer::new(&locks.lease(Duration::from_secs(30)), |parts| {
///     // As an outer layer has found out.
///     let customer = parts.extensions.get::<Customer>();
///     ["sync", customer.map_or("", |customer| &customer.id)].into()
/// })
/// .wait(Duration::from_secs(5))
/// .action("sync");
/// Router::new().route("/sync", post(sync).layer(one_device))
/// # }
/// ```
///
/// The service is called when the lock of the request's name is held, with its
/// [`Fence`](crate::Fence) among the request's extensions. The lock is released when the
/// service has answered, before the response is given out. With [`until_sent`](Self::until_sent) it
/// is released when the response's body has been sent. It is also released when the client
/// disconnects, which drops the service's future, and when the service panics or returns an error.
///
/// A request that does not get the lock in time gets 409 Conflict, or 429 with
/// [`too_many_requests`](Self::too_many_requests). If the database fails, the request gets 503.
/// These responses have `Retry-After` and a problem body (RFC 9457) with `title`, `status`,
/// `detail`, and `resource` and `action` unless empty. Responses and errors of the service itself
/// are passed on.
///
/// **The name must be the one that the service uses**, not the text of the path: `/albums/7`,
/// `/albums/07` and `/albums/%37` may be one album. Decode and parse the path as the service does;
/// see `examples/src/bin/exclusive.rs`.
///
/// A waiting request polls, as [`Locks::lock`] does. The layered service is always ready. The inner
/// service's readiness is awaited under the lock, so that a waiting request takes no permit of an
/// inner limit.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ExclusiveLayer {
    locks: Locks,
    name: Arc<dyn Fn(&Parts) -> LockName + Send + Sync>,
    wait: Duration,
    action: Arc<str>,
    refusal: StatusCode,
    cancels: bool,
    until_sent: bool,
}

impl ExclusiveLayer {
    /// Returns a layer for these locks. `name` returns the name of a request's lock.
    pub fn new(locks: &Locks, name: impl Fn(&Parts) -> LockName + Send + Sync + 'static) -> Self {
        Self {
            locks: locks.clone(),
            name: Arc::new(name),
            wait: EXCLUSIVE_WAIT,
            action: Arc::from(""),
            refusal: StatusCode::CONFLICT,
            cancels: false,
            until_sent: false,
        }
    }

    /// Sets the time that a request waits for the lock. Default: 5 s. Zero means a single try.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Sets the route's purpose, which a refused client and [`Locks::inspect`] see. At most 100
    /// bytes are stored.
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into().into();
        self
    }

    /// Refuses by 429 Too Many Requests, where it is by 409 Conflict otherwise.
    pub fn too_many_requests(mut self) -> Self {
        self.refusal = StatusCode::TOO_MANY_REQUESTS;
        self
    }

    /// Cancels the service when the lease is [lost](crate::Lease::lost). The service's
    /// future is dropped at its next `await`, and the answer is 500. A body that is being sent is
    /// not cut off.
    ///
    /// By default, the service finishes, with a warning in the log. The
    /// [`Fence`](crate::Fence) can refuse late writes.
    pub fn cancel_when_lost(mut self) -> Self {
        self.cancels = true;
        self
    }

    /// Holds the lock until the response's body has been sent or dropped, for a service that works
    /// while it streams. A slow client holds the lock as long as the server permits.
    pub fn until_sent(mut self) -> Self {
        self.until_sent = true;
        self
    }
}

impl<S> Layer<S> for ExclusiveLayer {
    type Service = ExclusiveService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ExclusiveService::new(inner, self.clone())
    }
}

impl fmt::Debug for ExclusiveLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExclusiveLayer")
            .field("wait", &self.wait)
            .field("action", &self.action)
            .finish_non_exhaustive()
    }
}
