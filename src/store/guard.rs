//! The one way to the store: every call has a time limit, and a failure is logged once.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    error::Error,
    store::{Store, StoreFuture},
};

#[derive(Clone)]
pub(crate) struct Guarded(Arc<Inner>);

struct Inner {
    store: Box<dyn Store>,
    limit: Duration,
    /// The steps whose latest call failed.
    failing: Mutex<BTreeSet<&'static str>>,
}

impl Guarded {
    pub(crate) fn new(store: Box<dyn Store>, limit: Duration) -> Self {
        Self(Arc::new(Inner {
            store,
            limit,
            failing: Mutex::default(),
        }))
    }

    /// Makes one call; `step` says what it is for, in errors and in the log.
    pub(crate) async fn call<'a, T>(
        &'a self,
        step: &'static str,
        call: impl FnOnce(&'a dyn Store) -> StoreFuture<'a, T>,
    ) -> Result<T, Error> {
        let limit = self.0.limit;
        let result = match tokio::time::timeout(limit, call(&*self.0.store)).await {
            Ok(answer) => answer.map_err(|source| Error::database(step, source)),
            Err(_) => Err(Error::timeout(step, limit)),
        };
        self.note(step, result.as_ref().err());
        result
    }

    fn note(&self, step: &'static str, error: Option<&Error>) {
        let mut failing = self
            .0
            .failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) if failing.insert(step) => tracing::error!(
                %error,
                "the database fails; pages in memory go on being served (said once until it works again)"
            ),
            Some(error) => tracing::debug!(%error, "the database still fails"),
            None if failing.remove(step) => tracing::info!(step, "the database works again"),
            None => {}
        }
    }
}
