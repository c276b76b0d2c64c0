//! The site's commands: invalidate, purge, regenerate.

use std::{cell::Cell, sync::Arc};

use perennial_store::{
    Epoch, Error, Invalidate, LockKind, LockName, MOST_NAMES, Purge, error::with_causes,
};
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::{
    cache::{
        Accepts, Answer, Cache, Failure, Generate, Target, Visited, listing::entries::EntryFilter,
    },
    event::Event,
    policy::Refresh,
    timing::{
        Backoff, INVALIDATE_PAUSES, INVALIDATE_RETRY, INVALIDATE_RETRY_AT_SHUTDOWN,
        INVALIDATE_WAIT, POLL_PAUSES,
    },
};

/// The number of entries that one step of a purge removes.
const PURGED_AT_ONCE: usize = 1000;

tokio::task_local! {
    /// The latest epoch that the task's change has stored.
    static WRITTEN: Cell<Epoch>;
}

/// Stands for the epoch of a change that has none yet, or whose epoch this process does not know. Its author
/// gets no page to which any invalidation applies.
pub(crate) const UNKNOWN: Epoch = Epoch::MAX;

/// Runs a change. Returns also the latest epoch of the invalidations that the change itself has stored, in
/// its own task; `None`: it has stored none.
pub(crate) async fn written<F: Future>(change: F) -> (F::Output, Option<Epoch>) {
    let change = async {
        let output = change.await;
        (output, WRITTEN.with(Cell::get))
    };
    let (output, epoch) = WRITTEN.scope(Cell::new(Epoch::NONE), change).await;
    (output, (epoch > Epoch::NONE).then_some(epoch))
}

/// Notes an invalidation for [`written`].
pub(crate) fn wrote(epoch: Epoch) {
    // Outside of a change, nobody asks.
    let _ = WRITTEN.try_with(|written| written.set(written.get().max(epoch)));
}

impl Cache {
    /// Stores an invalidation for all processes, and returns its epoch.
    pub(crate) async fn invalidate(&self, target: Target<'_>) -> Result<Epoch, Error> {
        self.store_names(&[target.name()?]).await
    }

    /// Stores the invalidations of these names. Logs at DEBUG if one of them applies to nothing in this
    /// process's memory, as the name may be misspelt.
    async fn store_names(&self, names: &[String]) -> Result<Epoch, Error> {
        let epoch = self.note(names).await?;
        for name in names {
            self.tell_invalidated(name, epoch);
            // The check reads all of memory, and only a reader of the log needs the check.
            if tracing::enabled!(tracing::Level::DEBUG) && !self.memory.has(name) {
                tracing::debug!(
                    name,
                    "the invalidation applies to nothing in this process's memory; the database and other processes may have such pages"
                );
            }
        }
        Ok(epoch)
    }

    pub(crate) fn tell_invalidated(&self, name: &str, epoch: Epoch) {
        let name = name.into();
        self.observer().emit(Event::Invalidated { name, epoch });
    }

    async fn note(&self, names: &[String]) -> Result<Epoch, Error> {
        let epoch = self.store.call(Invalidate::new(names.to_vec())).await?;
        let numbered: Vec<_> = names.iter().map(|name| (name.clone(), epoch)).collect();
        self.invalidations.add_all(&numbered);
        wrote(epoch);
        Ok(epoch)
    }

    /// Invalidates these [names](Target::name). After a failure it tries again for a minute, and for ten
    /// seconds at most while the process shuts down. Returns the epoch; [`UNKNOWN`] if the first try
    /// fails, or takes longer than 5 s.
    ///
    /// `token`: a shutdown waits for it. Cancel safe: the attempts continue.
    pub(crate) async fn invalidate_names(
        self: &Arc<Self>,
        names: Vec<String>,
        token: TaskTrackerToken,
    ) -> Epoch {
        let cache = Arc::clone(self);
        let (first_try, tried) = oneshot::channel();
        let run = async move {
            let _token = token;
            let (mut first_try, mut latest) = (Some(first_try), Epoch::NONE);
            for names in names.chunks(MOST_NAMES) {
                match cache.invalidate_soon(names, &mut first_try).await {
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
        let tried = tokio::time::timeout(INVALIDATE_WAIT, tried).await;
        tried.ok().and_then(Result::ok).unwrap_or(UNKNOWN)
    }

    /// Invalidates names together. The first failure drops `first_try`.
    async fn invalidate_soon(
        &self,
        names: &[String],
        first_try: &mut Option<oneshot::Sender<Epoch>>,
    ) -> Result<Epoch, Error> {
        let mut backoff = Backoff::new(INVALIDATE_PAUSES).limit(INVALIDATE_RETRY);
        let mut closing_since = None;
        loop {
            let error = match self.store_names(names).await {
                Ok(epoch) => return Ok(epoch),
                Err(error) => error,
            };
            *first_try = None;
            let now = self.now();
            let ends = self.is_closing()
                && now - *closing_since.get_or_insert(now) >= INVALIDATE_RETRY_AT_SHUTDOWN;
            if ends || !backoff.pause().await {
                return Err(error);
            }
        }
    }

    /// Removes a resource and its variants for good, with any version that is being generated.
    pub(crate) async fn purge(&self, key: &str) -> Result<(), Error> {
        self.invalidate(Target::Purged(key)).await?;
        self.memory.remove(key);
        self.store.call(Purge::new(key)).await?;
        let purged = Event::Purged { key: key.into() };
        self.observer().emit(purged);
        // Once more: since the first invalidation a regeneration may have read a cooldown that the
        // purge ended only now, and memory would keep that cooldown as if it were later.
        self.note(&[Target::Purged(key).name()?]).await.map(drop)
    }

    /// Removes the resources of a prefix or a tag for good, with any version that is being
    /// generated: first from what processes serve, then row by row.
    pub(crate) async fn purge_all(
        self: &Arc<Self>,
        target: Target<'_>,
        filter: EntryFilter,
    ) -> Result<(), Error> {
        self.invalidate(target).await?;
        let mut filter = filter.limit(PURGED_AT_ONCE);
        loop {
            let page = self.entries(&filter).await?;
            for entry in page.entries {
                let key = &*entry.key;
                self.memory.remove(key);
                self.store.call(Purge::new(key)).await?;
                let key = entry.key.as_str().into();
                self.observer().emit(Event::Purged { key });
            }
            match page.next {
                Some(next) => filter = filter.start_at(&next),
                None => break,
            }
        }
        // Once more, as in `purge`.
        self.note(&[target.name()?]).await.map(drop)
    }

    /// Invalidates a resource, and visits until the version is newer than the invalidation. Returns
    /// an older answer after a failure, after the policy's `timeout`, and where a cooldown or a
    /// shutdown permits no regeneration. `has_failed`: the generator of the last visit has failed.
    pub(crate) async fn regenerate(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        generate: impl Fn() -> Generate,
        has_failed: impl Fn() -> bool,
    ) -> Visited {
        let epoch = match self.invalidate(Target::Key(key)).await {
            Ok(epoch) => epoch,
            Err(error) => {
                return Visited {
                    answer: Answer::Failed(Failure::new(error)),
                    leads: true,
                };
            }
        };
        let mut backoff = Backoff::new(POLL_PAUSES).limit(policy.timeout);
        loop {
            let visited = self.visit(key, policy, Accepts::default(), &generate).await;
            let is_older = match &visited.answer {
                Answer::Version(version) => version.page.meta.stored.epoch < epoch,
                Answer::Unavailable { .. } => true,
                Answer::Failed(_) | Answer::Pass(_) => false,
            };
            // Otherwise an earlier regeneration, of this process or another one, is still running.
            let ends = !is_older || has_failed() || self.is_closing();
            if ends || self.cools_down(key).await || !backoff.pause().await {
                return visited;
            }
        }
    }

    async fn cools_down(&self, key: &str) -> bool {
        let lock = self.locks.inspect(LockName::of(LockKind::Page, key)).await;
        lock.is_ok_and(|lock| lock.is_some_and(|lock| lock.cools_down()))
    }
}
