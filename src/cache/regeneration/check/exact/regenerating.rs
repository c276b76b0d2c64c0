//! The steps and the effects of a regeneration.

use super::*;
use crate::timing::{POLL_PAUSES, PUBLISH_PAUSES, Pauses};

#[test]
fn failing_store_does_not_end_the_wait_for_another_process_before_its_lease_ends() {
    let mut process = Process::new();
    let (mut state, _) = process.begun(None);
    let step = process.on(&mut state, found(None, held(S)));
    assert!(
        matches!(step.progress, Some(Progress::HeldByPeer)),
        "{step:?}"
    );
    assert_eq!(state.held_until(), process.now + S);
    let began = process.now;
    loop {
        process.now = state.due(&process.context()).expect("pauses");
        process.on(&mut state, Input::TimerFired);
        let step = process.on(&mut state, Input::StoreFailed);
        if process.now < began + S {
            assert!(matches!(step.next, Some(Action::Wait)), "{step:?}");
        } else {
            assert!(
                matches!(step.next, Some(Action::Generate { .. })),
                "{step:?}"
            );
            break;
        }
    }
}

#[test]
fn lease_lasts_until_it_is_released_or_its_holder_has_published() {
    let process = Process::new();
    let mut held = PeerLease {
        known: Fence(7),
        until: process.now,
    };
    for (fence, remaining, lasts) in [
        (7, 9 * S, true),
        (0, 9 * S, true),
        (8, 9 * S, false),
        (7, Duration::ZERO, false),
    ] {
        let page = Awaited {
            fence: Fence(fence),
            remaining,
        };
        held.told(page, process.now);
        let until = process.now + remaining * u32::from(lasts);
        assert_eq!(held.until, until, "{page:?}");
    }
}

#[test]
fn flight_asks_for_the_version_only_when_the_lease_is_over() {
    let process = Process::new();
    let purged = Process::purged();
    // A stored version that may not be served counts as known.
    let stored = process.version(S, Origin::Stored);
    let (mut state, _) = purged.begun(None);
    let step = purged.on(&mut state, found(Some(stored), held(9 * S)));
    assert!(matches!(step.next, Some(Action::Wait)), "{step:?}");
    let until = purged.now + S;
    assert_eq!(
        step.peer_lease,
        Some(PeerLease {
            known: Fence(1),
            until
        })
    );
    let due = |state: &mut Regeneration<Read>, held| {
        let context = DecisionContext {
            held,
            ..purged.context()
        };
        state.on(&context, Input::TimerFired)
    };
    let step = due(&mut state, true);
    assert!(matches!(step.next, Some(Action::Wait)), "{step:?}");
    let step = due(&mut state, false);
    assert!(
        matches!(step.next, Some(Action::Probe { known: Fence(1) })),
        "{step:?}"
    );
}

#[test]
fn lock_that_seems_to_last_for_years_is_asked_for_again_after_the_cooldown() {
    let years = |owned| LockState {
        fence: Fence(1),
        owned,
        remaining: YEAR,
        failures: 0,
    };
    let mut process = Process::new();
    let stale = process.version(3 * S, Origin::Stored);
    for owned in [false, true] {
        let (mut state, _) = process.begun(Some(stale.clone()));
        let step = process.on(&mut state, found(None, years(owned)));
        let again = match (&step.entry, step.peer_lease) {
            (Some(CacheEntry::Version(version)), None) => version.ask_again_at,
            (_, Some(held)) => held.until,
            _ => panic!("{step:?}"),
        };
        assert_eq!(again, process.now + S);
    }
    let (mut state, _) = process.begun(None);
    let step = process.on(&mut state, found(None, years(false)));
    assert!(
        matches!(done(&step), Answer::Unavailable { retry_in } if *retry_in == S),
        "{step:?}"
    );
    assert!(
        matches!(&step.entry, Some(CacheEntry::Cooldown { until, .. }) if *until == process.now + S),
        "{step:?}"
    );

    // The store fails from here on. The process generates without a lease after the cooldown.
    let (mut state, _) = process.begun(None);
    process.on(&mut state, found(None, years(true)));
    process.now = process.now + S;
    process.on(&mut state, Input::TimerFired);
    let step = process.on(&mut state, Input::StoreFailed);
    assert!(
        matches!(step.next, Some(Action::Generate { .. })),
        "{step:?}"
    );
}

#[test]
fn older_stored_version_does_not_replace_a_newer_unsaved_one() {
    let process = Process::new();
    let unsaved = process.version(3 * S / 2, Origin::Unsaved);
    let stored = |age, epoch| Version {
        fence: Fence(2),
        page: text(epoch).page(),
        ..process.version(age, Origin::Stored)
    };
    let newest = |process: &Process, stored| {
        let (mut state, _) = process.begun(Some(unsaved.clone()));
        process.on(&mut state, found(Some(stored), LockState::default()));
        let newest = state.newest().expect("has a version");
        (newest.born, newest.origin)
    };
    let own = (unsaved.born, Origin::Unsaved);
    for (age, expected) in [
        (3 * S, own),
        (3 * S / 2 + Duration::from_micros(1), own),
        (3 * S / 2, (unsaved.born, Origin::Stored)),
        (S, (process.now - S, Origin::Stored)),
    ] {
        assert_eq!(newest(&process, stored(age, 0)), expected, "{age:?}");
    }
    // The invalidations judge before the age does.
    let older = (process.now - 3 * S, Origin::Stored);
    assert_eq!(newest(&Process::purged(), stored(3 * S, 1)), older);
    let process = Process::purged();
    let known = Version {
        page: text(1).page(),
        ..unsaved.clone()
    };
    let (mut state, _) = process.begun(Some(known));
    process.on(&mut state, found(Some(stored(S, 0)), LockState::default()));
    assert_eq!(
        state.newest().map(|newest| newest.origin),
        Some(Origin::Unsaved)
    );
}

#[test]
fn timeout_is_a_failure_with_its_own_outcome() {
    let mut process = Process::new();
    let mut state = process.generating(None);
    let due = state.due(&process.context()).expect("has a timeout");
    assert_eq!(due, process.now + 2 * S);
    process.now = due;
    let step = process.on(&mut state, Input::TimerFired);
    assert_eq!(outcome(&step), Some(Outcome::TimedOut));
    assert!(
        matches!(step.next, Some(Action::Release { cooldown, removes: false }) if cooldown == S)
    );
}

#[test]
fn new_version_is_served_unsaved_when_the_patience_ends_and_its_publish_is_repeated() {
    let mut process = Process::new();
    let mut state = process.publishing(None);
    let born = process.now;
    assert_eq!(state.due(&process.context()), Some(born + S / 2));
    process.now = born + S / 2;
    let step = process.on(&mut state, Input::TimerFired);
    assert!(matches!(done(&step), Answer::Version(version) if version.is_unsaved()));
    assert!(step.next.is_none(), "the publish still runs");
    let mut pauses = Vec::new();
    loop {
        let step = process.on(&mut state, Input::StoreFailed);
        if !matches!(step.next, Some(Action::Wait)) {
            assert!(
                matches!(step.next, Some(Action::Release { .. })),
                "{step:?}"
            );
            assert_eq!(outcome(&step), Some(Outcome::Unsaved));
            break;
        }
        let due = state.due(&process.context()).expect("pauses");
        pauses.push((due - process.now).as_millis());
        process.now = due;
        let step = process.on(&mut state, Input::TimerFired);
        assert!(
            matches!(step.next, Some(Action::Publish { .. })),
            "{step:?}"
        );
    }
    // For the length of a lease, 2 s. The unsaved version is then stale, and still servable.
    assert_eq!(pauses, [100, 200, 400, 800, 1000]);
}

#[test]
fn response_that_is_not_stored_bypasses_for_the_interval_or_the_cooldown() {
    let process = Process::new();
    let end = |newest: Option<Version<Read>>, result| {
        let mut state = process.generating(newest);
        process.on(&mut state, Input::Generated(result))
    };
    let not_stored = |why| Generated::NotStored(why, Tags::default());
    for (why, time) in [(Bypass::Private, 2 * S), (Bypass::Status, S)] {
        let step = end(None, not_stored(why));
        assert!(
            matches!(step.entry, Some(CacheEntry::HitForPass { until, why: it, .. }) if until == process.now + time && it == why),
            "{step:?}"
        );
        assert!(matches!(
            step.next,
            Some(Action::Release { removes: true, .. })
        ));
    }
    let step = end(None, not_stored(Bypass::TooLarge));
    assert!(matches!(
        step.entry,
        Some(CacheEntry::HitForPass {
            why: Bypass::TooLarge,
            ..
        })
    ));
    assert!(
        matches!(step.next, Some(Action::Release { cooldown, removes: false }) if cooldown.is_zero())
    );
    let stale = process.version(3 * S, Origin::Stored);
    let step = end(Some(stale), not_stored(Bypass::TooLarge));
    assert!(
        matches!(&step.entry, Some(CacheEntry::Version(version)) if version.ask_again_at == process.now + S)
    );
    assert!(matches!(done(&step), Answer::Version(_)));
    assert!(
        matches!(step.next, Some(Action::Release { cooldown, removes: false }) if cooldown == S)
    );
}

#[test]
fn published_version_replaces_an_older_one_unless_that_was_purged() {
    let replaces = |process: &Process, newest| {
        let mut state = process.generating(newest);
        let content = Input::Generated(Generated::Content(text(1).page()));
        match process.on(&mut state, content).next {
            Some(Action::Publish { version, .. }) => version.replaces,
            command => panic!("{command:?}"),
        }
    };
    let process = Process::new();
    let stale = process.version(3 * S, Origin::Stored);
    assert!(!replaces(&process, None));
    assert!(replaces(&process, Some(stale.clone())));
    assert!(!replaces(&Process::purged(), Some(stale)));
}

#[test]
fn expired_version_is_not_given_to_the_leader_that_the_other_process_has_overtaken() {
    let process = Process::new();
    let mut state = process.publishing(None);
    process.on(&mut state, Input::Published(false));
    let stored = process.version(5 * S, Origin::Stored);
    let step = process.on(&mut state, found(Some(stored), LockState::default()));
    assert!(
        matches!(done(&step), Answer::Version(version) if version.is_unsaved() && version.born == process.now),
        "{step:?}"
    );
    assert_eq!(state.newest().map(|newest| newest.fence), Some(Fence(1)));
    assert!(matches!(step.next, Some(Action::Release { .. })));
}

#[test]
fn pauses_double_up_to_the_longest() {
    let pauses =
        |pauses: Pauses| [0, 1, 2, 3, 4, 5, 40].map(|tries| pauses.after(tries).as_millis());
    assert_eq!(pauses(POLL_PAUSES), [20, 40, 80, 160, 320, 500, 500]);
    assert_eq!(
        pauses(PUBLISH_PAUSES),
        [100, 200, 400, 800, 1000, 1000, 1000]
    );
}
