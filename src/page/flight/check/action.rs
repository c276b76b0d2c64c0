//! The steps of all processes and of the database.

use perennial_store::Fence;

use crate::{
    event::Bypass,
    page::flight::check::{
        process::{Doing, Process, Sleep},
        regenerate::Ran,
        setup::Fault,
        visit::Request,
        world::World,
    },
};

/// The next step. The number is the number of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Action {
    Ask(usize, Request),
    /// The database runs the statement.
    Run(usize),
    /// The answer comes.
    Answer(usize),
    /// The answer does not come, or the statement has not run.
    Away(usize),
    /// The caller gives up, and the statement may run later.
    GiveUp(usize),
    RunLate(usize),
    DropLate(usize),
    /// An attempt without an answer is found to have taken the lock.
    Revoke(usize),
    Generated(usize, Ran),
    Due(usize),
    /// The same, and the sync that would tell of the other process's lease fails.
    Untold(usize),
    Leave(usize, usize),
    Sync(usize),
    Invalidate(usize),
    Purge(usize),
    EndPurge(usize),
    Crash(usize),
    Deploy(usize),
    Close(usize),
    Sleep(usize, Sleep),
    Wake(usize),
    Break,
    SetBack,
    /// A second goes by. All processes extend their leases, except for the process with this
    /// number.
    Tick(Option<usize>),
}

impl World {
    /// The actions that are possible now.
    pub(super) fn actions(&self, add: &mut impl FnMut(Action)) {
        for process in &self.processes {
            let number = process.number;
            if process.late.is_some() {
                add(Action::RunLate(number));
                add(Action::DropLate(number));
            }
            match process.sleep {
                Some(_) => add(Action::Wake(number)),
                None => self.actions_of(process, add),
            }
        }
        if self.has(Fault::Break) && self.database.lock.fence > Fence::NONE {
            add(Action::Break);
        }
        if self.has(Fault::ClockBack) {
            add(Action::SetBack);
        }
        if self
            .processes
            .iter()
            .any(|process| process.is_urgent(self.setup))
        {
            return;
        }
        if !self.is_asking() {
            add(Action::Tick(None));
            for process in &self.processes {
                let lease = process.acting().and_then(|run| run.lease);
                if lease.is_some() && self.has(Fault::Unextended) {
                    add(Action::Tick(Some(process.number)));
                }
            }
        } else if self.has(Fault::SlowStore) {
            add(Action::Tick(None));
        }
    }

    fn actions_of(&self, process: &Process, add: &mut impl FnMut(Action)) {
        let number = process.number;
        if process.run.is_none() || process.waiting[1].is_none() {
            add(Action::Ask(number, Request::Ordinary));
        }
        if process.run.is_none() && self.has(Fault::NoPermit) {
            add(Action::Ask(number, Request::WithoutPermit));
        }
        for (place, _) in (0..).zip(&process.waiting).filter(|(_, it)| it.is_some()) {
            if self.has(Fault::Leave) {
                add(Action::Leave(number, place));
            }
        }
        if process.is_behind(&self.database) {
            add(Action::Sync(number));
        }
        let owner = self.database.lock.owner;
        if process.lost_try != 0 && process.lost_try == owner {
            add(Action::Revoke(number));
        }
        if process.purging {
            add(Action::EndPurge(number));
        }
        for (fault, action) in [
            (Fault::Invalidation, Action::Invalidate(number)),
            (Fault::Purge, Action::Purge(number)),
            (Fault::Crash, Action::Crash(number)),
            (Fault::Deploy, Action::Deploy(number)),
            (Fault::Close, Action::Close(number)),
            (Fault::Pause, Action::Sleep(number, Sleep::Paused)),
            (Fault::Suspend, Action::Sleep(number, Sleep::Suspended)),
        ] {
            if self.has(fault) {
                add(action);
            }
        }
        let Some(run) = process.acting() else { return };
        if process.is_due(self.setup)
            && (!matches!(run.doing, Doing::Generating(_)) || self.has(Fault::Slow))
        {
            add(Action::Due(number));
            if process.is_held() && self.has(Fault::Refused) {
                add(Action::Untold(number));
            }
        }
        match run.doing {
            Doing::Nothing => {}
            Doing::Statement { reply: None, .. } => {
                add(Action::Run(number));
                if self.has(Fault::Refused) {
                    add(Action::Away(number));
                }
                if self.has(Fault::Late) {
                    add(Action::GiveUp(number));
                }
            }
            Doing::Statement { .. } => {
                add(Action::Answer(number));
                if self.has(Fault::Lost) {
                    add(Action::Away(number));
                }
            }
            Doing::Generating(_) => {
                add(Action::Generated(number, Ran::Content));
                if self.has(Fault::Failing) {
                    add(Action::Generated(number, Ran::Failed));
                }
                if self.has(Fault::Unshareable) {
                    for why in [Bypass::TooLarge, Bypass::Private, Bypass::Status] {
                        add(Action::Generated(number, Ran::NotStored(why)));
                    }
                }
            }
        }
    }

    pub(super) fn fault(&self, action: Action) -> Option<Fault> {
        Some(match action {
            Action::Ask(_, Request::WithoutPermit) => Fault::NoPermit,
            Action::Away(number) => match self.statement(number) {
                Some((_, Some(_))) => Fault::Lost,
                _ => Fault::Refused,
            },
            Action::GiveUp(_) => Fault::Late,
            Action::Generated(_, Ran::Failed) => Fault::Failing,
            Action::Generated(_, Ran::NotStored(_)) => Fault::Unshareable,
            Action::Untold(_) => Fault::Refused,
            Action::Due(number) => {
                let run = self.processes[number].run.as_ref();
                run.filter(|run| matches!(run.doing, Doing::Generating(_)))?;
                Fault::Slow
            }
            Action::Leave(..) => Fault::Leave,
            Action::Invalidate(_) => Fault::Invalidation,
            Action::Purge(_) => Fault::Purge,
            Action::Crash(_) => Fault::Crash,
            Action::Deploy(_) => Fault::Deploy,
            Action::Close(_) => Fault::Close,
            Action::Sleep(_, Sleep::Paused) => Fault::Pause,
            Action::Sleep(_, Sleep::Suspended) => Fault::Suspend,
            Action::Break => Fault::Break,
            Action::SetBack => Fault::ClockBack,
            Action::Tick(Some(_)) => Fault::Unextended,
            Action::Tick(None) if self.is_asking() => Fault::SlowStore,
            _ => return None,
        })
    }
}
