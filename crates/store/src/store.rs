//! The handle of a store: every operation of `calls.rs` goes through [`Store::call`], which gives it a time
//! limit, reports its outcome, and remembers whether the database works.
//!
//! Invariant: no lock of this module is held while an event is reported, as its subscriber may call the site.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::{
    calls::{Backend, Operation},
    clock::micros,
    error::{Error, with_causes},
    locked,
    lost::LostReplies,
    sql::Tables,
    store_event::StoreEvent,
    timing::{FAILURE_MEMORY, RECHECK_INTERVAL, within},
};

/// A store whose operations have a time limit. The first failure of an operation is logged as an error, and
/// later ones at debug level until it succeeds. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    backend: Box<dyn Backend>,
    limit: Duration,
    patience: Duration,
    /// The store's tables, if it has some.
    tables: Option<Tables>,
    /// The operations whose latest call failed, and when.
    failing: Mutex<BTreeMap<&'static str, Instant>>,
    /// While reads fail slowly: the time at which a request last tried one. `None` means that reads are not
    /// known to fail slowly.
    unread: Mutex<Option<Instant>>,
    hook: Box<dyn Fn(&StoreEvent<'_>) + Send + Sync>,
    lost: LostReplies,
}

impl Store {
    /// Creates a store. `limit` is the time limit of an operation, and `patience` is the limit for operations
    /// that a request can do without (see [`patience`](Self::patience)). `hook` gets each event.
    pub fn new(
        backend: Box<dyn Backend>,
        limit: Duration,
        patience: Duration,
        tables: Option<Tables>,
        hook: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            backend,
            limit,
            patience,
            tables,
            failing: Mutex::default(),
            unread: Mutex::default(),
            hook: Box::new(hook),
            lost: LostReplies::default(),
        }))
    }

    /// Returns the tables.
    pub fn tables(&self) -> Result<&Tables, Error> {
        self.0.tables.as_ref().ok_or_else(|| {
            Error::invalid("the site is open in memory: only SQL databases have transactions")
        })
    }

    /// Returns the [number](Tables::id) of the site, or 0 if it has no tables, or they have not been found
    /// yet.
    pub fn site_id(&self) -> u64 {
        let tables = self.0.tables.as_ref();
        tables.and_then(Tables::id).unwrap_or_default()
    }

    /// Returns the time by the clock of this process, in microseconds since 1970.
    pub fn wall_clock(&self) -> i64 {
        let now = self.0.backend.wall_clock();
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        micros(since.unwrap_or_default())
    }

    /// Returns the time limit of an operation.
    pub fn limit(&self) -> Duration {
        self.0.limit
    }

    /// Returns the limit of `Builder::database_patience`.
    pub fn patience(&self) -> Duration {
        self.0.patience
    }

    /// Runs an operation in the database with the statement timeout.
    pub async fn limited<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, crate::error::BoxError>>,
    ) -> Result<T, Error> {
        let answer = within(self.0.limit, operation, work).await?;
        answer.map_err(|source| Error::operation(operation, source))
    }

    /// Carries out an operation.
    pub async fn call<O: Operation>(&self, operation: O) -> Result<O::Answer, Error> {
        let since = Instant::now();
        let result = self.limited(O::NAME, self.0.backend.ask(operation)).await;
        let works = self.record_outcome(O::NAME, result.as_ref().err());
        self.notify(&StoreEvent::Operation {
            operation: O::NAME,
            took: since.elapsed(),
            succeeded: result.is_ok(),
            works,
        });
        result
    }

    /// Runs an operation for a request that could also be answered without the database. While the database
    /// does not answer, so that such requests fail after a wait, only one request a second still tries the
    /// operation. All others get an error at once.
    pub async fn read<O: Operation>(&self, operation: O) -> Result<O::Answer, Error> {
        if let Some(tried) = &mut *locked(&self.0.unread) {
            let now = Instant::now();
            if now < *tried + RECHECK_INTERVAL {
                return Err(Error::failed_recently(O::NAME));
            }
            *tried = now;
        }
        let since = Instant::now();
        let result = self.call(operation).await;
        self.record_read(since, result.is_ok());
        result
    }

    /// Records whether the database answered a read that began at `since`.
    pub fn record_read(&self, since: Instant, answered: bool) {
        let mut unread = locked(&self.0.unread);
        if answered {
            *unread = None;
        } else if since.elapsed() > self.0.patience {
            unread.get_or_insert_with(Instant::now);
        }
    }

    /// Returns true if the database is currently not answering requests in time.
    pub fn is_failing(&self) -> bool {
        locked(&self.0.unread).is_some()
    }

    /// Returns true if the latest call of each kind succeeded. A failure no longer counts when a call
    /// of another kind has succeeded a minute or more after it.
    pub fn is_available(&self) -> bool {
        locked(&self.0.failing).is_empty()
    }

    /// Runs `operation` several times over the next quarter of an hour. `operation` undoes an earlier one whose
    /// reply was lost, and which the database may still execute late.
    pub fn undo<O: Operation + Clone + Send + 'static>(&self, operation: O) {
        let weak = Arc::downgrade(&self.0);
        self.0.lost.repeat(move || {
            let (store, operation) = (Store(weak.upgrade()?), operation.clone());
            Some(async move { store.call(operation).await.is_ok() })
        });
    }

    /// Logs an event, and passes it to the site.
    pub fn notify(&self, event: &StoreEvent<'_>) {
        event.log();
        (self.0.hook)(event);
    }

    /// Records the outcome of an operation. Returns true if no kind of operation is failing now.
    fn record_outcome(&self, operation: &'static str, error: Option<&Error>) -> bool {
        // Events are reported after the lock is released, because a subscriber may ask the site for its
        // statistics.
        let (mut back, mut is_known) = (Vec::new(), false);
        let works = {
            let mut failing = locked(&self.0.failing);
            match error {
                Some(_) => is_known = failing.insert(operation, Instant::now()).is_some(),
                None => failing.retain(|failed, at| {
                    let stays = *failed != operation && at.elapsed() < FAILURE_MEMORY;
                    if !stays {
                        back.push(*failed);
                    }
                    stays
                }),
            }
            failing.is_empty()
        };
        for operation in back {
            self.notify(&StoreEvent::DatabaseBack { operation });
        }
        if let Some(error) = error {
            let error = &*with_causes(error);
            if is_known {
                tracing::debug!(target: "perennial::database", error, "the database still fails");
            } else {
                self.notify(&StoreEvent::DatabaseUnavailable { operation, error });
            }
        }
        works
    }
}
