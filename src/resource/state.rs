//! Every decision about a resource: functions of values, with the clock as an argument and without
//! I/O.
//!
//! A [`Known`] holds everything that a process knows of a key between two regenerations; requests
//! read it without a lock. A [`Flight`] is one regeneration: it takes an [`Event`] and returns an
//! [`Effect`], which has the next [`Step`] and the new contents of memory. `resource/driver.rs`
//! carries the steps out.

#[cfg(test)]
mod before;
#[cfg(test)]
mod check;
mod finish;
mod report;
mod search;
mod view;
mod wait;

use std::{mem, sync::Arc, time::Duration};

use crate::{
    clock::Tick,
    event::{Bypass, Outcome},
    store::LockState,
    timing::RECHECK,
};

use finish::Publishing;
pub(crate) use report::{Ended, Report};
pub(crate) use view::{
    Answer, AsOf, Content, Facts, Freshness, Known, Limits, List, Origin, Version,
};
pub(crate) use wait::{Next, Shown, Visitor};

/// The answer to a probe.
#[derive(Clone, Debug)]
pub(crate) struct Found<C> {
    /// The stored version, if its fence is greater than the fence of the newest version known.
    pub(crate) version: Option<Version<C>>,
    pub(crate) lock: LockState,
    /// The latest epoch.
    pub(crate) epoch: i64,
}

/// The result of a generator.
#[derive(Debug)]
pub(crate) enum GenerationResult<C: Content> {
    Content(C),
    /// A response that is not stored, with its metadata. The service itself answers each visitor.
    Unshareable {
        why: Bypass,
        metadata: Arc<C::Metadata>,
    },
    TooLarge,
    Failed(C::Failure),
}

/// An event in the course of a regeneration.
#[derive(Debug)]
pub(crate) enum Event<C: Content> {
    /// The process knows all invalidations that are older than the process, and the flight begins.
    /// [`Event::Away`] in its place: the store has not told them.
    Begun,
    Probed(Found<C>),
    /// The lease was acquired with this fence; `None`: the lock is taken.
    Tried(Option<i64>),
    Generated(GenerationResult<C>),
    /// The version is stored; `false`: the publish was refused.
    Published(bool),
    Released,
    /// The store failed to answer the last step.
    Away,
    /// The time of [`Flight::due`] has come.
    Due,
}

/// The next action of the task. The end of the action is the next event; [`Event::Due`] may come
/// before.
#[derive(Clone, Debug)]
pub(crate) enum Step<C> {
    /// Continue the running action.
    Continue,
    /// Wait for [`Event::Due`].
    Pause,
    /// Ask the store for a version with a greater fence than `known`, and for the state of the
    /// lock.
    Probe { known: i64 },
    /// Take the lease, provided that the lock's fence is still `seen`: a publish since then has
    /// changed the fence.
    Try { seen: i64 },
    /// Run the generator, with or without a lease. The version's metadata has `as_of`.
    Generate { as_of: AsOf },
    /// Publish this version under the lease. `renews`: without sending the content, which is the
    /// same as in the stored version with this fence.
    Publish {
        version: Version<C>,
        renews: Option<i64>,
    },
    /// Release the lease. No process can acquire the lock before `cooldown` is over. `removes`:
    /// remove the stored version before the release.
    Release { cooldown: Duration, removes: bool },
    /// The regeneration is over.
    End,
}

/// The effect of an event.
#[derive(Clone, Debug)]
pub(crate) struct Effect<C: Content> {
    pub(crate) command: Step<C>,
    /// The new contents of memory; `None`: unchanged.
    pub(crate) view: Option<Known<C>>,
    /// The new progress for visitors who wait; `None`: unchanged.
    pub(crate) progress: Option<Shown<C>>,
    pub(crate) report: Option<Report<C>>,
}

#[derive(Clone, Debug)]
enum Phase<C> {
    /// Not begun, or over.
    Idle,
    Probing,
    /// `epoch_seen`: the epoch in the answer to the probe; `None`: no probe was needed.
    Trying {
        epoch_seen: Option<i64>,
    },
    Pausing {
        until: Tick,
    },
    Generating {
        lease: Option<i64>,
        as_of: AsOf,
        until: Tick,
    },
    Publishing(Publishing<C>),
    /// The publish was refused.
    Overtaken(Version<C>),
    Releasing,
}

/// A regeneration of a resource in this process.
#[derive(Clone, Debug)]
pub(crate) struct Flight<C: Content> {
    /// The newest version known, servable or not.
    newest: Option<Version<C>>,
    phase: Phase<C>,
    /// The number of failures in a row, as far as this process knows.
    failures: u32,
    /// The number of pauses of this regeneration.
    polls: u32,
    /// The end of another process's lease, as far as this process knows.
    held_until: Tick,
    /// The end of a cooldown that began while the store did not answer. Until then, the generator
    /// runs only if the store answers.
    cooldown: Option<(Tick, Arc<C::Metadata>)>,
}

/// The decision about one event.
struct Decision<'a, C: Content> {
    state: &'a mut Flight<C>,
    facts: &'a Facts<'a, C>,
    view: Option<Known<C>>,
    progress: Option<Shown<C>>,
    report: Option<Report<C>>,
}

impl<C: Content> Flight<C> {
    /// Creates a flight that has not begun, and the first progress for its visitors.
    pub(crate) fn new(view: Option<Known<C>>, facts: &Facts<'_, C>) -> (Self, Shown<C>) {
        let (newest, cooldown, failures) = match view {
            Some(Known::Version(version)) => (Some(Version::clone(&version)), None, 0),
            Some(Known::Cooldown {
                until,
                failures,
                metadata,
                ..
            }) => {
                let cooldown = Some((until, metadata)).filter(|_| facts.now < until);
                (None, cooldown, failures)
            }
            _ => (None, None, 0),
        };
        let mut flight = Self {
            newest,
            phase: Phase::Idle,
            failures,
            polls: 0,
            held_until: Tick(i64::MIN),
            cooldown,
        };
        let mut decision = Decision::new(&mut flight, facts);
        if decision.cools_down().is_none() {
            decision.show_stale(false);
        }
        let shown = decision.progress.unwrap_or(Shown::Looking);
        (flight, shown)
    }

    /// Takes an event and decides the next action.
    pub(crate) fn on(&mut self, facts: &Facts<'_, C>, event: Event<C>) -> Effect<C> {
        let mut decision = Decision::new(self, facts);
        let command = decision.on(event);
        let Decision {
            view,
            progress,
            report,
            ..
        } = decision;
        Effect {
            command,
            view,
            progress,
            report,
        }
    }

    /// Returns the time of the next [`Event::Due`].
    pub(crate) fn due(&self, facts: &Facts<'_, C>) -> Option<Tick> {
        match &self.phase {
            Phase::Pausing { until } | Phase::Generating { until, .. } => Some(*until),
            Phase::Publishing(Publishing {
                again: Some(again), ..
            }) => Some(*again),
            Phase::Publishing(Publishing {
                shown: false, new, ..
            }) => Some(new.born + facts.limits.patience),
            _ => None,
        }
    }

    /// Returns true while the flight waits for another process.
    pub(crate) fn is_pausing(&self) -> bool {
        matches!(self.phase, Phase::Pausing { .. })
    }

    /// The newest version known, servable or not.
    pub(crate) fn newest(&self) -> Option<&Version<C>> {
        self.newest.as_ref()
    }

    /// Returns the latest known epoch. The epoch of the newest version was read before the
    /// generator of that version began, and so before this regeneration's generator.
    fn latest(&self, facts: &Facts<'_, C>) -> i64 {
        let newest = self.newest.as_ref();
        let newest = newest.map_or(0, |newest| newest.content.as_of().epoch);
        facts.list.latest().max(newest)
    }
}

impl<'a, C: Content> Decision<'a, C> {
    fn new(state: &'a mut Flight<C>, facts: &'a Facts<'a, C>) -> Self {
        Self {
            state,
            facts,
            view: None,
            progress: None,
            report: None,
        }
    }

    fn on(&mut self, event: Event<C>) -> Step<C> {
        let phase = mem::replace(&mut self.state.phase, Phase::Idle);
        match (phase, event) {
            (Phase::Idle, Event::Begun) => self.begin(),
            (Phase::Probing, Event::Probed(found)) => self.probed(found),
            (Phase::Probing, Event::Away) if self.facts.now < self.state.held_until => self.poll(),
            (Phase::Trying { epoch_seen }, Event::Tried(Some(fence))) => {
                let as_of = self.as_of(epoch_seen.unwrap_or(0));
                self.generate(Some(fence), as_of)
            }
            (Phase::Trying { epoch_seen: None }, Event::Tried(None)) => self.probe(),
            (Phase::Trying { .. }, Event::Tried(None)) => match self.is_servable() {
                true => self.skip(Outcome::Elsewhere, RECHECK),
                false => self.poll(),
            },
            (Phase::Idle | Phase::Probing | Phase::Trying { .. }, Event::Away) => {
                self.without_store()
            }
            (Phase::Pausing { .. }, Event::Due) if self.facts.limits.closing => {
                self.progress = Some(Shown::Done(Answer::Pass(Bypass::ShuttingDown)));
                Step::End
            }
            (Phase::Pausing { .. }, Event::Due) => self.begin(),
            (Phase::Generating { lease, as_of, .. }, Event::Generated(outcome)) => {
                self.generated(lease, as_of, outcome)
            }
            (Phase::Generating { lease, as_of, .. }, Event::Due) => {
                let failed = GenerationResult::Failed(C::timed_out(self.facts.policy));
                let command = self.generated(lease, as_of, failed);
                if let Some(Report::Ended(ended)) = &mut self.report {
                    ended.outcome = Outcome::TimedOut;
                }
                command
            }
            (Phase::Publishing(publishing), event) => self.publishing(publishing, &event),
            (Phase::Overtaken(new), Event::Probed(found)) => self.overtaken(&new, found.version),
            (Phase::Overtaken(new), Event::Away) => self.overtaken(&new, None),
            (Phase::Releasing, Event::Released | Event::Away) => Step::End,
            // The event comes too late, or changes nothing.
            (phase, _) => self.enter(phase, Step::Continue),
        }
    }

    fn enter(&mut self, phase: Phase<C>, command: Step<C>) -> Step<C> {
        self.state.phase = phase;
        command
    }

    /// Returns the epoch and revision that a generator sees that begins now. `epoch_seen`: the epoch in the store's
    /// last answer.
    fn as_of(&self, epoch_seen: i64) -> AsOf {
        AsOf {
            epoch: self.state.latest(self.facts).max(epoch_seen),
            revision: self.facts.list.revision(),
        }
    }

    fn freshness(&self) -> Option<Freshness> {
        self.state
            .newest
            .as_ref()
            .map(|version| version.freshness(self.facts))
    }

    fn is_servable(&self) -> bool {
        self.freshness().is_some_and(Freshness::is_servable)
    }
}
