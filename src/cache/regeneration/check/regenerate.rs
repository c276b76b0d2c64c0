//! The steps of a regeneration, and their ends.

use std::time::Duration;

use crate::{
    cache::{
        Failure,
        entry::{CacheEntry, DecisionContext, Freshness, Origin, Version},
        regeneration::{
            check::{
                content::{Read, Text},
                database::{self, Reply, Row, Statement},
                names,
                process::{Around, Doing, Lease, Process, context},
                setup::{LEASE, Mutant, NOW},
            },
            machine::{Action, Generated, Input, ProbeResult, Stored},
        },
    },
    clock::Tick,
    event::Bypass,
    extensions::Tags,
};
use perennial_testkit::search::Broken;

impl Process {
    /// Carries out a step. Returns the event of an action that ends immediately.
    pub(crate) fn carry_out(
        &mut self,
        step: Action<Read>,
        around: &mut Around<'_>,
    ) -> Result<Option<Input<Read>>, Broken> {
        around.seen.push(names::action(&step));
        let Some(run) = &mut self.run else {
            return Ok(None);
        };
        let unsaved = run
            .regeneration
            .newest
            .as_ref()
            .filter(|it| it.is_unsaved());
        let step = match (around.setup.mutant, step, unsaved) {
            (
                Some(Mutant::UnsavedRenews),
                Action::Publish {
                    version, keeping, ..
                },
                Some(unsaved),
            ) => Action::Publish {
                version,
                renews: Some(unsaved.fence),
                keeping,
            },
            (Some(Mutant::LeaseNeverReleased), Action::Release { .. }, _) => Action::End,
            (_, step, _) => step,
        };
        run.holds_permit &= step.needs_permit();
        let row = run.lease.map(|lease| lease.row);
        let statement = match step {
            Action::Sleep => {
                run.doing = Doing::Nothing;
                return Ok(None);
            }
            Action::TakePermit => return self.take_permit(around).map(Some),
            Action::AwaitVisitor { .. } => return Ok(Some(self.await_visitor(around))),
            Action::AskForPeerLease { .. } => return self.ask_for_peer_lease(around).map(Some),
            Action::Probe { known } => Statement::Probe { known },
            Action::Acquire { .. } if row.is_some() => {
                return Err("S15: no lease is tried for while one is held");
            }
            Action::Acquire { seen } => {
                *around.owners += 1;
                let owner = *around.owners;
                Statement::Try { seen, owner }
            }
            Action::Generate { snapshot, .. } => {
                let read = around.database.marks.latest;
                let newest = run.regeneration.newest.as_ref();
                let context = DecisionContext {
                    policy: around.setup.policy(),
                    ..context(&self.known)
                };
                if !run.holds_permit
                    && newest.is_some_and(|it| it.freshness(&context).is_servable())
                {
                    return Err(
                        "S21: no generator runs without a permit while a version is servable",
                    );
                }
                let newest = newest.map(|newest| newest.page.meta.stored.epoch);
                if snapshot.epoch > read {
                    return Err("S10: the epoch of a version was known before its generator began");
                }
                if newest.is_some_and(|newest| snapshot.epoch < newest) {
                    return Err("S10: a version has no older epoch than the one that it replaces");
                }
                run.doing = Doing::Generating(Text { read, snapshot });
                return self.begins(around).map(|()| None);
            }
            Action::Publish {
                version, renews, ..
            } => {
                let is_unsaved = run
                    .regeneration
                    .newest
                    .as_ref()
                    .is_some_and(Version::is_unsaved);
                if run.has_seen_other_code {
                    return Err("S36: no fresh version of other code is published over");
                }
                if renews.is_some() && is_unsaved {
                    return Err("S11: an unsaved version is not renewed");
                }
                let text = Text::of(&version);
                match (row, renews) {
                    (Some(row), Some(known)) => Statement::Renew { row, text, known },
                    (Some(row), None) => Statement::Publish { row, text },
                    (None, _) => return Ok(Some(Input::StoreFailed)),
                }
            }
            Action::Release { cooldown, removes } => match (row, removes) {
                // The release follows.
                (Some(row), true) => Statement::Remove { row },
                (Some(row), false) => {
                    run.lease = None;
                    Statement::Release { row, cooldown }
                }
                (None, _) => return Ok(Some(Input::Released)),
            },
            Action::End => return self.end(around).map(|()| None),
        };
        run.ask(statement);
        Ok(None)
    }

    fn take_permit(&mut self, around: &mut Around<'_>) -> Result<Input<Read>, Broken> {
        let is_held = self.is_held();
        let Some(run) = &mut self.run else {
            return Ok(Input::Released);
        };
        if run.regeneration.waits > 0 && is_held {
            return Err(
                "S25: after a wait, the store is asked only when no peer is known to hold the lease",
            );
        }
        run.holds_permit = std::mem::replace(&mut run.permits, true);
        let granted = run.holds_permit || around.setup.mutant == Some(Mutant::PermitInvented);
        Ok(Input::Permit { granted })
    }

    fn await_visitor(&self, around: &mut Around<'_>) -> Input<Read> {
        let is_invented = around.setup.mutant == Some(Mutant::VisitorInvented);
        if self.is_awaited() || self.closing || is_invented {
            Input::VisitorWaits
        } else {
            around.seen.push("no visitor waits for another process");
            Input::NobodyWaits
        }
    }

    fn ask_for_peer_lease(&self, around: &Around<'_>) -> Result<Input<Read>, Broken> {
        if !self.is_awaited() && !self.closing {
            return Err("S24: a regeneration that waits for a peer goes on only for a visitor");
        }
        let is_forgotten = around.setup.mutant == Some(Mutant::PeerLeaseForgotten);
        Ok(Input::PeerLease {
            held: self.is_held() && !is_forgotten,
        })
    }

    fn is_awaited(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    fn begins(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        let Some(run) = &self.run else { return Ok(()) };
        if run.lease.is_none() {
            around.seen.push("generates without a lease");
            if NOW < self.cooling && matches!(self.view, Some(CacheEntry::Cooldown { .. })) {
                return Err("S12: no generator runs in a cooldown that began without the store");
            }
            return if run.is_away {
                Ok(())
            } else {
                Err("S18: without a lease it is generated only where the store is unavailable")
            };
        }
        around.database.begun += 1;
        if around.database.begun > 1 + around.spent {
            return Err("S5: one regeneration for one stale version, and one more for each fault");
        }
        Ok(())
    }

    /// Ends the regeneration. Waiting visitors get the last answer, or start again.
    fn end(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        if run.lease.is_some() {
            return Err("S15: a regeneration that has ended holds no lease");
        }
        for waiting in std::mem::take(&mut self.waiting).into_iter().flatten() {
            self.leave_ended(&run, waiting, around)?;
        }
        Ok(())
    }

    /// Delivers the answer of the statement. With `unreadable`, the process cannot decode the stored value.
    pub(crate) fn answer(
        &mut self,
        unreadable: bool,
        around: &mut Around<'_>,
    ) -> Result<(), Broken> {
        let known = self.known;
        let Some(run) = self.acting_mut() else {
            return Ok(());
        };
        let Doing::Statement {
            statement,
            asked,
            reply: Some(reply),
        } = run.doing
        else {
            return Ok(());
        };
        let mutant = around.setup.mutant;
        run.is_away = false;
        let event = match (statement, reply) {
            (_, Reply::Learned(marks)) => {
                self.learn(marks);
                self.known.complete = true;
                Input::Start
            }
            (_, Reply::Probed { entry, lock, epoch }) => {
                let asked = match mutant {
                    Some(Mutant::AgeCountsFromAnswer) => NOW,
                    _ => asked,
                };
                run.seen = entry.map(|entry| entry.fence);
                let unreadable = entry.filter(|_| unreadable).map(|it| found(it, asked));
                let context = DecisionContext {
                    policy: around.setup.policy(),
                    ..context(&known)
                };
                run.has_seen_other_code = unreadable
                    .as_ref()
                    .is_some_and(|it| it.freshness(&context) == Freshness::Fresh);
                let stored = match entry {
                    None => Stored::NoNewer,
                    Some(_) if unreadable.is_some() && mutant == Some(Mutant::UnreadableHidden) => {
                        Stored::NoNewer
                    }
                    Some(entry) => match unreadable {
                        None => Stored::Version(found(entry, asked)),
                        Some(mut version) => {
                            around.seen.push("stored version is unreadable");
                            version.age_unknown |= mutant == Some(Mutant::OtherCodeIsStale);
                            Stored::Unreadable(version)
                        }
                    },
                };
                Input::Probed(ProbeResult {
                    stored,
                    lock,
                    epoch,
                })
            }
            (Statement::Try { owner, .. }, Reply::TryLock(fence)) => {
                run.lease = fence.map(|fence| Lease {
                    row: Row { owner, fence },
                    until: match mutant {
                        Some(Mutant::LeaseCountsFromAnswer) => NOW + LEASE,
                        _ => asked + LEASE,
                    },
                    lost: asked + LEASE <= NOW,
                });
                Input::Acquired(fence)
            }
            (_, Reply::TryLock(fence)) => Input::Acquired(fence),
            (Statement::Renew { .. } | Statement::Publish { .. }, Reply::Done(done)) => {
                Input::Published { accepted: done }
            }
            (Statement::Remove { .. }, Reply::Done(_)) => return self.removed(around),
            (_, Reply::Done(_)) => return self.released(around),
        };
        self.on(event, around)
    }

    /// The lease is released: the regeneration ends, and the next one begins.
    fn released(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        // Usually a regeneration is being released here. With the mutant
        // `ReleasingCountsAsRunning`, it still counts as a running one, so the event is passed to
        // that.
        let Some(mut run) = self.releasing.take() else {
            return self.on(Input::Released, around);
        };
        if run.lease.is_some() {
            return Err("S15: a regeneration that has ended holds no lease");
        }
        let step = run
            .regeneration
            .on(&self.context(around.setup), Input::Released);
        match step.action {
            Some(Action::End) => around.seen.push(names::action(&Action::End)),
            _ => return Err("S15: a regeneration ends with the release of its lease"),
        }
        match &self.run {
            Some(run) if !run.has_begun => self.begin(around),
            _ => Ok(()),
        }
    }

    /// The store does not answer the statement. With `late`, the database may run the statement later.
    pub(crate) fn give_up(&mut self, late: bool, around: &mut Around<'_>) -> Result<(), Broken> {
        let Some(run) = self.acting_mut() else {
            return Ok(());
        };
        let Doing::Statement { statement, .. } = run.doing else {
            return Ok(());
        };
        run.is_away = true;
        // A failed release is tried once more.
        let is_release = matches!(statement, Statement::Release { .. });
        if self.late.is_none() && (late || is_release) {
            self.late = Some(statement);
        }
        if let Statement::Try { owner, .. } = statement {
            self.lost_try = owner;
        }
        let event = match statement {
            Statement::Remove { .. } => return self.removed(around),
            Statement::Release { .. } => return self.released(around),
            _ => Input::StoreFailed,
        };
        self.on(event, around)
    }

    /// Goes on with the release.
    fn removed(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        let Some(run) = self.acting_mut() else {
            return Ok(());
        };
        match run.lease.take() {
            Some(Lease { row, .. }) => {
                let cooldown = Duration::ZERO;
                run.ask(Statement::Release { row, cooldown });
                self.serve(around)
            }
            None => self.released(around),
        }
    }

    /// The generator has ended.
    pub(crate) fn generated(&mut self, result: Ran, around: &mut Around<'_>) -> Result<(), Broken> {
        let Some(Doing::Generating(mut text)) = self.run.as_ref().map(|run| run.doing) else {
            return Ok(());
        };
        if around.setup.mutant == Some(Mutant::EpochRaisedAfterGenerating) {
            text.snapshot.epoch = self.known.marks.latest.max(text.snapshot.epoch);
        }
        let generated = match result {
            Ran::Content => Generated::Content(text.page()),
            Ran::Failed => Generated::Failed(Failure::new("it failed")),
            Ran::NotStored(why) => Generated::NotStored(why, Tags::default()),
        };
        self.on(Input::Generated(generated), around)
    }
}

/// The result of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    Content,
    Failed,
    NotStored(Bypass),
}

fn found(entry: database::Stored, asked: Tick) -> Version<Read> {
    let mut version = Version::new(
        entry.text.page(),
        entry.fence,
        asked - entry.age,
        Origin::Stored,
    );
    version.age_unknown = entry.age_unknown;
    version
}
