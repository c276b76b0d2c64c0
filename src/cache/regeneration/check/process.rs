//! A process, which carries out the actions as `driver.rs` does.

use std::time::Duration;

use perennial_store::Fence;

use crate::{
    cache::{
        entry::{Answer, CacheEntry, DecisionContext, Origin, PeerLease, Version, Visitor},
        epochs::Validity,
        regeneration::{
            check::{
                content::{ModelList, Read, Text},
                database::{Database, Reply, Row, Statement},
                names,
                normal::past,
                setup::{IF_ERROR, Mutant, NOW, POLICY, Setup},
                table,
            },
            machine::{Generated, Input, LeaderRequest, ProbeResult, Regeneration, Stored},
            waiting::Progress,
        },
    },
    clock::Tick,
};
use perennial_testkit::search::Broken;

#[derive(Clone, Debug, Hash)]
pub(crate) struct Process {
    pub(crate) number: usize,
    pub(crate) known: ModelList,
    pub(crate) view: Option<CacheEntry<Read>>,
    pub(crate) run: Option<Run>,
    /// The regeneration that is over but for the release of its lease. The next one begins
    /// afterwards.
    pub(crate) releasing: Option<Run>,
    /// The lease of the other process, as far as this process knows.
    pub(crate) held: Option<PeerLease>,
    /// The leader, and a follower.
    pub(crate) waiting: [Option<Waiting>; 2],
    pub(crate) sleep: Option<Sleep>,
    /// A purge is in the invalidation list, and the stored version is not removed yet.
    pub(crate) purging: bool,
    pub(crate) closing: bool,
    /// A statement that its caller has given up.
    pub(crate) late: Option<Statement>,
    /// The owner of the latest try without an answer; 0: none.
    pub(crate) lost_try: u32,
    /// For the properties: a failure is known until then.
    pub(crate) error_grace: Tick,
    /// For the properties: the end of the cooldown after the latest failure, unless a purge ends it.
    pub(crate) cooling: Tick,
    /// For the properties: the clock of this process has stood still.
    pub(crate) suspended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sleep {
    Paused,
    Suspended,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Waiting {
    pub(crate) visitor: Visitor,
    /// The visitor begins anew when the regeneration is over.
    pub(crate) anew: bool,
    /// For the properties: the process has slept meanwhile.
    pub(crate) slept: bool,
}

/// A regeneration.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Run {
    pub(crate) regeneration: Regeneration<Read>,
    pub(crate) progress: Progress<Read>,
    pub(crate) doing: Doing,
    pub(crate) lease: Option<Lease>,
    /// The next permit is free.
    pub(crate) permits: bool,
    pub(crate) holds_permit: bool,
    /// For the properties: the store has not answered the latest statement.
    pub(crate) is_away: bool,
    /// For the properties: the fence of the version that the latest probe has found.
    pub(crate) seen: Option<Fence>,
    /// For the properties: the latest probe has found a fresh version that this code cannot use.
    pub(crate) has_seen_other_code: bool,
    /// False while the regeneration before releases its lease.
    pub(crate) has_begun: bool,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Doing {
    Nothing,
    Statement {
        statement: Statement,
        asked: Tick,
        reply: Option<Reply>,
    },
    Generating(Text),
}

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Lease {
    pub(crate) row: Row,
    pub(crate) until: Tick,
    pub(crate) lost: bool,
}

/// The surroundings of a process.
pub(crate) struct Around<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) database: &'a mut Database,
    /// The latest owner of an attempt.
    pub(crate) owners: &'a mut u32,
    /// The faults so far.
    pub(crate) spent: u8,
    /// The situations that have occurred.
    pub(crate) seen: &'a mut Vec<&'static str>,
}

/// Returns the context of a process that does not shut down.
pub(crate) fn context(known: &ModelList) -> DecisionContext<'_> {
    DecisionContext {
        now: NOW,
        key: "key",
        policy: &POLICY,
        list: known,
        store_patience: Duration::from_millis(500),
        statement_timeout: Duration::from_secs(1),
        retention: Duration::from_secs(1000),
        is_shutting_down: false,
    }
}

impl Process {
    pub(crate) fn new(number: usize, is_new: bool, late: Option<Statement>) -> Self {
        Self {
            number,
            known: ModelList {
                is_new,
                ..ModelList::default()
            },
            view: None,
            run: None,
            releasing: None,
            held: None,
            waiting: [None, None],
            sleep: None,
            purging: false,
            closing: false,
            late,
            lost_try: 0,
            error_grace: NOW,
            cooling: NOW,
            suspended: false,
        }
    }

    pub(crate) fn context(&self, setup: &Setup) -> DecisionContext<'_> {
        DecisionContext {
            policy: setup.policy(),
            is_shutting_down: self.closing,
            ..context(&self.known)
        }
    }

    /// Begins a regeneration with the visitor as its leader.
    pub(crate) fn start(
        &mut self,
        visitor: Visitor,
        permits: bool,
        around: &mut Around<'_>,
    ) -> Result<(), Broken> {
        let context = self.context(around.setup);
        let request = LeaderRequest {
            min_epoch: visitor.min_epoch,
            ..LeaderRequest::default()
        };
        let (regeneration, progress) = Regeneration::new(self.view.clone(), request, &context);
        let run = Run {
            regeneration,
            progress,
            doing: Doing::Nothing,
            lease: None,
            permits,
            holds_permit: false,
            is_away: false,
            seen: None,
            has_seen_other_code: false,
            has_begun: false,
        };
        if let Some(CacheEntry::Cooldown { until, .. }) = &self.view
            && NOW < *until
        {
            around.seen.push("the store is asked during a cooldown");
        }
        self.run = Some(run);
        self.waiting[0] = Some(Waiting {
            visitor: Visitor {
                leads: true,
                ..visitor
            },
            anew: false,
            slept: false,
        });
        self.begin(around)
    }

    /// Begins the regeneration that waits for the one before, if that has released its lease.
    pub(crate) fn begin(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        let is_new = self.known.is_new;
        let is_free = self.releasing.is_none();
        let Some(run) = self.run.as_mut().filter(|run| is_free && !run.has_begun) else {
            around.seen.push("regeneration waits for a release");
            return self.serve(around);
        };
        run.has_begun = true;
        if self.known.complete {
            return self.on(Input::Start, around);
        }
        run.ask(Statement::Learn { is_new });
        self.serve(around)
    }

    /// Returns the regeneration that acts: the next one does nothing before the release.
    pub(crate) fn acting(&self) -> Option<&Run> {
        self.releasing.as_ref().or(self.run.as_ref())
    }

    pub(crate) fn acting_mut(&mut self) -> Option<&mut Run> {
        self.releasing.as_mut().or(self.run.as_mut())
    }

    /// Tells the regeneration of an event, until the regeneration waits for another one.
    pub(crate) fn on(&mut self, event: Input<Read>, around: &mut Around<'_>) -> Result<(), Broken> {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            self.note_failure(&event, around.setup);
            let Some(run) = &mut self.run else { break };
            let context = DecisionContext {
                policy: around.setup.policy(),
                is_shutting_down: self.closing,
                ..context(&self.known)
            };
            let seen = run.seen.take();
            let is_due = matches!(event, Input::TimerFired);
            let is_cooling = matches!(&event, Input::Probed(found) if !found.lock.owned && !found.lock.remaining.is_zero());
            let unsaved = match &event {
                Input::Probed(found) => {
                    let unsaved = run.regeneration.newest.clone().filter(Version::is_unsaved);
                    let stored = match &found.stored {
                        Stored::Version(version) => Some(version),
                        _ => None,
                    };
                    let stored = stored.zip(unsaved.as_ref());
                    if stored
                        .is_some_and(|(stored, unsaved)| stored.published_at < unsaved.published_at)
                    {
                        around
                            .seen
                            .push("a stored version is older than the unsaved one");
                    }
                    unsaved
                }
                _ => None,
            };
            let before = (names::state(&run.regeneration.state), names::input(&event));
            let step = run.regeneration.on(&context, event);
            table::note(before, &run.regeneration.state, step.action.as_ref());
            if let (Some(lease), Some(seen)) = (step.peer_lease, seen)
                && lease.stored_fence < seen
            {
                return Err(
                    "S26: the sync is asked about a peer's lease with the latest fence that the process has seen",
                );
            }
            if is_cooling
                && matches!(
                    step.progress,
                    Some(Progress::Done(Answer::Unavailable { .. }))
                )
                && let Some(newest) = &run.regeneration.newest
                && newest.validity(&self.known) != Validity::Purged
                && newest.age(NOW) < POLICY.interval + IF_ERROR
            {
                return Err(
                    "S28: in the cooldown of any process, a version within stale-if-error is served",
                );
            }
            if is_due
                && run
                    .regeneration
                    .timer(&context)
                    .is_some_and(|due| due <= NOW)
            {
                return Err("S14: no deadline is in the past twice in a row");
            }
            if let (Some(before), Some(after)) = (&unsaved, &run.regeneration.newest)
                && after.published_at < before.published_at
                && after.validity(&self.known) >= before.validity(&self.known)
            {
                return Err("S11: no older version replaces an unsaved one");
            }
            if let Some(ended) = &step.conclusion {
                around.seen.push(super::names::conclusion(ended));
            }
            self.held = step.peer_lease.or(self.held);
            if let Some(view) = step.entry {
                self.replace_view(view, around)?;
            }
            if let (Some(run), Some(progress)) = (&mut self.run, step.progress) {
                run.progress = progress;
            }
            if let Some(step) = step.action {
                next = self.carry_out(step, around)?;
            }
        }
        self.serve(around)?;
        self.leave(around)
    }

    /// A regeneration that is over lets visitors start the next one.
    fn leave(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        let is_over = self
            .run
            .as_ref()
            .is_some_and(|run| run.regeneration.is_releasing());
        if !is_over || around.setup.mutant == Some(Mutant::ReleasingCountsAsRunning) {
            return Ok(());
        }
        if self.releasing.is_some() {
            return Err("S15: a regeneration begins after the release of the one before");
        }
        let run = self.run.take();
        self.releasing.clone_from(&run);
        let Some(run) = run else { return Ok(()) };
        // Those who wait for the next version.
        for waiting in std::mem::take(&mut self.waiting).into_iter().flatten() {
            self.leave_ended(&run, waiting, around)?;
        }
        Ok(())
    }

    /// The timer of the regeneration fires.
    pub(crate) fn due(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        self.on(Input::TimerFired, around)
    }

    /// The application's code panics in the task of the regeneration. Its statement may run later.
    pub(crate) fn panic(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        let doing = self.run.as_ref().map(|run| run.doing);
        if let Some(Doing::Statement {
            statement, reply, ..
        }) = doing
        {
            if reply.is_none() && self.late.is_none() {
                self.late = Some(statement);
            }
            if let Statement::Try { owner, .. } = statement {
                self.lost_try = owner;
            }
        }
        self.on(Input::Panicked, around)
    }

    fn replace_view(
        &mut self,
        mut view: CacheEntry<Read>,
        around: &mut Around<'_>,
    ) -> Result<(), Broken> {
        if around.setup.mutant == Some(Mutant::CooldownEndsEarly)
            && let CacheEntry::Cooldown {
                until, recheck_at, ..
            } = &mut view
        {
            *until = *recheck_at;
        }
        if let (Some(CacheEntry::Version(before)), CacheEntry::Version(after)) = (&self.view, &view)
            && before.fence > after.fence
        {
            return Err("S31: the fences of the version in memory never fall");
        }
        if let (Some(CacheEntry::Version(before)), CacheEntry::Version(after)) = (&self.view, &view)
            && before.is_unsaved()
            && matches!(after.origin, Origin::Published { .. })
            && before.fence >= after.fence
        {
            return Err("S11: a version published after an unsaved one has a greater fence");
        }
        if let (Some(CacheEntry::Version(before)), CacheEntry::Version(after)) = (&self.view, &view)
            && before.is_unsaved()
            && before.page.body == after.page.body
            && !after.is_unsaved()
        {
            around.seen.push("unsaved version is stored after all");
        }
        self.view = Some(view);
        Ok(())
    }

    /// Records two times: how long the failure allows an expired version to be served, and how long
    /// the cooldown lasts.
    fn note_failure(&mut self, event: &Input<Read>, setup: &Setup) {
        let generating = match self.run.as_ref().map(|run| run.doing) {
            Some(Doing::Generating(text)) => Some(text),
            _ => None,
        };
        let cooldown = setup.policy().cooldown_time();
        let failures = self.run.as_ref().map_or(0, |run| run.regeneration.failures);
        let grace = match event {
            Input::Generated(Generated::Failed(_)) | Input::Panicked => cooldown,
            Input::TimerFired if generating.is_some() => cooldown,
            Input::Probed(ProbeResult { lock, .. }) if !lock.owned => lock.remaining.min(cooldown),
            _ => return,
        };
        self.error_grace = self.error_grace.max(NOW + grace);
        if generating.is_some_and(|text| text.snapshot.epoch >= self.known.marks.purged) {
            self.cooling = NOW + setup.policy().cooldown_after(failures);
        }
    }

    /// Advances the clock of this process by a second.
    pub(crate) fn tick(&mut self) {
        self.parts(&mut past);
    }
}

impl Run {
    pub(crate) fn ask(&mut self, statement: Statement) {
        self.doing = Doing::Statement {
            statement,
            asked: NOW,
            reply: None,
        };
    }
}
