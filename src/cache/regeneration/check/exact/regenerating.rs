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
    assert_eq!(state.peer_lease_until(), process.now + S);
    let began = process.now;
    loop {
        process.now = state.timer(&process.context()).expect("pauses");
        process.after_pause(&mut state, false);
        let step = process.on(&mut state, Input::StoreFailed);
        if process.now < began + S {
            assert!(matches!(step.action, Some(Action::Sleep)), "{step:?}");
        } else {
            assert!(
                matches!(step.action, Some(Action::Generate { .. })),
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
        stored_fence: Fence(7),
        until: process.now,
    };
    for (fence, remaining, lasts) in [
        (7, 9 * S, true),
        (0, 9 * S, true),
        (8, 9 * S, false),
        (7, Duration::ZERO, false),
    ] {
        let page = PeerLeaseState {
            fence: Fence(fence),
            remaining,
        };
        held.on_sync(page, process.now);
        let until = process.now + remaining * u32::from(lasts);
        assert_eq!(held.until, until, "{page:?}");
    }
}

#[test]
fn version_is_asked_for_only_when_the_lease_is_over() {
    let process = Process::new();
    let purged = Process::purged();
    // A stored version counts as known even if it may not be served.
    let stored = process.version(S, Origin::Stored);
    let (mut state, _) = purged.begun(None);
    let step = purged.on(&mut state, found(Some(stored), held(9 * S)));
    assert!(matches!(step.action, Some(Action::Sleep)), "{step:?}");
    let until = purged.now + S;
    assert_eq!(
        step.peer_lease,
        Some(PeerLease {
            stored_fence: Fence(1),
            until
        })
    );
    let step = purged.after_pause(&mut state, true);
    assert!(matches!(step.action, Some(Action::Sleep)), "{step:?}");
    let step = purged.after_pause(&mut state, false);
    assert!(
        matches!(step.action, Some(Action::Probe { known: Fence(1) })),
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
            (Some(CacheEntry::Version(version)), None) => version.recheck_at,
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
    process.after_pause(&mut state, false);
    let step = process.on(&mut state, Input::StoreFailed);
    assert!(
        matches!(step.action, Some(Action::Generate { .. })),
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
        (newest.published_at, newest.origin)
    };
    let own = (unsaved.published_at, Origin::Unsaved);
    for (age, expected) in [
        (3 * S, own),
        (3 * S / 2 + Duration::from_micros(1), own),
        (3 * S / 2, (unsaved.published_at, Origin::Stored)),
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
    let due = state.timer(&process.context()).expect("has a timeout");
    assert_eq!(due, process.now + 2 * S);
    process.now = due;
    let step = process.on(&mut state, Input::TimerFired);
    assert_eq!(outcome(&step), Some(Outcome::TimedOut));
    assert!(
        matches!(step.action, Some(Action::Release { cooldown, removes: false }) if cooldown == S)
    );
}

#[test]
fn new_version_is_served_unsaved_when_the_patience_ends_and_its_publish_is_repeated() {
    let mut process = Process::new();
    let mut state = process.publishing(None);
    let published_at = process.now;
    assert_eq!(state.timer(&process.context()), Some(published_at + S / 2));
    process.now = published_at + S / 2;
    let step = process.on(&mut state, Input::TimerFired);
    assert!(matches!(done(&step), Answer::Version(version) if version.is_unsaved()));
    assert!(step.action.is_none(), "the publish still runs");
    let mut pauses = Vec::new();
    loop {
        let step = process.on(&mut state, Input::StoreFailed);
        if !matches!(step.action, Some(Action::Sleep)) {
            assert!(
                matches!(step.action, Some(Action::Release { .. })),
                "{step:?}"
            );
            assert_eq!(outcome(&step), Some(Outcome::Unsaved));
            break;
        }
        let due = state.timer(&process.context()).expect("pauses");
        pauses.push((due - process.now).as_millis());
        process.now = due;
        let step = process.on(&mut state, Input::TimerFired);
        assert!(
            matches!(step.action, Some(Action::Publish { .. })),
            "{step:?}"
        );
    }
    // The publish was repeated until the lease of 2 s had ended. By then the unsaved version is
    // stale, and may still be served.
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
            step.action,
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
        matches!(step.action, Some(Action::Release { cooldown, removes: false }) if cooldown.is_zero())
    );
    let stale = process.version(3 * S, Origin::Stored);
    let step = end(Some(stale), not_stored(Bypass::TooLarge));
    assert!(
        matches!(&step.entry, Some(CacheEntry::Version(version)) if version.recheck_at == process.now + S)
    );
    assert!(matches!(done(&step), Answer::Version(_)));
    assert!(
        matches!(step.action, Some(Action::Release { cooldown, removes: false }) if cooldown == S)
    );
}

#[test]
fn published_version_replaces_an_older_one_unless_that_was_purged() {
    let replaces = |process: &Process, newest| {
        let mut state = process.generating(newest);
        let content = Input::Generated(Generated::Content(text(1).page()));
        match process.on(&mut state, content).action {
            Some(Action::Publish { version, .. }) => version.replaced_version,
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
    process.on(&mut state, Input::Published { accepted: false });
    let stored = process.version(5 * S, Origin::Stored);
    let step = process.on(&mut state, found(Some(stored), LockState::default()));
    assert!(
        matches!(done(&step), Answer::Version(version) if version.is_unsaved() && version.published_at == process.now),
        "{step:?}"
    );
    assert_eq!(state.newest().map(|newest| newest.fence), Some(Fence(1)));
    assert!(matches!(step.action, Some(Action::Release { .. })));
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

#[test]
fn stored_value_that_cannot_be_decoded_is_generated_anew_and_its_fence_is_known() {
    let process = Process::new();
    let stored = Version {
        fence: Fence(7),
        ..process.version(9 * S, Origin::Stored)
    };
    let unreadable = |lock| unreadable(&stored, lock);
    let (mut state, _) = process.begun(None);
    let step = process.on(&mut state, unreadable(held(9 * S)));
    assert!(matches!(step.action, Some(Action::Sleep)), "{step:?}");
    // The peer's lease keeps the fence of the unreadable version. Without it, a sync that finds
    // this version would conclude that the peer has published and that its lease is over.
    let lease = step.peer_lease.expect("is held");
    assert_eq!(lease.stored_fence, Fence(7));
    let (mut state, _) = process.begun(None);
    let step = process.on(&mut state, unreadable(LockState::default()));
    assert!(
        matches!(step.action, Some(Action::Acquire { .. })),
        "{step:?}"
    );
}

fn unreadable(version: &Version<Read>, lock: LockState) -> Input<Read> {
    Input::Probed(ProbeResult {
        stored: Stored::Unreadable(version.clone()),
        lock,
        epoch: Epoch::NONE,
    })
}

/// The interval is 2 s, and the cooldown 5 s.
#[test]
fn fresh_version_of_other_code_is_left_and_the_own_one_stays_in_memory_for_its_interval() {
    let mut process = Process::new();
    for (age, is_left) in [(S, true), (2 * S, false)] {
        let stored = process.version(age, Origin::Stored);
        let (mut state, _) = process.begun(None);
        process.on(&mut state, unreadable(&stored, LockState::default()));
        process.on(&mut state, Input::Acquired(Some(Fence(2))));
        let content = Input::Generated(Generated::Content(text(0).page()));
        let step = process.on(&mut state, content);
        if !is_left {
            assert!(
                matches!(step.action, Some(Action::Publish { renews: None, .. })),
                "{step:?}"
            );
            continue;
        }
        assert_eq!(outcome(&step), Some(Outcome::KeptApart));
        assert!(
            matches!(step.action, Some(Action::Release { cooldown, removes: false }) if cooldown.is_zero()),
            "{step:?}"
        );
        let Some(CacheEntry::Version(own)) = &step.entry else {
            panic!("{step:?}");
        };
        // Any published version has a later fence, and so takes its place.
        assert_eq!((own.origin, own.fence), (Origin::KeptApart, Fence::NONE));
        let fresh_until = process.now + 2 * S;
        process.now = fresh_until - Duration::from_micros(1);
        assert_eq!(own.freshness(&process.context()), Freshness::Fresh);
        process.now = fresh_until;
        assert_eq!(own.freshness(&process.context()), Freshness::Stale);
        // The store is asked again. The process must never tell it to renew a version that it does
        // not have.
        let (mut state, step) = process.begun(Some(Version::clone(own)));
        assert!(
            matches!(step.action, Some(Action::Probe { known: Fence::NONE })),
            "{step:?}"
        );
        process.on(&mut state, found(None, LockState::default()));
        process.on(&mut state, Input::Acquired(Some(Fence(2))));
        let same = Input::Generated(Generated::Content(text(0).page()));
        let step = process.on(&mut state, same);
        assert!(
            matches!(step.action, Some(Action::Publish { renews: None, .. })),
            "{step:?}"
        );
    }
}

#[test]
fn row_is_kept_for_as_long_as_a_visitor_may_have_invented_it_or_not() {
    use http::{HeaderMap, StatusCode};

    use crate::{
        cache::{
            Meta, Metadata,
            entry::Page,
            regeneration::machine::{Keeping, LeaderRequest},
        },
        timing::BRIEF_RETENTION,
    };

    let process = Process::new();
    let retention = process.context().retention;
    let keeping = |is_kept_briefly, status| {
        let request = LeaderRequest {
            is_kept_briefly,
            ..LeaderRequest::default()
        };
        let (mut state, _) = Regeneration::new(None, request, &process.context());
        process.start(&mut state);
        process.on(&mut state, found(None, LockState::default()));
        process.on(&mut state, Input::Acquired(Some(Fence(2))));
        let meta = Meta::new("key", Metadata::default());
        let page = Page {
            meta: meta.of_response(status, &HeaderMap::new()),
            body: Epoch(1),
        };
        let content = Input::Generated(Generated::Content(Arc::new(page)));
        match process.on(&mut state, content).action {
            Some(Action::Publish { keeping, .. }) => keeping,
            action => panic!("{action:?}"),
        }
    };
    let interval = 2 * S;
    for (is_kept_briefly, status, retention, is_lasting) in [
        (false, StatusCode::OK, interval + retention, true),
        (
            false,
            StatusCode::NOT_FOUND,
            interval + retention.min(BRIEF_RETENTION),
            false,
        ),
        (true, StatusCode::OK, BRIEF_RETENTION, false),
        (true, StatusCode::NOT_FOUND, BRIEF_RETENTION, false),
    ] {
        let expected = Keeping {
            interval,
            retention,
            is_lasting,
        };
        assert_eq!(keeping(is_kept_briefly, status), expected, "{status}");
    }
}

#[test]
fn panic_of_the_application_ends_with_a_cooldown_and_a_release() {
    let process = Process::new();
    let stale = process.version(3 * S, Origin::Stored);
    for newest in [None, Some(stale)] {
        let mut state = process.publishing(newest.clone());
        let step = process.on(&mut state, Input::Panicked);
        assert!(
            matches!(step.action, Some(Action::Release { cooldown, removes: false }) if cooldown == S),
            "{step:?}"
        );
        match (newest, step.entry) {
            (None, Some(CacheEntry::Cooldown { until, .. })) => assert_eq!(until, process.now + S),
            (Some(_), Some(CacheEntry::Version(version))) => {
                assert_eq!(version.recheck_at, process.now + S);
            }
            (_, entry) => panic!("{entry:?}"),
        }
        assert!(state.is_releasing());
        let step = process.on(&mut state, Input::Released);
        assert!(matches!(step.action, Some(Action::End)), "{step:?}");
        let step = process.on(&mut state, Input::Panicked);
        assert!(step.action.is_none() && step.entry.is_none(), "{step:?}");
    }
}

#[test]
fn actions_that_wait_or_publish_need_no_permit() {
    let process = Process::new();
    let (mut state, _) = process.begun(None);
    assert!(state.has_permit);
    process.on(&mut state, found(None, held(9 * S)));
    assert!(!state.has_permit, "it waits for the peer");
    process.after_pause(&mut state, false);
    assert!(state.has_permit);
    let mut state = process.generating(None);
    assert!(state.has_permit);
    let content = Input::Generated(Generated::Content(text(1).page()));
    process.on(&mut state, content);
    assert!(!state.has_permit, "it publishes");
}

#[test]
fn regeneration_that_nobody_waits_for_ends_without_a_statement() {
    let mut process = Process::new();
    let (mut state, _) = process.begun(None);
    process.on(&mut state, found(None, held(9 * S)));
    let began = process.now;
    process.now = state.timer(&process.context()).expect("pauses");
    let step = process.on(&mut state, Input::TimerFired);
    assert!(
        matches!(step.action, Some(Action::AwaitVisitor { at_most }) if at_most == S),
        "{step:?}"
    );
    let ended = process.on(&mut state.clone(), Input::NobodyWaits);
    assert!(matches!(ended.action, Some(Action::End)), "{ended:?}");
    let step = process.on(&mut state, Input::VisitorWaits);
    let middle = began + (process.now - began) / 2;
    assert!(
        matches!(step.action, Some(Action::AskForPeerLease { since }) if since == middle),
        "{step:?}"
    );
}

/// While a regeneration is in the list of running ones, visitors get the old version, and do not
/// start another regeneration.
#[test]
fn regeneration_for_a_demand_alone_does_not_wait_for_visitors_who_never_wait() {
    let mut process = Process::new();
    process.list.marks.stale = Epoch(1);
    process.list.marks.latest = Epoch(1);
    let stale = process.version(S, Origin::Stored);
    let request = LeaderRequest {
        min_epoch: Epoch(1),
        ..LeaderRequest::default()
    };
    let entry = CacheEntry::Version(stale.into());
    let (mut state, _) = Regeneration::new(Some(entry), request, &process.context());
    process.start(&mut state);
    let step = process.on(&mut state, found(None, held(9 * S)));
    assert!(matches!(step.action, Some(Action::Sleep)), "{step:?}");
    let step = process.on(&mut state, Input::TimerFired);
    assert!(
        matches!(step.action, Some(Action::AwaitVisitor { at_most }) if at_most.is_zero()),
        "{step:?}"
    );
}

/// When a result is reported, the application's log may panic, before the machine's next action has
/// begun.
#[test]
fn panic_at_the_end_repeats_the_release_and_changes_no_result() {
    let process = Process::new();
    let private = Generated::NotStored(Bypass::Private, Tags::default());
    let failed = Generated::Failed(Failure::new("it failed"));
    let stale = process.version(3 * S, Origin::Stored);
    for (generated, cooldown, removes) in [(private, Duration::ZERO, true), (failed, S, false)] {
        let mut state = process.generating(Some(stale.clone()));
        let step = process.on(&mut state, Input::Generated(generated));
        assert!(step.entry.is_some() && step.conclusion.is_some());
        let step = process.on(&mut state, Input::Panicked);
        assert!(step.entry.is_none(), "{step:?}");
        assert!(
            matches!(step.action, Some(Action::Release { cooldown: it, removes: is }) if it == cooldown && is == removes),
            "{step:?}"
        );
    }
}
