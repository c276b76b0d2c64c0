//! An exhaustive check of the decisions: processes that receive requests with one key, and one
//! store, whose statements are atomic. A bounded number of faults may come at any time.
//!
//! The check assumes that no second copy of a publish reaches the database after the first copy's
//! entry was removed at the end of its lifetime.

mod process;
mod world;

use process::{Action, Mutant};
use world::{Entry, Fence, Process, World};

use super::{
    promises::{ONCE, REPLAY, Sent},
    state::Answer,
};
use crate::search::{Broken, Explored, Model, Steps, Violation, explore};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Process(usize, Action),
    LateStatementRuns,
    LateStatementVanishes,
    StrayIsFreed,
    StrayIsForgotten,
    Tick,
    OperatorBreaksLock,
    PruneEntry,
    PruneLock,
}

impl<const N: usize> Model for Check<N> {
    type State = World<N>;
    type Action = Step;

    const PATIENCE: u16 = world::LEASE as u16;

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
        add(Step::Tick, &World::tick);
        if let Some(statement) = world.late {
            add(Step::LateStatementVanishes, &|next| next.late = None);
            add(Step::LateStatementRuns, &|next| {
                next.late = None;
                next.run_statement(statement);
            });
        }
        if world.stray != 0 {
            add(Step::StrayIsForgotten, &|next| next.stray = 0);
            add(Step::StrayIsFreed, &World::free_stray);
        }
        if world.lock.is_some() && world.faults < self.faults {
            add(Step::OperatorBreaksLock, &World::break_lock);
        }
        if world.may_prune_lock() {
            add(Step::PruneLock, &|next| next.lock = None);
        }
        if world.may_prune_entry() {
            add(Step::PruneEntry, &|next| next.entry = None);
        }
    }

    fn invariant(&self, world: &World<N>) -> Result<(), Broken> {
        let is_idle = world.processes == [Process::default(); N];
        match world.lock {
            Some(lock) if !lock.owned && lock.expires > 0 => Err("a released lock is free"),
            Some(lock) if lock.owned && is_idle && world.faults == 0 => {
                Err("without faults each lock is released")
            }
            _ => Ok(()),
        }
    }

    /// A repeat of the request gets its final answer.
    fn settle(&self, world: &World<N>) -> Option<(u16, World<N>)> {
        let mut next = *world;
        if let Some(statement) = next.late.take() {
            next.run_statement(statement);
            return Some((0, next.normalised()));
        }
        let actions = world
            .processes
            .iter()
            .map(|process| process.phase.goes_on());
        for (number, action) in actions.enumerate() {
            if let Some(action) = action {
                // Taking the steps finds a property that fails.
                let (next, _) = self.act(world, number, action).ok()?;
                return Some((0, next.normalised()));
            }
        }
        let answer = self.probed(world, Sent::First);
        matches!(answer, Err(Answer::InProgress)).then(|| {
            next.tick();
            (1, next.normalised())
        })
    }
}

impl<const N: usize> Check<N> {
    /// Tests an answer to a request. Returns its name.
    fn answered(
        &self,
        world: &World<N>,
        sent: Sent,
        answer: &Answer<Fence>,
    ) -> Result<&'static str, Broken> {
        world.promises.answers(sent, answer)?;
        let stored = |test: &dyn Fn(Entry) -> bool| world.entry.is_some_and(test);
        let differs = |kind| stored(&|entry| (entry.sent == kind) != (sent == kind));
        let (name, holds, property) = match answer {
            Answer::Replay(response) => (
                "replayed",
                // Either run may answer a request that runs again.
                stored(&|entry| entry.sent == sent && entry.response == Some(*response)),
                REPLAY,
            ),
            Answer::NotStored => (
                "not stored",
                stored(&|entry| entry.sent == sent && entry.response.is_none()),
                "a request without a response was done",
            ),
            Answer::OtherCaller => (
                "other caller",
                differs(Sent::OtherTarget),
                "another caller is another one",
            ),
            Answer::OtherRequest => (
                "other request",
                differs(Sent::OtherBody),
                "another request is another one",
            ),
            Answer::InProgress => (
                "in progress",
                world
                    .lock
                    .is_some_and(|lock| lock.owned && lock.expires > 0),
                "a request in progress has a lease",
            ),
            Answer::UnknownOutcome => (
                "outcome unknown",
                world.faults > 0,
                "without faults each outcome is known",
            ),
            Answer::Unavailable => ("unavailable", false, "a database that works is available"),
        };
        if holds { Ok(name) } else { Err(property) }
    }
}

fn search<const N: usize>(check: &Check<N>) -> Result<Explored, Violation<Check<N>>> {
    explore(check, 20_000_000)
}

fn holds<const N: usize>(check: &Check<N>) -> Explored {
    let explored = search(check).unwrap_or_else(|violation| panic!("{violation:?}"));
    println!("{N} processes, {check:?}: {explored}");
    explored
}

#[test]
fn request_runs_once_after_two_faults() {
    let check = Check::<2> {
        requests: 1,
        faults: 2,
        ..Check::default()
    };
    holds(&check).reached(&[
        "replayed",
        "not stored",
        "in progress",
        "outcome unknown",
        "the key is new",
        "probe too old",
        "try refused",
        "lease lost while running",
        "publish refused",
        "given up",
        "stored without the response",
        "stored",
    ]);
}

#[test]
fn no_caller_gets_the_response_to_another_request() {
    let check = Check::<2> {
        requests: 3,
        faults: 1,
        ..Check::default()
    };
    holds(&check).reached(&["replayed", "other caller", "other request"]);
}

#[test]
fn request_runs_once_in_three_processes() {
    holds(&Check::<3> {
        requests: 1,
        faults: 1,
        ..Check::default()
    });
}

#[test]
fn request_runs_again_only_after_a_fault() {
    let check = Check::<2> {
        requests: 1,
        faults: 1,
        run_again: true,
        ..Check::default()
    };
    // The second run may begin after the first run's response was stored, and replaces the response:
    // the probe was sent before.
    let found = search(&check).map_err(|violation| violation.property);
    assert_eq!(found.map(|explored| explored.states), Err(REPLAY));
}

#[test]
fn each_condition_is_needed() {
    for (mutant, faults, property) in [
        (Mutant::TryWithoutFence, 0, ONCE),
        (Mutant::AnyProbeAge, 0, ONCE),
        (Mutant::UnknownIsFree, 1, ONCE),
        (Mutant::ReleaseWithoutNote, 1, ONCE),
        (Mutant::AnyFenceOfStored, 2, ONCE),
        (Mutant::AnyCaller, 0, REPLAY),
        (Mutant::AnyRequest, 0, REPLAY),
        (
            Mutant::KeepStored,
            0,
            "without faults each lock is released",
        ),
        (Mutant::OwnedIsInProgress, 1, "settles"),
    ] {
        let check = Check::<2> {
            requests: if property == REPLAY { 3 } else { 1 },
            faults,
            mutant: Some(mutant),
            ..Check::default()
        };
        let found = search(&check).map_err(|violation| violation.property);
        let found = found.map(|explored| explored.states);
        assert_eq!(found, Err(property), "{mutant:?}");
    }
}
