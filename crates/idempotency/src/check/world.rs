//! The store, the processes, and the history that the properties compare.

use super::{
    Check, Mutant,
    promises::{Promises, Sent},
};
use perennial_store::{Begun, RequestProgress};

// Times in ticks.
/// The time for which a request counts as running.
pub(super) const LENGTH: i8 = 1;
/// The time of `run_again_after`.
pub(super) const AGAIN: i8 = 2;
/// The time for which a response is stored.
const LIFETIME: i8 = 1;

/// A request, its run and its response have one number. Zero means that there is none.
pub(super) type Owner = i64;

/// The reply to a `Begin` of the request was lost: the store may carry the `Begin` out later.
pub(super) type Lost = bool;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub(super) sent: Sent,
    pub(super) owner: Owner,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    Beginning(Lost),
    /// The request has begun, and the service has not been called yet.
    Begun(Lost),
    Running(Lost),
    /// What happened is to be stored: the response, or only the note that the service was called.
    Storing(Option<Owner>),
    /// The service has done nothing.
    Forgetting(Lost),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) owner: Owner,
    pub(super) sent: Sent,
    /// The time since the `Begin` or the `Finish`. It is negative if the clock was set back.
    pub(super) age: i8,
    /// `None` means that the request has not finished.
    pub(super) done: Option<Option<Owner>>,
    /// The service was called under this owner.
    pub(super) ran: bool,
}

/// A statement that changes the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    Begin(Owner, Sent),
    Finish(Owner, Option<Owner>),
    Forget(Owner),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World<const N: usize> {
    pub(super) processes: [Process; N],
    pub(super) row: Option<Row>,
    /// A statement that its process has given up. The database may run the statement later.
    pub(super) late: Option<Statement>,
    /// The owners whose rows are removed by the schedule of lost replies.
    pub(super) undone: [Owner; 3],
    pub(super) promises: Promises,
    /// A process died before it could call its service or remove its row.
    pub(super) died: bool,
    /// The number of faults so far.
    pub(super) faults: u8,
}

impl<const N: usize> Default for World<N> {
    fn default() -> Self {
        Self {
            processes: [Process::default(); N],
            row: None,
            late: None,
            undone: [0; 3],
            promises: Promises::default(),
            died: false,
            faults: 0,
        }
    }
}

impl Row {
    pub(super) fn is_over(self) -> bool {
        self.done.is_some() && self.age > LIFETIME
    }
}

impl<const N: usize> World<N> {
    fn owners(&mut self, each: &mut dyn FnMut(&mut Owner)) {
        for process in &mut self.processes {
            each(&mut process.owner);
            if let Phase::Storing(response) = &mut process.phase {
                response.iter_mut().for_each(&mut *each);
            }
        }
        if let Some(row) = &mut self.row {
            each(&mut row.owner);
            row.done.iter_mut().flatten().for_each(&mut *each);
        }
        match &mut self.late {
            None => {}
            Some(Statement::Begin(owner, _) | Statement::Forget(owner)) => each(owner),
            Some(Statement::Finish(owner, response)) => {
                each(owner);
                response.iter_mut().for_each(&mut *each);
            }
        }
        self.undone.iter_mut().for_each(&mut *each);
        if let Some((_, Some(response))) = &mut self.promises.stored {
            each(response);
        }
    }

    /// Replaces each owner by its rank, and sorts the processes.
    pub(super) fn normalised(mut self) -> Self {
        let mut used = 0_u64;
        self.owners(&mut |owner| used |= 1 << *owner);
        // Zero stays.
        self.owners(&mut |owner| {
            let smaller = used >> 1 & ((1 << *owner) - 1);
            *owner = smaller.count_ones().into();
        });
        self.processes.sort_unstable();
        self.undone.sort_unstable();
        self
    }

    pub(super) fn next_owner(&mut self) -> Owner {
        let mut greatest = 0;
        self.owners(&mut |owner| greatest = greatest.max(*owner));
        greatest + 1
    }

    /// The number of processes that are about to call their services.
    pub(super) fn begun(&self) -> u8 {
        let begun = self.processes.iter();
        let begun = begun.filter(|process| matches!(process.phase, Phase::Begun(_)));
        u8::try_from(begun.count()).expect("few processes")
    }

    pub(super) fn begin(&mut self, check: &Check<N>, owner: Owner, sent: Sent) -> Begun<Owner> {
        let is = |mutant| check.mutant == Some(mutant);
        let run_again = check.run_again || is(Mutant::RunAgainByDefault);
        if let Some(row) = self.row {
            let again = run_again
                && row.done.is_none()
                && (row.sent == sent || is(Mutant::TakeAnyRequest))
                && (row.age >= AGAIN || is(Mutant::TakeEarly));
            let is_over = row.is_over() && !is(Mutant::IgnoreRetention);
            if !(again || is_over || is(Mutant::BeginOverwrites)) {
                let progress = match row.done {
                    None if row.owner == owner => return Begun::Own,
                    None if row.age < LENGTH => RequestProgress::Running,
                    None => RequestProgress::Unknown,
                    Some(response) => RequestProgress::Done(response),
                };
                let fingerprint = row.sent.fingerprint().to_owned();
                return Begun::Other {
                    fingerprint,
                    progress,
                };
            }
        }
        let runs = |process: &Process| {
            process.owner == owner && matches!(process.phase, Phase::Running(_) | Phase::Storing(_))
        };
        self.row = Some(Row {
            owner,
            sent,
            age: 0,
            done: None,
            ran: self.processes.iter().any(runs),
        });
        Begun::Own
    }

    /// Runs a statement other than a `Begin`. Returns true if the row is as the statement says.
    pub(super) fn change(&mut self, check: &Check<N>, statement: Statement) -> bool {
        let is = |mutant| check.mutant == Some(mutant);
        match statement {
            Statement::Begin(owner, sent) => {
                self.begin(check, owner, sent);
                true
            }
            Statement::Finish(owner, response) => {
                if self.row.is_none() && is(Mutant::FinishInserts) {
                    self.begin(check, owner, Sent::First);
                }
                let Some(row) = &mut self.row else {
                    return false;
                };
                if row.owner != owner && !is(Mutant::FinishAnyOwner) {
                    return false;
                }
                if row.done.is_none() || is(Mutant::FinishAgain) {
                    (row.done, row.age) = (Some(response), 0);
                    self.promises.stores(row.sent, response);
                }
                true
            }
            Statement::Forget(owner) => {
                let forgets = self.row.is_some_and(|row| {
                    row.done.is_none() && (row.owner == owner || is(Mutant::ForgetAnyOwner))
                });
                if forgets {
                    self.row = None;
                }
                forgets
            }
        }
    }

    /// Drops a late `Begin` that no process waits for, and that is not to be undone.
    pub(super) fn forget_late(&mut self) {
        let waits = |owner| {
            let beginning = |phase| matches!(phase, Phase::Beginning(_));
            let mut processes = self.processes.iter();
            processes.any(|process| process.owner == owner && beginning(process.phase))
        };
        if let Some(Statement::Begin(owner, _)) = self.late
            && !self.undone.contains(&owner)
            && !waits(owner)
        {
            self.late = None;
        }
    }

    pub(super) fn tick(&mut self, check: &Check<N>) {
        let begun = self.begun();
        let Some(row) = &mut self.row else { return };
        let was_over = row.is_over();
        row.age = (row.age + 1).min(AGAIN);
        if row.done.is_none() && row.age == AGAIN && check.run_again {
            self.promises.permit(begun);
        }
        if row.is_over() && !was_over {
            self.promises.renew(begun);
            self.forget_late();
        }
    }
}
