//! The steps of all processes and of the database.

use perennial_store::Fence;

use crate::{
    cache::regeneration::check::{
        database::Reply,
        process::{Doing, Process, Sleep},
        regenerate::Ran,
        setup::Fault,
        visit::Request,
        world::World,
    },
    event::Bypass,
};

/// The next step. The number is the number of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WorldAction {
    Ask(usize, Request),
    /// The database runs the statement.
    Run(usize),
    /// The answer comes.
    Answer(usize),
    /// The answer comes, but the process cannot decode the stored value.
    AnswerUnreadable(usize),
    /// The application's code panics.
    Panic(usize),
    /// The application invalidates the page, and demands its regeneration.
    Demand(usize),
    /// The caller gets no answer, whether the statement was carried out or not.
    Away(usize),
    /// The caller gives up, and the statement may run later.
    GiveUp(usize),
    RunLate(usize),
    DropLate(usize),
    /// An attempt without an answer is found to have taken the lock.
    Revoke(usize),
    Generated(usize, Ran),
    Due(usize),
    /// Like `Due`, but the sync fails that would have reported the other process's lease.
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
    pub(crate) fn actions(&self, add: &mut impl FnMut(WorldAction)) {
        for process in &self.processes {
            let number = process.number;
            if process.late.is_some() {
                add(WorldAction::RunLate(number));
                add(WorldAction::DropLate(number));
            }
            match process.sleep {
                Some(_) => add(WorldAction::Wake(number)),
                None => self.actions_of(process, add),
            }
        }
        if self.has(Fault::Break) && self.database.lock.fence > Fence::NONE {
            add(WorldAction::Break);
        }
        if self.has(Fault::ClockBack) {
            add(WorldAction::SetBack);
        }
        if self
            .processes
            .iter()
            .any(|process| process.is_urgent(self.setup))
        {
            return;
        }
        if !self.is_asking() {
            add(WorldAction::Tick(None));
            for process in &self.processes {
                let lease = process.acting().and_then(|run| run.lease);
                if lease.is_some() && self.has(Fault::Unextended) {
                    add(WorldAction::Tick(Some(process.number)));
                }
            }
        } else if self.has(Fault::SlowStore) {
            add(WorldAction::Tick(None));
        }
    }

    fn actions_of(&self, process: &Process, add: &mut impl FnMut(WorldAction)) {
        let number = process.number;
        if process.run.is_none() || process.waiting[1].is_none() {
            add(WorldAction::Ask(number, Request::Ordinary));
        }
        if process.run.is_none() && self.has(Fault::NoPermit) {
            add(WorldAction::Ask(number, Request::WithoutPermit));
        }
        for (place, _) in (0..).zip(&process.waiting).filter(|(_, it)| it.is_some()) {
            if self.has(Fault::Leave) {
                add(WorldAction::Leave(number, place));
            }
        }
        if process.is_behind(&self.database) {
            add(WorldAction::Sync(number));
        }
        let owner = self.database.lock.owner;
        if process.lost_try != 0 && process.lost_try == owner {
            add(WorldAction::Revoke(number));
        }
        if process.purging {
            add(WorldAction::EndPurge(number));
        }
        for (fault, action) in [
            (Fault::Invalidation, WorldAction::Invalidate(number)),
            (Fault::Purge, WorldAction::Purge(number)),
            (Fault::Crash, WorldAction::Crash(number)),
            (Fault::Deploy, WorldAction::Deploy(number)),
            (Fault::Close, WorldAction::Close(number)),
            (Fault::Pause, WorldAction::Sleep(number, Sleep::Paused)),
            (Fault::Suspend, WorldAction::Sleep(number, Sleep::Suspended)),
        ] {
            if self.has(fault) {
                add(action);
            }
        }
        let has_begun = process.run.as_ref().is_some_and(|run| run.has_begun);
        if has_begun && process.releasing.is_none() && self.has(Fault::Panic) {
            add(WorldAction::Panic(number));
        }
        let is_free = process.run.is_none() || process.waiting[1].is_none();
        if is_free && self.has(Fault::Demand) {
            add(WorldAction::Demand(number));
        }
        let Some(run) = process.acting() else { return };
        if process.is_due(self.setup)
            && (!matches!(run.doing, Doing::Generating(_)) || self.has(Fault::Slow))
        {
            add(WorldAction::Due(number));
            if process.is_held() && self.has(Fault::Refused) {
                add(WorldAction::Untold(number));
            }
        }
        match run.doing {
            Doing::Nothing => {}
            Doing::Statement { reply: None, .. } => {
                add(WorldAction::Run(number));
                if self.has(Fault::Refused) {
                    add(WorldAction::Away(number));
                }
                if self.has(Fault::Late) {
                    add(WorldAction::GiveUp(number));
                }
            }
            Doing::Statement { reply, .. } => {
                add(WorldAction::Answer(number));
                let has_entry = matches!(reply, Some(Reply::Probed { entry: Some(_), .. }));
                if has_entry && self.has(Fault::Unreadable) {
                    add(WorldAction::AnswerUnreadable(number));
                }
                if self.has(Fault::Lost) {
                    add(WorldAction::Away(number));
                }
            }
            Doing::Generating(_) => {
                add(WorldAction::Generated(number, Ran::Content));
                if self.has(Fault::Failing) {
                    add(WorldAction::Generated(number, Ran::Failed));
                }
                if self.has(Fault::Unshareable) {
                    for why in [Bypass::TooLarge, Bypass::Private, Bypass::Status] {
                        add(WorldAction::Generated(number, Ran::NotStored(why)));
                    }
                }
            }
        }
    }

    pub(crate) fn fault(&self, action: WorldAction) -> Option<Fault> {
        Some(match action {
            WorldAction::Ask(_, Request::WithoutPermit) => Fault::NoPermit,
            WorldAction::Away(number) => match self.statement(number) {
                Some((_, Some(_))) => Fault::Lost,
                _ => Fault::Refused,
            },
            WorldAction::GiveUp(_) => Fault::Late,
            WorldAction::Generated(_, Ran::Failed) => Fault::Failing,
            WorldAction::Generated(_, Ran::NotStored(_)) => Fault::Unshareable,
            WorldAction::Untold(_) => Fault::Refused,
            WorldAction::Due(number) => {
                let run = self.processes[number].run.as_ref();
                run.filter(|run| matches!(run.doing, Doing::Generating(_)))?;
                Fault::Slow
            }
            WorldAction::Leave(..) => Fault::Leave,
            WorldAction::AnswerUnreadable(_) => Fault::Unreadable,
            WorldAction::Panic(_) => Fault::Panic,
            WorldAction::Demand(_) => Fault::Demand,
            WorldAction::Invalidate(_) => Fault::Invalidation,
            WorldAction::Purge(_) => Fault::Purge,
            WorldAction::Crash(_) => Fault::Crash,
            WorldAction::Deploy(_) => Fault::Deploy,
            WorldAction::Close(_) => Fault::Close,
            WorldAction::Sleep(_, Sleep::Paused) => Fault::Pause,
            WorldAction::Sleep(_, Sleep::Suspended) => Fault::Suspend,
            WorldAction::Break => Fault::Break,
            WorldAction::SetBack => Fault::ClockBack,
            WorldAction::Tick(Some(_)) => Fault::Unextended,
            WorldAction::Tick(None) if self.is_asking() => Fault::SlowStore,
            _ => return None,
        })
    }
}
