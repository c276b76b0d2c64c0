//! Two processes and a store, with all their faults.

use std::hash::{Hash, Hasher};

use crate::cache::regeneration::{
    check::{
        action::WorldAction,
        content::Marks,
        database::{Database, Reply, Statement},
        normal::normal,
        process::{Around, Doing, Process, Sleep},
        setup::{FAULTS, Fault, LEASE, Mutant, NOW, Setup},
        visit::Request,
    },
    machine::State,
};
use perennial_testkit::search::Broken;

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) processes: [Process; 2],
    pub(crate) database: Database,
    /// The number of times that each fault may still occur, and the number of faults in all.
    pub(crate) left: [u8; FAULTS],
    pub(crate) all: u8,
    /// The latest owner of an attempt.
    pub(crate) owners: u32,
    pub(crate) setup: &'static Setup,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        normal(self).hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        normal(self) == normal(other)
    }
}

impl Eq for World {}

impl World {
    pub(crate) fn new(setup: &'static Setup) -> Self {
        let process = |number| {
            let mut process = Process::new(number, false, None);
            process.known.ignores_purges = setup.mutant == Some(Mutant::PurgedServed);
            process.known.complete = !setup.cold;
            process
        };
        Self {
            processes: [process(0), process(1)],
            database: Database::new(),
            left: setup.faults,
            all: setup.all,
            owners: 0,
            setup,
        }
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.all > 0 && self.left[fault as usize] > 0
    }

    fn spend(&mut self, fault: Fault) {
        self.left[fault as usize] -= 1;
        self.all -= 1;
    }

    /// Returns a process and its surroundings.
    fn at<'a>(
        &'a mut self,
        number: usize,
        seen: &'a mut Vec<&'static str>,
    ) -> (&'a mut Process, Around<'a>) {
        let around = Around {
            setup: self.setup,
            database: &mut self.database,
            owners: &mut self.owners,
            spent: self.setup.all - self.all,
            seen,
        };
        (&mut self.processes[number], around)
    }

    /// Returns true if a process that is awake waits for the answer to a statement.
    pub(crate) fn is_asking(&self) -> bool {
        let awake = self.processes.iter().filter(|it| it.sleep.is_none());
        let mut runs = awake.filter_map(Process::acting);
        runs.any(|run| matches!(run.doing, Doing::Statement { .. }))
    }

    /// Returns the world after an action. The error is a property that the action violates.
    pub(crate) fn after(
        &self,
        action: WorldAction,
        seen: &mut Vec<&'static str>,
    ) -> Result<Self, Broken> {
        let mut next = self.clone();
        if let Some(fault) = self.fault(action) {
            next.spend(fault);
        }
        next.act(action, seen)?;
        next.forget_late();
        Ok(next)
    }

    /// Forgets late statements without any possible effect.
    pub(crate) fn forget_late(&mut self) {
        for process in &mut self.processes {
            let is_over = |statement: &Statement| self.database.is_over(*statement);
            if self.setup.mutant.is_none() && process.late.as_ref().is_some_and(is_over) {
                process.late = None;
            }
        }
    }

    /// Returns the running statement of a process.
    pub(crate) fn statement(&self, number: usize) -> Option<(Statement, Option<Reply>)> {
        match self.processes[number].acting()?.doing {
            Doing::Statement {
                statement, reply, ..
            } => Some((statement, reply)),
            _ => None,
        }
    }

    pub(crate) fn act(
        &mut self,
        action: WorldAction,
        seen: &mut Vec<&'static str>,
    ) -> Result<(), Broken> {
        match action {
            WorldAction::Ask(number, request) => {
                let (process, mut around) = self.at(number, seen);
                return process.ask(request, &mut around);
            }
            WorldAction::Run(number) => {
                let Some((statement, _)) = self.statement(number) else {
                    return Ok(());
                };
                let ran = self.database.run(statement, self.setup.mutant)?;
                let run = self.processes[number].acting_mut();
                if let Some(Doing::Statement { reply, .. }) = run.map(|run| &mut run.doing) {
                    *reply = Some(ran);
                }
            }
            WorldAction::Answer(number) => {
                let (process, mut around) = self.at(number, seen);
                return process.answer(false, &mut around);
            }
            WorldAction::AnswerUnreadable(number) => {
                let (process, mut around) = self.at(number, seen);
                return process.answer(true, &mut around);
            }
            WorldAction::Panic(number) => {
                let (process, mut around) = self.at(number, seen);
                return process.panic(&mut around);
            }
            WorldAction::Demand(number) => {
                self.invalidate(number);
                let (process, mut around) = self.at(number, seen);
                return process.ask(Request::Demand, &mut around);
            }
            WorldAction::Away(number) => {
                let (process, mut around) = self.at(number, seen);
                return process.give_up(false, &mut around);
            }
            WorldAction::GiveUp(number) => {
                let (process, mut around) = self.at(number, seen);
                return process.give_up(true, &mut around);
            }
            WorldAction::RunLate(number) => {
                let Some(statement) = self.processes[number].late.take() else {
                    return Ok(());
                };
                let reply = self.database.run(statement, self.setup.mutant)?;
                seen.push(match reply {
                    Reply::TryLock(Some(_)) => "late try takes the lock",
                    Reply::Done(true) => "late statement does something",
                    _ => "late statement does nothing",
                });
            }
            WorldAction::DropLate(number) => self.processes[number].late = None,
            WorldAction::Revoke(_) => self.database.break_lock(),
            WorldAction::Generated(number, result) => {
                let (process, mut around) = self.at(number, seen);
                return process.generated(result, &mut around);
            }
            WorldAction::Due(number) => {
                self.processes[number].tell(&self.database);
                let (process, mut around) = self.at(number, seen);
                return process.due(&mut around);
            }
            WorldAction::Untold(number) => {
                let (process, mut around) = self.at(number, seen);
                return process.due(&mut around);
            }
            WorldAction::Leave(number, place) => {
                let (process, mut around) = self.at(number, seen);
                process.waiting[place] = None;
                return process.serve(&mut around);
            }
            WorldAction::Sync(number) => self.sync(number)?,
            WorldAction::Invalidate(number) => self.invalidate(number),
            WorldAction::Purge(number) => {
                let mut runs = self.processes.iter().filter_map(|it| it.run.as_ref());
                if runs.any(|run| matches!(run.regeneration.state, State::Publishing(_))) {
                    seen.push("purge while a version is published");
                }
                self.note_purge(number);
                let process = &mut self.processes[number];
                process.view = None;
                process.purging = true;
            }
            WorldAction::EndPurge(number) => {
                self.database.purge();
                self.note_purge(number);
                self.processes[number].purging = false;
            }
            WorldAction::Crash(number) | WorldAction::Deploy(number) => {
                let old = &self.processes[number];
                let late = old.late.or(self.statement(number).and_then(unanswered));
                let is_new = old.known.is_new || matches!(action, WorldAction::Deploy(_));
                let mut new = Process::new(number, is_new, late);
                new.known.ignores_purges = old.known.ignores_purges;
                self.processes[number] = new;
            }
            WorldAction::Close(number) => self.processes[number].closing = true,
            WorldAction::Sleep(number, sleep) => {
                let process = &mut self.processes[number];
                process.sleep = Some(sleep);
                process.suspended |= sleep == Sleep::Suspended;
                for waiting in process.waiting.iter_mut().flatten() {
                    waiting.slept = true;
                }
            }
            WorldAction::Wake(number) => {
                self.processes[number].sleep = None;
                let (process, mut around) = self.at(number, seen);
                return process.serve(&mut around);
            }
            WorldAction::Break => self.database.break_lock(),
            WorldAction::SetBack => self.database.set_back(),
            WorldAction::Tick(unextended) => return self.tick(unextended, seen),
        }
        Ok(())
    }

    fn invalidate(&mut self, number: usize) {
        let marks = &mut self.database.marks;
        marks.stale = marks.next();
        self.database.begun = 0;
        let stale = marks.stale;
        self.processes[number].learn(Marks {
            stale,
            latest: stale,
            ..Marks::default()
        });
    }

    /// A process learns all invalidations.
    fn sync(&mut self, number: usize) -> Result<(), Broken> {
        let is_new = self.processes[number].known.is_new;
        let reply = self.database.run(Statement::Learn { is_new }, None)?;
        let process = &mut self.processes[number];
        if let Reply::Learned(marks) = reply {
            process.learn(marks);
        }
        process.known.complete = true;
        process.tell(&self.database);
        Ok(())
    }

    fn note_purge(&mut self, number: usize) {
        let purged = self.database.marks.next();
        self.database.marks.purged = purged;
        self.database.begun = 0;
        self.processes[number].learn(Marks {
            purged,
            latest: purged,
            ..Marks::default()
        });
    }

    fn tick(
        &mut self,
        unextended: Option<usize>,
        seen: &mut Vec<&'static str>,
    ) -> Result<(), Broken> {
        for process in &mut self.processes {
            let (number, is_awake) = (process.number, process.sleep.is_none());
            if let Some(lease) = process.acting_mut().and_then(|run| run.lease.as_mut())
                && is_awake
                && unextended != Some(number)
                && !lease.lost
            {
                if self.database.extend(lease.row) {
                    lease.until = NOW + LEASE;
                } else {
                    lease.lost = true;
                }
            }
            if process.sleep != Some(Sleep::Suspended) {
                process.tick();
            }
            if let Some(lease) = process.acting_mut().and_then(|run| run.lease.as_mut())
                && is_awake
            {
                lease.lost |= lease.until <= NOW;
            }
        }
        self.database.tick();
        for number in 0..self.processes.len() {
            if self.processes[number].sleep.is_none() {
                let (process, mut around) = self.at(number, seen);
                process.serve(&mut around)?;
            }
        }
        Ok(())
    }
}

/// The statement of a process that has died, if the database has not run the statement yet.
fn unanswered((statement, reply): (Statement, Option<Reply>)) -> Option<Statement> {
    reply.is_none().then_some(statement)
}
