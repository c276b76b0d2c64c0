//! The steps of a modelled process. The real state machine decides each step.

use std::{sync::LazyLock, time::Duration};

use super::{
    Check,
    world::{Fence, LIFETIME, NOW, Phase, Process, Statement, TICK, World},
};
use crate::{
    layer::idempotency::{
        fingerprint::Fingerprint,
        promises::{SENT, Sent},
        state::{Answer, Found, Free, Next, Published, Request, Stored, Storing},
    },
    search::Broken,
    store::LockState,
};

impl Sent {
    fn fingerprint(self) -> &'static Fingerprint {
        static FINGERPRINTS: LazyLock<[Fingerprint; 3]> = LazyLock::new(|| {
            [("x", "ann"), ("y", "ann"), ("x", "bob")].map(|(request, caller)| Fingerprint {
                request: request.to_owned(),
                caller: caller.to_owned(),
            })
        });
        &FINGERPRINTS[self as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Send(Sent),
    Probe(Fate),
    Try(Fate),
    Begin,
    /// `fits`: the response can be stored.
    Respond {
        fits: bool,
    },
    Die,
    Publish(Fate),
    /// The process is shutting down, and the database fails.
    PublishAtShutdown,
    /// The database does not take the response.
    PublishUnfit,
    /// The answering node lags behind.
    PublishAtLaggingNode,
    Release(Fate),
    LoseExtensions,
}

/// The result of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    Failed,
    AnswerLost,
    /// The answer is an error, and the statement runs later.
    Late,
}

const FATES: [Fate; 4] = [Fate::Done, Fate::Failed, Fate::AnswerLost, Fate::Late];

/// A condition of the protocol, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    TryWithoutFence,
    AnyProbeAge,
    UnknownIsFree,
    ReleaseWithoutNote,
    AnyFenceOfStored,
    AnyCaller,
    AnyRequest,
    KeepStored,
    OwnedIsInProgress,
}

impl Action {
    fn is_fault(self) -> bool {
        match self {
            Self::Send(_) | Self::Begin | Self::Respond { .. } | Self::PublishUnfit => false,
            Self::Probe(fate) | Self::Try(fate) | Self::Publish(fate) | Self::Release(fate) => {
                fate != Fate::Done
            }
            _ => true,
        }
    }
}

fn time(ticks: i8) -> Duration {
    TICK * u32::try_from(ticks).unwrap_or(0)
}

type Situation = Option<&'static str>;

impl<const N: usize> Check<N> {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(super) fn actions(&self, world: &World<N>, process: Process) -> Vec<Action> {
        let fates = FATES.into_iter();
        let fates = fates.filter(|fate| *fate != Fate::Late || world.late.is_none());
        let mut actions: Vec<_> = match process.phase {
            Phase::Idle => SENT
                .into_iter()
                .take(self.requests)
                .map(Action::Send)
                .collect(),
            Phase::Probing => [Fate::Done, Fate::Failed].map(Action::Probe).to_vec(),
            Phase::Trying(..) => fates.map(Action::Try).collect(),
            Phase::Locked(_) => vec![Action::Begin, Action::Die],
            Phase::Running(_) => {
                let [fits, large] = [true, false].map(|fits| Action::Respond { fits });
                vec![fits, large, Action::Die]
            }
            Phase::Storing(_) => {
                let others = [
                    Action::PublishAtShutdown,
                    Action::PublishUnfit,
                    Action::PublishAtLaggingNode,
                    Action::Die,
                ];
                fates.map(Action::Publish).chain(others).collect()
            }
            Phase::Releasing { .. } => fates.map(Action::Release).chain([Action::Die]).collect(),
        };
        if process.extends {
            actions.push(Action::LoseExtensions);
        }
        actions.retain(|action| world.faults < self.faults || !action.is_fault());
        actions
    }

    /// Takes one step of a process. The error is a violated property.
    pub(super) fn act(
        &self,
        before: &World<N>,
        number: usize,
        action: Action,
    ) -> Result<(World<N>, Situation), Broken> {
        let mut world = *before;
        world.faults += u8::from(action.is_fault());
        let Process { sent, phase, .. } = world.processes[number];
        let (next, situation) = match (phase, action) {
            (_, Action::Send(sent)) => {
                world.processes[number].sent = sent;
                (Phase::Probing, None)
            }
            (_, Action::Probe(Fate::Done)) => match self.probed(&world, sent) {
                Ok(free) => (Phase::Trying(free, 0), Some("the key is new")),
                Err(answer) => (Phase::Idle, Some(self.answered(&world, sent, &answer)?)),
            },
            (Phase::Trying(free, age), Action::Try(fate)) => {
                let seen = (!self.is(Mutant::TryWithoutFence)).then_some(free.seen);
                let lease = world.send(Statement::Try { seen }, fate);
                let took = if self.is(Mutant::AnyProbeAge) { 0 } else { age };
                match (free.tried::<_, (), ()>(time(took), lease), lease) {
                    (Ok(lease), _) => (Phase::Locked(lease), None),
                    (Err(_), Ok(Some(lease))) => (
                        Phase::Releasing { lease, last: true },
                        Some("probe too old"),
                    ),
                    (Err(_), _) => (Phase::Idle, Some("try refused")),
                }
            }
            (Phase::Locked(lease), Action::Begin) => {
                if self.run_again && world.faults > 0 {
                    world.promises.permit();
                }
                let again = world.promises.runs > 0;
                world.promises.begins()?;
                let situation = again.then_some("runs again");
                (Phase::Running(lease), situation)
            }
            (Phase::Running(lease), Action::Respond { fits }) => {
                let storing = Storing::new(lease, fits.then_some(lease), NOW);
                let lost = world
                    .lock
                    .is_none_or(|lock| lock.fence != lease || lock.expires <= 0);
                (
                    Phase::Storing(storing),
                    lost.then_some("lease lost while running"),
                )
            }
            (Phase::Storing(storing), Action::Publish(fate)) => {
                let publish = Statement::Publish(sent, storing.lease, storing.response);
                let published = match world.send(publish, fate) {
                    Ok(Some(_)) => Published::Stored,
                    Ok(None) => Published::Refused,
                    Err(()) => Published::Away,
                };
                self.published(storing, published, false)
            }
            (Phase::Storing(storing), Action::PublishAtShutdown) => {
                self.published(storing, Published::Away, true)
            }
            (Phase::Storing(storing), Action::PublishAtLaggingNode) => {
                self.published(storing, Published::Refused, false)
            }
            (Phase::Storing(storing), Action::PublishUnfit) if storing.response.is_some() => {
                self.published(storing, Published::Unfit, false)
            }
            (Phase::Releasing { lease, last }, Action::Release(fate)) => {
                match world.send(Statement::Release(lease), fate) {
                    Err(()) if !last => (Phase::Releasing { lease, last: true }, None),
                    _ => (Phase::Idle, None),
                }
            }
            (_, Action::Die | Action::Probe(_)) => (Phase::Idle, None),
            (phase, _) => (phase, None),
        };
        let process = &mut world.processes[number];
        process.phase = next;
        match next {
            Phase::Idle => *process = Process::default(),
            Phase::Locked(_) => process.extends = true,
            Phase::Releasing { .. } => process.extends = false,
            _ => process.extends &= action != Action::LoseExtensions,
        }
        Ok((world, situation))
    }

    /// Probes the store, and decides.
    pub(super) fn probed(&self, world: &World<N>, sent: Sent) -> Result<Free, Answer<Fence>> {
        let lock = world.lock.map(|lock| {
            let kept = self.is(Mutant::OwnedIsInProgress) && lock.owned;
            LockState {
                fence: lock.fence,
                owned: lock.owned,
                remaining: if kept { TICK } else { time(lock.expires) },
                failures: 0,
            }
        });
        let lock = lock.unwrap_or_default();
        let request = Request {
            fingerprint: sent.fingerprint(),
            lifetime: time(LIFETIME),
            run_again: self.run_again || self.is(Mutant::UnknownIsFree),
        };
        let stored = world.entry.map(|entry| {
            let mut stored = Stored {
                fence: entry.fence,
                age: time(entry.age),
                fingerprint: entry.sent.fingerprint().clone(),
                response: entry.response,
            };
            let (noted, own) = (&mut stored.fingerprint, request.fingerprint);
            match self.mutant {
                Some(Mutant::AnyFenceOfStored) => stored.fence = lock.fence,
                Some(Mutant::AnyCaller) => noted.caller.clone_from(&own.caller),
                Some(Mutant::AnyRequest) => noted.request.clone_from(&own.request),
                _ => {}
            }
            stored
        });
        request.probed(Ok::<_, ()>(Found {
            stored,
            unreadable: false,
            lock,
        }))
    }

    /// Returns the phase after the answer to a publish.
    fn published(
        &self,
        storing: Storing<Fence, Fence>,
        published: Published,
        closing: bool,
    ) -> (Phase, Situation) {
        match storing.published(NOW, published, closing) {
            Next::Leave(lease) if self.is(Mutant::ReleaseWithoutNote) => {
                (Phase::Releasing { lease, last: false }, None)
            }
            Next::Leave(_) if published == Published::Refused => {
                (Phase::Idle, Some("publish refused"))
            }
            Next::Leave(_) => (Phase::Idle, Some("given up")),
            Next::Release(_) if self.is(Mutant::KeepStored) => (Phase::Idle, None),
            Next::Release(lease) => (Phase::Releasing { lease, last: false }, Some("stored")),
            Next::RetryWithoutResponse(storing) => {
                (Phase::Storing(storing), Some("stored without the response"))
            }
            Next::Retry(mut storing) => {
                // Only whole ticks matter.
                if storing.until > NOW && storing.until < NOW + TICK {
                    storing.until = NOW;
                }
                (Phase::Storing(storing), None)
            }
        }
    }
}

impl<const N: usize> World<N> {
    /// Sends a statement. The error is the database's.
    fn send(&mut self, statement: Statement, fate: Fate) -> Result<Option<Fence>, ()> {
        match fate {
            Fate::Done => return Ok(self.execute(statement)),
            Fate::Failed => {}
            Fate::AnswerLost => self.run_statement(statement),
            Fate::Late => self.late = Some(statement),
        }
        Err(())
    }
}
