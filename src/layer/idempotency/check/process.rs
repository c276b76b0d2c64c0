//! The steps of a modelled process. The real decisions choose each step.

use std::time::Duration;

use super::{
    Check, Mutant,
    promises::{OTHER, SENT, Sent},
    world::{Owner, Phase, Process, Statement, World},
};
use crate::{
    layer::idempotency::state::{Answer, Attempt, Ending, Finished, Loss, Next, Storing},
    search::Broken,
    timing::{RESPONSE_RETRY, RESPONSE_RETRY_AT_SHUTDOWN},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Send(Sent),
    Begin(Fate, Loss),
    Start,
    /// `fits`: the response can be stored.
    Respond {
        fits: bool,
    },
    /// The service says that it has done nothing.
    Refuse,
    /// The service panics.
    Fail,
    Die,
    Finish(Fate),
    /// The last try, in a process that shuts down.
    FinishAtEnd,
    /// The database does not take the response.
    FinishUnfit,
    Forget(Fate),
}

/// The result of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    Failed,
    ReplyLost,
    /// The reply is an error, and the statement runs later.
    Late,
}

const FATES: [Fate; 4] = [Fate::Done, Fate::Failed, Fate::ReplyLost, Fate::Late];

/// The time of each `Finish`. Whether a try is the last one does not depend on the clock.
const NOW: Duration = Duration::from_secs(24 * 3600);

impl Sent {
    pub(super) fn fingerprint(self) -> &'static str {
        match self {
            Self::First => "pay/1",
            Self::OtherBody => "pay/2",
            Self::OtherTarget => "order/1",
        }
    }
}

impl Action {
    fn is_fault(self) -> bool {
        match self {
            Self::Send(_) | Self::Start | Self::Respond { .. } | Self::Refuse => false,
            Self::FinishUnfit => false,
            Self::Begin(fate, _) | Self::Finish(fate) | Self::Forget(fate) => fate != Fate::Done,
            Self::Fail | Self::Die | Self::FinishAtEnd => true,
        }
    }
}

impl Phase {
    /// Returns the next action, if nothing fails.
    pub(super) fn goes_on(self) -> Option<Action> {
        Some(match self {
            Self::Idle => return None,
            Self::Beginning(_) => Action::Begin(Fate::Done, Loss::Last),
            Self::Begun(_) => Action::Start,
            Self::Running(_) => Action::Respond { fits: true },
            Self::Storing(_) => Action::Finish(Fate::Done),
            Self::Forgetting(_) => Action::Forget(Fate::Done),
        })
    }
}

pub(super) type Situation = Option<&'static str>;

impl<const N: usize> Check<N> {
    pub(super) fn actions(&self, world: &World<N>, process: Process) -> Vec<Action> {
        let fates = FATES.into_iter();
        let fates = fates.filter(|fate| *fate != Fate::Late || world.late.is_none());
        let mut actions: Vec<_> = match process.phase {
            Phase::Idle => {
                let sent = SENT.into_iter().take(self.requests);
                return sent.map(Action::Send).collect();
            }
            Phase::Beginning(_) => {
                let fates = fates.map(|fate| Action::Begin(fate, Loss::Last));
                let mut again: Vec<_> = fates.collect();
                again.extend(FATES[1..].iter().filter_map(|fate| {
                    (*fate != Fate::Late || world.late.is_none())
                        .then_some(Action::Begin(*fate, Loss::Repeatable))
                }));
                again
            }
            Phase::Begun(_) => vec![Action::Start],
            Phase::Running(_) => {
                let [fits, large] = [true, false].map(|fits| Action::Respond { fits });
                vec![fits, large, Action::Refuse, Action::Fail]
            }
            Phase::Storing(storing) => {
                let unfit = storing.response.map(|_| Action::FinishUnfit);
                let others = unfit.into_iter().chain([Action::FinishAtEnd]);
                fates.map(Action::Finish).chain(others).collect()
            }
            Phase::Forgetting(_) => fates.map(Action::Forget).collect(),
        };
        actions.push(Action::Die);
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
        let Process { sent, owner, phase } = world.processes[number];
        let (next, situation) = match (phase, action) {
            (_, Action::Send(sent)) => {
                let owner = world.next_owner();
                world.processes[number] = Process { sent, owner, phase };
                (Phase::Beginning(Attempt::default()), None)
            }
            (Phase::Beginning(attempt), Action::Begin(fate, loss)) => {
                self.begin(&mut world, number, attempt, fate, loss)?
            }
            (Phase::Begun(attempt), Action::Start) => {
                let again = world.promises.ran;
                world.promises.begins()?;
                if let Some(row) = &mut world.row {
                    row.ran |= row.owner == owner;
                }
                if attempt.lost && self.mutant == Some(Mutant::ForgetAfterRun) {
                    world.undo(owner);
                }
                (Phase::Running(attempt), again.then_some("runs again"))
            }
            (Phase::Running(_), Action::Respond { fits }) => {
                let storing = Storing::new(fits.then_some(owner), NOW);
                (Phase::Storing(storing), None)
            }
            (Phase::Running(attempt), Action::Refuse) => {
                // The run does not count.
                world.promises.undone(world.begun());
                (Phase::Forgetting(attempt), Some("nothing done"))
            }
            (Phase::Storing(storing), _) if action != Action::Die => {
                self.finish(&mut world, owner, storing, action)
            }
            (Phase::Forgetting(attempt), Action::Forget(fate)) => {
                let forgotten = world.send(self, Statement::Forget(owner), fate).is_ok();
                let lost = attempt.lost && self.mutant != Some(Mutant::TrustForget);
                if (Attempt { lost }).may_return(forgotten) {
                    world.undo(owner);
                }
                (Phase::Idle, None)
            }
            _ => {
                let never_ran = matches!(
                    phase,
                    Phase::Beginning(_) | Phase::Begun(_) | Phase::Forgetting(_)
                );
                world.died |= never_ran;
                (Phase::Idle, None)
            }
        };
        match next {
            Phase::Idle => world.processes[number] = Process::default(),
            phase => world.processes[number].phase = phase,
        }
        debug_assert_eq!(sent, before.processes[number].sent);
        Ok((world, situation))
    }

    fn begin(
        &self,
        world: &mut World<N>,
        number: usize,
        attempt: Attempt,
        fate: Fate,
        loss: Loss,
    ) -> Result<(Phase, Situation), Broken> {
        let Process { sent, owner, .. } = world.processes[number];
        let other = world
            .row
            .is_some_and(|row| row.sent != sent && !row.is_over());
        let begun = match fate {
            Fate::Done => Ok(world.begin(self, owner, sent)),
            fate => {
                let _ = world.send(self, Statement::Begin(owner, sent), fate);
                Err(loss)
            }
        };
        match self.begun(attempt, sent, begun) {
            Next::Run if other => Err(OTHER),
            Next::Run => Ok((Phase::Begun(attempt), Some("begun"))),
            Next::Repeat(attempt) => {
                if self.mutant == Some(Mutant::NewOwner) {
                    world.processes[number].owner = world.next_owner();
                }
                Ok((Phase::Beginning(attempt), Some("begun again")))
            }
            Next::Answer { answer, forget } => {
                let situation = self.answered(world, sent, &answer)?;
                if forget && self.mutant != Some(Mutant::ForgetNothing) {
                    world.undo(owner);
                }
                Ok((Phase::Idle, Some(situation)))
            }
        }
    }

    /// Decides after a `Begin`.
    pub(super) fn begun(
        &self,
        attempt: Attempt,
        sent: Sent,
        begun: Result<crate::store::Begun<Owner>, Loss>,
    ) -> Next<Owner> {
        let fingerprint = match &begun {
            Ok(crate::store::Begun::Other { fingerprint, .. })
                if self.mutant == Some(Mutant::AnswerAnyRequest) =>
            {
                fingerprint.clone()
            }
            _ => sent.fingerprint().to_owned(),
        };
        match attempt.begun(&fingerprint, begun) {
            Next::Answer { answer, .. } if self.mutant == Some(Mutant::TrustLostBegin) => {
                let forget = answer == Answer::Unavailable;
                Next::Answer { answer, forget }
            }
            next => next,
        }
    }

    fn finish(
        &self,
        world: &mut World<N>,
        owner: Owner,
        storing: Storing<Owner>,
        action: Action,
    ) -> (Phase, Situation) {
        let finished = match action {
            Action::Finish(fate) => {
                let statement = Statement::Finish(owner, storing.response);
                match world.send(self, statement, fate) {
                    Ok(true) => Finished::Stored,
                    Ok(false) => Finished::Refused,
                    Err(()) => Finished::Away,
                }
            }
            Action::FinishUnfit => Finished::Unfit,
            _ => Finished::Away,
        };
        let now = match action {
            Action::FinishAtEnd => NOW + RESPONSE_RETRY + RESPONSE_RETRY_AT_SHUTDOWN,
            _ => NOW,
        };
        match storing.finished(now, finished, false) {
            Ending::Stored => (Phase::Idle, Some("stored")),
            Ending::Leave if finished == Finished::Refused => (Phase::Idle, Some("finish refused")),
            Ending::Leave => (Phase::Idle, Some("given up")),
            Ending::Retry(storing) => {
                let note = storing
                    .response
                    .is_none()
                    .then_some("stored without the response");
                (Phase::Storing(storing), note)
            }
        }
    }
}

impl<const N: usize> World<N> {
    /// Sends a statement. The error is the database's.
    fn send(&mut self, check: &Check<N>, statement: Statement, fate: Fate) -> Result<bool, ()> {
        match fate {
            Fate::Done => return Ok(self.change(check, statement)),
            Fate::Failed => {}
            Fate::ReplyLost => drop(self.change(check, statement)),
            Fate::Late => self.late = Some(statement),
        }
        Err(())
    }

    /// Starts the schedule that removes the row of this owner.
    fn undo(&mut self, owner: Owner) {
        if !self.undone.contains(&owner) {
            let free = self.undone.iter_mut().find(|undone| **undone == 0);
            *free.expect("as many as faults") = owner;
        }
    }
}
