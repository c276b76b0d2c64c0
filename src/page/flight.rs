//! Every decision about a resource, with the clock as an argument and without I/O.
//!
//! A [`Known`] holds everything that a process knows of a key between two regenerations. A
//! [`Flight`] is one regeneration: it takes an [`Event`] and returns an [`Effect`], which has the
//! next [`Step`] and the new contents of memory. `page/task.rs` carries the steps out.

#[cfg(test)]
mod check;
mod finish;
mod known;
mod look;
mod wait;

use std::{mem, sync::Arc, time::Duration};

use crate::{
    clock::Tick,
    event::{Bypass, Outcome},
    extensions::Tags,
    page::{Failure, Meta},
    timing::RECHECK,
};

use finish::Publishing;
pub(crate) use known::{
    Answer, AsOf, Facts, Freshness, HeldElsewhere, Known, Lookup, Origin, Page, Revised, Sighting,
    Verdict, Verdicts, Version,
};
use perennial_store::{Epoch, Fence, LockState};
pub(crate) use wait::{Accepts, Next, Shown, Visitor};

/// The answer to a probe.
#[derive(Clone, Debug)]
pub(crate) struct Found<B> {
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
pub(crate) enum Event<B> {
    /// The flight begins, in a process that knows all invalidations from before its start. If the
    /// store has not told the invalidations, [`Event::Away`] comes in place of this event.
    Begun,
    Probed(Found<B>),
    /// The lease was acquired with this fence; `None`: the lock is taken, in cooldown, or changed
    /// since the probe.
    Acquired(Option<Fence>),
    Generated(Generated<Arc<Page<B>>>),
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
pub(crate) enum Step<B> {
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
    /// Wait for [`Event::Due`].
    Wait,
    /// The flight is over.
    End,
}

/// The effect of an event. `None`: unchanged.
#[derive(Clone, Debug)]
pub(crate) struct Effect<B> {
    /// The next action; `None`: the running action continues.
    pub(crate) next: Option<Step<B>>,
    /// The new contents of memory.
    pub(crate) known: Option<Known<B>>,
    /// The new progress for waiting visitors.
    pub(crate) shown: Option<Shown<B>>,
    /// The lease of another process that this process has found.
    pub(crate) held: Option<HeldElsewhere>,
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
enum Phase<B> {
    /// Not begun, or over.
    Idle,
    /// The store is asked for a version. `overtaken`: the version whose publish was refused.
    Looking {
        overtaken: Option<Version<B>>,
    },
    /// `probed`: the epoch in the answer to the probe; `None`: no probe was needed.
    Acquiring {
        probed: Option<Epoch>,
    },
    /// No version can be served to the leader, and another process holds the lease.
    Waiting {
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
pub(crate) struct Flight<B> {
    /// The newest version known, servable or not.
    newest: Option<Version<B>>,
    phase: Phase<B>,
    /// The number of failures in a row, as far as this process knows.
    failures: u32,
    /// The number of waits of this flight.
    polls: u32,
    /// The end of another process's lease, as far as this process knows.
    held_until: Tick,
    /// The end of a cooldown that began while the store did not answer. Until then, the generator
    /// runs only if the store answers.
    cooldown: Option<(Tick, Arc<Meta>)>,
    /// See [`Facts::not_before`], of the leader. The other visitors are served meanwhile.
    pub(crate) not_before: Epoch,
    /// The reason for which the last response was not stored, if it was not.
    passes: Option<Bypass>,
}

/// The decision about one event.
struct Decision<'a, B> {
    flight: &'a mut Flight<B>,
    facts: &'a Facts<'a>,
    effect: Effect<B>,
}

impl<B: Clone + PartialEq> Flight<B> {
    /// Creates a flight that has not begun, and the first progress for its visitors.
    pub(crate) fn new(known: Option<Known<B>>, facts: &Facts<'_>) -> (Self, Shown<B>) {
        let passes = match &known {
            Some(Known::HitForPass { why, .. }) => Some(*why),
            _ => None,
        };
        let (newest, cooldown, failures) = match known {
            Some(Known::Version(version)) => (Some(Version::clone(&version)), None, 0),
            Some(Known::Cooldown {
                until,
                failures,
                meta,
                ..
            }) => {
                let cooldown = Some((until, meta)).filter(|_| facts.now < until);
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
            not_before: Epoch::NONE,
            passes,
        };
        let mut decision = Decision::new(&mut flight, facts);
        if decision.cools_down().is_none() {
            decision.show(Shown::Looking);
        }
        let shown = decision.effect.shown.unwrap_or(Shown::Looking);
        (flight, shown)
    }

    /// Takes an event and decides the next action.
    pub(crate) fn on(&mut self, facts: &Facts<'_>, event: Event<B>) -> Effect<B> {
        let mut decision = Decision::new(self, facts);
        decision.on(event);
        decision.effect
    }

    /// Returns the time of the next [`Event::Due`].
    pub(crate) fn due(&self, facts: &Facts<'_>) -> Option<Tick> {
        match &self.phase {
            Phase::Waiting { until } | Phase::Generating { until, .. } => Some(*until),
            Phase::Publishing(Publishing {
                again: Some(again), ..
            }) => Some(*again),
            Phase::Publishing(Publishing {
                shown: false, new, ..
            }) => Some(new.born + facts.patience),
            _ => None,
        }
    }

    /// Returns true while the lease is being released, after a publish or a failure. Memory has the
    /// result already, and a request that finds it stale starts the next regeneration, which begins
    /// after the release.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Releasing)
    }

    /// Returns true while the flight waits for another process.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
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
    fn latest(&self, facts: &Facts<'_>) -> Epoch {
        let newest = self.newest.as_ref();
        let newest = newest.map_or(Epoch::NONE, |newest| newest.page.meta.as_of().epoch);
        facts.list.latest().max(newest)
    }
}

impl<'a, B: Clone + PartialEq> Decision<'a, B> {
    fn new(flight: &'a mut Flight<B>, facts: &'a Facts<'a>) -> Self {
        Self {
            flight,
            facts,
            effect: Effect {
                next: None,
                known: None,
                shown: None,
                held: None,
                ended: None,
            },
        }
    }

    fn on(&mut self, event: Event<B>) {
        let phase = mem::replace(&mut self.flight.phase, Phase::Idle);
        match (phase, event) {
            (Phase::Idle, Event::Begun) => self.begin(),
            (Phase::Looking { overtaken: None }, Event::Probed(found)) => self.probed(found),
            (Phase::Looking { overtaken: None }, Event::Away)
                if self.facts.now < self.flight.held_until =>
            {
                self.wait();
            }
            (Phase::Acquiring { probed }, Event::Acquired(Some(fence))) => {
                self.generate(Some(fence), self.as_of(probed.unwrap_or_default()));
            }
            (Phase::Acquiring { probed: None }, Event::Acquired(None)) => self.look(None),
            (Phase::Acquiring { .. }, Event::Acquired(None)) => {
                if self.satisfies() {
                    self.skip(Outcome::Elsewhere, RECHECK);
                } else {
                    self.wait();
                }
            }
            (
                Phase::Idle | Phase::Looking { overtaken: None } | Phase::Acquiring { .. },
                Event::Away,
            ) => self.without_store(),
            (Phase::Waiting { .. }, Event::Due) if self.facts.closing => {
                self.answer(Answer::Pass(Bypass::ShuttingDown));
                self.end();
            }
            (Phase::Waiting { .. }, Event::Due) if self.facts.held => self.wait(),
            (Phase::Waiting { .. }, Event::Due) => self.begin(),
            (Phase::Generating { lease, as_of, .. }, Event::Generated(generated)) => {
                self.generated(lease, as_of, generated);
            }
            (Phase::Generating { lease, as_of, .. }, Event::Due) => {
                let timeout = self.facts.policy.timeout;
                let late = Failure::new(format!("the generator took longer than {timeout:?}"));
                let failed = Generated::Failed(late);
                self.generated(lease, as_of, failed);
                if let Some(ended) = &mut self.effect.ended {
                    ended.outcome = Outcome::TimedOut;
                }
            }
            (Phase::Publishing(publishing), event) => self.publishing(publishing, &event),
            (
                Phase::Looking {
                    overtaken: Some(new),
                },
                Event::Probed(found),
            ) => self.overtaken(&new, found.version),
            (
                Phase::Looking {
                    overtaken: Some(new),
                },
                Event::Away,
            ) => self.overtaken(&new, None),
            (Phase::Releasing, Event::Released | Event::Away) => self.end(),
            // The event comes too late, or changes nothing.
            (phase, _) => self.flight.phase = phase,
        }
    }

    fn enter(&mut self, phase: Phase<B>, step: Step<B>) {
        self.flight.phase = phase;
        self.effect.next = Some(step);
    }

    fn end(&mut self) {
        self.enter(Phase::Idle, Step::End);
    }

    /// Returns the epoch and revision that a generator sees that begins now. `probed`: the epoch in
    /// the store's last answer.
    fn as_of(&self, probed: Epoch) -> AsOf {
        AsOf {
            epoch: self.flight.latest(self.facts).max(probed),
            revision: self.facts.list.revision(),
        }
    }

    fn freshness(&self) -> Option<Freshness> {
        let newest = self.flight.newest.as_ref();
        newest.map(|version| version.freshness(self.facts))
    }

    fn is_servable(&self) -> bool {
        self.freshness().is_some_and(Freshness::is_servable)
    }
}
