//! Answers from memory: freshness, hit-for-pass and cooldown.

use super::*;
use crate::cache::{entry::Lookup, regeneration::check::POLICY};

fn visitor() -> Visitor {
    Visitor::arriving_at(Tick(1000 * SECOND))
}

#[test]
fn freshness_changes_at_exact_ages() {
    let process = Process::new();
    let micro = Duration::from_micros(1);
    for (age, expected) in [
        (2 * S - micro, Freshness::Fresh),
        (2 * S, Freshness::Stale),
        (4 * S, Freshness::Stale),
        (4 * S + micro, Freshness::Expired),
    ] {
        let version = process.version(age, Origin::Stored);
        assert_eq!(version.freshness(&process.context()), expected, "{age:?}");
    }
    for (age, expected) in [(S - micro, Freshness::Fresh), (S, Freshness::Stale)] {
        let version = process.version(age, Origin::Unsaved);
        assert_eq!(version.freshness(&process.context()), expected, "{age:?}");
    }
}

#[test]
fn expired_version_is_served_for_the_cooldown_after_a_failure_within_stale_if_error() {
    for (age, is_served) in [(5 * S, true), (6 * S, false)] {
        let mut process = Process::new();
        let expired = process.version(age, Origin::Stored);
        let mut state = process.generating(Some(expired));
        let step = process.on(
            &mut state,
            Input::Generated(Generated::Failed(Failure::new("it failed"))),
        );
        assert_eq!(outcome(&step), Some(Outcome::Failed));
        match done(&step) {
            Answer::Version(version) if is_served => {
                process.now = process.now + (S - Duration::from_micros(1));
                assert_eq!(version.freshness(&process.context()), Freshness::Stale);
                process.now = process.now + Duration::from_micros(1);
                assert_eq!(version.freshness(&process.context()), Freshness::Expired);
            }
            Answer::Failed(_) if !is_served => {}
            answer => panic!("{age:?}: {answer:?}"),
        }
    }
}

#[test]
fn expired_version_is_served_in_the_cooldown_of_another_process_within_stale_if_error() {
    let cooldown = LockState {
        fence: Fence(2),
        owned: false,
        remaining: S / 2,
        failures: 1,
    };
    for (age, is_served) in [(5 * S, true), (6 * S, false)] {
        // Either this process knows the expired version already, or the probe finds it.
        for is_known in [true, false] {
            let mut process = Process::new();
            let expired = Some(process.version(age, Origin::Stored));
            let (known, stored) = if is_known {
                (expired, None)
            } else {
                (None, expired)
            };
            let (mut state, _) = process.begun(known);
            let step = process.on(&mut state, found(stored, cooldown));
            match done(&step) {
                Answer::Version(version) if is_served => {
                    process.now = process.now + (S / 2 - Duration::from_micros(1));
                    assert_eq!(version.freshness(&process.context()), Freshness::Stale);
                    process.now = process.now + Duration::from_micros(1);
                    assert_eq!(version.freshness(&process.context()), Freshness::Expired);
                }
                Answer::Unavailable { .. } if !is_served => {}
                answer => panic!("{age:?}: {answer:?}"),
            }
        }
    }
}

/// The author of a change waits for the new version, unless nobody can generate it.
#[test]
fn author_gets_the_old_version_at_once_in_a_cooldown_alone() {
    let mut process = Process::new();
    process.list.marks.stale = Epoch(1);
    process.list.marks.latest = Epoch(1);
    let stale = process.version(S, Origin::Stored);
    let author = Visitor {
        min_epoch: Epoch(1),
        ..visitor()
    };
    let demands = Visitor {
        demands: true,
        ..author
    };
    let after = |lock: LockState, input: Option<Input<Read>>| {
        let (mut state, _) = process.begun(Some(stale.clone()));
        let mut step = process.on(&mut state, found(None, lock));
        if let Some(input) = input {
            step = process.on(&mut state, input);
        }
        step.entry.expect("the old version")
    };
    let cools_down = LockState {
        remaining: S,
        ..LockState::default()
    };
    let cooldown = after(cools_down, None);
    let lost_race = after(LockState::default(), Some(Input::Acquired(None)));
    let failed = after(LockState::default(), Some(Input::StoreFailed));
    let busy = {
        let entry = CacheEntry::Version(stale.clone().into());
        let request = LeaderRequest::default();
        let (mut state, _) = Regeneration::new(Some(entry), request, &process.context());
        process.on(&mut state, Input::Start);
        let step = process.on(&mut state, Input::Permit { granted: false });
        step.entry.expect("the old version")
    };
    let with_permit = Visitor {
        has_permit: true,
        ..author
    };
    for (entry, is_hit, is_hit_with_permit) in [
        (cooldown, true, true),
        (lost_race, false, false),
        (failed, true, true),
        (busy, true, false),
    ] {
        let lookup =
            |visitor: Visitor| entry.clone().lookup(&visitor, &process.context(), || false);
        let all = lookup(visitor());
        assert!(matches!(all, Lookup::Hit(_)), "{all:?}");
        let found = lookup(author);
        assert_eq!(matches!(found, Lookup::Hit(_)), is_hit, "{found:?}");
        let found = lookup(with_permit);
        assert_eq!(
            matches!(found, Lookup::Hit(_)),
            is_hit_with_permit,
            "{found:?}"
        );
        // A demand comes with a permit.
        let demanded = lookup(Visitor {
            has_permit: true,
            ..demands
        });
        assert!(matches!(demanded, Lookup::Stale), "{demanded:?}");
    }
}

#[test]
fn hit_for_pass_lasts_until_its_end_or_an_invalidation() {
    let mut process = Process::new();
    let view = || CacheEntry::<Read>::HitForPass {
        until: Tick(1001 * SECOND),
        why: Bypass::Private,
        meta: Arc::new(meta(Snapshot::default())),
    };
    let lookup = |process: &Process| view().lookup(&visitor(), &process.context(), || false);
    assert!(matches!(
        lookup(&process),
        Lookup::Hit(Answer::Pass(Bypass::Private))
    ));
    let mut invalidated = process;
    invalidated.list.marks.stale = Epoch(1);
    assert!(matches!(lookup(&invalidated), Lookup::Miss));
    process.now = Tick(1001 * SECOND);
    assert!(matches!(lookup(&process), Lookup::Miss));
    let stale = CacheEntry::Version(process.version(3 * S, Origin::Stored).into());
    assert!(matches!(
        stale
            .clone()
            .lookup(&visitor(), &process.context(), || false),
        Lookup::Stale
    ));
    assert!(matches!(
        stale
            .clone()
            .lookup(&visitor(), &process.context(), || true),
        Lookup::Hit(Answer::Version(_))
    ));
    assert!(matches!(
        stale.lookup(&visitor(), &Process::purged().context(), || true),
        Lookup::Purged
    ));
}

#[test]
fn cooldown_lasts_until_its_end_or_a_purge() {
    let mut process = Process::new();
    let view = || CacheEntry::<Read>::Cooldown {
        until: Tick(1001 * SECOND),
        recheck_at: Tick(1001 * SECOND),
        failures: 1,
        failure: None,
        meta: Arc::new(meta(Snapshot::default())),
    };
    let lookup = |process: &Process| view().lookup(&visitor(), &process.context(), || false);
    assert!(
        matches!(lookup(&process), Lookup::Hit(Answer::Unavailable { retry_in }) if retry_in == S)
    );
    assert!(matches!(lookup(&Process::purged()), Lookup::Miss));
    process.now = Tick(1001 * SECOND);
    assert!(matches!(lookup(&process), Lookup::Miss));
}

#[test]
fn cooldown_that_began_without_the_store_asks_the_store_again_before_the_generator_runs() {
    let mut process = Process::new();
    let until = process.now + 10 * S;
    let view = CacheEntry::<Read>::Cooldown {
        until,
        recheck_at: process.now + S,
        failures: 1,
        failure: None,
        meta: Arc::new(meta(Snapshot::default())),
    };
    process.now = process.now + S;
    assert!(matches!(
        view.clone()
            .lookup(&visitor(), &process.context(), || false),
        Lookup::Miss
    ));
    let asking = |process: &Process| {
        let request = LeaderRequest::default();
        let (mut state, shown) = Regeneration::new(Some(view.clone()), request, &process.context());
        process.start(&mut state);
        (state, shown)
    };
    let retry_in = |shown: Option<&Progress<Read>>| match shown {
        Some(Progress::Done(Answer::Unavailable { retry_in })) => Some(*retry_in),
        _ => None,
    };
    let (mut state, shown) = asking(&process);
    assert_eq!(
        retry_in(Some(&shown)),
        Some(9 * S),
        "no visitor waits: {shown:?}"
    );
    let step = process.on(&mut state, Input::StoreFailed);
    assert!(matches!(step.action, Some(Action::End)), "{step:?}");
    assert_eq!(retry_in(step.progress.as_ref()), Some(9 * S), "{step:?}");
    let Some(CacheEntry::Cooldown {
        until: still,
        recheck_at,
        ..
    }) = step.entry
    else {
        panic!("{step:?}");
    };
    assert_eq!((still, recheck_at), (until, process.now + S));

    // A caller that demands a regeneration waits for the store's answer, but not until the cooldown
    // is over.
    let request = LeaderRequest {
        is_requested: true,
        ..LeaderRequest::default()
    };
    let (_, shown) = Regeneration::new(Some(view.clone()), request, &process.context());
    assert!(matches!(shown, Progress::Probing), "{shown:?}");

    let (mut state, _) = asking(&process);
    let version = process.version(S, Origin::Stored);
    let step = process.on(&mut state, found(Some(version), LockState::default()));
    assert!(matches!(done(&step), Answer::Version(_)), "{step:?}");
    let (mut state, _) = asking(&process);
    let step = process.on(&mut state, found(None, LockState::default()));
    assert!(
        matches!(step.action, Some(Action::Acquire { .. })),
        "{step:?}"
    );

    process.list.marks.purged = Epoch(1);
    process.list.marks.latest = Epoch(1);
    let (mut state, shown) = asking(&process);
    assert_eq!(retry_in(Some(&shown)), None, "the purge ends the cooldown");
    let step = process.on(&mut state, Input::StoreFailed);
    assert!(
        matches!(step.action, Some(Action::Generate { .. })),
        "{step:?}"
    );
}

#[test]
fn visitor_gets_an_expired_version_only_of_this_process_and_only_from_after_the_arrival() {
    let process = Process::new();
    let version = |origin| process.version(5 * S, origin);
    let arrived = |ago: Duration| process.now - ago;
    for (origin, ago, expected) in [
        (Origin::Unsaved, 5 * S, true),
        (Origin::Unsaved, 4 * S, false),
        (
            Origin::Published {
                lock_untouched: true,
            },
            6 * S,
            true,
        ),
        (Origin::Stored, 6 * S, false),
    ] {
        let is_made = version(origin).is_made_since(arrived(ago));
        assert_eq!(is_made, expected, "{origin:?}, {ago:?}");
    }
}

#[test]
fn seconds_until_a_version_is_stale_are_rounded_down_and_negative_after_an_invalidation() {
    let micro = Duration::from_micros(1);
    let ttl = |process: &Process, age| {
        let version = process.version(age, Origin::Stored);
        version.ttl(process.now, &POLICY, &process.list)
    };
    for (age, fresh, invalidated) in [
        (Duration::ZERO, 2, -1),
        (micro, 1, -1),
        (S, 1, -1),
        (2 * S, 0, -1),
        (2 * S + micro, -1, -1),
        (7 * S / 2, -2, -2),
    ] {
        assert_eq!(ttl(&Process::new(), age), fresh, "{age:?}");
        assert_eq!(ttl(&Process::purged(), age), invalidated, "{age:?}");
    }
}
