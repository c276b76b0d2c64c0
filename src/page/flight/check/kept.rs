//! Former defects, and properties below the check's unit of time, a second.

use perennial_store::LockState;

use crate::{
    clock::Tick,
    page::flight::{
        Answer, AsOf, Effect, Event, Flight, Found, Generated, Origin, Shown, Step, Version,
        check::{
            content::{ModelList, Read, Text},
            process::facts,
            setup::{NOW, POLICY, SECOND},
        },
        look::backoff,
    },
    timing::{POLL_PAUSES, PUBLISH_PAUSES},
};

const TEXT: Text = Text {
    read: 0,
    as_of: AsOf {
        epoch: 0,
        revision: 0,
    },
};

fn found(version: Option<Version<Read>>) -> Event<Read> {
    Event::Probed(Found {
        version,
        lock: LockState::default(),
        epoch: 0,
    })
}

/// Returns a regeneration of a first version after these events, and its last step.
fn after(events: impl IntoIterator<Item = Event<Read>>) -> (Flight<Read>, Effect<Read>) {
    let known = ModelList::default();
    let facts = facts(&known);
    let (mut state, _) = Flight::new(None, &facts);
    let mut step = state.on(&facts, Event::Begun);
    for event in events {
        step = state.on(&facts, event);
    }
    (state, step)
}

#[test]
fn expired_version_is_not_given_to_the_leader_that_the_other_process_has_overtaken() {
    let stored = Version::new(TEXT.page(), 2, Tick(-5 * SECOND), Origin::Stored);
    let (state, step) = after([
        found(None),
        Event::Acquired(Some(1)),
        Event::Generated(Generated::Content(TEXT.page())),
        Event::Published(false),
        found(Some(stored)),
    ]);
    let Some(Shown::Done(Answer::Version(version))) = step.shown else {
        panic!("{step:?}");
    };
    assert_eq!((version.born, version.origin), (NOW, Origin::Unsaved));
    assert_eq!(state.newest().map(|newest| newest.fence), Some(2));
    assert!(matches!(step.next, Some(Step::Release { .. })));
}

#[test]
fn pauses_double_up_to_the_longest() {
    let pauses = |pauses| [0, 1, 2, 3, 4, 5, 40].map(|tries| backoff(pauses, tries).as_millis());
    assert_eq!(pauses(POLL_PAUSES), [20, 40, 80, 160, 320, 500, 500]);
    assert_eq!(
        pauses(PUBLISH_PAUSES),
        [100, 200, 400, 800, 1000, 1000, 1000]
    );
}

#[test]
fn seconds_until_a_version_is_stale_are_rounded_down_and_negative_after_an_invalidation() {
    let mut known = ModelList::default();
    let ttl = |known: &ModelList, age: i64| {
        // Not zero: a time with the wrong sign would not be noticed.
        let now = Tick(1000 * SECOND);
        let version = Version::new(TEXT.page(), 1, Tick(now.0 - age), Origin::Stored);
        version.ttl(now, &POLICY, known)
    };
    for (age, expected) in [
        (0, 2),
        (1, 1),
        (SECOND, 1),
        (2 * SECOND, 0),
        (2 * SECOND + 1, -1),
        (7 * SECOND / 2, -2),
    ] {
        assert_eq!(ttl(&known, age), expected, "{age} µs");
    }
    known.marks.stale = 1;
    for (age, expected) in [(0, -1), (7 * SECOND / 2, -2)] {
        assert_eq!(ttl(&known, age), expected, "{age} µs");
    }
}
