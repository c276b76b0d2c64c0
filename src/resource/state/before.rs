//! The state machine before the present one, for the lockstep of the check (`check/lockstep.rs`): both
//! get each event, and decide the same.

mod finish;
mod report;
mod search;
mod wait;

use std::{mem, sync::Arc, time::Duration};

use crate::{
    clock::Tick,
    event::{Bypass, Outcome},
    resource::{Failure, Meta},
    timing::RECHECK,
};

use super::{Answer, AsOf, Facts, Found, Freshness, Known, Origin, Page, Version};

pub(in crate::resource::state) use finish::Publishing;
pub(in crate::resource::state) use report::{Ended, Report};
pub(in crate::resource::state) use wait::{Next, Shown, Visitor};

/// The number of [`POLL_PAUSES`](crate::timing::POLL_PAUSES) after which a regeneration without
/// visitors ends; one second in all.
const LEAVE_AFTER: u32 = 6;

/// The result of a generator.
#[derive(Debug)]
pub(in crate::resource::state) enum GenerationResult<B> {
    Content(Arc<Page<B>>),
    /// A response that is not stored, with its metadata. The service itself answers each visitor.
    Unshareable {
        why: Bypass,
        metadata: Arc<Meta>,
    },
    TooLarge,
    Failed(Failure),
}

/// An event in the course of a regeneration.
#[derive(Debug)]
pub(in crate::resource::state) enum Event<B> {
    /// A request has started the regeneration.
    Begun,
    /// The process has read all invalidations that are older than the process.
    Learned,
    /// The task has a permit (`true`), or all permits are taken.
    Permitted(bool),
    Probed(Found<B>),
    /// The lease was acquired with this fence; `None`: the lock is taken.
    Tried(Option<i64>),
    Generated(GenerationResult<B>),
    Renewed(bool),
    Published(bool),
    Removed,
    Released,
    /// The store failed to answer the last step.
    Away,
    #[expect(dead_code, reason = "an intended difference")]
    LeaseLost,
    /// The time of [`Flight::due`] has come.
    Due,
    /// The time has come, and no visitor waits for the version that another process generates.
    #[expect(dead_code, reason = "an intended difference")]
    LeftAlone,
}

/// The next action of the task. The end of the action is the next event; [`Event::Due`] and
/// [`Event::LeaseLost`] may come before.
#[derive(Clone, Debug)]
pub(in crate::resource::state) enum Step<B> {
    /// Continue the running action.
    Continue,
    /// Next for [`Event::Due`] or [`Event::LeftAlone`].
    Pause,
    /// End if no visitor waits; otherwise continue as after [`Event::Due`].
    Leave,
    /// Read all invalidations from before the process's start.
    Learn,
    /// Take a permit, which bounds the regenerations of a process.
    Permit,
    /// Ask the store for a version with a greater fence than `known`, and for the state of the
    /// lock.
    Probe {
        known: i64,
    },
    /// Take the lease, provided that the lock's fence is still `seen`: a publish since then has
    /// changed the fence.
    Try {
        seen: i64,
    },
    /// Run the generator, with or without a lease. The version's metadata has `as_of`.
    Generate {
        as_of: AsOf,
    },
    /// Publish this version, whose content is the same as in the stored version with the fence
    /// `known`, without sending the content.
    Renew {
        version: Version<B>,
        known: i64,
    },
    Publish {
        version: Version<B>,
    },
    /// Remove the stored version under the lease.
    Remove,
    /// Release the lease. No process can acquire the lock before `cooldown` is over.
    Release {
        cooldown: Duration,
    },
    /// The regeneration is over.
    End,
}

/// The effect of an event.
#[derive(Clone, Debug)]
pub(in crate::resource::state) struct Effect<B> {
    pub(in crate::resource::state) command: Step<B>,
    /// The new contents of memory; `None`: unchanged.
    pub(in crate::resource::state) view: Option<Known<B>>,
    /// The new progress for visitors who wait; `None`: unchanged.
    pub(in crate::resource::state) progress: Option<Shown<B>>,
    pub(in crate::resource::state) report: Option<Report>,
}

#[derive(Clone, Debug)]
pub(in crate::resource::state) enum Phase<B> {
    Begun,
    Learning,
    Permitting,
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
        /// A version can be served, so the generator is cancelled when the lease is lost.
        gives_up: bool,
    },
    Publishing(Publishing<B>),
    /// The publish was refused.
    Overtaken(Version<B>),
    Removing,
    Releasing,
    Over,
}

/// A regeneration of a resource in this process.
#[derive(Clone, Debug)]
pub(in crate::resource::state) struct Flight<B> {
    /// The newest version known, servable or not.
    pub(in crate::resource::state) newest: Option<Version<B>>,
    pub(in crate::resource::state) phase: Phase<B>,
    /// The task has a permit for the generator.
    pub(in crate::resource::state) permitted: bool,
    /// The number of failures in a row, as far as this process knows.
    pub(in crate::resource::state) failures: u32,
    /// The number of pauses of this regeneration.
    pub(in crate::resource::state) polls: u32,
    /// The end of another process's lease, as far as this process knows.
    pub(in crate::resource::state) held_until: Tick,
    /// The end of a cooldown that began while the store did not answer. Until then, the generator
    /// runs only if the store answers.
    pub(in crate::resource::state) cooldown: Option<(Tick, Arc<Meta>)>,
}

/// The decision about one event.
struct Decision<'a, B> {
    state: &'a mut Flight<B>,
    facts: &'a Facts<'a>,
    view: Option<Known<B>>,
    progress: Option<Shown<B>>,
    report: Option<Report>,
}

impl<B: Clone + PartialEq> Flight<B> {
    /// Creates the state before any part of the generator has run.
    pub(in crate::resource::state) fn new(view: Option<Known<B>>, facts: &Facts<'_>) -> Self {
        let (newest, cooldown, failures) = match view {
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
        Self {
            newest,
            phase: Phase::Begun,
            permitted: false,
            failures,
            polls: 0,
            held_until: Tick(i64::MIN),
            cooldown,
        }
    }

    /// Takes an event and decides the next action.
    pub(in crate::resource::state) fn on(
        &mut self,
        facts: &Facts<'_>,
        event: Event<B>,
    ) -> Effect<B> {
        let mut decision = Decision {
            state: self,
            facts,
            view: None,
            progress: None,
            report: None,
        };
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
    pub(in crate::resource::state) fn due(&self, facts: &Facts<'_>) -> Option<Tick> {
        match &self.phase {
            Phase::Pausing { until } | Phase::Generating { until, .. } => Some(*until),
            Phase::Publishing(Publishing {
                again: Some(again), ..
            }) => Some(*again),
            Phase::Publishing(Publishing {
                shown: false, new, ..
            }) => Some(new.born + facts.patience),
            _ => None,
        }
    }

    /// Returns the latest known epoch. The epoch of the newest version was read before the
    /// generator of that version began, and so before this regeneration's generator.
    fn latest(&self, facts: &Facts<'_>) -> i64 {
        let newest = self.newest.as_ref();
        let newest = newest.map_or(0, |newest| newest.page.meta.as_of().epoch);
        facts.list.latest().max(newest)
    }
}

impl<B: Clone + PartialEq> Decision<'_, B> {
    fn on(&mut self, event: Event<B>) -> Step<B> {
        let phase = mem::replace(&mut self.state.phase, Phase::Over);
        match (phase, event) {
            (Phase::Begun, Event::Begun) => {
                if self.cools_down().is_none() {
                    self.show_stale(false);
                }
                self.enter(Phase::Learning, Step::Learn)
            }
            (Phase::Learning, Event::Learned) => self.enter(Phase::Permitting, Step::Permit),
            (Phase::Permitting, Event::Permitted(permitted)) => self.permitted(permitted),
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
            (Phase::Learning | Phase::Probing | Phase::Trying { .. }, Event::Away) => {
                self.without_store()
            }
            (Phase::Pausing { .. }, Event::Due | Event::LeftAlone) if self.facts.closing => {
                self.progress = Some(Shown::Done(Answer::Pass(Bypass::ShuttingDown)));
                Step::End
            }
            (Phase::Pausing { .. }, Event::Due) => self.enter(Phase::Permitting, Step::Permit),
            // A visitor of the near future joins this regeneration and costs no statement.
            (Phase::Pausing { .. }, Event::LeftAlone) if self.state.polls < LEAVE_AFTER => {
                self.poll()
            }
            (phase @ Phase::Pausing { .. }, Event::LeftAlone) => self.enter(phase, Step::Leave),
            (Phase::Generating { lease, as_of, .. }, Event::Generated(outcome)) => {
                self.generated(lease, as_of, outcome)
            }
            (Phase::Generating { lease, as_of, .. }, Event::Due) => {
                let failed = GenerationResult::Failed(Failure::timed_out(self.facts.policy));
                let command = self.generated(lease, as_of, failed);
                if let Some(Report::Ended(ended)) = &mut self.report {
                    ended.outcome = Outcome::TimedOut;
                }
                command
            }
            (Phase::Generating { gives_up: true, .. }, Event::LeaseLost) => {
                self.report = Some(Report::ended(Outcome::Overtaken));
                self.serve_old_for(RECHECK);
                self.release(Duration::ZERO)
            }
            (Phase::Publishing(publishing), event) => self.publishing(publishing, &event),
            (Phase::Overtaken(new), Event::Probed(found)) => self.overtaken(&new, found.version),
            (Phase::Overtaken(new), Event::Away) => self.overtaken(&new, None),
            (Phase::Removing, Event::Removed | Event::Away) => self.release(Duration::ZERO),
            (Phase::Releasing, Event::Released | Event::Away) => Step::End,
            // The event comes too late, or changes nothing.
            (phase, _) => self.enter(phase, Step::Continue),
        }
    }

    fn enter(&mut self, phase: Phase<B>, command: Step<B>) -> Step<B> {
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
