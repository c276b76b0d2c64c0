//! The one way to the store: every call has a time limit, and a failure is logged once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    error::{Error, with_causes},
    event::{Event, Observer},
    store::{Backend, Step, lost::LostReplies},
    timing::{FAILURE_COUNTS, RECHECK, within},
};

#[derive(Clone)]
pub(crate) struct Store(pub(super) Arc<Inner>);

pub(super) struct Inner {
    backend: Box<dyn Backend>,
    limit: Duration,
    patience: Duration,
    /// The prefix of the tables' names, if the store has tables.
    #[cfg_attr(not(feature = "_sql"), allow(dead_code))]
    prefix: Option<String>,
    /// The steps whose latest call failed, and when.
    failing: Mutex<BTreeMap<&'static str, Instant>>,
    /// The time of the latest read by a request while the database is known to keep requests
    /// waiting; `None`: it is not.
    unread: Mutex<Option<Instant>>,
    observer: Observer,
    pub(super) lost: LostReplies,
}

impl Store {
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        limit: Duration,
        patience: Duration,
        prefix: Option<String>,
    ) -> Self {
        Self(Arc::new(Inner {
            backend,
            limit,
            patience,
            prefix,
            failing: Mutex::default(),
            unread: Mutex::default(),
            observer: Observer::default(),
            lost: LostReplies::default(),
        }))
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.0.observer
    }

    /// Returns the prefix of the tables' names.
    #[cfg(feature = "_sql")]
    pub(crate) fn prefix(&self) -> Result<&str, Error> {
        self.0.prefix.as_deref().ok_or_else(|| {
            Error::invalid("the site is open in memory: only SQL databases have transactions")
        })
    }

    pub(crate) fn limit(&self) -> Duration {
        self.0.limit
    }

    /// The longest wait of a request that can be answered without the database.
    pub(crate) fn patience(&self) -> Duration {
        self.0.patience
    }

    /// Runs a step in the database with the statement timeout.
    pub(crate) async fn limited<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = Result<T, crate::error::BoxError>>,
    ) -> Result<T, Error> {
        let answer = within(self.0.limit, step, work).await?;
        answer.map_err(|source| Error::step(step, source))
    }

    /// Makes a call.
    pub(crate) async fn call<S: Step>(&self, step: S) -> Result<S::Answer, Error> {
        let since = Instant::now();
        let result = self.limited(S::NAME, self.0.backend.ask(step)).await;
        self.observer()
            .step(S::NAME, since.elapsed(), result.is_ok());
        self.note(S::NAME, result.as_ref().err());
        result
    }

    /// Reads for a request, as [`call`](Self::call) does. While the database is known to keep
    /// requests waiting until they fail, one request a second tries, and the others get an error at
    /// once.
    pub(crate) async fn read<S: Step>(&self, step: S) -> Result<S::Answer, Error> {
        if let Some(tried) = &mut *self.unread() {
            let now = Instant::now();
            if now < *tried + RECHECK {
                return Err(Error::step(S::NAME, "it failed a moment ago"));
            }
            *tried = now;
        }
        let since = Instant::now();
        let result = self.call(step).await;
        self.has_read(since, result.is_ok());
        result
    }

    /// Records whether the database answers reads, one of which began at `since`. A failure that
    /// comes soon keeps nobody waiting.
    pub(crate) fn has_read(&self, since: Instant, answered: bool) {
        let mut unread = self.unread();
        if answered {
            *unread = None;
        } else if since.elapsed() > self.0.patience {
            unread.get_or_insert_with(Instant::now);
        }
    }

    /// Returns true if the database is known to keep requests waiting.
    pub(crate) fn fails(&self) -> bool {
        self.unread().is_some()
    }

    fn unread(&self) -> MutexGuard<'_, Option<Instant>> {
        let unread = &self.0.unread;
        unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the latest call of each step succeeded, or failed long before a later
    /// success of another step.
    pub(crate) fn is_available(&self) -> bool {
        self.failing().is_empty()
    }

    fn failing(&self) -> MutexGuard<'_, BTreeMap<&'static str, Instant>> {
        let failing = &self.0.failing;
        failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, step: &'static str, error: Option<&Error>) {
        let mut failing = self.failing();
        match error {
            Some(error) => match failing.insert(step, Instant::now()) {
                None => self.observer().emit(Event::DatabaseAway {
                    step,
                    error: with_causes(error).into(),
                }),
                Some(_) => {
                    let error = with_causes(error);
                    tracing::debug!(target: "perennial::database", error, "the database still fails");
                }
            },
            None => failing.retain(|failed, at| {
                let stays = *failed != step && at.elapsed() < FAILURE_COUNTS;
                if !stays {
                    self.observer().emit(Event::DatabaseBack { step: failed });
                }
                stays
            }),
        }
        #[cfg(feature = "metrics")]
        crate::event::metrics::database_works(failing.is_empty());
    }
}
