//! An exhaustive check of the decisions: processes that receive requests with one key, and one
//! store, whose statements are atomic. A bounded number of faults may come at any time. A service
//! may take any amount of time.
//!
//! The check assumes that no second copy of a `Begin` reaches the database after its request was
//! done and its row was removed, at the end of its lifetime or by an operator.

mod process;
mod promises;
mod searches;
mod world;

use process::Action;
use promises::{OTHER, Sent};
use world::{AGAIN, Owner, Phase, Process, Statement, World};

use super::state::{self, RequestAnswer};
use perennial_testkit::search::{Broken, Model, Steps};

const UNKNOWN: Broken =
    "I5: a request that never ran is not unknown, and without faults each is known";
const SETTLES: Broken = "I7: without further faults, each request is answered and its row settles";
const OWN: Broken = "I6: a stored response is of a run of the row's owner";

/// Processes that receive requests with one key.
#[derive(Clone, Copy, Debug, Default)]
struct Check<const N: usize> {
    run_again: bool,
    /// The number of different requests with the key.
    requests: usize,
    /// The most faults.
    faults: u8,
    mutant: Option<Mutant>,
}

/// A condition of the protocol, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    BeginOverwrites,
    TakeEarly,
    TakeAnyRequest,
    RunAgainByDefault,
    IgnoreRetention,
    FinishAnyOwner,
    FinishInserts,
    FinishAgain,
    ForgetAnyOwner,
    NewOwner,
    ForgetNothing,
    ForgetAfterRun,
    TrustLostBegin,
    TrustForget,
    AnswerAnyRequest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Process(usize, Action),
    LateStatementRuns,
    LateStatementVanishes,
    /// One of the repeated calls of `Store::undo` removes the row of this owner.
    Undo(Owner),
    UndoDies(Owner),
    Tick,
    ClockJumpsForward,
    ClockJumpsBack,
    OperatorForgets,
    Prune,
}

impl<const N: usize> Model for Check<N> {
    type State = World<N>;
    type Action = Step;

    const SETTLES: Broken = SETTLES;
    const PATIENCE: u16 = AGAIN as u16 + 1;

    fn start(&self) -> World<N> {
        World::default()
    }

    fn steps(&self, world: &World<N>, steps: &mut Steps<Self>) {
        for (number, process) in world.processes.iter().enumerate() {
            // Equal processes take equal steps.
            if number > 0 && *process == world.processes[number - 1] {
                continue;
            }
            for action in self.actions(world, *process) {
                let step = Step::Process(number, action);
                match self.act(world, number, action) {
                    Ok((next, situation)) => {
                        steps.to(step, next.normalised());
                        situation.into_iter().for_each(|name| steps.sometimes(name));
                    }
                    Err(property) => steps.broken(step, property),
                }
            }
        }
        let mut add = |step, change: &dyn Fn(&mut World<N>)| {
            let mut next = *world;
            change(&mut next);
            steps.to(step, next.normalised());
        };
        add(Step::Tick, &|next| next.tick(self));
        if world.late.is_some() {
            add(Step::LateStatementVanishes, &|next| next.late = None);
            add(Step::LateStatementRuns, &|next| next.late_runs(self));
        }
        for owner in world.undone.into_iter().filter(|owner| *owner != 0) {
            add(Step::Undo(owner), &|next| next.undo_runs(self, owner));
            if world.faults < self.faults {
                add(Step::UndoDies(owner), &|next| {
                    next.undone
                        .iter_mut()
                        .filter(|it| **it == owner)
                        .for_each(|it| *it = 0);
                    next.died = true;
                    next.faults += 1;
                });
            }
        }
        let Some(row) = world.row else { return };
        if row.is_over() {
            add(Step::Prune, &|next| next.row = None);
        }
        if world.faults == self.faults {
            return;
        }
        add(Step::ClockJumpsForward, &|next| {
            next.faults += 1;
            (0..AGAIN).for_each(|_| next.tick(self));
        });
        if row.age >= 0 && !row.is_over() {
            add(Step::ClockJumpsBack, &|next| {
                next.faults += 1;
                next.row.iter_mut().for_each(|row| row.age -= 1);
            });
        }
        let begins = |process: &Process| {
            process.owner == row.owner && matches!(process.phase, Phase::Begun(_))
        };
        // An operator may remove the row after finding out whether the service was called, and what
        // it has done.
        if row.done.is_none() && !world.processes.iter().any(begins) {
            add(Step::OperatorForgets, &|next| {
                next.faults += 1;
                next.row = None;
                next.forget_late();
                next.promises.undone(next.begun());
            });
        }
    }

    fn invariant(&self, world: &World<N>) -> Result<(), Broken> {
        let holds = world.row.is_none_or(|row| {
            row.done.is_none_or(|response| {
                row.ran && response.is_none_or(|response| response == row.owner)
            })
        });
        if holds { Ok(()) } else { Err(OWN) }
    }

    /// A repeat of the request gets its final answer.
    fn settle(&self, world: &World<N>) -> Option<(u16, World<N>)> {
        let mut next = *world;
        if world.late.is_some() {
            next.late_runs(self);
            return Some((0, next.normalised()));
        }
        let actions = world.processes.iter();
        let mut actions = actions.map(|process| process.phase.goes_on()).enumerate();
        if let Some((number, action)) = actions.find_map(|(n, action)| Some((n, action?))) {
            // Taking the steps finds a property that fails.
            let (next, _) = self.act(world, number, action).ok()?;
            return Some((0, next.normalised()));
        }
        if let Some(owner) = world.undone.into_iter().find(|owner| *owner != 0) {
            next.undo_runs(self, owner);
            return Some((0, next.normalised()));
        }
        let owner = next.next_owner();
        let begun = next.begin(self, owner, Sent::First);
        let waits = match state::begun(Sent::First.fingerprint(), Some(begun)) {
            Some(RequestAnswer::InProgress) => true,
            Some(RequestAnswer::Unknown) => self.run_again || !world.may_be_unknown(self),
            _ => false,
        };
        waits.then(|| {
            let mut next = *world;
            next.tick(self);
            (1, next.normalised())
        })
    }
}

impl<const N: usize> World<N> {
    fn late_runs(&mut self, check: &Check<N>) {
        if let Some(statement) = self.late.take() {
            self.change(check, statement);
        }
    }

    /// The undoing goes on for as long as a `Begin` of this owner may still be carried out.
    fn undo_runs(&mut self, check: &Check<N>, owner: Owner) {
        self.change(check, Statement::Forget(owner));
        if !matches!(self.late, Some(Statement::Begin(by, _)) if by == owner) {
            let undone = self.undone.iter_mut().filter(|undone| **undone == owner);
            undone.for_each(|undone| *undone = 0);
        }
    }

    /// Returns true if nobody can know what has become of the request in the row.
    fn may_be_unknown(&self, check: &Check<N>) -> bool {
        // The request runs again soon.
        check.run_again
            || self.row.is_some_and(|row| {
                let works = |process: &Process| process.owner == row.owner;
                self.processes.iter().any(works)
                    || self.undone.contains(&row.owner)
                    || self.faults > 0 && (row.ran || self.died)
            })
    }
}

impl<const N: usize> Check<N> {
    /// Checks an answer to a request, and returns the answer's name.
    fn answered(
        &self,
        world: &World<N>,
        sent: Sent,
        answer: &RequestAnswer<Owner>,
    ) -> Result<&'static str, Broken> {
        let promises = &world.promises;
        let first = world.row.map(|row| row.sent);
        let same = if first == Some(sent) {
            Ok(())
        } else {
            Err(OTHER)
        };
        match answer {
            RequestAnswer::Replay(response) => {
                promises.replays(sent, *response).map(|()| "replayed")
            }
            RequestAnswer::NotStored => promises.names_done(sent).map(|()| "not stored"),
            RequestAnswer::OtherRequest(_) if first.is_some() && same.is_err() => {
                Ok("other request")
            }
            RequestAnswer::OtherRequest(_) => Err(OTHER),
            RequestAnswer::InProgress => same.map(|()| "in progress"),
            RequestAnswer::Unknown if world.may_be_unknown(self) => {
                same.map(|()| "outcome unknown")
            }
            RequestAnswer::Unknown => Err(UNKNOWN),
            RequestAnswer::Unavailable => Ok("unavailable"),
        }
    }
}
