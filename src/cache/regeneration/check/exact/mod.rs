//! Decisions at exact times and in single situations. The searches forbid wrong answers;
//! these tests demand the right ones.

mod memory;
mod regenerating;
mod waiting;

use std::{sync::Arc, time::Duration};

use perennial_store::{Epoch, Fence, LockState, PeerLeaseState};

use crate::{
    cache::{
        Failure,
        entry::{
            Answer, CacheEntry, DecisionContext, Freshness, Origin, PeerLease, Version, Visitor,
        },
        epochs::{RevisionEpoch, Snapshot},
        regeneration::{
            check::{
                content::{ModelList, Read, Text, meta},
                names,
                process::context,
                setup::SECOND,
                table,
            },
            machine::{
                Action, Generated, Input, LeaderRequest, Output, ProbeResult, Regeneration, Stored,
            },
            waiting::{Next, Progress},
        },
    },
    clock::{Tick, YEAR},
    event::{Bypass, Outcome},
    extensions::Tags,
};

const S: Duration = Duration::from_secs(1);

fn text(epoch: i64) -> Text {
    Text {
        read: Epoch(epoch),
        snapshot: Snapshot {
            epoch: Epoch(epoch),
            revision: RevisionEpoch::NoRevision,
        },
    }
}

/// A process with its clock and its invalidation list.
#[derive(Clone, Copy)]
struct Process {
    now: Tick,
    list: ModelList,
}

impl Process {
    fn new() -> Self {
        Self {
            // The time does not begin at zero, because a time with the wrong sign would not be
            // noticed then.
            now: Tick(1000 * SECOND),
            list: ModelList::default(),
        }
    }

    fn purged() -> Self {
        let mut process = Self::new();
        process.list.marks.purged = Epoch(1);
        process.list.marks.latest = Epoch(1);
        process
    }

    fn context(&self) -> DecisionContext<'_> {
        DecisionContext {
            now: self.now,
            ..context(&self.list)
        }
    }

    /// Returns a version of this age.
    fn version(&self, age: Duration, origin: Origin) -> Version<Read> {
        Version::new(text(0).page(), Fence(1), self.now - age, origin)
    }

    fn on(&self, state: &mut Regeneration<Read>, input: Input<Read>) -> Output<Read> {
        let before = (names::state(&state.state), names::input(&input));
        let output = state.on(&self.context(), input);
        table::note(before, &state.state, output.action.as_ref());
        output
    }

    /// Starts a regeneration, which gets a permit.
    fn start(&self, state: &mut Regeneration<Read>) -> Output<Read> {
        let output = self.on(state, Input::Start);
        assert!(matches!(output.action, Some(Action::TakePermit)));
        self.on(state, Input::Permit { granted: true })
    }

    /// Ends the pause in which the regeneration waits for a peer. A visitor still waits, and the sync
    /// tells whether the peer's lease is held.
    fn after_pause(&self, state: &mut Regeneration<Read>, held: bool) -> Output<Read> {
        let output = self.on(state, Input::TimerFired);
        assert!(matches!(output.action, Some(Action::AwaitVisitor { .. })));
        let output = self.on(state, Input::VisitorWaits);
        assert!(matches!(
            output.action,
            Some(Action::AskForPeerLease { .. })
        ));
        let output = self.on(state, Input::PeerLease { held });
        match output.action {
            Some(Action::TakePermit) => self.on(state, Input::Permit { granted: true }),
            _ => output,
        }
    }

    /// Returns a regeneration with a permit, and its first step.
    fn begun(&self, newest: Option<Version<Read>>) -> (Regeneration<Read>, Output<Read>) {
        let view = newest.map(|version| CacheEntry::Version(version.into()));
        let request = LeaderRequest::default();
        let (mut state, _) = Regeneration::new(view, request, &self.context());
        let step = self.start(&mut state);
        (state, step)
    }

    /// Returns a regeneration whose generator runs under the lease with the fence 2.
    fn generating(&self, newest: Option<Version<Read>>) -> Regeneration<Read> {
        let (mut state, _) = self.begun(newest);
        self.on(&mut state, found(None, LockState::default()));
        let step = self.on(&mut state, Input::Acquired(Some(Fence(2))));
        assert!(
            matches!(step.action, Some(Action::Generate { .. })),
            "{step:?}"
        );
        state
    }

    /// Returns a regeneration that publishes.
    fn publishing(&self, newest: Option<Version<Read>>) -> Regeneration<Read> {
        let mut state = self.generating(newest);
        let other = Text {
            read: Epoch(7),
            ..text(0)
        };
        let content = Input::Generated(Generated::Content(other.page()));
        let step = self.on(&mut state, content);
        assert!(
            matches!(step.action, Some(Action::Publish { .. })),
            "{step:?}"
        );
        state
    }
}

fn found(version: Option<Version<Read>>, lock: LockState) -> Input<Read> {
    Input::Probed(ProbeResult {
        stored: version.map_or(Stored::NoNewer, Stored::Version),
        lock,
        epoch: Epoch::NONE,
    })
}

fn held(remaining: Duration) -> LockState {
    LockState {
        fence: Fence(1),
        owned: true,
        remaining,
        failures: 0,
    }
}

fn outcome(step: &Output<Read>) -> Option<Outcome> {
    step.conclusion
        .as_ref()
        .map(|conclusion| conclusion.outcome)
}

fn done(step: &Output<Read>) -> &Answer<Read> {
    match &step.progress {
        Some(Progress::Done(answer)) => answer,
        progress => panic!("{progress:?}"),
    }
}

/// Makes the transitions that are far from the beginning, or whose moment the check leaves out.
pub(super) fn make_rare_transitions() {
    let process = Process::new();
    let closing = |state: &mut Regeneration<Read>, input| {
        let context = DecisionContext {
            is_shutting_down: true,
            ..process.context()
        };
        let before = (names::state(&state.state), names::input(&input));
        let output = state.on(&context, input);
        table::note(before, &state.state, output.action.as_ref());
        assert!(matches!(
            output.progress,
            Some(Progress::Done(Answer::Pass(Bypass::ShuttingDown)))
        ));
    };
    let waiting = || {
        let (mut state, _) = process.begun(None);
        process.on(&mut state, found(None, held(9 * S)));
        process.on(&mut state, Input::TimerFired);
        state
    };
    let mut state = waiting();
    process.on(&mut state, Input::VisitorWaits);
    closing(&mut state, Input::PeerLease { held: true });
    closing(&mut waiting(), Input::VisitorWaits);

    let mut state = waiting();
    process.on(&mut state, Input::VisitorWaits);
    process.on(&mut state, Input::PeerLease { held: false });
    process.on(&mut state, Input::Permit { granted: true });
    process.on(&mut state, Input::StoreFailed);

    let (mut state, _) = process.begun(None);
    process.on(&mut state, Input::StoreFailed);
    process.on(&mut state, Input::TimerFired);

    let mut state = process.publishing(None);
    process.on(&mut state, Input::Published { accepted: false });
    process.on(&mut state, Input::StoreFailed);

    let mut state = process.publishing(None);
    process.on(&mut state, Input::StoreFailed);
    let later = Process {
        now: process.now + 9 * S,
        ..process
    };
    later.on(&mut state, Input::StoreFailed);
}
