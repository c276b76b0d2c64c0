//! Decisions at exact times and in single situations. The exhaustive check forbids wrong answers;
//! these tests demand the right ones.

mod memory;
mod regenerating;
mod waiting;

use std::{sync::Arc, time::Duration};

use perennial_store::{Awaited, Epoch, Fence, LockState};

use crate::{
    clock::{Tick, YEAR},
    event::{Bypass, Outcome},
    extensions::Tags,
    page::{
        Failure,
        flight::{
            Answer, AsOf, Effect, Event, Facts, Flight, Found, Freshness, Generated, HeldElsewhere,
            Known, Next, Origin, Revised, Shown, Step, Version, Visitor,
            check::{
                content::{ModelList, Read, Text, meta},
                process::facts,
                setup::SECOND,
            },
        },
    },
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

    fn facts(&self) -> Facts<'_> {
        Facts {
            now: self.now,
            ..facts(&self.list)
        }
    }

    /// Returns a version of this age.
    fn version(&self, age: Duration, origin: Origin) -> Version<Read> {
        Version::new(text(0).page(), Fence(1), self.now - age, origin)
    }

    fn on(&self, state: &mut Flight<Read>, event: Event<Read>) -> Effect<Read> {
        state.on(&self.facts(), event)
    }

    /// Returns a regeneration with a permit, and its first step.
    fn begun(&self, newest: Option<Version<Read>>) -> (Flight<Read>, Effect<Read>) {
        let view = newest.map(|version| Known::Version(version.into()));
        let (mut state, _) = Flight::new(view, &self.facts());
        let step = self.on(&mut state, Event::Begun);
        (state, step)
    }

    /// Returns a regeneration whose generator runs under the lease with the fence 2.
    fn generating(&self, newest: Option<Version<Read>>) -> Flight<Read> {
        let (mut state, _) = self.begun(newest);
        self.on(&mut state, found(None, LockState::default()));
        let step = self.on(&mut state, Event::Acquired(Some(Fence(2))));
        assert!(matches!(step.next, Some(Step::Generate { .. })), "{step:?}");
        state
    }

    /// Returns a regeneration that publishes.
    fn publishing(&self, newest: Option<Version<Read>>) -> Flight<Read> {
        let mut state = self.generating(newest);
        let other = Text {
            read: Epoch(7),
            ..text(0)
        };
        let content = Event::Generated(Generated::Content(other.page()));
        let step = self.on(&mut state, content);
        assert!(matches!(step.next, Some(Step::Publish { .. })), "{step:?}");
        state
    }
}

fn found(version: Option<Version<Read>>, lock: LockState) -> Event<Read> {
    Event::Probed(Found {
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

fn outcome(step: &Effect<Read>) -> Option<Outcome> {
    step.ended.as_ref().map(|ended| ended.outcome)
}

fn done(step: &Effect<Read>) -> &Answer<Read> {
    match &step.shown {
        Some(Shown::Done(answer)) => answer,
        progress => panic!("{progress:?}"),
    }
}
