//! The site's commands: invalidate, purge, regenerate.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::{
    error::{Error, ErrorKind, with_causes},
    event::{Bypass, Event, Outcome},
    lock::{LockKind, LockName},
    resource::{
        Answer, Generated, Generator, GeneratorSource, Pages, Target, Work, entries::EntryFilter,
        page::is_same, state::Content,
    },
    timing::{Backoff, INVALIDATE_PAUSES, INVALIDATE_RETRY, INVALIDATE_WAIT, POLL_PAUSES},
};

/// The number of entries that one step of a purge removes.
const PURGED_AT_ONCE: usize = 1000;

impl Pages {
    /// Stores an invalidation for all processes, and returns its epoch.
    pub(crate) async fn invalidate(&self, target: Target<'_>) -> Result<i64, Error> {
        self.invalidate_name(&target.name()?).await
    }

    /// Stores the invalidation of a name. Logs at DEBUG if the invalidation applies to nothing in
    /// this process's memory, as the name may be misspelt.
    async fn invalidate_name(&self, name: &str) -> Result<i64, Error> {
        let epoch = self.note(name).await?;
        let target = name.into();
        self.store
            .observer()
            .emit(Event::Invalidated { target, epoch });
        // The check reads all of memory, and only a reader of the log needs the check.
        if tracing::enabled!(tracing::Level::DEBUG) && !self.memory.has(name) {
            tracing::debug!(
                name,
                "the invalidation applies to nothing in this process's memory; the database and other processes may have such pages"
            );
        }
        Ok(epoch)
    }

    async fn note(&self, name: &str) -> Result<i64, Error> {
        let epoch = self
            .store
            .call("invalidate", |store| store.invalidate(name))
            .await?;
        self.invalidations.add(name, epoch);
        Ok(epoch)
    }

    /// Invalidates these [names](Target::name), and tries failed ones again for a minute. Returns
    /// after the first try of each, or after 5 s.
    ///
    /// Cancel safe: the tries continue.
    pub(crate) async fn invalidate_names(self: &Arc<Self>, names: Vec<String>) {
        let pages = Arc::clone(self);
        let token = self.locks.tasks().token();
        let (trying, tried) = oneshot::channel::<()>();
        let run = async move {
            let _token = token;
            let backoff = Backoff::new(INVALIDATE_PAUSES);
            let mut backoff = backoff.limit(INVALIDATE_RETRY);
            let mut trying = Some(trying);
            let mut left = names;
            loop {
                let mut failed = Vec::new();
                let mut why = None;
                for name in left {
                    if let Err(error) = pages.invalidate_name(&name).await {
                        failed.push(name);
                        why = Some(error);
                    }
                }
                drop(trying.take());
                let Some(error) = why else {
                    return;
                };
                if pages.is_closing() || !backoff.pause().await {
                    tracing::error!(
                        names = ?failed,
                        error = with_causes(&error),
                        "an invalidation could not be stored: pages with the changed data stay fresh until their interval ends"
                    );
                    return;
                }
                left = failed;
            }
        };
        tokio::spawn(run.in_current_span());
        // The channel closes after the first try of each name.
        let _ = tokio::time::timeout(INVALIDATE_WAIT, tried).await;
    }

    /// Removes a resource and its variants for good, with any version that is being generated.
    pub(crate) async fn purge(&self, key: &str) -> Result<(), Error> {
        self.invalidate(Target::Purged(key)).await?;
        self.memory.remove(key);
        self.store.call("purge", |store| store.purge(key)).await?;
        let purged = Event::Purged { key: key.into() };
        self.store.observer().emit(purged);
        // Once more: since the first invalidation a regeneration may have read a cooldown that the
        // purge ended only now, and memory would keep that cooldown as if it were later.
        self.note(&Target::Purged(key).name()?).await.map(drop)
    }

    /// Removes the resources of a prefix or a tag for good, with any version that is being
    /// generated: first from what processes serve, then row by row.
    pub(crate) async fn purge_all(
        self: &Arc<Self>,
        target: Target<'_>,
        filter: EntryFilter,
    ) -> Result<(), Error> {
        self.invalidate(target).await?;
        let mut from = None::<String>;
        loop {
            let filter = filter.clone().limit(PURGED_AT_ONCE);
            let filter = match &from {
                Some(from) => filter.start_at(from),
                None => filter,
            };
            let page = self.entries(&filter).await?;
            for entry in page.entries {
                let key = &*entry.key;
                self.memory.remove(key);
                self.store.call("purge", |store| store.purge(key)).await?;
                let key = entry.key.as_str().into();
                self.store.observer().emit(Event::Purged { key });
            }
            match page.next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        // Once more, as in `purge`.
        self.note(&target.name()?).await.map(drop)
    }

    /// Invalidates a resource, and regenerates each page of it in this process's memory, also a
    /// fresh one. Without a page in memory, the stored page is regenerated if its route is known.
    pub(crate) async fn regenerate_now(
        self: &Arc<Self>,
        key: &str,
    ) -> Result<Option<Outcome>, Error> {
        let epoch = self.invalidate(Target::Key(key)).await?;
        let mut outcome = None;
        let pages = self.memory.pages_of(key);
        for page in &pages {
            if let Some(source) = page.source() {
                let before = page.response();
                let replaced = self.replace(page.key(), epoch, source, before).await?;
                // The most that was done.
                outcome = [outcome, replaced].into_iter().flatten().min();
            }
        }
        if pages.is_empty()
            && let Some((before, layer)) = self.stored_by(key).await?
            && let Some(source) = self.find(key, &layer)
        {
            outcome = self.replace(key, epoch, &source, &before).await?;
        }
        Ok(outcome)
    }

    /// Regenerates until there is a version with this epoch or a later one.
    async fn replace(
        self: &Arc<Self>,
        key: &str,
        epoch: i64,
        source: &Arc<GeneratorSource>,
        before: &Response<Bytes>,
    ) -> Result<Option<Outcome>, Error> {
        let policy = source.policy;
        let made = async {
            let mut backoff = Backoff::new(POLL_PAUSES);
            loop {
                let Some(generator) = (source.generator)() else {
                    return Ok(None);
                };
                let (failed, mut failure) = oneshot::channel();
                let told: Generator = Box::pin(async move {
                    let generated = generator.await;
                    if let Generated::Failed(failure) = &generated {
                        // The receiver is gone if the caller has given up.
                        let _ = failed.send(failure.clone());
                    }
                    generated
                });
                let generate = || Work {
                    generator: told,
                    source: Some(Arc::clone(source)),
                    layer: Arc::clone(&source.layer),
                    is_requested: true,
                    readable: None,
                    retention: None,
                };
                let policy = policy.soft_timeout(Duration::MAX);
                let (answer, _) = self.visit(key, &policy, false, generate).await;
                // A visitor with an old version gets no failure.
                if let Ok(failure) = failure.try_recv() {
                    return Err(Error::generator(failure.error));
                }
                match answer {
                    Answer::Version(version) if version.content.as_of().epoch >= epoch => {
                        return Ok(Some(match is_same(version.content.response(), before) {
                            true => Outcome::Renewed,
                            false => Outcome::Stored,
                        }));
                    }
                    Answer::Failed(failure) => return Err(Error::generator(failure.error)),
                    Answer::Version(_) | Answer::Unavailable { .. } if !self.is_closing() => {
                        let lock = self
                            .locks
                            .inspect(LockName::of(LockKind::Page, key))
                            .await?;
                        if lock.is_some_and(|lock| lock.cools_down()) {
                            return Ok(Some(Outcome::Cooldown));
                        }
                        // An earlier regeneration is still running.
                        backoff.pause().await;
                    }
                    Answer::Pass(why) => return Ok(Some(Outcome::NotStored(why))),
                    Answer::Version(_) | Answer::Unavailable { .. } => {
                        return Ok(Some(Outcome::NotStored(Bypass::ShuttingDown)));
                    }
                }
            }
        };
        let limit = policy.timeout;
        match tokio::time::timeout(limit, made).await {
            Ok(made) => made,
            Err(_) => Err(Error::with_message(
                ErrorKind::Unavailable,
                format!("no new version of {key:?} was generated within {limit:?}"),
            )),
        }
    }
}
