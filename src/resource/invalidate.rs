//! What the site is told to do: invalidate, purge, regenerate.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tracing::Instrument;

use crate::{
    error::{Error, ErrorKind},
    resource::{Answer, Engine, Generated, Generator, Seed, Target, Work, state::Content},
    timing::{Backoff, INVALIDATE_PAUSES, INVALIDATE_RETRY, INVALIDATE_WAIT, POLL_PAUSES},
};

impl Engine {
    /// Notes an invalidation for all processes.
    pub(crate) async fn invalidate(&self, target: Target<'_>) -> Result<i64, Error> {
        self.invalidate_name(&target.name()?).await
    }

    /// As [`invalidate`](Self::invalidate). Logs at DEBUG when nothing in this process's memory is meant: the name may be misspelt.
    async fn invalidate_name(&self, name: &str) -> Result<i64, Error> {
        let epoch = self.note(name).await?;
        // By a look at all that is in memory, which is too much where nobody reads the line.
        if tracing::enabled!(tracing::Level::DEBUG) && !self.memory.has(name) {
            tracing::debug!(
                name,
                "nothing in this process's memory is invalidated by this; the database and other processes may have what is"
            );
        }
        Ok(epoch)
    }

    async fn note(&self, name: &str) -> Result<i64, Error> {
        let epoch = self
            .store
            .call("invalidate", |store| store.invalidate(name))
            .await?;
        tracing::debug!(name, epoch, "invalidated");
        self.known.add(name, epoch);
        Ok(epoch)
    }

    /// Invalidates what has these [names](Target::name), and tries again for a minute where that fails; returns when each has been
    /// tried once, or after 5 s.
    ///
    /// Cancel safe: it goes on.
    pub(crate) async fn invalidate_names(self: &Arc<Self>, names: Vec<String>) {
        let engine = Arc::clone(self);
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
                    if let Err(error) = engine.invalidate_name(&name).await {
                        failed.push(name);
                        why = Some(error);
                    }
                }
                drop(trying.take());
                let Some(error) = why else {
                    return;
                };
                if engine.is_closing() || !backoff.pause().await {
                    tracing::error!(
                        names = ?failed,
                        %error,
                        "a change could not be told: the pages that show it stay as they are until their interval is over"
                    );
                    return;
                }
                left = failed;
            }
        };
        tokio::spawn(run.in_current_span());
        // Ends when it is dropped.
        let _ = tokio::time::timeout(INVALIDATE_WAIT, tried).await;
    }

    /// Removes a resource and its variants for good, also what is being made of it.
    pub(crate) async fn purge(&self, key: &str) -> Result<(), Error> {
        self.invalidate(Target::Purged(key)).await?;
        self.memory.remove(key);
        self.store.call("purge", |store| store.purge(key)).await?;
        // Who asked meanwhile may have found a cooldown that had not been ended yet.
        self.note(&Target::Purged(key).name()?).await.map(drop)
    }

    /// Regenerates a resource that this process has in memory, fresh or not. `false`: it hasn't, or nothing makes it
    /// without a visitor.
    pub(crate) async fn regenerate_now(self: &Arc<Self>, key: &str) -> Result<bool, Error> {
        let epoch = self.invalidate(Target::Key(key)).await?;
        let mut made = false;
        for page in self.memory.pages_of(key) {
            if let Some(seed) = page.seed() {
                made |= self.replace(page.key(), epoch, seed).await?;
            }
        }
        Ok(made)
    }

    /// Regenerates until there is a version that was made in this epoch or later.
    async fn replace(
        self: &Arc<Self>,
        key: &str,
        epoch: i64,
        seed: &Arc<Seed>,
    ) -> Result<bool, Error> {
        let policy = seed.policy;
        let made = async {
            let mut backoff = Backoff::new(POLL_PAUSES);
            loop {
                let Some(generator) = (seed.generator)() else {
                    return Ok(false);
                };
                let (failed, mut failure) = oneshot::channel();
                let told: Generator = Box::pin(async move {
                    let generated = generator.await;
                    if let Generated::Failed(failure) = &generated {
                        // Whoever asked may have given up.
                        let _ = failed.send(failure.clone());
                    }
                    generated
                });
                let generate = || Work {
                    generator: told,
                    seed: Some(Arc::clone(seed)),
                    begun: false,
                };
                let policy = policy.wait(Duration::MAX);
                let (answer, _) = self.visit(key, &policy, generate).await;
                // Those who have an old version are not told.
                if let Ok(failure) = failure.try_recv() {
                    return Err(Error::generator(failure.error));
                }
                match answer {
                    Answer::Version(version) if version.content.basis().epoch >= epoch => {
                        return Ok(true);
                    }
                    Answer::Failed(failure) => return Err(Error::generator(failure.error)),
                    // Another one, that began before, is still at it; or it is in cooldown.
                    Answer::Version(_) | Answer::Unavailable { .. } if !self.is_closing() => {
                        backoff.pause().await;
                    }
                    Answer::Version(_) | Answer::Unavailable { .. } | Answer::Pass(_) => {
                        return Ok(false);
                    }
                }
            }
        };
        let limit = policy.timeout;
        match tokio::time::timeout(limit, made).await {
            Ok(made) => made,
            Err(_) => Err(Error::said(
                ErrorKind::Unavailable,
                format!("no new version of {key:?} was made within {limit:?}"),
            )),
        }
    }
}
