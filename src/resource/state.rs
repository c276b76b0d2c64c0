//! The heart: every decision about a resource, as functions of values, with the clock as an argument and without I/O.
//!
//! [`View`] is what a process knows of a resource between two regenerations; requests read it. [`State`] is one regeneration: it takes an
//! [`Event`] and says by a [`Command`] what is to be done next, what memory holds from now on, and how those who wait are
//! answered. `resource/driver.rs` carries the commands out.

#[cfg(test)]
mod check;
mod finish;
mod search;
mod view;

use std::{mem, sync::Arc, time::Duration};

use crate::{clock::Tick, resource::Pass, store::LockState, timing::RECHECK};

pub(crate) use view::{
    Answer, Basis, Content, Facts, Freshness, Limits, List, Origin, Progress, Version, View,
    Visitor, Wait,
};

/// The first and the longest pause between two probes while another process makes the first version.
const POLL: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// The number of such pauses, a second in all, after which a regeneration that nobody waits for ends.
const LEAVE_AFTER: u32 = 6;

/// The first and the longest pause between two tries to publish.
const PUBLISH: [Duration; 2] = [Duration::from_millis(100), RECHECK];

/// The pause before another try: doubled each time, up to a limit.
fn backoff([first, longest]: [Duration; 2], tries: u32) -> Duration {
    (first * 2_u32.saturating_pow(tries.min(10))).min(longest)
}

/// What the store was found to hold.
#[derive(Clone, Debug)]
pub(crate) struct Found<C> {
    /// The version, if it has a greater fence than the newest one known.
    pub(crate) version: Option<Version<C>>,
    pub(crate) lock: LockState,
    /// The latest epoch.
    pub(crate) epoch: i64,
}

/// What a generator came to.
#[derive(Debug)]
pub(crate) enum Outcome<C: Content> {
    Content(C),
    /// A response that is not stored, with what is noted of it: the service answers each visitor itself.
    Unshareable {
        why: Pass,
        notes: Arc<C::Notes>,
    },
    TooLarge,
    Failed(C::Failure),
}

/// What has happened.
#[derive(Debug)]
pub(crate) enum Event<C: Content> {
    /// A request has started the regeneration.
    Begun,
    /// The process knows all invalidations from before it began.
    Learned,
    /// There is a permit, or there is none.
    Permitted(bool),
    Probed(Found<C>),
    /// The lease was acquired with this fence, or was not.
    Tried(Option<i64>),
    Generated(Outcome<C>),
    Renewed(bool),
    Published(bool),
    Removed,
    Released,
    /// The store has not answered the last command.
    Away,
    LeaseLost,
    /// The time has come that [`State::due`] named.
    Due,
    /// The same in a pause, and nobody waits any more for the version that another process makes.
    LeftAlone,
}

/// What is to be done next. Its end is the next event, but for the events that [`State`] may get earlier.
#[derive(Clone, Debug)]
pub(crate) enum Command<C> {
    /// Nothing new: what is being done goes on.
    Continue,
    /// Do nothing until [`Event::Due`] or [`Event::LeftAlone`].
    Pause,
    /// End if nobody waits; otherwise go on as if it had been [`Event::Due`].
    Leave,
    /// Learn all invalidations from before the process began.
    Learn,
    /// Take a permit, which bounds the regenerations of a process.
    Permit,
    /// Ask the store for its version, if its fence is greater, and for the lock.
    Probe {
        known: i64,
    },
    /// Take the lease, provided that the lock's fence still is this one: whoever has published since has moved it.
    Try {
        seen: i64,
    },
    /// Run the generator, with or without a lease. Its content notes this basis.
    Generate {
        basis: Basis,
    },
    /// Publish this version, which has the same content as the one with the fence `known`, without sending it again.
    Renew {
        version: Version<C>,
        known: i64,
    },
    Publish {
        version: Version<C>,
    },
    /// Remove the stored version under the lease.
    Remove,
    /// Release the lease; nobody takes it again before the cooldown.
    Release {
        cooldown: Duration,
    },
    /// The regeneration is over.
    End,
}

/// What operators are told.
#[derive(Clone, Debug)]
pub(crate) enum Report<C: Content> {
    /// There is nothing to serve, and another process is at it. Its lease ends after this time.
    Waits(Duration),
    /// The database is away, and the generator runs without a lease.
    WithoutLease,
    /// The response is not stored: each request goes to the service.
    Unshareable(Pass),
    TooLarge {
        is_servable: bool,
    },
    Failed {
        failure: C::Failure,
        is_servable: bool,
    },
    /// The publish was refused, as another process has taken the lock over.
    Refused,
}

/// What comes of an event.
#[derive(Clone, Debug)]
pub(crate) struct Step<C: Content> {
    pub(crate) command: Command<C>,
    /// What memory holds from now on, if that changes.
    pub(crate) view: Option<View<C>>,
    /// What those who wait see from now on, if that changes.
    pub(crate) progress: Option<Progress<C>>,
    pub(crate) report: Option<Report<C>>,
}

#[derive(Clone, Debug)]
enum Phase<C> {
    Begun,
    Learning,
    Permitting,
    Probing,
    /// `told`: the epoch that the probe has told; `None`: there was no probe.
    Trying {
        told: Option<i64>,
    },
    Pausing {
        until: Tick,
    },
    Generating {
        lease: Option<i64>,
        basis: Basis,
        until: Tick,
        /// There is a version to serve, so that the generator is given up when the lease is lost.
        gives_up: bool,
    },
    Publishing(Publishing<C>),
    /// The publish was refused.
    Overtaken(Version<C>),
    Removing,
    Releasing,
    Over,
}

#[derive(Clone, Debug)]
struct Publishing<C> {
    new: Version<C>,
    tries: u32,
    /// The new version has been served unsaved.
    shown: bool,
    /// It is tried again at this time; `None`: a statement is under way.
    again: Option<Tick>,
}

/// One regeneration of a resource in one process.
#[derive(Clone, Debug)]
pub(crate) struct State<C: Content> {
    /// The newest version known, to be served or not.
    newest: Option<Version<C>>,
    /// The epoch that was known before a part of the generator ran, if one has run already.
    begun_in: Option<i64>,
    phase: Phase<C>,
    /// The number of probes after which another process was at it.
    polls: u32,
    /// Until then another process is known to be at it.
    held_until: Tick,
}

/// One event's decision.
struct Decision<'a, C: Content> {
    state: &'a mut State<C>,
    facts: &'a Facts<'a, C>,
    view: Option<View<C>>,
    progress: Option<Progress<C>>,
    report: Option<Report<C>>,
}

impl<C: Content> State<C> {
    /// Begins before any part of the generator has run.
    pub(crate) fn new(newest: Option<Version<C>>, facts: &Facts<'_, C>) -> Self {
        let mut state = Self {
            newest,
            begun_in: None,
            phase: Phase::Begun,
            polls: 0,
            held_until: Tick(i64::MIN),
        };
        state.begun_in = Some(state.latest(facts));
        state
    }

    /// Says whether a part of the generator has run by now.
    pub(crate) fn generator_has_begun(&mut self, begun: bool) {
        self.begun_in = self.begun_in.filter(|_| begun);
    }

    /// Takes an event and decides what is done next.
    pub(crate) fn on(&mut self, facts: &Facts<'_, C>, event: Event<C>) -> Step<C> {
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
        Step {
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

    /// Whether [`Event::LeaseLost`] matters now.
    pub(crate) fn gives_up_without_lease(&self) -> bool {
        matches!(
            self.phase,
            Phase::Generating {
                lease: Some(_),
                gives_up: true,
                ..
            }
        )
    }

    /// Whether [`Event::LeftAlone`] takes the place of [`Event::Due`] while nobody waits.
    pub(crate) fn is_pausing(&self) -> bool {
        matches!(self.phase, Phase::Pausing { .. })
    }

    /// The newest version known, to be served or not.
    pub(crate) fn newest(&self) -> Option<&Version<C>> {
        self.newest.as_ref()
    }

    /// The latest epoch that is known. The newest version's own was told before its generator began, which has ended by now.
    fn latest(&self, facts: &Facts<'_, C>) -> i64 {
        let newest = self.newest.as_ref();
        let newest = newest.map_or(0, |newest| newest.content.basis().epoch);
        facts.list.latest().max(newest)
    }
}

impl<C: Content> Decision<'_, C> {
    fn on(&mut self, event: Event<C>) -> Command<C> {
        let phase = mem::replace(&mut self.state.phase, Phase::Over);
        match (phase, event) {
            (Phase::Begun, Event::Begun) => {
                self.show_stale(false);
                self.enter(Phase::Learning, Command::Learn)
            }
            (Phase::Learning, Event::Learned) => self.enter(Phase::Permitting, Command::Permit),
            (Phase::Permitting, Event::Permitted(permitted)) => self.permitted(permitted),
            (Phase::Probing, Event::Probed(found)) => self.probed(found),
            (Phase::Probing, Event::Away) if self.facts.now < self.state.held_until => self.poll(),
            (Phase::Trying { told }, Event::Tried(Some(fence))) => {
                let basis = self.basis(told.unwrap_or(0));
                self.generate(Some(fence), basis)
            }
            (Phase::Trying { told: None }, Event::Tried(None)) => self.probe(),
            (Phase::Trying { .. }, Event::Tried(None)) => match self.is_servable() {
                true => self.rest_and_end(RECHECK),
                false => self.poll(),
            },
            (Phase::Learning | Phase::Probing | Phase::Trying { .. }, Event::Away) => {
                self.without_store()
            }
            (Phase::Pausing { .. }, Event::Due | Event::LeftAlone) if self.facts.limits.closing => {
                self.progress = Some(Progress::Done(Answer::Pass(Pass::ShuttingDown)));
                Command::End
            }
            (Phase::Pausing { .. }, Event::Due) => self.enter(Phase::Permitting, Command::Permit),
            // Who comes soon finds that another process is at it, without a statement.
            (Phase::Pausing { .. }, Event::LeftAlone) if self.state.polls < LEAVE_AFTER => {
                self.poll()
            }
            (phase @ Phase::Pausing { .. }, Event::LeftAlone) => self.enter(phase, Command::Leave),
            (Phase::Generating { lease, basis, .. }, Event::Generated(outcome)) => {
                self.generated(lease, basis, outcome)
            }
            (Phase::Generating { lease, basis, .. }, Event::Due) => {
                let failed = Outcome::Failed(C::timed_out(self.facts.policy));
                self.generated(lease, basis, failed)
            }
            (Phase::Generating { gives_up: true, .. }, Event::LeaseLost) => {
                self.rest(RECHECK);
                self.release(Duration::ZERO)
            }
            (Phase::Publishing(publishing), event) => self.publishing(publishing, &event),
            (Phase::Overtaken(new), Event::Probed(found)) => self.overtaken(&new, found.version),
            (Phase::Overtaken(new), Event::Away) => self.overtaken(&new, None),
            (Phase::Removing, Event::Removed | Event::Away) => self.release(Duration::ZERO),
            (Phase::Releasing, Event::Released | Event::Away) => Command::End,
            // It comes too late, or says nothing new.
            (phase, _) => self.enter(phase, Command::Continue),
        }
    }

    fn enter(&mut self, phase: Phase<C>, command: Command<C>) -> Command<C> {
        self.state.phase = phase;
        command
    }

    /// Returns the basis of a generator that begins now, if the store has told of this epoch.
    fn basis(&self, told: i64) -> Basis {
        let latest = self.state.latest(self.facts).max(told);
        Basis {
            epoch: self.state.begun_in.unwrap_or(latest),
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
