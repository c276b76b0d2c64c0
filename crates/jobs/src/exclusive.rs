//! A layer for routes that may serve one request at a time, across all processes. Its settings are here, and
//! its service is in `exclusive/service.rs`.

mod service;

use std::{fmt, sync::Arc, time::Duration};

use http::{StatusCode, request::Parts};
use perennial_store::{LockName, Locks};
use tower::Layer;

use crate::timing::EXCLUSIVE_WAIT;

pub use service::ExclusiveService;

/// Lets the service handle one request at a time for each name, across all processes.
///
/// ```
/// # use axum::{Router, routing::post};
/// # async fn import() {}
/// # fn f(locks: perennial_jobs::Locks) -> Router {
/// use perennial_jobs::ExclusiveLayer;
///
/// let alone = ExclusiveLayer::new(&locks, |_| "import".into());
/// Router::new().route("/import", post(import).layer(alone))
/// # }
/// ```
///
/// The service finds the lease's [`Fence`](crate::Fence) in the request's extensions. The lock is released when
/// the service answers, panics or returns an error, or when the client disconnects. A request that does not get
/// the lock in time gets 409, or 503 if the database fails, with a problem body (RFC 9457). The problem names
/// the lock and the [action](Self::action) of the refused request. It does not name the holder, because a
/// holder's label contains the name of a machine. An operator can find out the holder by [`Locks::inspect`].
///
/// **The name must be the one that the service uses**, not the text of the path: `/albums/7`, `/albums/07` and
/// `/albums/%37` may be one album. A name occupies a row in the database until an hour after its last use.
///
/// The layered service is always ready. The inner service's readiness is awaited under the lock.
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
    /// Returns a layer with these locks. The function returns the name of the lock for a request: requests with the
    /// same name run one at a time.
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

    /// Sets how long a request waits for the lock before it is refused. Default: 5 s. With zero it does not wait.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Describes for people what the route does. The response to a client that is refused names the action that
    /// was not begun, and [`Locks::inspect`] shows what the holder of the lock is doing. The first 100 bytes
    /// are stored. Default: none.
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into().into();
        self
    }

    /// Refuses requests with 429 Too Many Requests. Default: 409 Conflict.
    pub fn too_many_requests(mut self) -> Self {
        self.refusal = StatusCode::TOO_MANY_REQUESTS;
        self
    }

    /// Cancels the service when the lease is [lost](crate::Lease::lost): its future is dropped at its next
    /// `await`, and the client gets a 500. Default: the service runs to its end, and a warning is logged.
    pub fn cancel_when_lost(mut self) -> Self {
        self.cancels = true;
        self
    }

    /// Holds the lock until the response's body has been sent or dropped, for a service that works
    /// while it streams.
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
