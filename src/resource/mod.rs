//! The way of a resource through memory and store, whatever generates it.

#[cfg(feature = "compression")]
mod coded;
mod decide;
mod invalidate;
mod invalidation;
mod memory;
mod names;
mod notes;
mod prune;
mod regeneration;
mod representation;
mod sync;
mod version;
mod visitor;
mod work;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tracing::Instrument;

use crate::{
    clock::{Clock, Tick},
    locks::Locks,
    policy::Refresh,
    store::Guarded,
};

use decide::Freshness;
use invalidation::Void;
use memory::{Memory, Slot};
use regeneration::Regeneration;
use sync::Schedule;
use version::Standing;
use visitor::{Stage, Visitor, within};

pub(crate) use invalidation::{Invalidations, Target};
pub(crate) use notes::Notes;
pub(crate) use prune::Pruner;
pub(crate) use representation::{Representation, Said};
pub(crate) use version::Version;
pub(crate) use work::{Answer, Failure, Generated, Generator, Look, Pass, Seed, Visited, Work};

pub(crate) struct Engine {
    store: Guarded,
    locks: Locks,
    clock: Clock,
    memory: Memory,
    /// What has been invalidated.
    pub(crate) known: Invalidations,
    sync: Schedule,
    pub(crate) settings: Settings,
    /// The keys that this process is at, each with what its visitors watch.
    running: Mutex<Running>,
    /// Bounds the regenerations at once.
    permits: Arc<Semaphore>,
    #[cfg(feature = "compression")]
    compressions: coded::Compressions,
    /// Hears of invalidations, if it is to, until the engine is dropped.
    #[cfg(feature = "postgres")]
    listening: std::sync::OnceLock<tokio_util::task::AbortOnDropHandle<()>>,
    closing: AtomicBool,
}

/// What a site's builder sets; said there.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) memory: u64,
    pub(crate) max_body: usize,
    pub(crate) max_headers: usize,
    pub(crate) regenerations: usize,
    pub(crate) cache_status: bool,
    pub(crate) retention: Duration,
    pub(crate) revision: Option<String>,
}

type Running = HashMap<String, watch::Sender<Stage>>;

impl Engine {
    pub(crate) fn new(store: Guarded, settings: Settings) -> Self {
        let regenerations = settings.regenerations.min(Semaphore::MAX_PERMITS);
        Self {
            locks: Locks::with_store(store.clone()),
            store,
            clock: Clock::start(),
            memory: Memory::new(settings.memory, settings.max_body),
            known: Invalidations::new(settings.revision.clone()),
            sync: Schedule::new(),
            settings,
            running: Mutex::default(),
            permits: Arc::new(Semaphore::new(regenerations)),
            #[cfg(feature = "compression")]
            compressions: coded::Compressions::default(),
            #[cfg(feature = "postgres")]
            listening: std::sync::OnceLock::new(),
            closing: AtomicBool::new(false),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Runs what hears of invalidations.
    #[cfg(feature = "postgres")]
    pub(crate) fn listen(&self, listening: impl Future<Output = ()> + Send + 'static) {
        let task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(listening));
        // Is called once.
        let _ = self.listening.set(task);
    }

    pub(crate) fn locks(&self) -> Locks {
        self.locks.clone()
    }

    /// Answers from memory where that is all there is to do: no I/O, no task, no wait.
    pub(crate) fn look(self: &Arc<Self>, key: &str, policy: &Refresh, now: Tick) -> Look {
        if self.sync(now) {
            let stale = matches!(self.memory.get(key), Some(Slot::Version(_)));
            return Look::Visit { stale };
        }
        self.look_with(key, policy, now, || self.running().contains_key(key))
    }

    fn look_with(
        &self,
        key: &str,
        policy: &Refresh,
        now: Tick,
        running: impl FnOnce() -> bool,
    ) -> Look {
        match self.memory.get(key) {
            Some(Slot::Version(version)) => {
                let at_rest = || version.rests(now) || self.is_closing() || running();
                match decide::visit(version.freshness(now, policy, &self.known), at_rest) {
                    decide::Visit::Serve => Look::Answer(Answer::Version(version)),
                    decide::Visit::Refresh => {
                        let stale = version.void(&self.known) != Void::Purged;
                        Look::Visit { stale }
                    }
                }
            }
            Some(Slot::Pass {
                until,
                why,
                standing,
            }) if now < until && standing.void(key, &self.known) == Void::No => {
                Look::Answer(Answer::Pass(why))
            }
            Some(Slot::Cooldown { until, standing })
                if now < until && standing.void(key, &self.known) != Void::Purged =>
            {
                let retry_in = until - now;
                Look::Answer(Answer::Unavailable { retry_in })
            }
            Some(_) | None => Look::Visit { stale: false },
        }
    }

    /// Answers a request that memory alone can't: starts a regeneration, or joins the one that runs, and waits as long as the
    /// policy allows. `generate` makes the generator, if this request is the one that starts it.
    ///
    /// Cancel safe: what was started goes on.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        generate: impl FnOnce() -> Work,
    ) -> Visited {
        let (arrived, since) = (Instant::now(), self.clock.now());
        self.synced().await;
        let mut generate = Some(generate);
        loop {
            let mut visitor = match self.enter(key, policy, &mut generate) {
                Ok(visitor) => visitor,
                Err(answer) => {
                    let leads = false;
                    return Visited { answer, leads };
                }
            };
            let answer = visitor.wait(self, policy, arrived).await;
            let leads = visitor.leads;
            match &answer {
                // The regeneration that made it is still ending, and it has expired or been purged meanwhile.
                Answer::Version(version)
                    if !leads
                        && !version.is_made_since(since)
                        && version.freshness(self.clock.now(), policy, &self.known)
                            == Freshness::Expired =>
                {
                    if within(arrived, policy.first.limit(), visitor.end())
                        .await
                        .is_none()
                    {
                        let answer = match version.void(&self.known) {
                            Void::Purged => Answer::Pass(Pass::Purged),
                            Void::No | Void::Stale => Answer::Unavailable {
                                retry_in: policy.cooldown(),
                            },
                        };
                        return Visited { answer, leads };
                    }
                }
                _ => return Visited { answer, leads },
            }
        }
    }

    fn enter(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        generate: &mut Option<impl FnOnce() -> Work>,
    ) -> Result<Visitor, Answer> {
        let mut running = self.running();
        if let Some(stage) = running.get(key) {
            return Ok(Visitor {
                stage: stage.subscribe(),
                leads: false,
            });
        }
        // A regeneration may have ended since the first look; it leaves `running` after it has written to memory.
        if let Look::Answer(answer) = self.look_with(key, policy, self.clock.now(), || false) {
            return Err(answer);
        }
        if self.is_closing() {
            return Err(Answer::Pass(Pass::ShuttingDown));
        }
        let Some(generate) = generate.take() else {
            // Only who leads has taken it, and does not come again.
            return Err(Answer::Pass(Pass::Purged));
        };
        let version = match self.memory.get(key) {
            Some(Slot::Version(version)) => Some(version),
            _ => None,
        };
        let (sender, stage) = watch::channel(Stage::Looking);
        running.insert(key.to_owned(), sender.clone());
        // Under the lock: a shutdown that comes now waits for it.
        let token = self.locks.tasks().token();
        drop(running);
        // Before a caller's closure is called: if that panics, dropping it lets others begin.
        let mut regeneration = Regeneration::new(Arc::clone(self), key, *policy, version, sender);
        let generator = regeneration.prepare(generate);
        let span = tracing::debug_span!("regeneration", key);
        let run = regeneration.run(generator);
        let run = async move {
            run.await;
            drop(token);
        };
        tokio::spawn(run.instrument(span));
        Ok(Visitor { stage, leads: true })
    }

    /// Begins no further regeneration and waits for those that run.
    pub(crate) async fn shutdown(&self) {
        {
            let _running = self.running();
            self.closing.store(true, Relaxed);
        }
        self.locks.shutdown().await;
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
