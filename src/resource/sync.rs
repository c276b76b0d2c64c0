//! Asks what other processes have invalidated: a request does, once in a sync interval.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch};
use tracing::Instrument;

use crate::{
    clock::Tick,
    error::Error,
    name::{LockKind, LockName},
    resource::Engine,
    timing::{OVERDUE, SYNC},
};

/// The number of invalidations that one statement reads.
const PAGE: usize = 10_000;

pub(super) struct Schedule {
    /// No question is due before this time. The hit path reads only this atomic.
    quiet_until: AtomicI64,
    state: Mutex<State>,
}

struct State {
    running: Option<Attempt>,
    /// When the last question that was answered had been asked.
    answered: Tick,
    /// When a request last looked whether a question is due.
    looked: Tick,
    /// Since when requests wait for an answer that is overdue. They wait for a limited time in all, and again only after an answer, or
    /// when no request came for a while (the process may have been paused).
    waiting_since: Option<Tick>,
    /// When pruning is considered again.
    next_prune: Option<Tick>,
}

/// How far an attempt has come.
enum Progress {
    /// The attempt began, or the database last answered, at this time.
    Alive(Tick),
    Ended(Result<(), Arc<Error>>),
}

type Attempt = watch::Receiver<Progress>;

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            quiet_until: AtomicI64::new(i64::MIN),
            state: Mutex::new(State {
                running: None,
                answered: Tick(i64::MIN),
                looked: Tick(i64::MIN),
                waiting_since: None,
                next_prune: None,
            }),
        }
    }

    fn quiet_until(&self, until: Tick) {
        self.quiet_until.store(until.0, Relaxed);
    }
}

impl State {
    fn is_overdue(&self, now: Tick) -> bool {
        now >= self.answered + OVERDUE
    }

    /// Returns the end of the wait of a request that looks now. `None`: the request does not wait.
    fn wait_until(&mut self, now: Tick, patience: Duration) -> Option<Tick> {
        let paused = now >= self.looked + OVERDUE;
        self.looked = now;
        if !self.is_overdue(now) {
            return None;
        }
        let since = match self.waiting_since {
            Some(since) if !paused => since,
            _ => *self.waiting_since.insert(now),
        };
        let until = since + patience;
        (now < until).then_some(until)
    }
}

impl Engine {
    /// Asks what has been invalidated, if a question is due. Returns whether the request has to wait for the answer, by
    /// [`Engine::synced`].
    pub(super) fn sync(self: &Arc<Self>, now: Tick) -> bool {
        if now.0 < self.sync.quiet_until.load(Relaxed) {
            return false;
        }
        // A service may be called outside of a runtime; the future that it returns is polled inside.
        !is_inside_runtime() || self.awaited(now).is_some()
    }

    /// Asks now: something may have been invalidated.
    #[cfg(feature = "postgres")]
    pub(crate) fn heard(self: &Arc<Self>) {
        self.attempt(self.now(), |_| ());
    }

    /// Waits for the answer if it is overdue, as long as the site's patience lasts.
    pub(super) async fn synced(self: &Arc<Self>) {
        loop {
            let now = self.now();
            if now.0 < self.sync.quiet_until.load(Relaxed) || !is_inside_runtime() {
                return;
            }
            let Some((attempt, until)) = self.awaited(now) else {
                return;
            };
            // Without an answer the versions in memory are served. An answer to a question of long ago is not enough.
            let answer = tokio::time::timeout(until - now, end_of(attempt)).await;
            self.sync_state().looked = self.now();
            if !matches!(answer, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// The attempt that runs, or a new one, if a request has to wait for it; and until when.
    fn awaited(self: &Arc<Self>, now: Tick) -> Option<(Attempt, Tick)> {
        // A file is read for it: not by each of the requests that wait for one answer.
        if now >= self.sync_state().looked + SYNC / 4 {
            self.clock.resumed(self.clock.suspended());
        }
        let now = now.max(self.now());
        let (attempt, until) = self.attempt(now, |state| {
            let until = state.wait_until(now, self.store.patience());
            if until.is_none() {
                // The next look: when the answer is overdue, or after an interval.
                let overdue = state.answered + OVERDUE;
                let next = if now < overdue { overdue } else { now + SYNC };
                self.sync.quiet_until(next);
            }
            until
        });
        Some((attempt, until?))
    }

    /// Waits until this process knows all invalidations from before it began.
    pub(super) async fn know(self: &Arc<Self>) -> Result<(), Arc<Error>> {
        while !self.known.is_complete() {
            let (attempt, ()) = self.attempt(self.now(), |_| ());
            // An attempt may be on a runtime that is not driven any more: it counts as dead after this time, and is replaced.
            if let Ok(ended) = tokio::time::timeout(self.silence(), end_of(attempt)).await {
                ended?;
            }
        }
        Ok(())
    }

    /// The time after which an attempt without an answer from the database counts as dead.
    fn silence(&self) -> Duration {
        self.store.limit().saturating_add(SYNC)
    }

    /// Returns the attempt that runs, or a new one, and the result of `look`, which sees the state before a new attempt can end.
    fn attempt<T>(self: &Arc<Self>, now: Tick, look: impl FnOnce(&mut State) -> T) -> (Attempt, T) {
        let mut state = self.sync_state();
        if let Some(attempt) = state.running.clone()
            && matches!(*attempt.borrow(), Progress::Alive(at) if now < at + self.silence())
        {
            return (attempt, look(&mut state));
        }
        let (progress, attempt) = watch::channel(Progress::Alive(now));
        state.running = Some(attempt.clone());
        let interval = self.prune_interval();
        // Not in a process that ends at once.
        let due = Tick(0) + interval.min(60 * SYNC);
        let prunes = now >= state.next_prune.unwrap_or(due);
        if prunes {
            state.next_prune = Some(now + interval / 8);
        }
        let looked = look(&mut state);
        // A runtime that has ended drops the task at once, and `End` takes the lock.
        drop(state);
        // Made here, as the task may be dropped before it has begun.
        let mut end = End {
            engine: Arc::clone(self),
            progress,
            result: None,
            asked: now,
        };
        let run = async move {
            let engine = Arc::clone(&end.engine);
            end.result = Some(engine.ask(&end.progress).await.map_err(Arc::new));
            drop(end);
            if engine.known.is_to_be_folded() {
                engine.fold();
            }
            if prunes {
                // After a failure another process, or another time, prunes.
                let _ = engine.prune().await;
            }
        };
        tokio::spawn(run.instrument(tracing::debug_span!("sync")));
        (attempt, looked)
    }

    async fn ask(&self, progress: &watch::Sender<Progress>) -> Result<(), Error> {
        self.learn(progress).await?;
        if let Some(name) = self.known.unseen_revision() {
            self.store
                .call("invalidate", |store| store.invalidate(&name))
                .await?;
            // Another process may have been the first.
            self.learn(progress).await?;
        }
        self.known.complete();
        Ok(())
    }

    /// Reads what has been invalidated since the last question, in pages.
    async fn learn(&self, progress: &watch::Sender<Progress>) -> Result<(), Error> {
        let mut caught_up = false;
        loop {
            let since = self.known.seen();
            let sync = self
                .store
                .call("sync", |store| store.invalidated(since, PAGE));
            let page = sync.await?;
            self.known.learn(&page);
            progress.send_replace(Progress::Alive(self.now()));
            if page.len() < PAGE {
                return Ok(());
            }
            if !caught_up || self.known.is_full() {
                self.catch_up(progress).await?;
                caught_up = true;
            }
        }
    }

    /// Skips the invalidations that one of everything makes needless; where there are too many all the same, this process counts them
    /// as such a one. Those that outlive it are read first.
    async fn catch_up(&self, progress: &watch::Sender<Progress>) -> Result<(), Error> {
        // Of a name that nothing has: the epoch comes with each probe.
        let nothing = LockName::of(LockKind::Housekeeping, "-");
        let probe = self
            .store
            .call("sync", |store| store.probe(&nothing, i64::MAX));
        let epoch = probe.await?.epoch;
        // No key is empty.
        let mut after = "purged:".to_owned();
        loop {
            let lasting = self
                .store
                .call("sync", |store| store.invalidated_for_long(&after, PAGE));
            let page = lasting.await?;
            self.known.add_all(&page);
            progress.send_replace(Progress::Alive(self.now()));
            match page.last() {
                // The invalidation of everything stands on each page besides.
                Some((last, _)) if page.len() >= PAGE => after.clone_from(last),
                _ => break,
            }
        }
        self.known.skip_to(epoch, self.known.is_full());
        Ok(())
    }

    fn sync_state(&self) -> MutexGuard<'_, State> {
        let state = &self.sync.state;
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends an attempt, also one that is cancelled with its runtime.
struct End {
    engine: Arc<Engine>,
    progress: watch::Sender<Progress>,
    /// `None`: cancelled.
    result: Option<Result<(), Arc<Error>>>,
    asked: Tick,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.engine.sync_state();
        if let Some(Ok(())) = self.result {
            state.answered = state.answered.max(self.asked);
            if !state.is_overdue(self.engine.now()) {
                state.waiting_since = None;
            }
        }
        let own = self.progress.subscribe();
        let running = state.running.as_ref();
        if running.is_some_and(|running| running.same_channel(&own)) {
            state.running = None;
        }
        // Under the lock: no request finds that nothing is running, and no reason to be quiet.
        self.engine.sync.quiet_until(self.asked + SYNC);
        drop(state);
        if let Some(result) = self.result.take() {
            self.progress.send_replace(Progress::Ended(result));
        }
    }
}

fn is_inside_runtime() -> bool {
    Handle::try_current().is_ok()
}

async fn end_of(mut attempt: Attempt) -> Result<(), Arc<Error>> {
    let is_ended = |progress: &Progress| matches!(progress, Progress::Ended(_));
    match attempt.wait_for(is_ended).await.as_deref() {
        Ok(Progress::Ended(result)) => result.clone(),
        // Cancelled with its runtime; a request that needs the answer asks again.
        Ok(Progress::Alive(_)) | Err(_) => Ok(()),
    }
}
