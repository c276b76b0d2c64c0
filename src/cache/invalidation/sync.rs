//! The sync: once in an interval, a request asks for other processes' invalidations.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use perennial_store::{
    Epoch, Error, Invalidate, Invalidated, LatestEpoch, LatestNames, NameList, PurgedUntil, locked,
};
use tokio::{runtime::Handle, sync::watch, time::Instant};
use tracing::Instrument;

use crate::{
    cache::{Cache, UNKNOWN, invalidation::KEPT},
    clock::Tick,
    timing::{OVERDUE, SYNC},
};

/// The number of invalidations, and of rows of the outbox, that one statement reads.
const PAGE: usize = 10_000;

pub(crate) struct Schedule {
    /// Held while the revision is stored.
    saying: tokio::sync::Mutex<()>,
    /// The time before which no sync is due. The hit path reads only this atomic.
    ask_again_at: AtomicI64,
    state: Mutex<State>,
}

struct State {
    running: Option<Attempt>,
    /// The start of the latest sync.
    begun: Tick,
    /// The start of the last sync that succeeded.
    answered: Tick,
    /// The time of the last request that checked whether a sync is due.
    looked: Tick,
    /// The start of the last sync for a request that knew of a later epoch than this process.
    forced: Tick,
    /// Since when requests wait for an answer that is overdue. They wait for a limited time in all,
    /// and again only after an answer, or when no request came for a while (the process may have
    /// been paused).
    waiting_since: Option<Tick>,
    /// The time of the latest check whether to prune.
    pruned: Option<Tick>,
}

/// The progress of a sync.
enum Shown {
    /// The attempt is running, and had its last answer from the database at this time.
    Alive(Tick),
    Ended(Result<(), Arc<Error>>),
}

type Attempt = watch::Receiver<Shown>;

impl Schedule {
    pub(crate) fn new() -> Self {
        Self {
            saying: tokio::sync::Mutex::default(),
            ask_again_at: AtomicI64::new(i64::MIN),
            state: Mutex::new(State {
                running: None,
                begun: Tick(i64::MIN),
                answered: Tick(i64::MIN),
                looked: Tick(i64::MIN),
                forced: Tick(i64::MIN),
                waiting_since: None,
                pruned: None,
            }),
        }
    }

    fn ask_again_at(&self, until: Tick) {
        self.ask_again_at.store(until.0, Relaxed);
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

impl Cache {
    /// Starts a sync if one is due. Returns true if the request has to wait for the result, by
    /// [`Cache::synced`].
    pub(crate) fn sync(self: &Arc<Self>, now: Tick) -> bool {
        if now.0 < self.sync.ask_again_at.load(Relaxed) {
            return false;
        }
        // A caller may call a service outside of a runtime; the returned future is polled inside.
        !is_inside_runtime() || self.awaited(now).is_some()
    }

    /// Asks now: something may have been invalidated.
    #[cfg(feature = "postgres")]
    pub(crate) fn heard(self: &Arc<Self>) {
        self.attempt(self.now(), |_| ());
    }

    /// Waits for the answer if it is overdue, as long as the site's patience lasts.
    pub(crate) async fn synced(self: &Arc<Self>) {
        loop {
            let now = self.now();
            if now.0 < self.sync.ask_again_at.load(Relaxed) || !is_inside_runtime() {
                return;
            }
            let Some((attempt, until)) = self.awaited(now) else {
                return;
            };
            // Without an answer the versions in memory are served. An answer to a question of long
            // ago is not enough.
            let answer = tokio::time::timeout(until - now, end_of(attempt)).await;
            locked(&self.sync.state).looked = self.now();
            if !matches!(answer, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Returns the running sync, or a new one, with the end of the wait. `None`: the request does
    /// not wait.
    fn awaited(self: &Arc<Self>, now: Tick) -> Option<(Attempt, Tick)> {
        // A call of the system, which not each of many waiting requests makes.
        if now >= locked(&self.sync.state).looked + SYNC / 4 {
            self.clock.resumed(self.clock.suspended());
        }
        let now = now.max(self.now());
        let (attempt, until) = self.attempt(now, |state| {
            let until = state.wait_until(now, self.store.patience());
            if until.is_none() {
                // The next look: when the answer is overdue, or after an interval.
                let overdue = state.answered + OVERDUE;
                let next = if now < overdue { overdue } else { now + SYNC };
                self.sync.ask_again_at(next);
            }
            until
        });
        Some((attempt, until?))
    }

    /// Waits until this process knows all invalidations from before its start.
    pub(crate) async fn know(self: &Arc<Self>) -> Result<(), Arc<Error>> {
        while !self.invalidations.is_complete() {
            let (attempt, ()) = self.attempt(self.now(), |_| ());
            if self.store.fails()
                && let Shown::Alive(_) = &*attempt.borrow()
            {
                return Err(Arc::new(Error::failing("sync")));
            }
            // The runtime of an attempt may stand still. The attempt counts as dead after this
            // time, and is replaced.
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

    /// Returns the running attempt, or a new one, and the result of `look`. `look` sees the state
    /// before a new attempt can end.
    fn attempt<T>(self: &Arc<Self>, now: Tick, look: impl FnOnce(&mut State) -> T) -> (Attempt, T) {
        let mut state = locked(&self.sync.state);
        if let Some(attempt) = state.running.clone()
            && matches!(*attempt.borrow(), Shown::Alive(at) if now < at + self.silence())
        {
            return (attempt, look(&mut state));
        }
        let (progress, attempt) = watch::channel(Shown::Alive(now));
        (state.running, state.begun) = (Some(attempt.clone()), now);
        let interval = self.prune_interval();
        // A short-lived process does not prune.
        let first = Tick(0) + interval.min(60 * SYNC);
        let due = state.pruned.map_or(first, |pruned| pruned + interval / 8);
        let prunes = now >= due;
        if prunes {
            state.pruned = Some(now);
        }
        let looked = look(&mut state);
        // Dropping `End` locks this mutex, and a runtime that has ended drops its task immediately,
        // inside `spawn`.
        drop(state);
        // Made here, as the task may be dropped before it has begun.
        let mut end = End {
            cache: Arc::clone(self),
            progress,
            result: None,
            since: now,
        };
        let run = async move {
            let cache = Arc::clone(&end.cache);
            let begun = Instant::now();
            let result = cache.ask(&end.progress).await;
            cache.store.has_read(begun, result.is_ok());
            end.result = Some(result.map_err(Arc::new));
            drop(end);
            // No request waits for these writes.
            // After a failure, a later sync tries again.
            let _ = cache.number_committed().await;
            if let Ok(_saying) = cache.sync.saying.try_lock() {
                let _ = cache.say_revision().await;
            }
            let _ = cache.keep_capacity().await;
            if prunes {
                // After a failure another process prunes, or this one at a later sync.
                let _ = cache.prune().await;
            }
        };
        tokio::spawn(run.instrument(tracing::debug_span!("sync")));
        (attempt, looked)
    }

    /// Waits until this process knows all invalidations from before the call.
    pub(crate) async fn caught_up(self: &Arc<Self>) -> Result<(), Arc<Error>> {
        let since = self.now();
        loop {
            let (attempt, begun) = self.attempt(self.now(), |state| state.begun);
            let silence = self.silence();
            let ended = tokio::time::timeout(silence, end_of(attempt)).await;
            if begun >= since {
                return ended.unwrap_or_else(|_| Err(Arc::new(Error::timeout("sync", silence))));
            }
        }
    }

    /// Waits until this process knows the invalidation with this epoch. The next sync begins within
    /// a second, and the wait for the sync's end is bounded by the site's patience. A crowd of such
    /// requests causes one sync a second. Returns the argument; [`Epoch::NONE`]: this process knows no such
    /// invalidation. With [`UNKNOWN`], waits for a sync that begins after the call.
    pub(crate) async fn caught_up_to(self: &Arc<Self>, epoch: Epoch) -> Epoch {
        let arrived = self.now();
        let until = arrived + SYNC + self.store.patience();
        while self.invalidations.seen() < epoch {
            let now = self.now();
            let left = until - now;
            if left.is_zero() {
                break;
            }
            let (running, next) = {
                let mut state = locked(&self.sync.state);
                // There is no such invalidation, or the database fails.
                if state.running.is_none() && state.begun >= arrived {
                    break;
                }
                let next = state.forced + SYNC;
                if state.running.is_none() && now >= next {
                    state.forced = now;
                }
                (state.running.clone(), next)
            };
            let wait = async {
                match running {
                    Some(running) => drop(end_of(running).await),
                    None if now >= next => {
                        drop(end_of(self.attempt(now, |_| ()).0).await);
                    }
                    None => tokio::time::sleep(next - now).await,
                }
            };
            // Without an answer, the author gets the version of all visitors.
            let _ = tokio::time::timeout(left, wait).await;
        }
        match epoch {
            UNKNOWN => UNKNOWN,
            _ if self.invalidations.latest() < epoch => Epoch::NONE,
            _ => epoch,
        }
    }

    /// Returns true if another process still holds the lease on this key, by a sync that began at
    /// `since` or later.
    pub(crate) async fn is_held(self: &Arc<Self>, key: &str, since: Tick) -> bool {
        // The running sync may have begun earlier.
        for _ in 0..2 {
            let (running, begun) = {
                let state = locked(&self.sync.state);
                (state.running.clone(), state.begun)
            };
            let attempt = match running {
                Some(running) => running,
                None if begun >= since => break,
                None => self.attempt(self.now(), |_| ()).0,
            };
            // Without an answer, the flight waits until the lease that it knows has expired.
            let _ = tokio::time::timeout(self.silence(), end_of(attempt)).await;
        }
        self.is_elsewhere(key)
    }

    async fn ask(&self, progress: &watch::Sender<Shown>) -> Result<(), Error> {
        self.learn(progress).await?;
        if !self.invalidations.is_complete() {
            self.invalidations.say_revision();
            // A process serves stored versions without this write.
            let said = tokio::time::timeout(self.store.patience(), self.say_revision());
            if let Ok(Ok(true)) = said.await {
                self.learn(progress).await?;
            }
            self.invalidations.complete();
        }
        Ok(())
    }

    /// Stores the revision of the site's code, if that is to be done. Returns true if done.
    async fn say_revision(&self) -> Result<bool, Error> {
        let Some(name) = self.invalidations.unsaid_revision() else {
            return Ok(false);
        };
        let epoch = self.store.call(Invalidate::new(vec![name.clone()])).await?;
        self.tell_invalidated(&name, epoch);
        Ok(true)
    }

    /// Reads the invalidations since the last sync, and the rows of the outbox, in cache. What was
    /// read counts immediately.
    async fn learn(&self, progress: &watch::Sender<Shown>) -> Result<(), Error> {
        let (mut caught_up, mut unnumbered) = (false, HashSet::new());
        let mut after = String::new();
        loop {
            let (since, asked) = (self.invalidations.seen(), self.now());
            let awaited = self.peer_leases.awaited(asked);
            let sync = Invalidated::new(&*after, since, PAGE, awaited.clone());
            let synced = self.store.call(sync).await?;
            self.invalidations.learn(&synced.names);
            let are_all_names = synced.names.len() <= PAGE;
            self.invalidations
                .see_unnumbered(&synced.committed, are_all_names);
            self.peer_leases.tell(&awaited, &synced.awaited, asked);
            progress.send_replace(Shown::Alive(self.now()));
            if let Some(last) = synced.committed.last() {
                after.clone_from(&last.id);
            }
            let are_all = are_all_names && synced.committed.len() < PAGE;
            unnumbered.extend(synced.committed.into_iter().map(|row| row.id));
            if are_all {
                break;
            }
            if !are_all_names && !caught_up {
                self.catch_up(progress).await?;
                caught_up = true;
            }
        }
        // A row that has left the outbox was numbered before, and each page had the new epochs of the
        // moment when its rows were read.
        self.invalidations.keep_unnumbered(&unnumbered);
        Ok(())
    }

    /// Reads the latest names of each list, as many as a process [keeps](KEPT), and all revisions.
    async fn catch_up(&self, progress: &watch::Sender<Shown>) -> Result<(), Error> {
        // What is invalidated meanwhile is read after these names, in the order of epochs.
        let latest = self.store.call(LatestEpoch {}).await?;
        for list in [NameList::Revisions, NameList::Purged, NameList::Stale] {
            self.read_latest(list, latest, progress).await?;
        }
        // A name that was pruned before it was read is in none of these lists. The purge of everything that
        // was stored in its place may be in a part of its list that was read before.
        let until = self.store.call(PurgedUntil {}).await?;
        self.invalidations.affect_all(NameList::Purged, until);
        self.invalidations.have_seen(latest);
        Ok(())
    }

    /// Reads a list backwards, from the epoch `latest` on.
    async fn read_latest(
        &self,
        list: NameList,
        latest: Epoch,
        progress: &watch::Sender<Shown>,
    ) -> Result<(), Error> {
        let (since, mut before, mut count) = (self.invalidations.seen(), latest.next(), 0);
        while before > since {
            let page = LatestNames::new(list, before, PAGE);
            let page = self.store.call(page).await?;
            self.invalidations.add_all(&page);
            progress.send_replace(Shown::Alive(self.now()));
            if page.len() <= PAGE {
                break;
            }
            count += page.len();
            before = page.iter().map(|(_, epoch)| *epoch).min().unwrap_or(since);
            if count >= KEPT && list != NameList::Revisions {
                self.invalidations.affect_all(list, before);
                break;
            }
        }
        Ok(())
    }
}

/// The end of an attempt, also of one that is cancelled with its runtime.
struct End {
    cache: Arc<Cache>,
    progress: watch::Sender<Shown>,
    /// `None`: cancelled.
    result: Option<Result<(), Arc<Error>>>,
    since: Tick,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut state = locked(&self.cache.sync.state);
        if let Some(Ok(())) = self.result {
            state.answered = state.answered.max(self.since);
            if !state.is_overdue(self.cache.now()) {
                state.waiting_since = None;
            }
        }
        let own = self.progress.subscribe();
        let running = state.running.as_ref();
        if running.is_some_and(|running| running.same_channel(&own)) {
            state.running = None;
        }
        // The pause is set under the lock. A request that later finds no running sync finds the
        // pause, too, and begins no sync.
        self.cache.sync.ask_again_at(self.since + SYNC);
        drop(state);
        if let Some(result) = self.result.take() {
            self.progress.send_replace(Shown::Ended(result));
        }
    }
}

fn is_inside_runtime() -> bool {
    Handle::try_current().is_ok()
}

async fn end_of(mut attempt: Attempt) -> Result<(), Arc<Error>> {
    let is_ended = |progress: &Shown| matches!(progress, Shown::Ended(_));
    match attempt.wait_for(is_ended).await.as_deref() {
        Ok(Shown::Ended(result)) => result.clone(),
        // The attempt was cancelled with its runtime. A request that needs the result starts
        // another one.
        Ok(Shown::Alive(_)) | Err(_) => Ok(()),
    }
}
