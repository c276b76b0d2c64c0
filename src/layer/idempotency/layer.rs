//! The layer of requests that may be sent twice and are to be done once.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::request::Parts;
use tower_layer::Layer;

use super::IdempotencyService;
use crate::{locks::Locks, policy::DAY, resource::Pruner};

/// Does a request once, however often it is sent with the same `Idempotency-Key`, in all processes together; from [`Locks::idempotency`].
///
/// As the draft of the IETF has it (draft-ietf-httpapi-idempotency-key-header-07), for POST and PATCH; other methods pass straight
/// through. The key is the client's own, new for each thing that it wants done, a UUID say, and not longer than 255 bytes.
///
/// | a request with a key | is answered by |
/// |---|---|
/// | that is new | the service, and its response is stored, whatever its status |
/// | that was done | the stored response, with `Idempotency-Replayed: true` |
/// | that is being done | 409 Conflict with `Retry-After` |
/// | that another request had, by its query, its `Content-Type` or its body, or another caller | 422 Unprocessable Content |
/// | whose request was begun, and nobody knows what came of it | 409 Conflict |
/// | that was done, but whose response could not be stored, as it was too large, broke off or was refused by the database | 409 Conflict |
/// | that is missing, empty, too long, or given twice | 400 Bad Request ([`optional`](Self::optional): a missing one passes) |
/// | whose body breaks off, or is larger than [`max_body`](Self::max_body) | 400 Bad Request, 413 Content Too Large: nothing is done |
/// | whose response breaks off | 500: it was done |
///
/// What is no response of the service's has a body that says so (RFC 9457). While the database fails the answer is 503, and nothing is done; so it is
/// when the runtime shuts down, and then nobody knows.
///
/// # Who is asking
///
/// A key counts for one path and one host, and for one caller as [`scope`](Self::scope) tells them apart: set it where you can. Without a scope, a request is another
/// one if its credentials are: `Authorization`, `Cookie` and all headers whose names say that they tell who is asking (with `account`, `auth`, `cert`, `client`, `email`, `token`, `user` and the like in
/// them; of a `DPoP` proof the public key counts). So nobody gets a response that was somebody else's, and a client whose cookies have changed since is refused by 422. Callers who are told apart by
/// something else, as an address, need a scope. A layer without a scope says so in the log, once.
///
/// # Crashes
///
/// The service runs in a task of its own: a client who disconnects cancels nothing, and gets the response when it asks again. A lock with a lease notes
/// before that the service runs; one statement notes afterwards that it has, with the response. If its process dies in between, or the service panics or returns an error (not a response), nobody knows whether it was done: repeats are told that it is being done until the
/// lease has expired, and then refused, for as long as the note is kept, 90 days at least. Who has found out that it was not done lets it be done by
/// [`break_lock`](Locks::break_lock), on `LockName::of(LockKind::Request, [scope, path, key])`, with an empty scope where none is set; the log has that name, too. Where doing it twice is better than not at all, see
/// [`run_again_after_crash`](Self::run_again_after_crash). All this is as durable as the database: one that loses its last commits when the power fails (SQLite with `synchronous = NORMAL`, as
/// [`Perennial::open`](crate::Perennial::open) has it) forgets what was done a moment before.
///
/// # While the database is away
///
/// A response that cannot be stored is returned to its client, and the process goes on trying to store it for ten minutes, every two seconds. The lease is extended meanwhile, so repeats are told to ask again. If the database is away for longer
/// than the lease, repeats are told that nobody knows, until the response is stored after all, within seconds after the database is back. A response that the database
/// refuses (it is larger than the server takes, say) is dropped, and repeats are told that the request was done. A [shutdown](crate::Perennial::shutdown) waits for responses to be stored, for half a minute at most
/// after their services have answered. The lock of a request whose service ran is never released before its note is stored, also if the database says that another process has taken the lock over.
///
/// # What is beneath, and what is not
///
/// All that the service answers is stored, a 401 or a 503 of a layer beneath as well. So authentication, limits of rate and load shedding belong outside this layer, and a timeout
/// beneath it, as nothing outside cancels what is being done. Bodies, of requests and of responses, are held in memory up to [`max_body`](Self::max_body); trailers are not passed on. A form that a browser sends as
/// `multipart/form-data` is another one each time, by its boundary.
///
/// With an [`ExclusiveLayer`](crate::layer::ExclusiveLayer) this one belongs outside, so that repeats don't wait for the lock.
///
/// Notes and responses stand in the tables of locks and of entries. Expired responses are removed once a day, when a request comes.
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
    /// A request has come without a scope being set, which is logged once.
    pub(super) warned: Arc<AtomicBool>,
}

pub(super) type Scope = dyn Fn(&Parts) -> Option<String> + Send + Sync;

impl Locks {
    /// A layer that does requests once, however often they are sent: a payment, an order.
    ///
    /// ```
    /// # use axum::{Router, routing::post};
    /// # async fn pay() {}
    /// # fn f(site: perennial::Perennial) -> Router {
    /// Router::new().route("/pay", post(pay).layer(site.locks().idempotency()))
    /// # }
    /// ```
    pub fn idempotency(&self) -> IdempotencyLayer {
        IdempotencyLayer::new(self.clone())
    }
}

impl IdempotencyLayer {
    fn new(locks: Locks) -> Self {
        Self {
            pruner: Arc::new(Pruner::new(locks.clone())),
            locks,
            scope: None,
            optional: false,
            lifetime: DAY,
            max_body: 1 << 20,
            run_again: false,
            warned: Arc::default(),
        }
    }

    /// Sets who is asking, as an outer layer has found out: keys of two callers are two keys, and a caller may come back with another token or
    /// other cookies. `None`: the caller is not known, and the credentials tell. Default: no scope, the credentials tell.
    ///
    /// The host counts beside the scope: a key that comes again to another host is refused by 422.
    ///
    /// ```
    /// # #[derive(Clone)]
    /// # struct User { id: String }
    /// # fn f(site: perennial::Perennial) {
    /// let once = site.idempotency().scope(|parts| {
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

    /// Lets requests without a key pass, which are then done as often as they are sent. Otherwise they are refused by 400.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// How long a response is kept, and a repeat given it. Default: a day. After that the key is new.
    pub fn lifetime(mut self, time: Duration) -> Self {
        self.lifetime = time;
        self
    }

    /// How large a body may be, in bytes. Default: 1 MiB. A larger request is refused by 413; a larger response is passed on and not stored, and repeats are
    /// told so.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Does again what was begun and of which nobody knows what has come, as soon as the lease has expired: it is done at least once then,
    /// and not at most once. A process that still tries to store the first response then gives that up.
    pub fn run_again_after_crash(mut self) -> Self {
        self.run_again = true;
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService {
            inner,
            layer: self.clone(),
        }
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
