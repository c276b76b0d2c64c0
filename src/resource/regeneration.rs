//! One regeneration, step by step: the protocol stands here and nowhere else.

mod ending;
mod publish;

use std::{
    cmp::Ordering,
    error::Error as StdError,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use httpdate::HttpDate;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::{
    clock::{self, Tick, YEAR},
    error::Error,
    extensions::{RefreshAfter, Tags},
    locks::Lease,
    name::{REFRESH, bounded},
    policy::Refresh,
    resource::{
        Answer, Engine, Failure, Generated, Generator, Notes, Pass, Seed, Slot, Standing, Version,
        Void, Work,
        decide::{self, Freshness, Turn},
        visitor::Stage,
    },
    store::{Edition, Probe},
    timing::{Backoff, PUBLISH_RETRY, RECHECK},
};

pub(super) struct Regeneration {
    engine: Arc<Engine>,
    key: String,
    policy: Refresh,
    /// The newest version known, to be served or not.
    version: Option<Arc<Version>>,
    stage: watch::Sender<Stage>,
    /// What makes it without a visitor.
    seed: Option<Arc<dyn Seed>>,
    /// The epoch that was known before a part of the generator ran, if one has run already.
    begun_in: Option<i64>,
    /// Its place among the keys that are being regenerated has been given up.
    left: bool,
}

/// The epoch and the revision that were known before a generator began. The content notes these two, and nothing that the process
/// learns later: the generator may have read data from before.
#[derive(Clone, Copy)]
struct Basis {
    epoch: i64,
    revision: i64,
}

impl Regeneration {
    pub(super) fn new(
        engine: Arc<Engine>,
        key: &str,
        policy: Refresh,
        version: Option<Arc<Version>>,
        stage: watch::Sender<Stage>,
    ) -> Self {
        let regeneration = Self {
            engine,
            key: key.to_owned(),
            policy,
            version,
            stage,
            seed: None,
            begun_in: None,
            left: false,
        };
        regeneration.show_stale(false);
        regeneration
    }

    /// Makes the generator, once there is a regeneration to be dropped if that panics.
    pub(super) fn prepare(&mut self, generate: impl FnOnce() -> Work) -> Generator {
        let known = self.basis(0).epoch;
        let work = generate();
        self.seed = work.seed;
        self.begun_in = work.begun.then_some(known);
        work.generator
    }

    /// Returns the basis of a generator that begins now, if the store has told of this epoch.
    fn basis(&self, told: i64) -> Basis {
        let known = &self.engine.known;
        // The version's own epoch was told before its generator began, which has ended by now.
        let held = self.version.as_ref().map_or(0, |it| it.notes().epoch);
        let epoch = known.latest().max(told).max(held);
        Basis {
            epoch: self.begun_in.unwrap_or(epoch),
            revision: known.revision(),
        }
    }

    /// Runs to its end, whether anybody waits or not: probes, and tries the lease when it is free. While there is nothing to serve
    /// and somebody waits, it looks again.
    pub(super) async fn run(mut self, generator: Generator) {
        if let Err(error) = self.engine.know().await {
            return self.without_database(&error, generator).await;
        }
        let Ok(mut permit) = self.permit() else {
            return self.rest(RECHECK);
        };
        if let Some(own) = self.servable()
            && own.take_own()
            && own.void(&self.engine.known) == Void::No
        {
            // The lock's fence is the version's own unless somebody has acquired it since: no probe is needed to know.
            match self.try_lease(own.fence).await {
                Ok(Some(lease)) => {
                    let held = Held { lease, permit };
                    return self.regenerate(held, self.basis(0), generator).await;
                }
                Ok(None) => {}
                Err(error) => return self.without_database(&error, generator).await,
            }
        }
        // Until when another process is known to be at it.
        let mut held_until = self.engine.clock.now();
        let longest = self.policy.cooldown().max(RECHECK);
        let mut told = false;
        for polls in 0.. {
            let probe = match self.probe().await {
                Ok(probe) => probe,
                Err(_) if self.engine.clock.now() < held_until => {
                    tokio::time::sleep(decide::backoff(polls)).await;
                    continue;
                }
                Err(error) => return self.without_database(&error, generator).await,
            };
            if let Some(Freshness::Fresh) = self.freshness() {
                return self.end_with_newest();
            }
            let servable = self.servable();
            let held = servable.as_ref().map_or(0, |held| held.notes().epoch);
            if self.begun_in.is_some_and(|begun| begun < held) {
                // What this generator makes may know less of the invalidations than what is held. The next request begins its own.
                return self.end_with_newest();
            }
            let pause = match decide::turn(&probe.lock, servable.is_some(), polls) {
                Turn::Try { seen } => match self.try_lease(seen).await {
                    Ok(Some(lease)) => {
                        let (held, basis) = (Held { lease, permit }, self.basis(probe.epoch));
                        return self.regenerate(held, basis, generator).await;
                    }
                    Ok(None) if self.servable().is_some() => return self.rest(RECHECK),
                    Ok(None) => decide::backoff(polls),
                    Err(error) => return self.without_database(&error, generator).await,
                },
                // No longer than a cooldown lasts: the database's clock may have been set back.
                Turn::Leave(time) => return self.rest(time.min(longest)),
                Turn::Poll(pause) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(
                            key = self.key,
                            "there is nothing to serve; another process is at it, or was when it died: its lease ends in {:.1?}",
                            probe.lock.remaining
                        );
                    }
                    held_until = self.engine.clock.now() + probe.lock.remaining.min(longest);
                    pause
                }
                Turn::Cooldown(time) => {
                    return self.cool_down(time.min(longest), self.basis(probe.epoch));
                }
            };
            drop(permit);
            self.stage.send_replace(Stage::Elsewhere);
            tokio::select! {
                biased;
                () = self.stage.closed() => {
                    if self.leave() {
                        return;
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
            if self.engine.is_closing() {
                return self.end(Answer::Pass(Pass::ShuttingDown));
            }
            permit = match self.permit() {
                Ok(permit) => permit,
                Err(NoPermitsError) => return self.rest(RECHECK),
            };
        }
    }

    /// Asks the store for a newer version and takes it over.
    async fn probe(&mut self) -> Result<Probe, Error> {
        let known = self.version.as_ref().map_or(0, |version| version.fence);
        let name = self.lock_name();
        // The age counts from before the question: the answer may be late.
        let asked = self.engine.clock.now();
        let mut probe = self
            .engine
            .store
            .call("probe", |store| store.probe(&self.key, &name, known))
            .await?;
        if let Some(entry) = probe.entry.take() {
            let held_age = self.version.as_ref().map(|version| version.age(asked));
            let (born, notes) = (asked - entry.age, Notes::decode(&entry.notes));
            let stored = Version::new(&self.key, entry.content, entry.fence, born, notes);
            let stored = stored.undated(entry.undated);
            let known = &self.engine.known;
            let held = self.version.as_ref().map(|version| version.void(known));
            // A version that was generated while the database was away may know less of the invalidations than the other one, or more.
            let adopts = match held.map(|held| stored.void(known).cmp(&held)) {
                Some(Ordering::Less) => true,
                Some(Ordering::Greater) => false,
                Some(Ordering::Equal) | None => decide::supersedes(entry.age, held_age),
            };
            if adopts {
                self.hold(stored);
            }
        }
        self.show_stale(false);
        Ok(probe)
    }

    /// Lets those who come have the old version, if there is one.
    fn show_stale(&self, begun: bool) -> bool {
        let servable = self.servable();
        let is_servable = servable.is_some();
        if let Some(version) = servable {
            self.stage.send_replace(Stage::Stale { version, begun });
        }
        is_servable
    }

    /// Takes a permit, which bounds the regenerations of a process, before any statement. Without one the old version goes on being
    /// served; a first version is never held back, as a visitor waits for it.
    fn permit(&self) -> Result<Option<OwnedSemaphorePermit>, NoPermitsError> {
        match Arc::clone(&self.engine.permits).try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            // A process that may not regenerate at all takes over what others have generated.
            Err(_) if self.servable().is_none() || self.engine.settings.regenerations == 0 => {
                Ok(None)
            }
            Err(_) => Err(NoPermitsError),
        }
    }

    async fn try_lease(&self, seen: i64) -> Result<Option<Lease>, Error> {
        if self.engine.settings.regenerations == 0 && self.servable().is_some() {
            return Ok(None);
        }
        let locks = self.engine.locks().lease(self.policy.lease);
        locks.try_lock_seen(self.lock_name(), seen).await
    }

    /// Generates under the lease and the permit, publishes, releases.
    async fn regenerate(
        &mut self,
        Held { lease, permit }: Held,
        basis: Basis,
        generator: Generator,
    ) {
        let Some(generated) = self.generate(Some(&lease), generator).await else {
            return self.rest(RECHECK);
        };
        // A publish that fails is tried for a while, and keeps nobody else from generating.
        drop(permit);
        let cooldown = match generated {
            Generated::Content(content) => return self.publish(lease, content, basis).await,
            Generated::Unshareable { .. } => {
                let cooldown = self.refuse(generated, basis);
                // What was everybody's before is so no longer. If this fails, the next regeneration tries it again.
                let store = &self.engine.store;
                let row = lease.row();
                let _ = store
                    .call("remove", |store| store.remove(&self.key, row))
                    .await;
                cooldown
            }
            generated => self.refuse(generated, basis),
        };
        // Failing to is no harm: the lock is free after the lease.
        let _ = lease.release_after(cooldown).await;
    }

    /// Runs the generator in a task of its own, for the policy's timeout at most. `None`: the lease was lost, and there is an old
    /// version to serve, so that it was given up.
    async fn generate(&self, lease: Option<&Lease>, generator: Generator) -> Option<Generated> {
        let servable = self.show_stale(true);
        if !servable {
            self.stage.send_replace(Stage::First);
        }
        let limit = self.policy.timeout;
        let mut task = AbortOnDropHandle::new(tokio::spawn(generator.in_current_span()));
        let lost = async {
            match lease {
                Some(lease) => lease.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = &mut task => Some(ended.unwrap_or_else(|panic| self.failed(panic))),
            () = lost, if servable => None,
            () = tokio::time::sleep(limit) => Some(self.failed(format!("it took longer than {limit:?}"))),
        }
    }

    /// The database is away: an old version is served, a first one is made without a lease and not saved.
    async fn without_database(&mut self, error: &Error, generator: Generator) {
        if self.servable().is_some() {
            return self.rest(RECHECK);
        }
        tracing::debug!(key = self.key, %error, "generating without a lease");
        let basis = self.basis(0);
        match self.generate(None, generator).await {
            Some(Generated::Content(content)) => {
                self.serve_unsaved(content, self.engine.clock.now(), basis);
            }
            Some(generated) => {
                self.refuse(generated, basis);
            }
            None => self.end(Answer::Pass(Pass::ShuttingDown)),
        }
    }
}

/// A lease, and a permit unless the version is a first one.
struct Held {
    lease: Lease,
    permit: Option<OwnedSemaphorePermit>,
}

/// The process runs as many regenerations as it may.
struct NoPermitsError;

impl Drop for Regeneration {
    /// Also after a panic: another request may start anew. What was found is in memory by now.
    fn drop(&mut self) {
        if !self.left {
            self.engine.running().remove(&self.key);
        }
    }
}
