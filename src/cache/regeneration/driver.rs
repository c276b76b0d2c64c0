//! Carries out the steps of [`Regeneration`]: one task for each regeneration.

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use perennial_store::{Fence, Lease, LockKind, LockName, NewEntry, Probe, Publish, Remove, locked};
use tokio::sync::watch;

use crate::{
    cache::{
        Action, Cache, CacheEntry, DecisionContext, Generate, Input, Meta, Progress,
        Representations, Version,
        entry::AsOf,
        parts,
        regeneration::{Output, ProbeResult, Regeneration},
    },
    clock::Tick,
    event::Reason,
    extensions::Tags,
    policy::Refresh,
    timing::{BRIEF_RETENTION, RECHECK},
};

/// The running action, with the lease that the action acquires.
pub(super) type Running = Pin<Box<dyn Future<Output = (Input, Option<Lease>)> + Send>>;

/// A running regeneration.
pub(super) struct Task {
    pub(super) cache: Arc<Cache>,
    pub(super) key: Arc<str>,
    pub(super) policy: Refresh,
    pub(super) regeneration: Regeneration<Representations>,
    /// `None`: visitors cannot watch this regeneration any more, as it is over.
    pub(super) shown: Option<watch::Sender<Progress>>,
    /// The regeneration of this key before this one, until it has released its lease.
    pub(super) before: Option<watch::Receiver<()>>,
    /// Closes at the end of this regeneration. `Some`: the lease is being released.
    pub(super) releasing: Option<watch::Sender<()>>,
    pub(super) given: Generate,
    /// The generators that wait for this regeneration.
    pub(super) outer: Option<Arc<parts::Chain>>,
    /// The permit of the regeneration that this one is a part of.
    pub(super) lent: Option<parts::Permit>,
    pub(super) permit: Option<parts::Permit>,
    /// See [`DecisionContext::held`].
    pub(super) held: bool,
    pub(super) lease: Option<Lease>,
    /// CacheEntry when the generator begins.
    pub(super) reason: Reason,
    /// The begin of the generator, while the generator runs.
    pub(super) began: Option<Tick>,
    /// The time of the generator.
    pub(super) took: Duration,
    /// The size of the generated body.
    pub(super) bytes: usize,
    /// The last probe found the expired lease of another holder.
    pub(super) found_expired: bool,
}

impl Task {
    /// Runs to the end, also without visitors, once its own generator has begun. After a panic of the
    /// application's code, such as a subscriber of the log, another regeneration waits for the cooldown, as
    /// after a failure.
    pub(super) async fn run(mut self) {
        let run = AssertUnwindSafe(self.run_until_end()).catch_unwind();
        if let Err(panic) = run.await {
            self.cool_down().await;
            // Its own `Drop` may panic.
            drop(panic);
        }
    }

    async fn run_until_end(&mut self) {
        self.wait_for_release().await;
        // Memory is empty until the process knows the invalidations from before its start.
        let begun = match self.cache.know().await {
            Ok(()) => Input::Start,
            Err(_) => Input::StoreFailed,
        };
        self.take_permit();
        let (mut event, mut action) = (begun, nothing());
        loop {
            match self.on(event) {
                Some(Action::End) => return,
                Some(step) => action = self.carry_out(step),
                None => {}
            }
            let (begun, due) = (self.cache.now(), self.regeneration.due(&self.context()));
            let pause = due.map_or(Duration::ZERO, |due| due - begun);
            let lease;
            (event, lease) = tokio::select! {
                biased;
                done = &mut action => done,
                () = tokio::time::sleep(pause), if due.is_some() => (Input::TimerFired, None),
            };
            if lease.is_some() {
                self.lease = lease;
            }
            if self.regeneration.is_waiting() {
                if !self.is_awaited().await {
                    return;
                }
                self.take_permit();
                // The statement of another regeneration answers this regeneration, too.
                let pause = self.cache.now() - begun;
                self.held = self.cache.is_held(&self.key, begun + pause / 2).await;
            }
        }
    }

    /// Passes an event to the state, and publishes the effect in memory and to the visitors.
    fn on(&mut self, event: Input) -> Option<Action> {
        self.measure(&event);
        let context = DecisionContext {
            permit: self.permit.is_some(),
            held: self.held,
            ..self.cache.context(&self.key, &self.policy)
        };
        let Output {
            next,
            entry,
            progress: shown,
            peer_lease,
            ended,
        } = self.regeneration.on(&context, event);
        if let Some(ended) = ended {
            self.ended(ended);
        }
        if let Some(lease) = peer_lease {
            self.cache.peer_leases.insert(&self.key, lease);
        }
        if let Some(entry) = entry {
            self.cache.memory.insert(&self.key, entry);
            #[cfg(feature = "compression")]
            if let Some(newest) = self.regeneration.newest() {
                self.cache.compress(&newest.page);
            }
        }
        // First the key is free for the next regeneration: a visitor who is answered below may come
        // again at once, and find the page invalidated.
        let progress = if self.regeneration.is_over() {
            self.leave(true)
        } else {
            self.shown.clone()
        };
        if let (Some(shown), Some(progress)) = (shown, progress) {
            let begins_to_wait = matches!(shown, Progress::HeldByPeer);
            let before = progress.send_replace(shown);
            if begins_to_wait && !matches!(before, Progress::HeldByPeer) {
                self.waits();
            }
        }
        next
    }

    /// Waits until the regeneration before has released its lease. The time that its statements may
    /// take bounds the wait; the lease that is not released by then will be found held.
    async fn wait_for_release(&mut self) {
        if let Some(mut before) = self.before.take() {
            let limit = self.cache.store.limit().saturating_mul(2);
            let closed = async { while before.changed().await.is_ok() {} };
            let _ = tokio::time::timeout(limit, closed).await;
        }
    }

    /// Takes the key from the list of running regenerations, so that a request can start the next
    /// one. `releases`: the next one has to wait until this one ends. Returns the channel of the
    /// visitors who watch; dropping it closes it.
    fn leave(&mut self, releases: bool) -> Option<watch::Sender<Progress>> {
        let progress = self.shown.take()?;
        let (sender, receiver) = watch::channel(());
        let mut running = locked(&self.cache.running);
        let watched = running.flights.remove(&*self.key);
        if releases {
            running.releasing.insert(self.key.to_string(), receiver);
            self.releasing = Some(sender);
        }
        drop(running);
        // Dropped after the lock: it may have the last version of its content, whose value is the
        // application's.
        drop(watched);
        Some(progress)
    }

    /// Returns true while a visitor watches.
    fn is_watched(&self) -> bool {
        let progress = self.shown.as_ref();
        progress.is_some_and(|progress| progress.receiver_count() > 0)
    }

    fn carry_out(&mut self, step: Action) -> Running {
        let (cache, key) = (Arc::clone(&self.cache), self.key.clone());
        match step {
            Action::Wait => {
                self.permit = None;
                nothing()
            }
            Action::End => nothing(),
            Action::Probe { known } => {
                let name = self.lock_name();
                let newest = self.regeneration.newest().cloned();
                let (policy, readable) = (self.policy, self.given.readable);
                Box::pin(async move {
                    // The age counts from before the statement, as the answer may be late.
                    let asked = cache.now();
                    let probe = cache.store.read(Probe::new(&name, known));
                    let Ok(probe) = probe.await else {
                        return (Input::StoreFailed, None);
                    };
                    let before = newest.as_ref().map(|newest| &*newest.page);
                    let entry = probe.entry;
                    let version =
                        entry.map(|entry| Version::stored(&key, entry, asked, &policy, before));
                    let version = version.filter(|version| {
                        let is_readable = readable.is_none_or(|readable| readable(&version.page));
                        if !is_readable {
                            tracing::warn!(
                                key = &*key,
                                "the stored value cannot be decoded, as its type has changed; it is generated anew"
                            );
                        }
                        is_readable
                    });
                    let found = ProbeResult {
                        version,
                        lock: probe.lock,
                        epoch: probe.epoch,
                    };
                    (Input::Probed(found), None)
                })
            }
            Action::Acquire { seen } => {
                let (name, locks) = (self.lock_name(), cache.locks().lease(self.policy.lease));
                Box::pin(async move {
                    match locks.take(&name, "", Some(seen)).await {
                        Ok(lease) => (Input::Acquired(lease.as_ref().map(Lease::fence)), lease),
                        Err(_) => (Input::StoreFailed, None),
                    }
                })
            }
            Action::Generate { as_of } => self.generate(as_of),
            Action::Publish { version, renews } => self.publish(version, renews),
            Action::Release { cooldown, removes } => {
                self.give_back_permit();
                let lease = self.lease.take();
                Box::pin(async move {
                    if let Some(lease) = lease {
                        if removes {
                            // After a failure the next regeneration removes the version.
                            let row = lease.row().clone();
                            drop(cache.store.call(Remove { lease: row }).await);
                        }
                        // An unreleased lease expires.
                        drop(lease.release_after(cooldown).await);
                    }
                    (Input::Released, None)
                })
            }
        }
    }

    fn context(&self) -> DecisionContext<'_> {
        self.cache.context(&self.key, &self.policy)
    }

    /// Takes a permit, if one is free. A part of a page runs on the page's permit.
    fn take_permit(&mut self) {
        let permits = Arc::clone(&self.cache.permits);
        let own = || permits.try_acquire_owned().ok().map(Arc::new);
        self.permit = self.lent.clone().or_else(own);
    }

    fn give_back_permit(&mut self) {
        (self.permit, self.lent) = (None, None);
    }

    /// Returns the time until the row of a version may be pruned. A visitor who asks for what does not
    /// exist causes no row that stays for long.
    fn retention(&self, version: &Version, interval: Duration) -> Duration {
        let usual = self.cache.settings.retention;
        let is_negative = version.page.meta.is_negative();
        match (self.given.kept_briefly, is_negative) {
            (true, _) => BRIEF_RETENTION,
            (false, true) => interval.saturating_add(usual.min(BRIEF_RETENTION)),
            (false, false) => interval.saturating_add(usual),
        }
    }

    /// Stores the version under the task's lease. `renews`: the fence of a stored version with the
    /// same content, which is renewed instead.
    fn publish(&mut self, version: Version, renews: Option<Fence>) -> Running {
        // A publish may take long, and needs no permit.
        self.give_back_permit();
        let terms = version.page.meta.terms(&self.policy);
        let retention = self.retention(&version, terms.interval);
        let kept_briefly = self.given.kept_briefly;
        let cache = Arc::clone(&self.cache);
        let row = self.lease.as_ref().map(|lease| lease.row().clone());
        let [metadata, history] = self.texts(&version, terms, renews.is_none());
        Box::pin(async move {
            let Some(row) = row else {
                return (Input::StoreFailed, None);
            };
            let entry = NewEntry {
                content: version.page.response().clone(),
                renews,
                epoch: version.page.meta.stored.epoch,
                interval: terms.interval,
                metadata,
                history,
                retention,
                lasting: !kept_briefly && !version.page.meta.is_negative(),
            };
            let published = cache.store.call(Publish { lease: row, entry });
            (
                published.await.map_or(Input::StoreFailed, Input::Published),
                None,
            )
        })
    }

    /// Returns true as soon as a visitor waits, or the process shuts down. Meanwhile a visitor can
    /// join this regeneration, and the regeneration runs no statement. If no visitor comes for a second,
    /// removes the key from the list of running flights, and returns false.
    async fn is_awaited(&mut self) -> bool {
        for _ in 0..10 {
            if self.is_watched() || self.cache.is_closing() {
                return true;
            }
            tokio::time::sleep(RECHECK / 10).await;
        }
        let left = {
            let mut running = locked(&self.cache.running);
            if self.is_watched() {
                return true;
            }
            (running.flights.remove(&*self.key), self.shown.take())
        };
        // After the lock, as in `leave`.
        drop(left);
        false
    }

    /// Ends after a panic: memory and the lock are in cooldown.
    async fn cool_down(&mut self) {
        let cooldown = self.policy.cooldown_time();
        let until = self.cache.now() + cooldown;
        let known = match self.cache.memory.get(&self.key) {
            Some(CacheEntry::Version(version)) => CacheEntry::Version(Arc::new(Version {
                ask_again_at: until,
                ..Version::clone(&version)
            })),
            _ => CacheEntry::Cooldown {
                until,
                ask_again_at: until,
                failures: 1,
                failure: Some("the application's code panicked after its generator".into()),
                meta: Arc::new(Meta::without_version(
                    &self.key,
                    AsOf {
                        epoch: self.cache.latest_epoch(),
                        revision: self.cache.invalidations.revision(),
                    },
                    Tags::default(),
                )),
            },
        };
        self.cache.memory.insert(&self.key, known);
        // Visitors do not wait for the release.
        drop(self.leave(true));
        if let Some(lease) = self.lease.take() {
            // An unreleased lease expires.
            drop(lease.release_after(cooldown).await);
        }
    }

    fn lock_name(&self) -> LockName {
        LockName::of(LockKind::Page, &*self.key)
    }
}

impl Drop for Task {
    /// Lets another request start a regeneration, after a panic, too.
    fn drop(&mut self) {
        drop(self.leave(false));
        if let Some(releasing) = self.releasing.take() {
            let own = releasing.subscribe();
            let mut running = locked(&self.cache.running);
            let listed = running.releasing.get(&*self.key);
            if listed.is_some_and(|listed| listed.same_channel(&own)) {
                running.releasing.remove(&*self.key);
            }
        }
    }
}

/// An action without an end.
fn nothing() -> Running {
    Box::pin(std::future::pending())
}
