//! The layer of requests that clients may repeat, and that run once.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, request::Parts};
use perennial_store::{Begin, Begun, Error, Forget, LockName, Locks, PruneRequests, timing::PRUNE};
use tokio::time::Instant;
use tower::Layer;

use crate::{IdempotencyService, Scope, key::key_of, timing::REQUEST_RUNS};

const DAY: Duration = Duration::from_hours(24);

const NO_KEY: &str = "the `Idempotency-Key` is missing: send a new UUID for each new request";
const NO_CALLER: &str = "the caller of this request is not known, so its `Idempotency-Key` belongs to nobody: log in first";

/// Runs a request once in all processes together, however often a client sends the request with the
/// same `Idempotency-Key`.
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
/// | with the key of a request with another method, host, path, query, `Content-Type` or body | 422 Unprocessable Content |
/// | that was begun, and whose outcome is unknown | 409 Conflict, without `Retry-After` |
/// | that was done, and whose response is not stored: it was too large, broke off, or the database refused it | 409 Conflict |
/// | without a key | 400 Bad Request; with [`optional`](Self::optional) the request passes |
/// | with an empty key, a key that is too long, or two keys | 400 Bad Request |
/// | whose caller has no [`Scope`] | 400 Bad Request |
/// | whose body breaks off, or is larger than [`max_body`](Self::max_body) | 400 Bad Request, 413 Content Too Large: nothing is done |
/// | whose response breaks off | 500: the request was done |
///
/// The layer's own responses have a problem body (RFC 9457). While the database fails the response
/// is 503, and nothing is done. When the runtime shuts down the response is 503, too, and the
/// outcome is unknown.
///
/// # Callers
///
/// A key belongs to a [`Scope`]: a user, whom an outer layer has found out, or the public. Keys of
/// two scopes are two keys. A user may repeat a request with another token or other cookies. All
/// routes of a site share the keys: a key that is sent to another path is refused by 422.
///
/// # Crashes and slow services
///
/// The service runs in a task of its own: a client that disconnects cancels nothing, and gets the
/// response when the client repeats the request. A row is inserted before the service is called,
/// and one statement stores the response in the row afterwards, or, if the response cannot be
/// stored, a note without one.
///
/// The outcome stays unknown if the process dies in between, or if the service panics or returns an
/// error. A request that has no response counts as running for a minute
/// ([`unknown_after`](Self::unknown_after)), and as unknown afterwards. Nothing is cancelled at that
/// time: when a slow service answers later, its response is stored, and repeats get it. An unknown
/// request does not run again for at least 90 days. An operator who has found out that the request
/// was not done lets the request run by [`forget`](Self::forget). Where running twice is better than
/// not running, use [`run_again_after`](Self::run_again_after).
///
/// If the reply to the insertion is lost, the layer repeats the insertion with the same owner. If
/// that fails, too, the client gets 503, and the layer removes the row six times in the next quarter
/// of an hour. Within that time a request that never ran may count as unknown.
///
/// Times are by the database's clock. A request is as durable as the database. A database that loses
/// its last commits when the power fails (SQLite with `synchronous = NORMAL`, as
/// `Perennial::open` has it) forgets the latest requests.
///
/// # While the database is away
///
/// A response that cannot be stored is returned to its client. The process tries to store the
/// response for ten minutes, at least every two seconds. While the database is away, repeats get
/// 503. When the database is back, repeats are told that the request is being done, or after
/// `unknown_after` that its outcome is unknown, until the response is stored some seconds later. If
/// the database refuses a response, because of its size say, the response is dropped, and repeats
/// are told that the request was done.
///
/// A [shutdown](Locks::shutdown) waits until the responses of finished requests are
/// stored, for half a minute at most with the default statement timeout.
///
/// # Order of layers
///
/// The layer stores the responses of inner layers, too, such as a 401 or a 504. So authentication
/// belongs outside. A timeout belongs inside, as no outer layer cancels a request that runs. An
/// `ExclusiveLayer` of perennial-jobs belongs inside, so that repeats do not wait for
/// its lock; its refusals are not stored.
///
/// Bodies of requests and responses are held in memory, up to [`max_body`](Self::max_body).
/// Trailers are not passed on. A form that a browser sends as `multipart/form-data` is a new
/// request each time, by its boundary.
///
/// Expired responses are removed in one process a day, when a request comes.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct IdempotencyLayer {
    pub(super) locks: Locks,
    pub(super) scope: Arc<ScopeOf>,
    pub(super) optional: bool,
    pub(super) lifetime: Duration,
    pub(super) max_body: usize,
    pub(super) unknown_after: Duration,
    pub(super) run_again: Option<Duration>,
    /// The time of this process's next attempt to prune.
    prunes: Arc<Mutex<Instant>>,
}

type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

impl IdempotencyLayer {
    /// Returns a layer that keeps its rows beside these locks. `scope` returns the user to whom a
    /// request's key belongs; `None`: the request is refused by 400. The lease, the label and the
    /// other settings of the locks have no effect.
    pub fn new(
        locks: &Locks,
        scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Self {
        Self {
            locks: locks.clone(),
            scope: Arc::new(scope),
            optional: false,
            lifetime: DAY,
            max_body: 1 << 20,
            unknown_after: REQUEST_RUNS,
            run_again: None,
            prunes: Arc::new(Mutex::new(Instant::now())),
        }
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

    /// Sets the time after which a request without a response counts as unknown, and no longer as
    /// running. Default: 60 s. Nothing is cancelled: a response that comes later is stored. With
    /// [`run_again_after`](Self::run_again_after) that time replaces this one.
    pub fn unknown_after(mut self, time: Duration) -> Self {
        self.unknown_after = time;
        self
    }

    /// Runs a request again that was begun `time` ago and has no response, when a repeat arrives.
    /// Default: such a request does not run again.
    ///
    /// The request then runs at least once, and not at most once: **a service that takes longer than
    /// `time` runs twice**, as nothing tells a slow process from a dead one. The response of the
    /// later run is stored, and the response of the earlier run goes to its own client only.
    ///
    /// # Panics
    ///
    /// Panics at zero.
    pub fn run_again_after(mut self, time: Duration) -> Self {
        assert!(!time.is_zero(), "each repeat would run");
        self.run_again = Some(time);
        self
    }

    /// Lets a request run again whose outcome is unknown, for an operator who has found out that
    /// the request was not done. Returns false if there is no such request, or if it was done.
    ///
    /// A request whose service still runs would run twice.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn forget(&self, scope: &Scope, key: &str) -> Result<bool, Error> {
        let forget = Forget::new(Self::row(scope, key), None);
        self.locks.store().call(forget).await
    }

    /// Returns the name of a request's row. `None`: the request passes straight through. The error
    /// tells the client a valid request.
    pub(super) fn row_of(&self, parts: &Parts) -> Result<Option<String>, &'static str> {
        if !matches!(parts.method, Method::POST | Method::PATCH) {
            return Ok(None);
        }
        let key = match key_of(&parts.headers)? {
            Some(key) => key,
            None if self.optional => return Ok(None),
            None => return Err(NO_KEY),
        };
        let scope = (self.scope)(parts).ok_or(NO_CALLER)?;
        let name = Self::row(&scope, &key);
        let outer = parts.extensions.get::<ServedUnder>();
        Ok((outer.is_none_or(|outer| outer.0 != name)).then_some(name))
    }

    fn row(scope: &Scope, key: &str) -> String {
        LockName::from([&scope.0, key]).as_str().to_owned()
    }

    /// Removes the rows whose retention is over, in the background. The pruning itself is a request,
    /// whose row lasts for a day: the process that begins it prunes.
    pub(super) fn prune(&self) {
        const MOST: u32 = 500;

        let now = Instant::now();
        let mut next = self.prunes.lock().unwrap_or_else(PoisonError::into_inner);
        if now < *next {
            return;
        }
        *next = now + PRUNE / 24;
        let store = self.locks.store().clone();
        let begin = Begin::new("prune", self.locks.owner(), "", PRUNE, PRUNE, None);
        tokio::spawn(async move {
            // The store logs a failure. The next day's pruning removes the rest.
            if let Ok(Begun::Own) = store.call(begin).await {
                while store.call(PruneRequests::new(MOST)).await.ok() == Some(u64::from(MOST)) {}
            }
        });
    }
}

/// The name of the row of a request that is being served, in the request's extensions. An inner
/// layer of this kind that computes the same name would find its own request running, and therefore
/// lets the request pass.
#[derive(Clone)]
pub(super) struct ServedUnder(pub(super) String);

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, self.clone())
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").finish_non_exhaustive()
    }
}
