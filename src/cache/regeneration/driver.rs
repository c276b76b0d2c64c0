//! Carries out the actions of a [`Regeneration`], in one task for each regeneration.
//!
//! The driver decides nothing. What it observes becomes an input of the [machine], whose documentation says
//! what the driver guarantees and in which order it carries an output out.

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use perennial_store::{Fence, Lease, LockKind, LockName, NewEntry, Probe, Publish, Remove};
use tokio::sync::watch;

use super::{
    Progress, Regenerations,
    generator::{Generate, Reading},
    machine::{self, Keeping, Output, ProbeResult, Regeneration, Stored},
    report::RegenerationReport,
};
use crate::{
    cache::{
        Representations, Version,
        entry::DecisionContext,
        parts::{Chain, Permit},
    },
    policy::Refresh,
    timing::RECHECK_INTERVAL,
};

pub(super) type Input = machine::Input<Representations>;
type Action = machine::Action<Representations>;

/// An action under way. It ends with the next input of the machine, and with a lease if it has acquired one.
pub(super) type ActionFuture = Pin<Box<dyn Future<Output = (Input, Option<Lease>)> + Send>>;

/// A running regeneration.
pub(super) struct Driver {
    pub(super) regenerations: Arc<Regenerations>,
    pub(super) key: Arc<str>,
    pub(super) policy: Refresh,
    pub(super) regeneration: Regeneration<Representations>,
    /// `None` once visitors cannot watch this regeneration any more, because it is over.
    progress: Option<watch::Sender<Progress>>,
    /// The previous regeneration of this key, while it is still releasing its lease. The channel closes when
    /// it has done so.
    previous_release: Option<watch::Receiver<()>>,
    /// While this regeneration releases its lease, the sender whose drop tells the next one that it may
    /// begin.
    releasing: Option<watch::Sender<()>>,
    /// The generator. `None` until the caller has returned it.
    pub(super) work: Option<Generate>,
    /// The generators that wait for this regeneration.
    pub(super) outer: Option<Arc<Chain>>,
    /// If a generator waits for this regeneration, its permit, which this regeneration shares.
    inherited_permit: Option<Permit>,
    pub(super) permit: Option<Permit>,
    pub(super) lease: Option<Lease>,
    pub(super) report: RegenerationReport,
}

impl Driver {
    /// Creates the driver of a regeneration that is already in the list of running ones.
    pub(super) fn new(
        regenerations: &Arc<Regenerations>,
        key: &str,
        policy: Refresh,
        regeneration: Regeneration<Representations>,
        progress: watch::Sender<Progress>,
        previous_release: Option<watch::Receiver<()>>,
    ) -> Self {
        Self {
            regenerations: Arc::clone(regenerations),
            key: key.into(),
            policy,
            regeneration,
            progress: Some(progress),
            previous_release,
            releasing: None,
            work: None,
            outer: None,
            inherited_permit: None,
            permit: None,
            lease: None,
            report: RegenerationReport::default(),
        }
    }

    /// Sets the generators that wait for this regeneration, and the permit that it inherits from them.
    pub(super) fn started_by(
        &mut self,
        outer: Option<Arc<Chain>>,
        inherited_permit: Option<Permit>,
    ) {
        self.outer = outer;
        self.inherited_permit = inherited_permit;
    }

    pub(super) fn generates_by(&mut self, work: Generate) {
        self.work = Some(work);
    }

    /// Runs the regeneration. Once its own generator has begun, it runs to the end even if no visitor is
    /// left.
    pub(super) async fn run(mut self) {
        let run = AssertUnwindSafe(self.run_until_end()).catch_unwind();
        if let Err(panic) = run.await {
            if let Some(action) = self.on(Input::Panicked) {
                self.carry_out(action).await;
            }
            // The payload is the application's, and its `Drop` may panic, too.
            drop(panic);
        }
    }

    async fn run_until_end(&mut self) {
        self.wait_for_release().await;
        // Memory stays empty until the process knows the invalidations from before its start.
        let known = self.regenerations.sync.wait_for_all_before_start().await;
        let mut input = match known {
            Ok(()) => Input::Start,
            Err(_) => Input::StoreFailed,
        };
        let mut running = no_action();
        loop {
            match self.on(input) {
                Some(Action::End) => return,
                Some(action) => running = self.carry_out(action),
                None => {}
            }
            let now = self.regenerations.environment.now();
            let timer = self.regeneration.timer(&self.context());
            let pause = timer.map_or(Duration::ZERO, |timer| timer - now);
            let lease;
            (input, lease) = tokio::select! {
                biased;
                done = &mut running => done,
                () = tokio::time::sleep(pause), if timer.is_some() => (Input::TimerFired, None),
            };
            if lease.is_some() {
                self.lease = lease;
            }
        }
    }

    /// Passes an input to the machine, and carries out all of the output but the action, which it returns.
    fn on(&mut self, input: Input) -> Option<Action> {
        self.observe(&input);
        if let Input::NobodyWaits = input {
            // The key has left the list of running regenerations, so nobody can join any more.
            self.progress = None;
        }
        let regenerations = Arc::clone(&self.regenerations);
        let context = regenerations.environment.context(&self.key, &self.policy);
        let Output {
            peer_lease,
            entry,
            conclusion,
            progress,
            action,
        } = self.regeneration.on(&context, input);
        if let Some(lease) = peer_lease {
            regenerations.peer_leases.insert(&self.key, lease);
        }
        if let Some(entry) = entry {
            regenerations.memory.insert(&self.key, entry);
            #[cfg(feature = "compression")]
            if let Some(newest) = self.regeneration.newest() {
                regenerations.compressor.compress(&newest.page);
            }
        }
        if let Some(conclusion) = conclusion {
            self.conclude(conclusion);
        }
        // The key is released before the visitors are answered: one of them may come back at once, find the
        // page invalidated, and start the next regeneration.
        let visitors = if self.regeneration.is_releasing() {
            self.deregister(true)
        } else {
            self.progress.clone()
        };
        if let (Some(progress), Some(visitors)) = (progress, visitors) {
            let begins_to_wait = matches!(progress, Progress::HeldByPeer);
            let shown_before = visitors.send_replace(progress);
            if begins_to_wait && !matches!(shown_before, Progress::HeldByPeer) {
                self.waits();
            }
        }
        action
    }

    /// Waits until the previous regeneration of this key has released its lease, but no longer than
    /// the time limit of its statements. If the lease has not been released by then, this
    /// regeneration finds it held.
    async fn wait_for_release(&mut self) {
        if let Some(mut previous_release) = self.previous_release.take() {
            let limit = self.regenerations.environment.store.limit();
            let closed = async { while previous_release.changed().await.is_ok() {} };
            let _ = tokio::time::timeout(limit.saturating_mul(2), closed).await;
        }
    }

    /// Removes the key from the list of running regenerations, so that a request can start the next one. With
    /// `releases`, the next one waits until this one has ended. Returns the channel that the waiting visitors
    /// watch. When the caller drops it, they learn that the regeneration has ended.
    fn deregister(&mut self, releases: bool) -> Option<watch::Sender<Progress>> {
        let progress = self.progress.take()?;
        let (sender, receiver) = watch::channel(());
        let mut running = self.regenerations.running.lock();
        let watched = running.joinable.remove(&*self.key);
        if releases {
            running.releasing.insert(self.key.to_string(), receiver);
            self.releasing = Some(sender);
        }
        drop(running);
        // The progress is dropped only after the lock is released, because it may hold the last reference to a
        // version, whose value belongs to the application.
        drop(watched);
        Some(progress)
    }

    fn carry_out(&mut self, action: Action) -> ActionFuture {
        if !action.needs_permit() {
            self.permit = None;
        }
        match action {
            Action::TakePermit => {
                let granted = self.take_permit();
                Box::pin(async move { (Input::Permit { granted }, None) })
            }
            Action::Probe { known } => self.probe(known),
            Action::Acquire { seen } => self.acquire(seen),
            Action::Generate { snapshot, reason } => self.generate(snapshot, reason),
            Action::Publish {
                version,
                renews,
                keeping,
            } => {
                self.inherited_permit = None;
                self.publish(version, renews, keeping)
            }
            Action::Release { cooldown, removes } => {
                self.inherited_permit = None;
                self.release(cooldown, removes)
            }
            Action::AwaitVisitor { at_most } => self.await_visitor(at_most),
            Action::AskForPeerLease { since } => {
                let (regenerations, key) = (Arc::clone(&self.regenerations), self.key.clone());
                Box::pin(async move {
                    let held = regenerations.sync.peer_still_holds(&key, since).await;
                    (Input::PeerLease { held }, None)
                })
            }
            Action::Sleep | Action::End => no_action(),
        }
    }

    /// Takes a permit, if one is free. A regeneration of a part runs on the permit of its page.
    fn take_permit(&mut self) -> bool {
        let permits = Arc::clone(&self.regenerations.permits);
        let new_permit = || permits.try_acquire_owned().ok().map(Arc::new);
        self.permit = self.inherited_permit.clone().or_else(new_permit);
        self.permit.is_some()
    }

    fn probe(&self, known: Fence) -> ActionFuture {
        let (regenerations, key) = (Arc::clone(&self.regenerations), self.key.clone());
        let (name, policy) = (self.lock_name(), self.policy.clone());
        let newest = self.regeneration.newest().cloned();
        let readable = self.work.as_ref().and_then(|work| work.readable.clone());
        Box::pin(async move {
            // The age counts from before the statement was sent, as the answer may be late.
            let asked = regenerations.environment.now();
            let probe = Probe::new(&name, known);
            let Ok(found) = regenerations.environment.store.read(probe).await else {
                return (Input::StoreFailed, None);
            };
            let page_before = newest.as_ref().map(|newest| &*newest.page);
            let stored = match found.entry {
                None => Stored::NoNewer,
                Some(entry) => {
                    let mut version = Version::stored(&key, entry, asked, &policy, page_before);
                    let reading = match &readable {
                        _ if version.page.meta.stored.is_damaged => Reading::Damaged,
                        None => Reading::Readable,
                        Some(read) => read(&version.page),
                    };
                    if reading == Reading::Readable {
                        Stored::Version(version)
                    } else {
                        let is_damaged = reading == Reading::Damaged;
                        tracing::warn!(
                            key = &*key,
                            is_damaged,
                            "the stored version cannot be used, and is generated anew: its row is damaged, the type of its value has changed, \
                             or its page has a hole that this layer does not have"
                        );
                        // If other processes can still use the stored version, this process keeps its own
                        // version in memory, and leaves the stored one alone. Nobody can use a damaged
                        // version, so it is replaced.
                        version.age_unknown |= is_damaged;
                        Stored::Unreadable(version)
                    }
                }
            };
            let result = ProbeResult {
                stored,
                lock: found.lock,
                epoch: found.epoch,
            };
            (Input::Probed(result), None)
        })
    }

    fn acquire(&self, seen: Fence) -> ActionFuture {
        let name = self.lock_name();
        let locks = self.regenerations.environment.locks.clone();
        let locks = locks.lease_duration(self.policy.lease_duration);
        Box::pin(async move {
            match locks.take(&name, "", Some(seen)).await {
                Ok(lease) => (Input::Acquired(lease.as_ref().map(Lease::fence)), lease),
                Err(_) => (Input::StoreFailed, None),
            }
        })
    }

    /// Stores the version under the lease. With `renews`, the stored version with this fence has the same
    /// content, and only its age is renewed.
    fn publish(&self, version: Version, renews: Option<Fence>, keeping: Keeping) -> ActionFuture {
        let regenerations = Arc::clone(&self.regenerations);
        let row = self.lease.as_ref().map(|lease| lease.row().clone());
        let (metadata, history) = self.texts(&version, renews.is_none());
        Box::pin(async move {
            let Some(row) = row else {
                return (Input::StoreFailed, None);
            };
            let entry = NewEntry {
                content: version.page.response(),
                renews,
                epoch: version.page.meta.stored.epoch,
                interval: keeping.interval,
                metadata,
                history,
                retention: keeping.retention,
                lasting: keeping.is_lasting,
            };
            let publish = Publish { lease: row, entry };
            let input = match regenerations.environment.store.call(publish).await {
                Ok(accepted) => Input::Published { accepted },
                Err(_) => Input::StoreFailed,
            };
            (input, None)
        })
    }

    fn release(&mut self, cooldown: Duration, removes: bool) -> ActionFuture {
        let store = self.regenerations.environment.store.clone();
        let lease = self.lease.take();
        Box::pin(async move {
            if let Some(lease) = lease {
                if removes {
                    // If the removal fails, the next regeneration removes the version.
                    let row = lease.row().clone();
                    drop(store.call(Remove { lease: row }).await);
                }
                // A lease whose release fails expires.
                drop(lease.release_after(cooldown).await);
            }
            (Input::Released, None)
        })
    }

    /// Waits for a visitor, or for the end of the process, and runs no statement meanwhile. A visitor can
    /// join this regeneration during the wait. If nobody comes in time, the key leaves the list of running
    /// regenerations.
    fn await_visitor(&self, at_most: Duration) -> ActionFuture {
        let (regenerations, key) = (Arc::clone(&self.regenerations), self.key.clone());
        let Some(visitors) = self.progress.clone() else {
            return Box::pin(async { (Input::NobodyWaits, None) });
        };
        Box::pin(async move {
            let is_watched = || visitors.receiver_count() > 0;
            let environment = &regenerations.environment;
            let until = environment.now() + at_most;
            let watched;
            loop {
                if is_watched() || environment.is_shutting_down() {
                    return (Input::VisitorWaits, None);
                }
                if environment.now() >= until {
                    let mut running = regenerations.running.lock();
                    // A visitor may have come before the lock was taken.
                    if is_watched() {
                        return (Input::VisitorWaits, None);
                    }
                    watched = running.joinable.remove(&*key);
                    break;
                }
                tokio::time::sleep(RECHECK_INTERVAL / 10).await;
            }
            // After the lock, as in `deregister`.
            drop(watched);
            (Input::NobodyWaits, None)
        })
    }

    pub(super) fn context(&self) -> DecisionContext<'_> {
        let environment = &self.regenerations.environment;
        environment.context(&self.key, &self.policy)
    }

    fn lock_name(&self) -> LockName {
        LockName::of(LockKind::Page, &*self.key)
    }
}

impl Drop for Driver {
    /// Releases the key, so that another request can start a regeneration. This runs after a panic, too.
    fn drop(&mut self) {
        let visitors = self.deregister(false);
        if let (Some(visitors), None) = (visitors, &self.work) {
            visitors.send_replace(Progress::Withdrawn);
        }
        if let Some(releasing) = self.releasing.take() {
            let this_release = releasing.subscribe();
            let mut running = self.regenerations.running.lock();
            let listed = running.releasing.get(&*self.key);
            if listed.is_some_and(|listed| listed.same_channel(&this_release)) {
                running.releasing.remove(&*self.key);
            }
        }
    }
}

/// The future of an action that has no end of its own.
fn no_action() -> ActionFuture {
    Box::pin(std::future::pending())
}
