//! Carries out the steps of [`Flight`]: one task for each regeneration.

mod generate;
mod report;
mod visit;

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use perennial_store::{Fence, Lease, LockKind, LockName, NewEntry, Probe, Publish, Remove, locked};
use tokio::sync::watch;

use crate::{
    clock::Tick,
    event::Reason,
    extensions::Tags,
    page::{
        Event, Facts, Generate, Known, Meta, Pages, Representations, Shown, Step, Version,
        flight::{AsOf, Effect, Flight, Found},
        parts,
    },
    policy::Refresh,
    timing::{BRIEF_RETENTION, RECHECK},
};

pub(crate) use visit::Visited;

/// The running action, with the lease that the action acquires.
type Action = Pin<Box<dyn Future<Output = (Event, Option<Lease>)> + Send>>;

/// A running regeneration.
struct Task {
    pages: Arc<Pages>,
    key: Arc<str>,
    policy: Refresh,
    flight: Flight<Representations>,
    /// `None`: visitors cannot watch this regeneration any more, as it is over.
    shown: Option<watch::Sender<Shown>>,
    /// The regeneration of this key before this one, until it has released its lease.
    before: Option<watch::Receiver<()>>,
    /// Closes at the end of this regeneration. `Some`: the lease is being released.
    releasing: Option<watch::Sender<()>>,
    given: Generate,
    /// The generators that wait for this regeneration.
    outer: Option<Arc<parts::Chain>>,
    /// The permit of the regeneration that this one is a part of.
    lent: Option<parts::Permit>,
    permit: Option<parts::Permit>,
    /// See [`Facts::held`].
    held: bool,
    lease: Option<Lease>,
    /// Known when the generator begins.
    reason: Reason,
    /// The begin of the generator, while the generator runs.
    began: Option<Tick>,
    /// The time of the generator.
    took: Duration,
    /// The size of the generated body.
    bytes: usize,
    /// The last probe found the expired lease of another holder.
    found_expired: bool,
}

impl Task {
    /// Runs to the end, also without visitors, once its own generator has begun. After a panic of the
    /// application's code, such as a subscriber of the log, another regeneration waits for the cooldown, as
    /// after a failure.
    async fn run(mut self) {
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
        let begun = match self.pages.know().await {
            Ok(()) => Event::Begun,
            Err(_) => Event::Away,
        };
        self.take_permit();
        let (mut event, mut action) = (begun, nothing());
        loop {
            match self.on(event) {
                Some(Step::End) => return,
                Some(step) => action = self.carry_out(step),
                None => {}
            }
            let (begun, due) = (self.pages.now(), self.flight.due(&self.facts()));
            let pause = due.map_or(Duration::ZERO, |due| due - begun);
            let lease;
            (event, lease) = tokio::select! {
                biased;
                done = &mut action => done,
                () = tokio::time::sleep(pause), if due.is_some() => (Event::Due, None),
            };
            if lease.is_some() {
                self.lease = lease;
            }
            if self.flight.is_waiting() {
                if !self.is_awaited().await {
                    return;
                }
                self.take_permit();
                // The statement of another flight answers this flight, too.
                let pause = self.pages.now() - begun;
                self.held = self.pages.is_held(&self.key, begun + pause / 2).await;
            }
        }
    }

    /// Passes an event to the state, and publishes the effect in memory and to the visitors.
    fn on(&mut self, event: Event) -> Option<Step> {
        self.measure(&event);
        let facts = Facts {
            permit: self.permit.is_some(),
            held: self.held,
            ..self.pages.facts(&self.key, &self.policy)
        };
        let Effect {
            next,
            known,
            shown,
            held,
            ended,
        } = self.flight.on(&facts, event);
        if let Some(ended) = ended {
            self.ended(ended);
        }
        if let Some(held) = held {
            self.pages.elsewhere.insert(&self.key, held);
        }
        if let Some(known) = known {
            self.pages.memory.insert(&self.key, known);
            #[cfg(feature = "compression")]
            if let Some(newest) = self.flight.newest() {
                self.pages.compress(&newest.page);
            }
        }
        // First the key is free for the next regeneration: a visitor who is answered below may come
        // again at once, and find the page invalidated.
        let progress = if self.flight.is_over() {
            self.leave(true)
        } else {
            self.shown.clone()
        };
        if let (Some(shown), Some(progress)) = (shown, progress) {
            let begins_to_wait = matches!(shown, Shown::Elsewhere);
            let before = progress.send_replace(shown);
            if begins_to_wait && !matches!(before, Shown::Elsewhere) {
                self.waits();
            }
        }
        next
    }

    /// Waits until the regeneration before has released its lease. The time that its statements may
    /// take bounds the wait; the lease that is not released by then will be found held.
    async fn wait_for_release(&mut self) {
        if let Some(mut before) = self.before.take() {
            let limit = self.pages.store.limit().saturating_mul(2);
            let closed = async { while before.changed().await.is_ok() {} };
            let _ = tokio::time::timeout(limit, closed).await;
        }
    }

    /// Takes the key from the list of running regenerations, so that a request can start the next
    /// one. `releases`: the next one has to wait until this one ends. Returns the channel of the
    /// visitors who watch; dropping it closes it.
    fn leave(&mut self, releases: bool) -> Option<watch::Sender<Shown>> {
        let progress = self.shown.take()?;
        let (sender, receiver) = watch::channel(());
        let mut running = locked(&self.pages.running);
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

    fn carry_out(&mut self, step: Step) -> Action {
        let (pages, key) = (Arc::clone(&self.pages), self.key.clone());
        match step {
            Step::Wait => {
                self.permit = None;
                nothing()
            }
            Step::End => nothing(),
            Step::Probe { known } => {
                let name = self.lock_name();
                let newest = self.flight.newest().cloned();
                let (policy, readable) = (self.policy, self.given.readable);
                Box::pin(async move {
                    // The age counts from before the statement, as the answer may be late.
                    let asked = pages.now();
                    let probe = pages.store.read(Probe::new(&name, known));
                    let Ok(probe) = probe.await else {
                        return (Event::Away, None);
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
                    let found = Found {
                        version,
                        lock: probe.lock,
                        epoch: probe.epoch,
                    };
                    (Event::Probed(found), None)
                })
            }
            Step::Acquire { seen } => {
                let (name, locks) = (self.lock_name(), pages.locks().lease(self.policy.lease));
                Box::pin(async move {
                    match locks.take(&name, "", Some(seen)).await {
                        Ok(lease) => (Event::Acquired(lease.as_ref().map(Lease::fence)), lease),
                        Err(_) => (Event::Away, None),
                    }
                })
            }
            Step::Generate { as_of } => self.generate(as_of),
            Step::Publish { version, renews } => self.publish(version, renews),
            Step::Release { cooldown, removes } => {
                self.give_back_permit();
                let lease = self.lease.take();
                Box::pin(async move {
                    if let Some(lease) = lease {
                        if removes {
                            // After a failure the next regeneration removes the version.
                            let row = lease.row().clone();
                            drop(pages.store.call(Remove { lease: row }).await);
                        }
                        // An unreleased lease expires.
                        drop(lease.release_after(cooldown).await);
                    }
                    (Event::Released, None)
                })
            }
        }
    }

    fn facts(&self) -> Facts<'_> {
        self.pages.facts(&self.key, &self.policy)
    }

    /// Takes a permit, if one is free. A part of a page runs on the page's permit.
    fn take_permit(&mut self) {
        let permits = Arc::clone(&self.pages.permits);
        let own = || permits.try_acquire_owned().ok().map(Arc::new);
        self.permit = self.lent.clone().or_else(own);
    }

    fn give_back_permit(&mut self) {
        (self.permit, self.lent) = (None, None);
    }

    /// Returns the time until the row of a version may be pruned. A visitor who asks for what does not
    /// exist causes no row that stays for long.
    fn retention(&self, version: &Version, interval: Duration) -> Duration {
        let usual = self.pages.settings.retention;
        let is_negative = version.page.meta.is_negative();
        match (self.given.kept_briefly, is_negative) {
            (true, _) => BRIEF_RETENTION,
            (false, true) => interval.saturating_add(usual.min(BRIEF_RETENTION)),
            (false, false) => interval.saturating_add(usual),
        }
    }

    /// Stores the version under the task's lease. `renews`: the fence of a stored version with the
    /// same content, which is renewed instead.
    fn publish(&mut self, version: Version, renews: Option<Fence>) -> Action {
        // A publish may take long, and needs no permit.
        self.give_back_permit();
        let terms = version.page.meta.terms(&self.policy);
        let retention = self.retention(&version, terms.interval);
        let kept_briefly = self.given.kept_briefly;
        let pages = Arc::clone(&self.pages);
        let row = self.lease.as_ref().map(|lease| lease.row().clone());
        let [metadata, history] = self.texts(&version, terms, renews.is_none());
        Box::pin(async move {
            let Some(row) = row else {
                return (Event::Away, None);
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
            let published = pages.store.call(Publish { lease: row, entry });
            (published.await.map_or(Event::Away, Event::Published), None)
        })
    }

    /// Returns true as soon as a visitor waits, or the process shuts down. Meanwhile a visitor can
    /// join this flight, and the flight runs no statement. If no visitor comes for a second,
    /// removes the key from the list of running flights, and returns false.
    async fn is_awaited(&mut self) -> bool {
        for _ in 0..10 {
            if self.is_watched() || self.pages.is_closing() {
                return true;
            }
            tokio::time::sleep(RECHECK / 10).await;
        }
        let left = {
            let mut running = locked(&self.pages.running);
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
        let until = self.pages.now() + cooldown;
        let known = match self.pages.memory.get(&self.key) {
            Some(Known::Version(version)) => Known::Version(Arc::new(Version {
                ask_again_at: until,
                ..Version::clone(&version)
            })),
            _ => Known::Cooldown {
                until,
                ask_again_at: until,
                failures: 1,
                failure: Some("the application's code panicked after its generator".into()),
                meta: Arc::new(Meta::without_version(
                    &self.key,
                    AsOf {
                        epoch: self.pages.latest_epoch(),
                        revision: self.pages.invalidations.revision(),
                    },
                    Tags::default(),
                )),
            },
        };
        self.pages.memory.insert(&self.key, known);
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
            let mut running = locked(&self.pages.running);
            let listed = running.releasing.get(&*self.key);
            if listed.is_some_and(|listed| listed.same_channel(&own)) {
                running.releasing.remove(&*self.key);
            }
        }
    }
}

/// An action without an end.
fn nothing() -> Action {
    Box::pin(std::future::pending())
}
