//! The layer of routes that run once at a time.

use std::{fmt, sync::Arc, time::Duration};

use http::{StatusCode, request::Parts};
use tower_layer::Layer;

use super::ExclusiveService;
use crate::{
    locks::{LockName, Locks},
    timing::EXCLUSIVE_WAIT,
};

/// Lets the service run once at a time for each name, in all processes together; from [`Locks::exclusive`].
///
/// The service is called when the lock of the request's name is held, with its [`Fence`](crate::Fence) among the request's extensions. The
/// lock is released when the service has answered, before the response is given out ([`until_sent`](Self::until_sent): when its body has been sent);
/// and when the client has gone, which drops the service's future, or the service panics.
///
/// A request that does not get the lock in time is answered by 409 Conflict ([`too_many_requests`](Self::too_many_requests): 429), and one for which
/// the database fails by 503, with a body that says so (RFC 9457: `title`, `status`, `detail`, `resource`, `action`) and `Retry-After`. The
/// service's own errors are passed on.
///
/// **The name must be what the service goes by**, not how a visitor writes it: `/albums/7`, `/albums/07` and `/albums/%37` may be one album, and have three paths. So
/// decode and parse what of the path makes the name, as the service does; see `examples/exclusive.rs`.
///
/// While it waits it polls, as [`Locks::lock`] does. The layered service is always ready; the inner one's readiness is awaited under the
/// lock, so that who waits takes no permit of a limit beneath.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ExclusiveLayer {
    pub(super) locks: Locks,
    pub(super) name: Arc<dyn Fn(&Parts) -> LockName + Send + Sync>,
    pub(super) wait: Duration,
    pub(super) action: Arc<str>,
    pub(super) refusal: StatusCode,
    pub(super) cancels: bool,
    pub(super) until_sent: bool,
}

impl Locks {
    /// A layer for routes that are to run once at a time for each name: uploads to one album, syncs of one customer's. They take the lock of that name,
    /// as any other program may.
    ///
    /// ```
    /// # use axum::{Router, routing::post};
    /// # async fn sync() {}
    /// # #[derive(Clone)]
    /// # struct Customer { id: String }
    /// # fn f(site: perennial::Perennial) -> Router {
    /// use std::time::Duration;
    ///
    /// let one_device = site
    ///     .locks()
    ///     .lease(Duration::from_secs(30))
    ///     .exclusive(|parts| {
    ///         // As an outer layer has found out.
    ///         let customer = parts.extensions.get::<Customer>();
    ///         ["sync", customer.map_or("", |customer| &customer.id)].into()
    ///     })
    ///     .wait(Duration::from_secs(5))
    ///     .action("sync");
    /// Router::new().route("/sync", post(sync).layer(one_device))
    /// # }
    /// ```
    pub fn exclusive(
        &self,
        name: impl Fn(&http::request::Parts) -> LockName + Send + Sync + 'static,
    ) -> ExclusiveLayer {
        ExclusiveLayer {
            locks: self.clone(),
            name: Arc::new(name),
            wait: EXCLUSIVE_WAIT,
            action: Arc::from(""),
            refusal: StatusCode::CONFLICT,
            cancels: false,
            until_sent: false,
        }
    }
}

impl ExclusiveLayer {
    /// How long a request waits for the lock. Default: 5 s. With zero it is tried once.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// What the route does, as clients are told who don't get the lock, and whoever inspects it; the first 100 bytes count.
    pub fn action(mut self, action: &str) -> Self {
        self.action = action.into();
        self
    }

    /// Refuses by 429 Too Many Requests, where it is by 409 Conflict otherwise.
    pub fn too_many_requests(mut self) -> Self {
        self.refusal = StatusCode::TOO_MANY_REQUESTS;
        self
    }

    /// Cancels the service when the lease is [lost](crate::Lease::lost) while it runs: its future is dropped at its next `await`, and
    /// the answer is a 500. (What has been answered goes on: a body that is being sent is not cut off.) Otherwise it is let finish, with a warning in the log; what it may not write any more, the [`Fence`](crate::Fence) can refuse.
    pub fn cancel_when_lost(mut self) -> Self {
        self.cancels = true;
        self
    }

    /// Holds the lock until the body of the response has been sent, or dropped: for a service that still works while it streams. A client that reads
    /// slowly holds it for as long as the server lets it.
    pub fn until_sent(mut self) -> Self {
        self.until_sent = true;
        self
    }
}

impl<S> Layer<S> for ExclusiveLayer {
    type Service = ExclusiveService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ExclusiveService {
            inner,
            layer: self.clone(),
        }
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
