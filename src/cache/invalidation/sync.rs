//! The sync: once a second, a request makes this process ask the store what other processes have invalidated,
//! and whether the pages that they are regenerating are ready.
//!
//! The [timeline](super::timeline) decides when, and who waits. This module carries the decisions out. Each
//! sync runs in a task of its own, and any number of requests may wait for it. If the runtime of that task
//! ends, the sync ends, too, and a later request starts the next one.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use perennial_store::{
    Epoch, Error, Invalidate, Invalidated, LatestEpoch, LatestNames, NameList, PurgedUntil,
};
use tokio::{runtime::Handle, sync::watch, time::Instant};
use tracing::Instrument;

use super::{
    UNKNOWN_EPOCH,
    outbox::Outbox,
    timeline::{Timeline, Wait},
};
use crate::{
    cache::{
        environment::Environment, housekeeping::Housekeeping, invalidation_list::KEPT_NAMES,
        missed::MissedInvalidations, peer_leases::PeerLeases,
    },
    clock::Tick,
    event::Event,
    ordered::{Ordered, Place},
    timing::SYNC_INTERVAL,
};

/// The number of invalidations, and of rows of the outbox, that one statement reads.
const SYNC_BATCH: usize = 10_000;

/// The sync of a process. What it reads goes to the invalidation list and to [`PeerLeases`].
pub(crate) struct InvalidationSync {
    environment: Environment,
    peer_leases: Arc<PeerLeases>,
    missed: Arc<MissedInvalidations>,
    outbox: Outbox,
    housekeeping: Housekeeping,
    /// The time before which no sync is due. The hit path reads only this atomic.
    next_check: AtomicI64,
    state: Ordered<SyncState>,
    /// Serialises the announcements of the deploy's revision. A sync that finds it held skips the
    /// announcement and does not wait.
    announcing: tokio::sync::Mutex<()>,
}

struct SyncState {
    running: Option<Attempt>,
    timeline: Timeline,
}

/// A running sync, as it is seen by those who wait for it to end.
#[derive(Clone)]
struct Attempt {
    started: Tick,
    progress: watch::Receiver<SyncProgress>,
}

/// The progress of a sync.
enum SyncProgress {
    /// The sync is running, and this is the time of its last answer from the database.
    Alive(Tick),
    Ended(Result<(), Error>),
}

impl Attempt {
    /// Waits until the sync has ended, and returns its result.
    async fn ended(mut self) -> Result<(), Error> {
        let is_ended = |progress: &SyncProgress| matches!(progress, SyncProgress::Ended(_));
        match self.progress.wait_for(is_ended).await.as_deref() {
            Ok(SyncProgress::Ended(result)) => result.clone(),
            // The sync was cancelled with its runtime. A request that needs the result starts another
            // one.
            Ok(SyncProgress::Alive(_)) | Err(_) => Ok(()),
        }
    }
}

impl InvalidationSync {
    pub(crate) fn new(
        environment: Environment,
        peer_leases: Arc<PeerLeases>,
        missed: Arc<MissedInvalidations>,
    ) -> Self {
        let state = SyncState {
            running: None,
            timeline: Timeline::new(),
        };
        Self {
            outbox: Outbox::new(environment.clone()),
            housekeeping: Housekeeping::new(environment.clone()),
            environment,
            peer_leases,
            missed,
            next_check: AtomicI64::new(i64::MIN),
            state: Ordered::new(Place::Sync, state),
            announcing: tokio::sync::Mutex::default(),
        }
    }

    /// Starts a sync if one is due. Returns true if the request has to wait for the result, by
    /// [`wait_if_overdue`](Self::wait_if_overdue).
    #[inline]
    pub(crate) fn start_if_due(self: &Arc<Self>, now: Tick) -> bool {
        if now.0 < self.next_check.load(Relaxed) {
            return false;
        }
        // Outside of a runtime no task can be started. The future that the caller gets is polled inside of
        // one, and asks again there.
        !is_inside_runtime() || self.on_request(now).is_some()
    }

    /// Returns true if a sync is due, and starts none.
    pub(crate) fn is_due(&self, now: Tick) -> bool {
        now.0 >= self.next_check.load(Relaxed)
    }

    /// Waits for the answer if it is overdue, as long as the site's patience lasts.
    pub(crate) async fn wait_if_overdue(self: &Arc<Self>) {
        loop {
            let now = self.environment.now();
            if now.0 < self.next_check.load(Relaxed) || !is_inside_runtime() {
                return;
            }
            let Some((attempt, until)) = self.on_request(now) else {
                return;
            };
            // If there is no answer in time, the request is served from memory. After an answer, the loop
            // checks whether that answer is recent enough, because it may belong to a sync that was sent long
            // ago.
            let answer = tokio::time::timeout(until - now, attempt.ended()).await;
            let now = self.environment.now();
            self.state.lock().timeline.has_waited(now);
            if !matches!(answer, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Waits until this process knows all invalidations from before its start.
    pub(crate) async fn wait_for_all_before_start(self: &Arc<Self>) -> Result<(), Error> {
        let Environment { store, list, .. } = &self.environment;
        while !list.is_complete() {
            let attempt = self.start_or_join();
            if store.is_failing()
                && let SyncProgress::Alive(_) = &*attempt.progress.borrow()
            {
                return Err(Error::failed_recently("sync"));
            }
            // The runtime in which the attempt runs may be stalled. After this time the attempt counts as dead,
            // and `start_or_join` replaces it.
            if let Ok(ended) = tokio::time::timeout(self.silence(), attempt.ended()).await {
                ended?;
            }
        }
        Ok(())
    }

    /// Waits until this process knows all invalidations from before the call.
    pub(crate) async fn wait_until_current(self: &Arc<Self>) -> Result<(), Error> {
        let since = self.environment.now();
        loop {
            let attempt = self.start_or_join();
            let (started, silence) = (attempt.started, self.silence());
            let ended = tokio::time::timeout(silence, attempt.ended()).await;
            if started >= since {
                return ended.unwrap_or_else(|_| Err(Error::timeout("sync", silence)));
            }
        }
    }

    /// Waits until this process knows the invalidation with this epoch, on behalf of the author of a change.
    ///
    /// The next sync begins within a second, and the wait for its end is bounded by the site's patience. Any
    /// number of such requests cause one sync a second. Returns `epoch`, or [`Epoch::NONE`] if this process
    /// knows no such invalidation. With [`UNKNOWN_EPOCH`], it waits for a sync that begins after the call.
    pub(crate) async fn wait_for_epoch(self: &Arc<Self>, epoch: Epoch) -> Epoch {
        let Environment { store, list, .. } = &self.environment;
        let arrived = self.environment.now();
        let until = arrived + SYNC_INTERVAL + store.patience();
        while list.seen() < epoch {
            let now = self.environment.now();
            let left = until - now;
            if left.is_zero() {
                break;
            }
            let (running, next) = {
                let mut state = self.state.lock();
                let running = state.running.clone();
                // A sync has run since the request arrived, and the epoch is still unknown. So either there is
                // no invalidation with this epoch, or the database is failing.
                if running.is_none() && state.timeline.has_started_since(arrived) {
                    break;
                }
                let next = state.timeline.next_for_author();
                if running.is_none() && now >= next {
                    state.timeline.on_start_for_author(now);
                }
                (running, next)
            };
            let wait = async {
                match running {
                    Some(running) => drop(running.ended().await),
                    None if now >= next => drop(self.start_or_join().ended().await),
                    None => tokio::time::sleep(next - now).await,
                }
            };
            // If this takes too long, the author gets the version that everybody gets.
            let _ = tokio::time::timeout(left, wait).await;
        }
        match epoch {
            UNKNOWN_EPOCH => UNKNOWN_EPOCH,
            _ if list.latest() < epoch => Epoch::NONE,
            _ => epoch,
        }
    }

    /// Returns true if another process still holds the lease on this key, according to a sync that began at
    /// `since` or later. If the database does not answer, the result is what this process knows.
    pub(crate) async fn peer_still_holds(self: &Arc<Self>, key: &str, since: Tick) -> bool {
        // The running sync may have begun before `since`, and then a second one is needed.
        for _ in 0..2 {
            let (running, is_recent) = {
                let state = self.state.lock();
                let is_recent = state.timeline.has_started_since(since);
                (state.running.clone(), is_recent)
            };
            let attempt = match running {
                Some(running) => running,
                None if is_recent => break,
                None => self.start_or_join(),
            };
            let _ = tokio::time::timeout(self.silence(), attempt.ended()).await;
        }
        self.peer_leases.contains(key, self.environment.now())
    }

    /// Called when a NOTIFY of PostgreSQL arrives. Starts a sync at once, instead of waiting for the
    /// interval.
    pub(crate) fn on_notify(self: &Arc<Self>) {
        self.start_or_join();
    }

    /// Called after the application's commit: gives epochs to the rows with these ids, waits for a sync if
    /// another process has numbered some of them, and notes the epoch for the author.
    pub(crate) async fn on_commit(self: &Arc<Self>, ids: &[String]) -> Result<(), Error> {
        let numbered = match self.outbox.number_all(ids).await {
            Ok(Some(epoch)) => Ok(epoch),
            Ok(None) => self.wait_until_current().await.map(|()| UNKNOWN_EPOCH),
            Err(error) => Err(error),
        };
        // If the numbering has failed, the next sync of any process does it.
        super::record_write(*numbered.as_ref().unwrap_or(&UNKNOWN_EPOCH));
        numbered.map(drop)
    }

    /// Called after a request that may have made triggers of the database write into the outbox. When it
    /// returns, this process honours what they have written, unless the database takes longer than a sync may.
    /// If the author of the change has to see it in all processes, the rows are given epochs, too. The result
    /// is then the epoch for the author's cookie, or `None` if nothing was invalidated since `before`.
    pub(crate) async fn apply_triggered(
        self: &Arc<Self>,
        before: Epoch,
        for_author: bool,
    ) -> Option<Epoch> {
        let Environment { store, list, .. } = &self.environment;
        let apply = async {
            self.wait_until_current().await?;
            let seen: HashSet<_> = list.unnumbered().into_iter().collect();
            if for_author {
                self.outbox.number_all_seen().await?;
            }
            let left = list.unnumbered();
            Ok::<_, Error>(!left.iter().any(|id| seen.contains(id)))
        };
        let limit = SYNC_INTERVAL + store.patience();
        match tokio::time::timeout(limit, apply).await {
            Ok(Ok(true)) => Some(list.latest()).filter(|latest| *latest > before),
            _ => Some(UNKNOWN_EPOCH),
        }
    }

    /// Returns the running sync, or a new one, and the time at which the request stops waiting for it. `None`
    /// means that the request does not wait.
    fn on_request(self: &Arc<Self>, now: Tick) -> Option<(Attempt, Tick)> {
        // Reading the machine's uptime is a system call. So it is done only if the process may have been
        // suspended, and not for each of many waiting requests.
        let clock = &self.environment.clock;
        if self.state.lock().timeline.is_first_in_a_while(now) {
            clock.resumed(clock.suspended());
        }
        let now = now.max(clock.now());
        let mut state = self.state.lock();
        let patience = self.environment.store.patience();
        let wait = state.timeline.on_request(now, patience);
        if let Wait::No { next_check } = wait {
            self.next_check.store(next_check.0, Relaxed);
        }
        let (attempt, new) = self.join_or_start_in(&mut state, now);
        drop(state);
        if let Some(progress) = new {
            self.run(progress, now);
        }
        match wait {
            Wait::Until(until) => Some((attempt, until)),
            Wait::No { .. } => None,
        }
    }

    /// Returns the running sync, or a new one.
    fn start_or_join(self: &Arc<Self>) -> Attempt {
        let now = self.environment.now();
        let mut state = self.state.lock();
        let (attempt, new) = self.join_or_start_in(&mut state, now);
        drop(state);
        if let Some(progress) = new {
            self.run(progress, now);
        }
        attempt
    }

    /// Returns the running sync, or a new one with the sender of its progress, which the caller
    /// [runs](Self::run) after it has released the lock. The lock must be released first because `spawn` drops
    /// the task at once if its runtime has ended, and the end of a sync takes the same lock.
    fn join_or_start_in(
        &self,
        state: &mut SyncState,
        now: Tick,
    ) -> (Attempt, Option<watch::Sender<SyncProgress>>) {
        if let Some(running) = &state.running
            && matches!(*running.progress.borrow(), SyncProgress::Alive(at) if now < at + self.silence())
        {
            return (running.clone(), None);
        }
        let (sender, progress) = watch::channel(SyncProgress::Alive(now));
        let attempt = Attempt {
            started: now,
            progress,
        };
        state.running = Some(attempt.clone());
        state.timeline.on_start(now);
        (attempt, Some(sender))
    }

    /// The time after which an attempt without an answer from the database counts as dead.
    fn silence(&self) -> Duration {
        self.environment.store.limit().saturating_add(SYNC_INTERVAL)
    }

    /// Runs a sync in a task. After it, the task does the work for which no request waits, such as giving
    /// epochs to rows of the outbox.
    fn run(self: &Arc<Self>, progress: watch::Sender<SyncProgress>, started: Tick) {
        // This is made before the task: a runtime that shuts down may drop the task before it has begun, and
        // the end has to be recorded even then.
        let mut end = End {
            sync: Arc::clone(self),
            progress,
            result: None,
            started,
        };
        let run = async move {
            let sync = Arc::clone(&end.sync);
            let begun = Instant::now();
            let result = sync.ask(&end.progress).await;
            sync.environment.store.record_read(begun, result.is_ok());
            let succeeded = result.is_ok();
            end.result = Some(result);
            drop(end);
            if succeeded {
                let Environment {
                    list,
                    observer,
                    settings,
                    ..
                } = &sync.environment;
                sync.missed.judge(started, &**list, observer, settings.mode);
            }
            // Nobody waits for the rest. What fails here is done by a later sync.
            let _ = sync.outbox.number_seen().await;
            if let Ok(_announcing) = sync.announcing.try_lock() {
                let _ = sync.announce_revision().await;
            }
            sync.housekeeping.run(started).await;
        };
        tokio::spawn(run.instrument(tracing::debug_span!("sync")));
    }

    async fn ask(&self, progress: &watch::Sender<SyncProgress>) -> Result<(), Error> {
        let Environment { store, list, .. } = &self.environment;
        self.read_changes(progress).await?;
        if !list.is_complete() {
            list.decide_announcement();
            // The process can serve stored versions even if this write fails, so it waits for the write no
            // longer than for any other answer.
            let announced = tokio::time::timeout(store.patience(), self.announce_revision());
            if let Ok(Ok(true)) = announced.await {
                self.read_changes(progress).await?;
            }
            list.complete();
        }
        Ok(())
    }

    /// Stores the revision of the site's code, if the list has decided that it has to be stored. Returns true
    /// if it was.
    async fn announce_revision(&self) -> Result<bool, Error> {
        let Environment {
            store,
            list,
            observer,
            ..
        } = &self.environment;
        let Some(name) = list.pending_revision() else {
            return Ok(false);
        };
        let epoch = store.call(Invalidate::new(vec![name.clone()])).await?;
        let name = name.into();
        observer.emit(Event::Invalidated { name, epoch });
        Ok(true)
    }

    /// Reads the invalidations since the last sync, and the rows of the outbox, in batches. Each batch counts
    /// as soon as it is read.
    async fn read_changes(&self, progress: &watch::Sender<SyncProgress>) -> Result<(), Error> {
        let Environment {
            store, list, clock, ..
        } = &self.environment;
        let (mut caught_up, mut unnumbered) = (false, HashSet::new());
        let mut after = String::new();
        loop {
            let (since, asked) = (list.seen(), clock.now());
            let keys = self.peer_leases.to_ask(asked);
            let sync = Invalidated::new(&*after, since, SYNC_BATCH, keys.clone());
            let synced = store.call(sync).await?;
            list.apply(&synced.names);
            let are_all_names = synced.names.len() <= SYNC_BATCH;
            list.record_unnumbered(&synced.committed, are_all_names);
            self.peer_leases.on_sync(&keys, &synced.peer_leases, asked);
            progress.send_replace(SyncProgress::Alive(clock.now()));
            if let Some(last) = synced.committed.last() {
                after.clone_from(&last.id);
            }
            let are_all = are_all_names && synced.committed.len() < SYNC_BATCH;
            unnumbered.extend(synced.committed.into_iter().map(|row| row.id));
            if are_all {
                break;
            }
            if !are_all_names && !caught_up {
                self.catch_up(progress).await?;
                caught_up = true;
            }
        }
        // Rows that are no longer in the outbox have been given epochs. The batches above have read these
        // epochs, because each batch reads names and rows as of the same moment.
        list.retain_unnumbered(&unnumbered);
        Ok(())
    }

    /// Called if there are more new names than one batch has. Reads only the latest names of each list, as
    /// many as a process [keeps](KEPT_NAMES), and all revisions.
    async fn catch_up(&self, progress: &watch::Sender<SyncProgress>) -> Result<(), Error> {
        let Environment { store, list, .. } = &self.environment;
        // What is invalidated from here on has a later epoch, and the next batch of `read_changes` has it.
        let latest = store.call(LatestEpoch {}).await?;
        for names in [NameList::Revisions, NameList::Purged, NameList::Stale] {
            self.read_latest_names(names, latest, progress).await?;
        }
        // A name that was pruned before it was read is missing from all lists. When it was pruned, a purge of
        // everything was stored instead. The epoch of that purge may be in a part of the list that this
        // process had already read, so the process asks for the purge separately.
        let until = store.call(PurgedUntil {}).await?;
        list.invalidate_all_before(NameList::Purged, until);
        list.mark_seen(latest);
        Ok(())
    }

    /// Reads a list backwards, from the epoch `latest` on.
    async fn read_latest_names(
        &self,
        names: NameList,
        latest: Epoch,
        progress: &watch::Sender<SyncProgress>,
    ) -> Result<(), Error> {
        let Environment {
            store, list, clock, ..
        } = &self.environment;
        let (since, mut before, mut count) = (list.seen(), latest.next(), 0);
        while before > since {
            let batch = LatestNames::new(names, before, SYNC_BATCH);
            let batch = store.call(batch).await?;
            list.add_all(&batch);
            progress.send_replace(SyncProgress::Alive(clock.now()));
            if batch.len() <= SYNC_BATCH {
                break;
            }
            count += batch.len();
            before = batch.iter().map(|(_, epoch)| *epoch).min().unwrap_or(since);
            if count >= KEPT_NAMES && names != NameList::Revisions {
                list.invalidate_all_before(names, before);
                break;
            }
        }
        Ok(())
    }
}

/// Records the end of a sync, even of one that is cancelled together with its runtime.
struct End {
    sync: Arc<InvalidationSync>,
    progress: watch::Sender<SyncProgress>,
    /// `None` means that the sync was cancelled.
    result: Option<Result<(), Error>>,
    started: Tick,
}

impl Drop for End {
    fn drop(&mut self) {
        let now = self.sync.environment.now();
        let mut state = self.sync.state.lock();
        let succeeded = matches!(self.result, Some(Ok(())));
        state.timeline.on_end(self.started, succeeded, now);
        let this_sync = self.progress.subscribe();
        let running = state.running.as_ref();
        if running.is_some_and(|running| running.progress.same_channel(&this_sync)) {
            state.running = None;
        }
        // The pause is set under the lock, so that a request which later finds no running sync also finds the
        // pause, and starts no sync.
        let next_check = self.started + SYNC_INTERVAL;
        self.sync.next_check.store(next_check.0, Relaxed);
        drop(state);
        if let Some(result) = self.result.take() {
            self.progress.send_replace(SyncProgress::Ended(result));
        }
    }
}

fn is_inside_runtime() -> bool {
    Handle::try_current().is_ok()
}
