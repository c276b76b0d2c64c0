//! Decisions at exact times and in single situations. The exhaustive check forbids wrong answers;
//! these tests demand the right ones.

mod memory;
mod regenerating;
mod waiting;

use std::{sync::Arc, time::Duration};

use perennial_store::{Awaited, Epoch, Fence, LockState};

use crate::{
    cache::{
        Failure,
        entry::{
            Answer, AsOf, CacheEntry, DecisionContext, Freshness, Origin, PeerLease, Revised,
            Version,
        },
        regeneration::{
            Action, Generated, Input, Next, Output, ProbeResult, Progress, Regeneration, Visitor,
            check::{
                content::{ModelList, Read, Text, meta},
                process::context,
                setup::SECOND,
            },
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
        as_of: AsOf {
            epoch: Epoch(epoch),
            revision: Revised::Never,
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
            // Not zero: a time with the wrong sign would not be noticed.
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

    fn on(&self, state: &mut Regeneration<Read>, event: Input<Read>) -> Output<Read> {
        state.on(&self.context(), event)
    }

    /// Returns a regeneration with a permit, and its first step.
    fn begun(&self, newest: Option<Version<Read>>) -> (Regeneration<Read>, Output<Read>) {
        let view = newest.map(|version| CacheEntry::Version(version.into()));
        let (mut state, _) = Regeneration::new(view, &self.context());
        let step = self.on(&mut state, Input::Start);
        (state, step)
    }

    /// Returns a regeneration whose generator runs under the lease with the fence 2.
    fn generating(&self, newest: Option<Version<Read>>) -> Regeneration<Read> {
        let (mut state, _) = self.begun(newest);
        self.on(&mut state, found(None, LockState::default()));
        let step = self.on(&mut state, Input::Acquired(Some(Fence(2))));
        assert!(
            matches!(step.next, Some(Action::Generate { .. })),
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
            matches!(step.next, Some(Action::Publish { .. })),
            "{step:?}"
        );
        state
    }
}

fn found(version: Option<Version<Read>>, lock: LockState) -> Input<Read> {
    Input::Probed(ProbeResult {
        version,
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
    step.ended.as_ref().map(|ended| ended.outcome)
}

fn done(step: &Output<Read>) -> &Answer<Read> {
    match &step.progress {
        Some(Progress::Done(answer)) => answer,
        progress => panic!("{progress:?}"),
    }
}
