//! The steps of a modelled process. What the process does in each step is decided by the same code
//! as in production.

use super::{
    Check, Mutant,
    promises::{OTHER, SENT, Sent},
    world::{Lost, Owner, Phase, Process, Statement, World},
};
use perennial_store::{Begun, Error, error::RejectedValue};

use crate::state::{self, Ending, RequestAnswer};
use perennial_testkit::search::Broken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Send(Sent),
    Begin(Fate, Again),
    Start,
    /// `fits` says whether the response can be stored.
    Respond {
        fits: bool,
    },
    /// The service says that it has done nothing.
    Refuse,
    /// The service panics.
    Fail,
    Die,
    Finish(Fate),
    /// The last attempt to store the response, made when the process shuts down.
    FinishAtEnd,
    /// The database does not take the response.
    FinishUnfit,
    Forget(Fate),
}

/// A `Begin` without a reply is sent again. Otherwise the request has waited long enough.
type Again = bool;

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

impl Sent {
    pub(super) fn fingerprint(self) -> &'static str {
        match self {
            Self::First => "1",
            Self::Second => "2",
            Self::Third => "3",
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
            Self::Beginning(_) => Action::Begin(Fate::Done, false),
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
                let fates = fates.map(|fate| Action::Begin(fate, false));
                let mut again: Vec<_> = fates.collect();
                again.extend(FATES[1..].iter().filter_map(|fate| {
                    (*fate != Fate::Late || world.late.is_none())
                        .then_some(Action::Begin(*fate, true))
                }));
                again
            }
            Phase::Begun(_) => vec![Action::Start],
            Phase::Running(_) => {
                let [fits, large] = [true, false].map(|fits| Action::Respond { fits });
                vec![fits, large, Action::Refuse, Action::Fail]
            }
            Phase::Storing(response) => {
                let unfit = response.map(|_| Action::FinishUnfit);
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
                (Phase::Beginning(false), None)
            }
            (Phase::Beginning(lost), Action::Begin(fate, again)) => {
                self.begin_again(&mut world, number, lost, fate, again)?
            }
            (Phase::Begun(lost), Action::Start) => {
                let again = world.promises.ran;
                world.promises.begins()?;
                if let Some(row) = &mut world.row {
                    row.ran |= row.owner == owner;
                }
                if lost && self.mutant == Some(Mutant::ForgetAfterRun) {
                    world.undo(owner);
                }
                (Phase::Running(lost), again.then_some("runs again"))
            }
            (Phase::Running(_), Action::Respond { fits }) => {
                (Phase::Storing(fits.then_some(owner)), None)
            }
            (Phase::Running(lost), Action::Refuse) => {
                // The run does not count.
                world.promises.undone(world.begun());
                (Phase::Forgetting(lost), Some("nothing done"))
            }
            (Phase::Storing(response), _) if action != Action::Die => {
                self.finish(&mut world, owner, response, action)
            }
            (Phase::Forgetting(lost), Action::Forget(fate)) => {
                let forgotten = world.send(self, Statement::Forget(owner), fate).is_ok();
                let lost = lost && self.mutant != Some(Mutant::TrustForget);
                if lost || !forgotten {
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

    fn begin_again(
        &self,
        world: &mut World<N>,
        number: usize,
        lost: Lost,
        fate: Fate,
        again: Again,
    ) -> Result<(Phase, Situation), Broken> {
        let is = |mutant| self.mutant == Some(mutant);
        let Process { sent, owner, .. } = world.processes[number];
        let other = world
            .row
            .is_some_and(|row| row.sent != sent && !row.is_over());
        let begun = match fate {
            Fate::Done => Some(world.begin(self, owner, sent)),
            fate => {
                let _ = world.send(self, Statement::Begin(owner, sent), fate);
                None
            }
        };
        if begun.is_none() && again {
            if is(Mutant::NewOwner) {
                world.processes[number].owner = world.next_owner();
            }
            return Ok((Phase::Beginning(true), Some("begun again")));
        }
        let lost = lost || begun.is_none();
        let fingerprint = match &begun {
            Some(Begun::Other { fingerprint, .. }) if is(Mutant::AnswerAnyRequest) => {
                fingerprint.clone()
            }
            _ => sent.fingerprint().to_owned(),
        };
        match state::begun(&fingerprint, begun) {
            None if other => Err(OTHER),
            None => Ok((Phase::Begun(lost), Some("begun"))),
            Some(answer) => {
                let situation = self.answered(world, sent, &answer)?;
                let trusts = is(Mutant::TrustLostBegin) && answer != RequestAnswer::Unavailable;
                if lost && !trusts && !is(Mutant::ForgetNothing) {
                    world.undo(owner);
                }
                Ok((Phase::Idle, Some(situation)))
            }
        }
    }

    fn finish(
        &self,
        world: &mut World<N>,
        owner: Owner,
        response: Option<Owner>,
        action: Action,
    ) -> (Phase, Situation) {
        let away = || Error::operation("finish", "is unavailable");
        let reply = match action {
            Action::Finish(fate) => {
                let statement = Statement::Finish(owner, response);
                world.send(self, statement, fate).map_err(|()| away())
            }
            Action::FinishUnfit => Err(Error::operation(
                "finish",
                RejectedValue("is too large".into()),
            )),
            _ => Err(away()),
        };
        let late = action == Action::FinishAtEnd;
        match state::finished(&reply, response.is_some(), late) {
            Ending::Stored => (Phase::Idle, Some("stored")),
            Ending::Leave if reply.is_ok() => (Phase::Idle, Some("finish refused")),
            Ending::Leave => (Phase::Idle, Some("given up")),
            Ending::Retry => (Phase::Storing(response), None),
            Ending::Note => (Phase::Storing(None), Some("stored without the response")),
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

    /// Begins to undo what this owner may have begun: its row is removed several times.
    fn undo(&mut self, owner: Owner) {
        if !self.undone.contains(&owner) {
            let free = self.undone.iter_mut().find(|undone| **undone == 0);
            *free.expect("as many as faults") = owner;
        }
    }
}
