//! What other processes have invalidated: asked for by requests, once a sync interval.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicI64, Ordering::Relaxed},
};

use tokio::{runtime::Handle, sync::watch};
use tracing::Instrument;

use crate::{
    clock::Tick,
    decide::{OVERDUE, SYNC},
    engine::Engine,
    error::Error,
};

pub(super) struct Schedule {
    /// Until then a request has nothing to do here: all that one on the way to memory reads.
    quiet_until: AtomicI64,
    state: Mutex<State>,
}

struct State {
    running: Option<Attempt>,
    /// From then on it is so long since anybody asked that a request waits for the answer.
    overdue: Tick,
    /// When it was asked last whether it is time to prune.
    prune: Option<Tick>,
}

#[derive(Clone)]
struct Attempt {
    begun: Tick,
    /// Visitors wait for it, a little.
    awaited: bool,
    /// Has an answer at its end.
    ended: watch::Receiver<Option<Result<(), Arc<Error>>>>,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            quiet_until: AtomicI64::new(i64::MIN),
            state: Mutex::new(State {
                running: None,
                overdue: Tick(i64::MIN),
                prune: None,
            }),
        }
    }

    fn quiet_until(&self, until: Tick) {
        self.quiet_until.store(until.0, Relaxed);
    }
}

impl Engine {
    /// Asks what has been invalidated, if it is time to. Whether that is to be waited for, by [`Engine::synced`].
    pub(super) fn sync(self: &Arc<Self>, now: Tick) -> bool {
        if now.0 < self.sync.quiet_until.load(Relaxed) {
            return false;
        }
        // Outside of a runtime a service may be called; the future that it returns is polled inside.
        !is_inside_runtime() || self.awaited(now).is_some()
    }

    /// Asks now: something may have been invalidated.
    #[cfg(feature = "postgres")]
    pub(crate) fn heard(self: &Arc<Self>) {
        self.attempt(self.now());
    }

    /// Waits for the answer, if it is to be waited for, as long as the site's patience lasts.
    pub(super) async fn synced(self: &Arc<Self>) {
        let now = self.now();
        if now.0 >= self.sync.quiet_until.load(Relaxed)
            && is_inside_runtime()
            && let Some(Attempt { begun, ended, .. }) = self.awaited(now)
        {
            // Without an answer what is in memory is served.
            let limit = begun + self.store.patience() - now;
            let _ = tokio::time::timeout(limit, end_of(ended)).await;
        }
    }

    /// The attempt that runs, or a new one, if it is to be waited for.
    fn awaited(self: &Arc<Self>, now: Tick) -> Option<Attempt> {
        let attempt = self.attempt(now);
        let waits = attempt.awaited && now < attempt.begun + self.store.patience();
        if !waits {
            self.sync.quiet_until(now + SYNC);
        }
        waits.then_some(attempt)
    }

    /// Sees to it that all is known that had been invalidated when this process began.
    pub(super) async fn know(self: &Arc<Self>) -> Result<(), Arc<Error>> {
        while !self.known.is_complete() {
            end_of(self.attempt(self.now()).ended).await?;
        }
        Ok(())
    }

    /// The attempt that runs, or a new one.
    fn attempt(self: &Arc<Self>, now: Tick) -> Attempt {
        let mut state = self.sync_state();
        if let Some(attempt) = &state.running {
            return attempt.clone();
        }
        let (end, ended) = watch::channel(None);
        let attempt = Attempt {
            begun: now,
            awaited: now >= state.overdue,
            ended,
        };
        state.running = Some(attempt.clone());
        let prune = match state.prune {
            Some(asked) => asked + self.prune_interval() / 8,
            // Not by what ends at once.
            None => Tick(0) + self.prune_interval().min(60 * SYNC),
        };
        let prunes = now >= prune;
        if prunes {
            state.prune = Some(now);
        }
        drop(state);
        // Now, as the task may be dropped before it has begun.
        let end = End {
            engine: Arc::clone(self),
            end,
            begun: now,
        };
        let run = async move {
            let result = end.engine.ask().await.map_err(Arc::new);
            let engine = Arc::clone(&end.engine);
            let prunes = prunes && result.is_ok();
            end.with(result);
            if prunes {
                // Failing to is no harm: another time.
                let _ = engine.prune().await;
            }
        };
        tokio::spawn(run.instrument(tracing::debug_span!("sync")));
        attempt
    }

    async fn ask(&self) -> Result<(), Error> {
        self.learn().await?;
        if let Some(revision) = self.known.unseen_revision() {
            let name = revision.name()?;
            self.store
                .call("invalidate", |store| store.invalidate(&name))
                .await?;
            // Another process may have been the first.
            self.learn().await?;
        }
        self.known.complete();
        Ok(())
    }

    async fn learn(&self) -> Result<(), Error> {
        let since = self.known.seen();
        let sync = self.store.call("sync", |store| store.invalidated(since));
        self.known.learn(&sync.await?);
        Ok(())
    }

    fn sync_state(&self) -> std::sync::MutexGuard<'_, State> {
        let state = &self.sync.state;
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sees to it that an attempt ends, also one that is cancelled with its runtime.
struct End {
    engine: Arc<Engine>,
    end: watch::Sender<Option<Result<(), Arc<Error>>>>,
    begun: Tick,
}

impl End {
    fn with(self, result: Result<(), Arc<Error>>) {
        self.end.send_replace(Some(result));
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.engine.sync_state();
        state.running = None;
        state.overdue = self.engine.now() + OVERDUE;
        // Under the lock: nobody finds that nothing is running, and no reason to be quiet.
        self.engine.sync.quiet_until(self.begun + SYNC);
    }
}

fn is_inside_runtime() -> bool {
    Handle::try_current().is_ok()
}

async fn end_of(
    mut ended: watch::Receiver<Option<Result<(), Arc<Error>>>>,
) -> Result<(), Arc<Error>> {
    match ended.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or(Ok(())),
        // Cancelled with its runtime; whoever needs it asks again.
        Err(_) => Ok(()),
    }
}
