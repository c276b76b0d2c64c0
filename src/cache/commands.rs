//! The site's commands: invalidate and purge.
//!
//! Each command is stored for all processes first, and then carried out in this one. A command that has
//! returned successfully is in the database. The invalidation after a response goes on in a task of its own if
//! its caller leaves, and a shutdown waits for that task. Other commands stop when they are dropped.

use std::sync::Arc;

use perennial_store::{Epoch, Error, Invalidate, MAX_NAMES, Purge, error::with_causes};
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::{
    cache::{
        environment::Environment,
        invalidation::{UNKNOWN_EPOCH, record_write},
        invalidation_list::{InvalidationList, Target},
        listing::{Listing, entries::EntryFilter},
        memory::Memory,
    },
    event::Event,
    timing::{
        Backoff, INVALIDATE_PAUSES, INVALIDATE_RESPONSE_WAIT, INVALIDATE_RETRY_LIMIT,
        INVALIDATE_RETRY_LIMIT_AT_SHUTDOWN,
    },
};

/// The number of entries that a purge reads and removes at a time.
const PURGED_AT_ONCE: usize = 1000;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Commands {
    environment: Environment,
    memory: Arc<Memory>,
    listing: Listing,
}

impl Commands {
    pub(crate) fn new(environment: Environment, memory: Arc<Memory>, listing: Listing) -> Self {
        Self {
            environment,
            memory,
            listing,
        }
    }

    /// Stores an invalidation for all processes, and returns its epoch.
    pub(crate) async fn invalidate(&self, target: Target<'_>) -> Result<Epoch, Error> {
        self.store_names(&[target.name()?]).await
    }

    /// Stores the invalidations of these names. Logs at DEBUG if one of them applies to nothing in this
    /// process's memory, as the name may be misspelt.
    async fn store_names(&self, names: &[String]) -> Result<Epoch, Error> {
        let epoch = self.store_unreported(names).await?;
        for name in names {
            let event = Event::Invalidated {
                name: name.as_str().into(),
                epoch,
            };
            self.environment.observer.emit(event);
            // The check reads all of memory, and only somebody who reads the log at DEBUG has a use for it.
            if tracing::enabled!(tracing::Level::DEBUG) && !self.is_in_memory(name) {
                tracing::debug!(
                    name,
                    "the invalidation applies to nothing in this process's memory; the database and other processes may have such pages"
                );
            }
        }
        Ok(epoch)
    }

    /// Returns true if the invalidation of this name applies to any entry in memory.
    fn is_in_memory(&self, name: &str) -> bool {
        let alone = InvalidationList::new(None);
        alone.add(name, Epoch::MAX);
        self.memory.any(|meta| alone.applies_to(meta))
    }

    async fn store_unreported(&self, names: &[String]) -> Result<Epoch, Error> {
        let Environment { store, list, .. } = &self.environment;
        let epoch = store.call(Invalidate::new(names.to_vec())).await?;
        let numbered: Vec<_> = names.iter().map(|name| (name.clone(), epoch)).collect();
        list.add_all(&numbered);
        record_write(epoch);
        Ok(epoch)
    }

    /// Invalidates these [names](Target::name). After a failure it tries again for a minute, and for ten
    /// seconds at most while the process shuts down. Returns the epoch; [`UNKNOWN_EPOCH`] if the first try
    /// fails, or takes longer than 5 s.
    ///
    /// A shutdown waits for `token`. Cancel safe, as the attempts continue in a task of their own.
    pub(crate) async fn invalidate_names(
        &self,
        names: Vec<String>,
        token: TaskTrackerToken,
    ) -> Epoch {
        let commands = self.clone();
        let (first_try, tried) = oneshot::channel();
        let run = async move {
            let _token = token;
            let (mut first_try, mut latest) = (Some(first_try), Epoch::NONE);
            for names in names.chunks(MAX_NAMES) {
                match commands.invalidate_soon(names, &mut first_try).await {
                    Ok(epoch) => latest = epoch.max(latest),
                    Err(error) => tracing::error!(
                        ?names,
                        error = with_causes(&error),
                        "an invalidation could not be stored: pages with the changed data stay fresh until their interval ends"
                    ),
                }
            }
            if let Some(first_try) = first_try {
                // The caller may have left.
                let _ = first_try.send(latest);
            }
        };
        tokio::spawn(run.in_current_span());
        let tried = tokio::time::timeout(INVALIDATE_RESPONSE_WAIT, tried).await;
        tried.ok().and_then(Result::ok).unwrap_or(UNKNOWN_EPOCH)
    }

    /// Invalidates several names by one call, and repeats it until it succeeds. If the first attempt fails,
    /// `first_try` is dropped, so that the caller need not wait.
    async fn invalidate_soon(
        &self,
        names: &[String],
        first_try: &mut Option<oneshot::Sender<Epoch>>,
    ) -> Result<Epoch, Error> {
        let mut backoff = Backoff::new(INVALIDATE_PAUSES).limit(INVALIDATE_RETRY_LIMIT);
        let mut closing_since = None;
        loop {
            let error = match self.store_names(names).await {
                Ok(epoch) => return Ok(epoch),
                Err(error) => error,
            };
            *first_try = None;
            let now = self.environment.now();
            let ends = self.environment.is_shutting_down()
                && now - *closing_since.get_or_insert(now) >= INVALIDATE_RETRY_LIMIT_AT_SHUTDOWN;
            if ends || !backoff.pause().await {
                return Err(error);
            }
        }
    }

    /// Removes a resource and its variants for good, together with any version that is being generated: its
    /// lease is broken, so that it cannot be published.
    pub(crate) async fn purge(&self, key: &str) -> Result<(), Error> {
        let target = Target::Purged(key);
        self.invalidate(target).await?;
        self.remove(key).await?;
        self.purge_again(target).await
    }

    /// Removes the resources of a prefix or a tag for good, with any version that is being
    /// generated: first from what processes serve, then row by row.
    pub(crate) async fn purge_all(
        &self,
        target: Target<'_>,
        filter: EntryFilter,
    ) -> Result<(), Error> {
        self.invalidate(target).await?;
        let mut filter = filter.limit(PURGED_AT_ONCE);
        loop {
            let page = self.listing.entries(&filter).await?;
            for entry in page.entries {
                self.remove(&entry.key).await?;
            }
            match page.next {
                Some(next) => filter = filter.start_at(&next),
                None => break,
            }
        }
        self.purge_again(target).await
    }

    async fn remove(&self, key: &str) -> Result<(), Error> {
        self.memory.remove(key);
        self.environment.store.call(Purge::new(key)).await?;
        let purged = Event::Purged { key: key.into() };
        self.environment.observer.emit(purged);
        Ok(())
    }

    /// Stores the purge once more. Between the page's cooldown and the first purge, a regeneration may have
    /// begun and read the cooldown. Memory would keep that cooldown as if it were newer than the purge.
    async fn purge_again(&self, target: Target<'_>) -> Result<(), Error> {
        self.store_unreported(&[target.name()?]).await.map(drop)
    }
}
