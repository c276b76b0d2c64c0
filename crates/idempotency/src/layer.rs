//! The settings of the layer, and the state that its services share: the names of the rows, when rows were last
//! pruned, and which requests with an unknown outcome have been logged. The service is in
//! [`service`](super::service).

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, request::Parts};
use perennial_store::{Begin, Begun, Error, Forget, LockName, Locks, PruneRequests, locked};
use tokio::time::Instant;
use tower::Layer;

use crate::{
    IdempotencyService, Scope,
    key::key_of,
    timing::{RUNNING_LIMIT, UNKNOWN_OUTCOME_LOG_INTERVAL},
};

const DAY: Duration = Duration::from_hours(24);

const NO_KEY: &str = "The `Idempotency-Key` is missing. Send a new UUID for each new request.";
const NO_CALLER: &str = "The caller of this request is not known, so its `Idempotency-Key` belongs to nobody. Log in first.";

/// Runs a POST or PATCH once across all processes, however often a client sends it with the same
/// `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07).
///
/// A repeat gets the stored response, with `Idempotency-Replayed: true`; 409, if the request is running, its
/// outcome is unknown or its response could not be stored; or 422, if the request differs. If the service
/// itself has answered with a 409, 429 or 503 and `Retry-After`, a repeat runs it again. The
/// [guide](https://docs.rs/perennial/latest/perennial/guide/idempotency) has all cases. The layer's own
/// responses have a problem body (RFC 9457).
///
/// The service runs in a task of its own: a client that disconnects cancels nothing. The outcome is unknown
/// after a minute without a response ([`unknown_after`](Self::unknown_after)), and also when the process dies,
/// or the service panics or returns an error; a later response is stored all the same. Requests whose outcome
/// is unknown are kept for 90 days.
///
/// Put authentication outside of this layer, because the layer stores a 401, too. Put a timeout inside, because
/// no outer layer cancels a request. Bodies are held in memory, without trailers. A form of the type
/// `multipart/form-data` has a new boundary each time, so its repeat gets 422.
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
    logged: Arc<Mutex<LoggedOutcomes>>,
}

/// The requests whose unknown outcome was logged lately.
struct LoggedOutcomes {
    names: HashSet<String>,
    /// The time at which they may be logged again.
    until: Instant,
}

type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

impl IdempotencyLayer {
    /// Returns a layer that stores its requests in the database of these locks. `scope` says to whom a request's key
    /// belongs. If it returns `None`, the request gets a 400.
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
            unknown_after: RUNNING_LIMIT,
            run_again: None,
            prunes: Arc::new(Mutex::new(Instant::now())),
            logged: Arc::new(Mutex::new(LoggedOutcomes {
                names: HashSet::new(),
                until: Instant::now(),
            })),
        }
    }

    /// Returns true if the unknown outcome of this request is to be logged: once a minute, as a client may
    /// repeat the request at any rate, and for a hundred requests a minute at most.
    pub(super) fn logs_unknown_outcome(&self, name: &str) -> bool {
        let (mut logged, now) = (locked(&self.logged), Instant::now());
        if now >= logged.until {
            logged.names.clear();
            logged.until = now + UNKNOWN_OUTCOME_LOG_INTERVAL;
        }
        logged.names.len() < 100 && logged.names.insert(name.to_owned())
    }

    /// Lets requests without a key reach the service each time. Default: they get a 400.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Sets how long a response is stored for repeats. After that, the key counts as new. Default: a day.
    ///
    /// # Panics
    ///
    /// Panics at zero.
    pub fn lifetime(mut self, time: Duration) -> Self {
        assert!(!time.is_zero(), "without a lifetime each repeat would run");
        self.lifetime = time;
        self
    }

    /// Sets the size of the largest body, in bytes. Default: 1 MiB. A larger request gets a 413. A larger response is
    /// passed on without being stored, and a repeat of its request gets a 409.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Sets the time after which the outcome of a request without a response counts as unknown. Until then it
    /// counts as running. Default: 60 s. The request is not cancelled. This has no effect together with
    /// [`run_again_after`](Self::run_again_after).
    pub fn unknown_after(mut self, time: Duration) -> Self {
        self.unknown_after = time;
        self
    }

    /// Lets a repeat run the request again if the first one was begun longer ago than `time` and has no response.
    /// Default: it never runs again. **A service that takes longer than `time` runs twice.**
    ///
    /// # Panics
    ///
    /// Panics at zero.
    pub fn run_again_after(mut self, time: Duration) -> Self {
        assert!(!time.is_zero(), "each repeat would run");
        self.run_again = Some(time);
        self
    }

    /// Allows a request to run again if nobody knows whether it was done. Make sure first that it was not done,
    /// and that its service is no longer running. Returns false if there is no such request, or if it was done.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn forget(&self, scope: &Scope, key: &str) -> Result<bool, Error> {
        let forget = Forget::new(Self::row(scope, key), None);
        self.locks.store().call(forget).await
    }

    /// Returns the name of a request's row. `None` means that the request passes straight through. The error
    /// tells the client what a valid request looks like.
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

    /// Removes the rows whose retention is over, in the background. One process a day does so: the
    /// one that can insert the row `prune`, which lasts for a day.
    pub(super) fn prune(&self) {
        const MAX_PRUNED: u32 = 500;

        let now = Instant::now();
        let mut next = locked(&self.prunes);
        if now < *next {
            return;
        }
        *next = now + DAY / 24;
        let store = self.locks.store().clone();
        let begin = Begin::new("prune", self.locks.owner(), "", DAY, DAY, None);
        tokio::spawn(async move {
            // The store logs a failure. The next day's pruning removes the rest.
            if let Ok(Begun::Own) = store.call(begin).await {
                while store.call(PruneRequests::new(MAX_PRUNED)).await.ok()
                    == Some(u64::from(MAX_PRUNED))
                {}
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
