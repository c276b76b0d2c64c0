//! Every decision about a resource, with the clock as an argument and without I/O.
//!
//! A [`CacheEntry`] holds everything that a process knows of a key between two regenerations. A
//! [`Regeneration`] is one regeneration: it takes an [`Input`] and returns an [`Output`], which has the
//! next [`Action`] and the new contents of memory. `driver.rs` carries the actions out.

use std::{cmp::Ordering, mem, sync::Arc, time::Duration};

use perennial_store::{Epoch, Fence, LockState};

use super::Progress;
use crate::{
    cache::{
        Failure, Meta,
        entry::{
            Answer, AsOf, CacheEntry, DecisionContext, Freshness, Origin, Page, PeerLease,
            Validity, Version,
        },
    },
    clock::Tick,
    event::{Bypass, Outcome},
    extensions::Tags,
    timing::{POLL_PAUSES, PUBLISH_PAUSES, PUBLISH_RETRY, RECHECK},
};

/// The answer to a probe.
#[derive(Clone, Debug)]
pub(crate) struct ProbeResult<B> {
    /// The stored version, if its fence is greater than the fence of the newest version known.
    pub(crate) version: Option<Version<B>>,
    pub(crate) lock: LockState,
    /// The latest epoch.
    pub(crate) epoch: Epoch,
}

/// The result of a generator.
#[derive(Debug)]
pub(crate) enum Generated<T> {
    /// Content to store and to serve.
    Content(T),
    /// A response that is not stored, with its tags. Unless an old version is served, the service
    /// itself answers each visitor.
    NotStored(Bypass, Tags),
    Failed(Failure),
}

/// An event in the course of a regeneration.
#[derive(Debug)]
pub(crate) enum Input<B> {
    /// The regeneration begins, in a process that knows all invalidations from before its start. If the
    /// store has not told the invalidations, [`Input::StoreFailed`] comes in place of this event.
    Start,
    Probed(ProbeResult<B>),
    /// The lease was acquired with this fence; `None`: the lock is taken, in cooldown, or changed
    /// since the probe.
    Acquired(Option<Fence>),
    Generated(Generated<Arc<Page<B>>>),
    /// The version is stored; `false`: the publish was refused.
    Published(bool),
    Released,
    /// The store failed to answer the last action.
    StoreFailed,
    /// The time of [`Regeneration::due`] has come.
    TimerFired,
}

/// The next action of the task. The end of the action is the next event; [`Input::TimerFired`] may come
/// before.
#[derive(Clone, Debug)]
pub(crate) enum Action<B> {
    /// Ask the store for a version with a greater fence than `known`, and for the state of the
    /// lock.
    Probe { known: Fence },
    /// Acquire the lease, provided that the lock's fence is still `seen`: a publish since then has
    /// changed the fence.
    Acquire { seen: Fence },
    /// Run the generator, with or without a lease. The version's metadata has `as_of`.
    Generate { as_of: AsOf },
    /// Publish this version under the lease. `renews`: without sending the content, which is the
    /// same as in the stored version with this fence.
    Publish {
        version: Version<B>,
        renews: Option<Fence>,
    },
    /// Release the lease. No process can acquire the lock before `cooldown` is over. `removes`:
    /// remove the stored version before the release.
    Release { cooldown: Duration, removes: bool },
    /// Wait for [`Input::TimerFired`].
    Wait,
    /// The regeneration is over.
    End,
}

/// The output of an event. `None`: unchanged.
#[derive(Clone, Debug)]
pub(crate) struct Output<B> {
    /// The next action; `None`: the running action continues.
    pub(crate) next: Option<Action<B>>,
    /// The new contents of memory.
    pub(crate) entry: Option<CacheEntry<B>>,
    /// The new progress for waiting visitors.
    pub(crate) progress: Option<Progress<B>>,
    /// The lease of another process that this process has found.
    pub(crate) peer_lease: Option<PeerLease>,
    pub(crate) ended: Option<Ended>,
}

/// The end of a regeneration, for the log, the counters and the subscribers: the result of the
/// generator is stored, served or dropped, or no generator runs.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) failure: Option<Failure>,
    pub(crate) serves_old: bool,
    /// The time until another try, after a failure.
    pub(crate) cooldown: Duration,
}

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum State<B> {
    /// Not begun, or over.
    Idle,
    /// The store is asked for a version. `refused`: the version whose publish was refused.
    Probing {
        refused: Option<Version<B>>,
    },
    /// `probed`: the epoch in the answer to the probe; `None`: no probe was needed.
    Acquiring {
        probed: Option<Epoch>,
    },
    /// No version can be served to the leader, and another process holds the lease.
    WaitingForPeer {
        until: Tick,
    },
    Generating {
        lease: Option<Fence>,
        as_of: AsOf,
        until: Tick,
    },
    Publishing(Publishing<B>),
    Releasing,
}

/// A regeneration of a resource in this process.
#[derive(Clone, Debug)]
pub(crate) struct Regeneration<B> {
    /// The newest version known, servable or not.
    pub(crate) newest: Option<Version<B>>,
    pub(super) state: State<B>,
    /// The number of failures in a row, as far as this process knows.
    pub(crate) failures: u32,
    /// The number of waits of this regeneration.
    pub(super) polls: u32,
    /// The end of another process's lease, as far as this process knows.
    pub(super) held_until: Tick,
    /// The end of a cooldown that began while the store did not answer. Until then, the generator
    /// runs only if the store answers.
    pub(super) cooldown: Option<(Tick, Arc<Meta>)>,
    /// See [`DecisionContext::min_epoch`], of the leader. The other visitors are served meanwhile.
    pub(crate) min_epoch: Epoch,
    /// The reason for which the last response was not stored, if it was not.
    pub(super) passes: Option<Bypass>,
}

/// The decision about one event.
struct Decision<'a, B> {
    regeneration: &'a mut Regeneration<B>,
    context: &'a DecisionContext<'a>,
    output: Output<B>,
}

impl<B: Clone + PartialEq> Regeneration<B> {
    /// Creates a regeneration that has not begun, and the first progress for its visitors.
    pub(crate) fn new(
        known: Option<CacheEntry<B>>,
        context: &DecisionContext<'_>,
    ) -> (Self, Progress<B>) {
        let passes = match &known {
            Some(CacheEntry::HitForPass { why, .. }) => Some(*why),
            _ => None,
        };
        let (newest, cooldown, failures) = match known {
            Some(CacheEntry::Version(version)) => (Some(Version::clone(&version)), None, 0),
            Some(CacheEntry::Cooldown {
                until,
                failures,
                meta,
                ..
            }) => {
                let cooldown = Some((until, meta)).filter(|_| context.now < until);
                (None, cooldown, failures)
            }
            _ => (None, None, 0),
        };
        let mut regeneration = Self {
            newest,
            state: State::Idle,
            failures,
            polls: 0,
            held_until: Tick(i64::MIN),
            cooldown,
            min_epoch: Epoch::NONE,
            passes,
        };
        let mut decision = Decision::new(&mut regeneration, context);
        if decision.cools_down().is_none() {
            decision.show(Progress::Probing);
        }
        let shown = decision.output.progress.unwrap_or(Progress::Probing);
        (regeneration, shown)
    }

    /// Takes an event and decides the next action.
    pub(crate) fn on(&mut self, context: &DecisionContext<'_>, event: Input<B>) -> Output<B> {
        let mut decision = Decision::new(self, context);
        decision.on(event);
        decision.output
    }

    /// Returns the time of the next [`Input::TimerFired`].
    pub(crate) fn due(&self, context: &DecisionContext<'_>) -> Option<Tick> {
        match &self.state {
            State::WaitingForPeer { until } | State::Generating { until, .. } => Some(*until),
            State::Publishing(Publishing {
                again: Some(again), ..
            }) => Some(*again),
            State::Publishing(Publishing {
                shown: false, new, ..
            }) => Some(new.born + context.patience),
            _ => None,
        }
    }

    /// Returns true while the lease is being released, after a publish or a failure. Memory has the
    /// result already, and a request that finds it stale starts the next regeneration, which begins
    /// after the release.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Releasing)
    }

    /// Returns true while the regeneration waits for another process.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::WaitingForPeer { .. })
    }

    /// Returns the end of another process's lease, as far as this process knows.
    pub(crate) fn held_until(&self) -> Tick {
        self.held_until
    }

    /// The newest version known, servable or not.
    pub(crate) fn newest(&self) -> Option<&Version<B>> {
        self.newest.as_ref()
    }

    /// Returns the fence of the newest version.
    fn fence(&self) -> Fence {
        let newest = self.newest.as_ref();
        newest.map_or(Fence::NONE, |newest| newest.fence)
    }

    /// Returns the latest known epoch. The epoch of the newest version was read before the
    /// generator of that version began, and so before this regeneration's generator.
    fn latest(&self, context: &DecisionContext<'_>) -> Epoch {
        let newest = self.newest.as_ref();
        let newest = newest.map_or(Epoch::NONE, |newest| newest.page.meta.as_of().epoch);
        context.list.latest().max(newest)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Publishing<B> {
    pub(crate) new: Version<B>,
    /// The last statement renews the stored version.
    pub(crate) renews: bool,
    pub(crate) tries: u32,
    /// The new version has been served unsaved.
    pub(crate) shown: bool,
    /// The time of the next try; `None`: a statement is under way.
    pub(crate) again: Option<Tick>,
}

impl<'a, B: Clone + PartialEq> Decision<'a, B> {
    fn new(regeneration: &'a mut Regeneration<B>, context: &'a DecisionContext<'a>) -> Self {
        Self {
            regeneration,
            context,
            output: Output {
                next: None,
                entry: None,
                progress: None,
                peer_lease: None,
                ended: None,
            },
        }
    }

    fn on(&mut self, event: Input<B>) {
        let state = mem::replace(&mut self.regeneration.state, State::Idle);
        match (state, event) {
            (State::Idle, Input::Start) => self.begin(),
            (State::Probing { refused: None }, Input::Probed(found)) => self.probed(found),
            (State::Probing { refused: None }, Input::StoreFailed)
                if self.context.now < self.regeneration.held_until =>
            {
                self.wait();
            }
            (State::Acquiring { probed }, Input::Acquired(Some(fence))) => {
                self.generate(Some(fence), self.as_of(probed.unwrap_or_default()));
            }
            (State::Acquiring { probed: None }, Input::Acquired(None)) => self.look(None),
            (State::Acquiring { .. }, Input::Acquired(None)) => {
                if self.satisfies() {
                    self.skip(Outcome::Elsewhere, RECHECK);
                } else {
                    self.wait();
                }
            }
            (
                State::Idle | State::Probing { refused: None } | State::Acquiring { .. },
                Input::StoreFailed,
            ) => self.without_store(),
            (State::WaitingForPeer { .. }, Input::TimerFired) if self.context.closing => {
                self.answer(Answer::Pass(Bypass::ShuttingDown));
                self.end();
            }
            (State::WaitingForPeer { .. }, Input::TimerFired) if self.context.held => self.wait(),
            (State::WaitingForPeer { .. }, Input::TimerFired) => self.begin(),
            (State::Generating { lease, as_of, .. }, Input::Generated(generated)) => {
                self.generated(lease, as_of, generated);
            }
            (State::Generating { lease, as_of, .. }, Input::TimerFired) => {
                let timeout = self.context.policy.timeout;
                let late = Failure::new(format!("the generator took longer than {timeout:?}"));
                let failed = Generated::Failed(late);
                self.generated(lease, as_of, failed);
                if let Some(ended) = &mut self.output.ended {
                    ended.outcome = Outcome::TimedOut;
                }
            }
            (State::Publishing(publishing), event) => self.publishing(publishing, &event),
            (State::Probing { refused: Some(new) }, Input::Probed(found)) => {
                self.overtaken(&new, found.version)
            }
            (State::Probing { refused: Some(new) }, Input::StoreFailed) => {
                self.overtaken(&new, None)
            }
            (State::Releasing, Input::Released | Input::StoreFailed) => self.end(),
            // The event comes too late, or changes nothing.
            (state, _) => self.regeneration.state = state,
        }
    }

    fn enter(&mut self, state: State<B>, step: Action<B>) {
        self.regeneration.state = state;
        self.output.next = Some(step);
    }

    fn end(&mut self) {
        self.enter(State::Idle, Action::End);
    }

    /// Returns the epoch and revision that a generator sees that begins now. `probed`: the epoch in
    /// the store's last answer.
    fn as_of(&self, probed: Epoch) -> AsOf {
        AsOf {
            epoch: self.regeneration.latest(self.context).max(probed),
            revision: self.context.list.revision(),
        }
    }

    fn freshness(&self) -> Option<Freshness> {
        let newest = self.regeneration.newest.as_ref();
        newest.map(|version| version.freshness(self.context))
    }

    fn is_servable(&self) -> bool {
        self.freshness().is_some_and(Freshness::is_servable)
    }

    /// Begins to look for a newer version. Without a permit a stale version is served on; a first
    /// version is never held back, as a visitor waits.
    pub(crate) fn begin(&mut self) {
        let is_servable = self.is_servable();
        if is_servable && !self.context.permit {
            return self.skip(Outcome::Busy, RECHECK);
        }
        if let Some(newest) = &mut self.regeneration.newest
            && is_servable
            && newest.origin == (Origin::Published { latest: true })
        {
            newest.origin = Origin::Published { latest: false };
            let (seen, verdict) = (newest.fence, newest.invalidated(self.context.list));
            self.output.entry = Some(CacheEntry::Version(newest.clone().into()));
            if verdict == Validity::Valid {
                // Unless another process has acquired the lock since, the lock's fence is the fence
                // of this process's own version, and a probe is needless.
                return self.enter(State::Acquiring { probed: None }, Action::Acquire { seen });
            }
        }
        self.look(None);
    }

    /// Asks the store for a version.
    pub(crate) fn look(&mut self, refused: Option<Version<B>>) {
        let known = self.regeneration.fence();
        self.enter(State::Probing { refused }, Action::Probe { known });
    }

    pub(crate) fn probed(&mut self, found: ProbeResult<B>) {
        let stored = found
            .version
            .as_ref()
            .map_or(Fence::NONE, |stored| stored.fence);
        let known = stored.max(self.regeneration.fence());
        self.adopt(found.version);
        let is_servable = self.show_stale(false);
        if self.freshness() == Some(Freshness::Fresh) {
            self.answer_with_newest();
            return self.end();
        }
        let lock = found.lock;
        self.regeneration.failures = lock.failures;
        // The database's clock may have been ahead when the lock was released, and was then set back:
        // the cooldown seems to last for years.
        let remaining = lock
            .remaining
            .min(self.context.policy.cooldown_time().max(RECHECK));
        if lock.remaining.is_zero() {
            if is_servable && !self.context.permit {
                return self.skip(Outcome::Busy, RECHECK);
            }
            let probed = Some(found.epoch);
            return self.enter(
                State::Acquiring { probed },
                Action::Acquire { seen: lock.fence },
            );
        }
        if lock.owned {
            let until = self.context.now + remaining;
            self.output.peer_lease = Some(PeerLease { known, until });
            self.regeneration.held_until = until;
        }
        match (lock.owned, is_servable) {
            // The sync tells when to look again.
            (true, _) if self.satisfies() => self.skip(Outcome::Elsewhere, Duration::ZERO),
            (true, _) => self.wait(),
            (false, true) => self.skip(Outcome::Cooldown, remaining),
            (false, false) => {
                let as_of = self.as_of(found.epoch);
                if self.is_servable_for(remaining) {
                    self.serve_old_for(remaining);
                } else {
                    self.cool_down(remaining, remaining, as_of, None);
                    self.answer(Answer::Unavailable {
                        retry_in: remaining,
                    });
                }
                self.end();
            }
        }
    }

    /// Adopts a stored version if the verdict of the invalidations on the stored one is better than
    /// on the newest one, or if the verdicts are equal and the stored one is the later one. Fences
    /// do not decide: an unsaved version has the fence of the version before.
    pub(crate) fn adopt(&mut self, stored: Option<Version<B>>) {
        let Some(stored) = stored else { return };
        let adopts = self.regeneration.newest.as_ref().is_none_or(|newest| {
            let [stored_is, newest_is] =
                [&stored, newest].map(|it| it.invalidated(self.context.list));
            match stored_is.cmp(&newest_is) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => stored.born >= newest.born,
            }
        });
        if adopts {
            self.set_newest(stored);
        }
    }

    /// Waits before the next sync or probe, as no version can be served to the leader and another process
    /// holds the lease.
    pub(crate) fn wait(&mut self) {
        let longest = self.regeneration.held_until - self.context.now;
        let pause = if longest.is_zero() {
            POLL_PAUSES.after(self.regeneration.polls)
        } else {
            POLL_PAUSES.after(self.regeneration.polls).min(longest)
        };
        self.regeneration.polls += 1;
        match self.regeneration.passes {
            // The other process finds out whether the next response may be stored, and nobody waits
            // for that here.
            Some(why) if !self.is_servable() => self.answer(Answer::Pass(why)),
            _ => self.show(Progress::HeldByPeer),
        }
        let until = self.context.now + pause;
        self.enter(State::WaitingForPeer { until }, Action::Wait);
    }

    /// Continues while the database is unavailable: an old version is served on; a first version is
    /// generated without a lease and not stored.
    pub(crate) fn without_store(&mut self) {
        if self.is_servable() {
            return self.skip(Outcome::DatabaseUnavailable, RECHECK);
        }
        let Some((until, meta)) = self.cools_down() else {
            return self.generate(None, self.as_of(Epoch::NONE));
        };
        self.output.entry = Some(CacheEntry::Cooldown {
            until,
            ask_again_at: until.min(self.context.now + RECHECK),
            failures: self.regeneration.failures,
            failure: None,
            meta,
        });
        self.ended(Outcome::DatabaseUnavailable);
        self.end();
    }

    /// Returns the cooldown that this process alone knows of, if it lasts, and answers visitors
    /// accordingly.
    pub(crate) fn cools_down(&mut self) -> Option<(Tick, Arc<Meta>)> {
        let (until, meta) = self.regeneration.cooldown.clone()?;
        if self.context.now >= until || self.context.list.judge(&meta) == Validity::Purged {
            return None;
        }
        let retry_in = until - self.context.now;
        self.answer(Answer::Unavailable { retry_in });
        Some((until, meta))
    }

    pub(crate) fn generate(&mut self, lease: Option<Fence>, as_of: AsOf) {
        if !self.show_stale(true) {
            self.show(Progress::GeneratingFirst);
        }
        let generating = State::Generating {
            lease,
            as_of,
            until: self.context.now + self.context.policy.timeout,
        };
        self.enter(generating, Action::Generate { as_of });
    }

    /// Returns true if a version may be served to the leader, too.
    pub(crate) fn satisfies(&self) -> bool {
        let context = DecisionContext {
            min_epoch: self.regeneration.min_epoch,
            ..*self.context
        };
        let newest = self.regeneration.newest.as_ref();
        newest.is_some_and(|newest| newest.freshness(&context).is_servable())
    }

    /// Offers the old version to visitors, if it is servable, or else lets them pass where the last
    /// response was not stored, or else shows this progress.
    pub(crate) fn show(&mut self, otherwise: Progress<B>) {
        if !self.show_stale(false) {
            self.output.progress = Some(match self.regeneration.passes {
                Some(why) => Progress::Passing(why),
                None => otherwise,
            });
        }
    }

    /// Offers the old version to visitors, if the version is servable. Returns true if so.
    pub(crate) fn show_stale(&mut self, generating: bool) -> bool {
        let is_servable = self.is_servable();
        if let Some(version) = self.regeneration.newest.clone().filter(|_| is_servable) {
            let version = version.into();
            self.output.progress = Some(Progress::Stale {
                version,
                generating,
            });
        }
        is_servable
    }

    pub(crate) fn generated(
        &mut self,
        lease: Option<Fence>,
        as_of: AsOf,
        generated: Generated<Arc<Page<B>>>,
    ) {
        let policy = self.context.policy;
        let (cooldown, removes) = match generated {
            Generated::Content(page) => return self.publish(lease, page),
            Generated::NotStored(Bypass::TooLarge, _) if self.is_servable() => {
                let cooldown = policy.cooldown_time();
                self.output.ended = Some(Ended {
                    outcome: Outcome::NotStored(Bypass::TooLarge),
                    failure: None,
                    serves_old: true,
                    cooldown,
                });
                self.serve_old_for(cooldown);
                (cooldown, false)
            }
            Generated::NotStored(why, tags) => {
                // A status and a size may change soon; the other reasons are properties of the
                // route.
                let time = match why {
                    Bypass::Status | Bypass::TooLarge => policy.cooldown_time(),
                    _ => policy.interval,
                };
                self.ended(Outcome::NotStored(why));
                self.hit_for_pass(why, time, as_of, tags);
                // A stored version, if there is one, was shared before and must go. If the removal
                // fails, the next regeneration tries again. A version that is too large here stays,
                // as another process may have a larger limit.
                (Duration::ZERO, why != Bypass::TooLarge)
            }
            Generated::Failed(failure) => (self.failed(lease, as_of, failure), false),
        };
        match lease {
            Some(_) => self.enter(State::Releasing, Action::Release { cooldown, removes }),
            None => self.end(),
        }
    }

    /// Answers after a failure, and returns the cooldown.
    fn failed(&mut self, lease: Option<Fence>, as_of: AsOf, failure: Failure) -> Duration {
        let policy = self.context.policy;
        let serves_old = self.is_servable_for(policy.cooldown_time()) && !policy.shows_failures;
        let cooldown = if serves_old {
            policy.cooldown_time()
        } else {
            policy.cooldown_after(self.regeneration.failures)
        };
        let failure = failure.retrying(cooldown);
        let text = failure.text();
        self.output.ended = Some(Ended {
            outcome: Outcome::Failed,
            failure: Some(failure.clone()),
            serves_old,
            cooldown,
        });
        self.regeneration.failures = self.regeneration.failures.saturating_add(1);
        if let Some(newest) = &mut self.regeneration.newest {
            newest.failure = Some(Arc::clone(&text));
        }
        if serves_old {
            self.serve_old_for(cooldown);
        } else {
            let quiet = match lease {
                Some(_) => cooldown,
                // The store may have a version.
                None => cooldown.min(RECHECK),
            };
            self.cool_down(cooldown, quiet, as_of, Some(text));
            self.answer(Answer::Failed(failure));
        }
        cooldown
    }

    fn publish(&mut self, lease: Option<Fence>, page: Arc<Page<B>>) {
        let newest = self.regeneration.newest.as_ref();
        // The age counts from the first try, whose answer may be lost.
        let mut new = Version::new(
            page,
            Fence::NONE,
            self.context.now,
            Origin::Published { latest: true },
        );
        new.replaces =
            newest.is_some_and(|newest| newest.invalidated(self.context.list) != Validity::Purged);
        let Some(fence) = lease else {
            self.ended(Outcome::Unsaved);
            self.serve_unsaved(&new);
            return self.end();
        };
        new.fence = fence;
        self.send(Publishing {
            new,
            renews: false,
            tries: 0,
            shown: false,
            again: None,
        });
    }

    /// Renews the stored version if the new content is the same, or else publishes the new version.
    fn send(&mut self, publishing: Publishing<B>) {
        let newest = self.regeneration.newest.as_ref();
        let same = newest
            .filter(|newest| !newest.is_unsaved() && newest.page.body == publishing.new.page.body);
        let renews = same.map(|newest| newest.fence);
        self.send_as(renews, publishing);
    }

    fn send_as(&mut self, renews: Option<Fence>, publishing: Publishing<B>) {
        let version = publishing.new.clone();
        let publishing = Publishing {
            renews: renews.is_some(),
            again: None,
            ..publishing
        };
        let step = Action::Publish { version, renews };
        self.enter(State::Publishing(publishing), step);
    }

    /// Continues a publish. While the store fails or is slow, the new version is served unsaved,
    /// and the publish is tried again for the length of a lease, for at most [`PUBLISH_RETRY`], and
    /// only while the version is servable.
    pub(crate) fn publishing(&mut self, mut publishing: Publishing<B>, event: &Input<B>) {
        match event {
            Input::Published(true) => {
                self.ended(if publishing.renews {
                    Outcome::Renewed
                } else {
                    Outcome::Stored
                });
                self.set_newest(publishing.new);
                self.answer_with_newest();
                self.release();
            }
            // Another version is stored than the one with the same content.
            Input::Published(false) if publishing.renews => self.send_as(None, publishing),
            // Another process has published a version, or soon will.
            Input::Published(false) => {
                self.ended(Outcome::Overtaken);
                if publishing.shown {
                    self.release();
                } else {
                    self.look(Some(publishing.new));
                }
            }
            Input::TimerFired if publishing.again.is_some() => self.send(publishing),
            Input::TimerFired if !publishing.shown => {
                self.serve_unsaved(&publishing.new);
                publishing.shown = true;
                self.regeneration.state = State::Publishing(publishing);
            }
            Input::StoreFailed => {
                let retry = self.context.policy.lease.min(PUBLISH_RETRY);
                let is_over = publishing.shown && self.context.now > publishing.new.born + retry;
                if !publishing.shown {
                    self.serve_unsaved(&publishing.new);
                    publishing.shown = true;
                }
                // If the version is not servable, the next visitor starts another regeneration.
                if is_over || !self.is_servable() {
                    self.ended(Outcome::Unsaved);
                    return self.release();
                }
                publishing.again = Some(self.context.now + PUBLISH_PAUSES.after(publishing.tries));
                publishing.tries += 1;
                self.enter(State::Publishing(publishing), Action::Wait);
            }
            _ => self.regeneration.state = State::Publishing(publishing),
        }
    }

    /// Answers the visitors who still wait, with `stored`, which another process has published, or
    /// with the old version. If neither is servable, they get the new version.
    pub(crate) fn overtaken(&mut self, new: &Version<B>, stored: Option<Version<B>>) {
        self.adopt(stored);
        if self.is_servable() {
            self.answer_with_newest();
        } else {
            self.serve_unsaved(new);
        }
        self.release();
    }

    /// Releases the lease without a cooldown.
    fn release(&mut self) {
        let step = Action::Release {
            cooldown: Duration::ZERO,
            removes: false,
        };
        self.enter(State::Releasing, step);
    }

    /// Reports an end without a failure.
    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.output.ended = Some(Ended {
            outcome,
            failure: None,
            serves_old: false,
            cooldown: Duration::ZERO,
        });
    }

    /// Adopts a version, here and in memory.
    pub(crate) fn set_newest(&mut self, version: Version<B>) {
        self.output.entry = Some(CacheEntry::Version(version.clone().into()));
        self.regeneration.newest = Some(version);
    }

    /// Serves the new version without a publish. The version keeps the fence of the version before,
    /// so that the next published version replaces it.
    fn serve_unsaved(&mut self, new: &Version<B>) {
        self.set_newest(Version {
            fence: self.regeneration.fence(),
            origin: Origin::Unsaved,
            ..new.clone()
        });
        self.answer_with_newest();
    }

    /// Returns true if the old version may be served during `cooldown`.
    pub(crate) fn is_servable_for(&mut self, cooldown: Duration) -> bool {
        if let Some(newest) = &mut self.regeneration.newest {
            newest.grant_error_grace(cooldown, self.context);
        }
        self.is_servable()
    }

    /// Answers with the old version. The process asks the store nothing about the version for
    /// `time`.
    pub(crate) fn serve_old_for(&mut self, time: Duration) {
        if let Some(newest) = &mut self.regeneration.newest {
            newest.ask_again_at = self.context.now + time;
            self.output.entry = Some(CacheEntry::Version(newest.clone().into()));
        }
        self.answer_with_newest();
    }

    /// Ends with the old version and without a regeneration.
    pub(crate) fn skip(&mut self, outcome: Outcome, time: Duration) {
        self.ended(outcome);
        self.serve_old_for(time);
        self.end();
    }

    /// Runs no generator for `time`, and asks the store nothing for the time `quiet`.
    pub(crate) fn cool_down(
        &mut self,
        time: Duration,
        quiet: Duration,
        as_of: AsOf,
        failure: Option<Arc<str>>,
    ) {
        self.output.entry = Some(CacheEntry::Cooldown {
            until: self.context.now + time,
            ask_again_at: self.context.now + quiet,
            failures: self.regeneration.failures,
            failure,
            meta: self.without_version(as_of, Tags::default()),
        });
    }

    fn without_version(&self, as_of: AsOf, tags: Tags) -> Arc<Meta> {
        let meta = Meta::without_version(self.context.key, as_of, tags);
        Arc::new(meta.seen(self.context.list.sightings()))
    }

    fn hit_for_pass(&mut self, why: Bypass, time: Duration, as_of: AsOf, tags: Tags) {
        self.output.entry = Some(CacheEntry::HitForPass {
            until: self.context.now + time.max(RECHECK),
            why,
            meta: self.without_version(as_of, tags),
        });
        self.answer(Answer::Pass(why));
    }

    pub(crate) fn answer_with_newest(&mut self) {
        self.answer(match &self.regeneration.newest {
            Some(version) => Answer::Version(version.clone().into()),
            None => Answer::Unavailable {
                retry_in: self.context.policy.cooldown_time(),
            },
        });
    }

    pub(crate) fn answer(&mut self, answer: Answer<B>) {
        self.output.progress = Some(Progress::Done(answer));
    }
}
