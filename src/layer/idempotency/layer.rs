//! The layer of requests that clients may repeat, and that run once.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::request::Parts;
use tower_layer::Layer;

use super::IdempotencyService;
use crate::{lock::Locks, policy::DAY, resource::Pruner};

/// Runs a request once in all processes together, however often a client sends the request with the
/// same `Idempotency-Key`; from [`Locks::idempotency`].
///
/// The layer follows draft-ietf-httpapi-idempotency-key-header-07 for POST and PATCH. Other methods
/// pass straight through. The client chooses a key, a UUID say, for each thing to be done. A key
/// has at most 255 bytes.
///
/// | a request | is answered by |
/// |---|---|
/// | with a new key | the service; the response is stored, unless it is a 409, 429 or 503 with `Retry-After`, by which the service says that it has done nothing: then a repeat runs |
/// | that was done | the stored response, with `Idempotency-Replayed: true` |
/// | that is being done | 409 Conflict with `Retry-After` |
/// | with the key of another caller, or of a request with another query, `Content-Type` or body | 422 Unprocessable Content |
/// | that was begun, and whose outcome is unknown | 409 Conflict |
/// | that was done, and whose response is not stored: it was too large, broke off, or the database refused it | 409 Conflict |
/// | without a key | 400 Bad Request; with [`optional`](Self::optional) the request passes |
/// | with an empty key, a key that is too long, or two keys | 400 Bad Request |
/// | whose body breaks off, or is larger than [`max_body`](Self::max_body) | 400 Bad Request, 413 Content Too Large: nothing is done |
/// | whose response breaks off | 500: the request was done |
///
/// The layer's own responses have a problem body (RFC 9457). While the database fails the response
/// is 503, and nothing is done. When the runtime shuts down the response is 503, too, and the
/// outcome is unknown.
///
/// # Callers
///
/// A key belongs to one path, one host and one caller, so that no caller gets another caller's
/// response. If an outer layer knows the callers, set [`scope`](Self::scope).
///
/// Without a scope, the credentials identify the caller: `Authorization`, `Cookie`, the public key
/// of a `DPoP` proof, and headers with a word such as `account`, `auth`, `cert`, `client`, `email`,
/// `token` or `user` in the name, except `User-Agent`, `Idempotency-Key`, `Sec-…` headers, and
/// names such as `X-Client-IP` or `Client-Request-Id`. A repeat with other credentials, for example
/// with a changed cookie, is refused by 422. Callers that differ only in something else, such as
/// their address, count as one caller: these sites need a scope. A layer without a scope logs a
/// warning once.
///
/// # Crashes
///
/// The service runs in a task of its own: a client that disconnects cancels nothing, and gets the
/// response when the client repeats the request. While the service runs, a lease is held.
/// Afterwards one statement stores the response, or, if the response cannot be stored, a note
/// without one. The stored row means that the request was done.
///
/// The outcome is unknown if the process dies in between, or if the service panics or returns an
/// error. Repeats are then answered as in progress until the lease has expired, and refused for at
/// least 90 days. An operator who has found out that the request was not done lets the request run
/// by [`break_lock`](Locks::break_lock) on `LockName::of(LockKind::Request, [scope, path, key])`,
/// with an empty scope where no scope is set. The log has that name, too. Where running twice is
/// better than not running, use [`run_again_after_crash`](Self::run_again_after_crash).
///
/// A request is as durable as the database. A database that loses its last commits when the power
/// fails (SQLite with `synchronous = NORMAL`, as [`Perennial::open`](crate::Perennial::open) has
/// it) forgets the latest requests.
///
/// # While the database is away
///
/// A response that cannot be stored is returned to its client. The process tries to store the
/// response for ten minutes, at least every two seconds, and extends the lease. While the database
/// is away, repeats get 503. When the database is back before the lease has expired, repeats are
/// told to ask again, until the response is stored. When it is back later, repeats are told that
/// the outcome is unknown, until the response is stored some seconds later. If the database refuses
/// a response, because of its size say, the response is dropped, and repeats are told that the
/// request was done.
///
/// A [shutdown](crate::Perennial::shutdown) waits until the responses of finished requests are
/// stored, for half a minute at most with the default statement timeout. The lock of a request that
/// ran is released only after its response or note is stored. Without a stored row the lock expires
/// instead, and the outcome counts as unknown.
///
/// # Order of layers
///
/// The layer stores the responses of inner layers, too, such as a 401 or a 504. So authentication
/// belongs outside. A timeout belongs inside, as no outer layer cancels a request that runs. An
/// [`ExclusiveLayer`](crate::locks::ExclusiveLayer) belongs inside, so that repeats do not wait for
/// its lock; its refusals are not stored.
///
/// Bodies of requests and responses are held in memory, up to [`max_body`](Self::max_body).
/// Trailers are not passed on. A form that a browser sends as `multipart/form-data` is a new
/// request each time, by its boundary.
///
/// Expired responses are removed once a day, when a request comes.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct IdempotencyLayer {
    pub(super) locks: Locks,
    pub(super) pruner: Arc<Pruner>,
    pub(super) scope: Option<Arc<Scope>>,
    pub(super) optional: bool,
    pub(super) lifetime: Duration,
    pub(super) max_body: usize,
    pub(super) run_again: bool,
    /// The warning about the missing scope has been logged.
    pub(super) warned: Arc<AtomicBool>,
}

pub(super) type Scope = dyn Fn(&Parts) -> Option<String> + Send + Sync;

impl Locks {
    /// Returns a layer that runs a request once, however often the request is sent: a payment, an
    /// order.
    ///
    /// ```
    /// # use axum::{Router, routing::post};
    /// # async fn pay() {}
    /// # fn f(site: perennial::Perennial) -> Router {
    /// Router::new().route("/pay", post(pay).layer(site.locks().idempotency()))
    /// # }
    /// ```
    pub fn idempotency(&self) -> IdempotencyLayer {
        IdempotencyLayer::new(self)
    }
}

impl IdempotencyLayer {
    /// Returns a layer, as [`Locks::idempotency`] does.
    pub fn new(locks: &Locks) -> Self {
        Self {
            pruner: Arc::new(Pruner::new(locks.clone())),
            locks: locks.clone(),
            scope: None,
            optional: false,
            lifetime: DAY,
            max_body: 1 << 20,
            run_again: false,
            warned: Arc::default(),
        }
    }

    /// Identifies the caller, as an outer layer has found out. The keys of two callers are two
    /// keys, and a caller may repeat a request with another token or other cookies. `None`: the
    /// credentials identify the caller. Default: the credentials.
    ///
    /// The host counts beside the scope: a repeat at another host is refused by 422.
    ///
    /// ```
    /// # #[derive(Clone)]
    /// # struct User { id: String }
    /// # fn f(site: perennial::Perennial) {
    /// let once = site.locks().idempotency().scope(|parts| {
    ///     let user = parts.extensions.get::<User>();
    ///     user.map(|user| user.id.clone())
    /// });
    /// # }
    /// ```
    pub fn scope(
        mut self,
        caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.scope = Some(Arc::new(caller));
        self
    }

    /// Passes requests without a key on to the service each time. Default: a request without a key
    /// is refused by 400.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Sets the time for which a response is stored and replayed. Default: a day. After that the key
    /// is new.
    ///
    /// # Panics
    ///
    /// Panics at zero.
    pub fn lifetime(mut self, time: Duration) -> Self {
        assert!(!time.is_zero(), "without a lifetime each repeat would run");
        self.lifetime = time;
        self
    }

    /// Sets the size of the largest body, in bytes. Default: 1 MiB. A larger request is refused by
    /// 413. A larger response is passed on and not stored, and its repeats get 409.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Runs a request for a second time if its outcome is unknown, as soon as its lease has expired
    /// and a repeat arrives. The request then runs at least once, and not at most once. A process
    /// that still tries to store the first response gives up.
    pub fn run_again_after_crash(mut self) -> Self {
        self.run_again = true;
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, self.clone())
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("optional", &self.optional)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}
