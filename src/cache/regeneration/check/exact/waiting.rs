//! The waits of visitors for a regeneration.

use super::*;

/// Returns what a visitor who arrived this long ago does next.
fn wait(process: &Process, progress: &Progress<Read>, leads: bool, ago: Duration) -> Next<Read> {
    let visitor = Visitor {
        leads,
        ..Visitor::arriving_at(process.now - ago)
    };
    progress.wait(&visitor, &process.context())
}

#[test]
fn waits_end_at_the_limits_of_the_policy() {
    let process = Process::new();
    let until = |wait: Next<Read>| match wait {
        Next::Until(until) if until.0 < i64::MAX => Some(until - process.now),
        Next::Until(_) => None,
        wait => panic!("{wait:?}"),
    };
    for (progress, leads, limit) in [
        (Progress::GeneratingFirst, false, Some(3 * S)),
        (Progress::GeneratingFirst, true, None),
        (Progress::HeldByPeer, false, Some(3 * S)),
        (Progress::Probing, false, Some(3 * S)),
        (Progress::Probing, true, Some(2 * S)),
    ] {
        let waits = until(wait(&process, &progress, leads, Duration::ZERO));
        assert_eq!(waits, limit, "{progress:?} {leads}");
        if let Some(limit) = limit {
            let ended = wait(&process, &progress, leads, limit);
            assert!(
                matches!(ended, Next::Answer(Answer::Unavailable { .. })),
                "{ended:?}"
            );
        }
    }
    let stale = |age, generating| Progress::Stale {
        version: process.version(age, Origin::Stored).into(),
        generating,
    };
    let at_once = wait(&process, &stale(3 * S, true), false, Duration::ZERO);
    assert!(
        matches!(at_once, Next::Answer(Answer::Version(_))),
        "{at_once:?}"
    );
    for (begun, soft) in [(true, S), (false, S / 2)] {
        let waits = until(wait(&process, &stale(3 * S, begun), true, Duration::ZERO));
        assert_eq!(waits, Some(soft));
        let ended = wait(&process, &stale(3 * S, begun), true, soft);
        assert!(
            matches!(ended, Next::Answer(Answer::Version(_))),
            "{ended:?}"
        );
    }
    // A leader that has a placeholder waits for the store alone. Only a version that it may serve
    // ends this wait earlier.
    let with_placeholder = |progress: &Progress<Read>| {
        let visitor = Visitor {
            leads: true,
            has_placeholder: true,
            ..Visitor::arriving_at(process.now)
        };
        until(progress.wait(&visitor, &process.context()))
    };
    assert_eq!(with_placeholder(&stale(3 * S, true)), Some(S));
    assert_eq!(with_placeholder(&stale(5 * S, true)), Some(3 * S));
    assert_eq!(with_placeholder(&Progress::GeneratingFirst), Some(3 * S));
    let expired = |leads| until(wait(&process, &stale(5 * S, true), leads, Duration::ZERO));
    assert_eq!((expired(true), expired(false)), (None, Some(3 * S)));
}

/// The author of a change accepts only a version that is newer than the change, and waits for it no longer than
/// `follower_wait`.
#[test]
fn author_gets_the_old_version_when_the_wait_is_over() {
    let mut process = Process::new();
    process.list.marks.stale = Epoch(1);
    process.list.marks.latest = Epoch(1);
    for (leads, generating) in [(false, true), (false, false), (true, false)] {
        let stale = Progress::Stale {
            version: process.version(S, Origin::Stored).into(),
            generating,
        };
        let wait = |ago| {
            let visitor = Visitor {
                leads,
                min_epoch: Epoch::MAX,
                ..Visitor::arriving_at(process.now - ago)
            };
            stale.wait(&visitor, &process.context())
        };
        let waits = wait(Duration::ZERO);
        assert!(
            matches!(waits, Next::Until(until) if until == process.now + 3 * S),
            "{waits:?}"
        );
        let ended = wait(3 * S);
        assert!(
            matches!(ended, Next::Answer(Answer::Version(_))),
            "{ended:?}"
        );
    }
}

#[test]
fn purge_during_a_wait_ends_it_for_the_leader_alone() {
    let process = Process::purged();
    let stale = |generating| Progress::Stale {
        version: process.version(3 * S, Origin::Stored).into(),
        generating,
    };
    let leads = |begun, ago| wait(&process, &stale(begun), true, ago);
    assert!(matches!(leads(true, Duration::ZERO), Next::Until(until) if until == process.now + S));
    assert!(matches!(
        leads(true, S),
        Next::Answer(Answer::Pass(Bypass::Purged))
    ));
    assert!(matches!(leads(false, S), Next::Until(Tick(i64::MAX))));
    let done = Progress::Done(Answer::Version(process.version(S, Origin::Stored).into()));
    let pass = |leads, ago| wait(&process, &done, leads, ago);
    assert!(matches!(
        pass(true, Duration::ZERO),
        Next::Answer(Answer::Pass(_))
    ));
    assert!(matches!(pass(false, Duration::ZERO), Next::Restart(_)));
    assert!(matches!(
        pass(false, 3 * S),
        Next::Answer(Answer::Unavailable { .. })
    ));
}

#[test]
fn expired_answer_is_for_the_visitors_who_waited_for_it() {
    let process = Process::new();
    let done = |origin| Progress::Done(Answer::Version(process.version(5 * S, origin).into()));
    let own = Origin::Published {
        lock_untouched: true,
    };
    let is_version = |wait| matches!(wait, Next::Answer(Answer::Version(_)));
    assert!(is_version(wait(
        &process,
        &done(Origin::Stored),
        true,
        Duration::ZERO
    )));
    assert!(is_version(wait(&process, &done(own), false, 6 * S)));
    let other = wait(&process, &done(Origin::Stored), false, Duration::ZERO);
    assert!(matches!(other, Next::Restart(_)), "{other:?}");
    let late = wait(&process, &done(Origin::Stored), false, 3 * S);
    assert!(
        matches!(late, Next::Answer(Answer::Unavailable { .. })),
        "{late:?}"
    );
}

#[test]
fn visitors_get_a_servable_version_after_a_panic_of_the_regeneration() {
    let process = Process::new();
    let lost = |age| {
        let progress = Progress::Stale {
            version: Arc::new(process.version(age, Origin::Stored)),
            generating: false,
        };
        progress.answer_after_panic(&process.context())
    };
    assert!(matches!(lost(3 * S), Answer::Version(_)));
    let unavailable =
        |answer: &_| matches!(answer, Answer::Unavailable { retry_in } if *retry_in == S);
    assert!(unavailable(&lost(5 * S)));
    assert!(unavailable(
        &Progress::GeneratingFirst.answer_after_panic(&process.context())
    ));
    let known = Progress::<Read>::Done(Answer::Pass(Bypass::TooLarge));
    let answer = known.answer_after_panic(&process.context());
    assert!(matches!(answer, Answer::Pass(Bypass::TooLarge)));
}

/// A generator that began before a change does not answer the author of the change, nor anybody who
/// demanded a regeneration after it.
#[test]
fn version_from_before_an_epoch_is_given_to_nobody_who_has_to_see_that_epoch() {
    let mut process = Process::new();
    process.list.marks.stale = Epoch(1);
    process.list.marks.latest = Epoch(1);
    let origin = Origin::Published {
        lock_untouched: true,
    };
    let version = |epoch| Version {
        page: text(epoch).page(),
        ..process.version(Duration::ZERO, origin)
    };
    let wait = |epoch, leads, ago: Duration| {
        let visitor = Visitor {
            leads,
            min_epoch: Epoch(1),
            known_epoch: Epoch(1),
            ..Visitor::arriving_at(process.now - ago)
        };
        let done = Progress::Done(Answer::Version(version(epoch).into()));
        done.wait(&visitor, &process.context())
    };
    let older = wait(0, false, S);
    assert!(matches!(older, Next::Restart(_)), "{older:?}");
    let late = wait(0, false, 3 * S);
    assert!(
        matches!(late, Next::Answer(Answer::Version(_))),
        "what other visitors get: {late:?}"
    );
    let newer = wait(1, false, S);
    assert!(
        matches!(newer, Next::Answer(Answer::Version(_))),
        "{newer:?}"
    );
    let leader = wait(0, true, S);
    assert!(
        matches!(leader, Next::Answer(Answer::Version(_))),
        "the decision of its own regeneration: {leader:?}"
    );
}

/// A generator that asks for a part of its page accepts no invalidated version. An author may know of a
/// change that has no epoch yet. Both accept a version whose generator began after their request arrived.
/// Otherwise they would wait for as long as there are invalidations.
#[test]
fn version_that_began_after_the_arrival_answers_a_visitor_who_accepts_no_invalidated_one() {
    let mut process = Process::new();
    process.list.marks.stale = Epoch(9);
    process.list.marks.latest = Epoch(9);
    let published = Origin::Published {
        lock_untouched: true,
    };
    let arrived = process.now - S;
    let micro = Duration::from_micros(1);
    for (origin, began, epoch, is_answer) in [
        (published, arrived, 5, false),
        (published, arrived + micro, 5, true),
        (Origin::Stored, Tick(i64::MIN), 5, false),
        (Origin::Stored, Tick(i64::MIN), 6, true),
    ] {
        let version = Version {
            page: text(epoch).page(),
            began,
            ..process.version(Duration::ZERO, origin)
        };
        let visitor = Visitor {
            min_epoch: Epoch::MAX,
            known_epoch: Epoch(5),
            ..Visitor::arriving_at(arrived)
        };
        let done = Progress::Done(Answer::Version(version.into()));
        match done.wait(&visitor, &process.context()) {
            Next::Answer(Answer::Version(_)) if is_answer => {}
            Next::Restart(_) if !is_answer => {}
            next => panic!("{origin:?} {epoch}: {next:?}"),
        }
    }
}

/// A regeneration that began before the demand may fail, or be in a cooldown.
#[test]
fn failure_of_an_earlier_regeneration_is_no_answer_to_a_demand() {
    let process = Process::new();
    let done = Progress::<Read>::Done(Answer::Unavailable { retry_in: S });
    for (demands, leads, ago, restarts) in [
        (true, false, S, true),
        (true, false, 3 * S, false),
        (true, true, S, false),
        (false, false, S, false),
    ] {
        let visitor = Visitor {
            demands,
            leads,
            ..Visitor::arriving_at(process.now - ago)
        };
        let next = done.wait(&visitor, &process.context());
        assert_eq!(matches!(next, Next::Restart(_)), restarts, "{next:?}");
    }
}

#[test]
fn visitors_begin_anew_when_the_regeneration_that_they_joined_is_withdrawn() {
    let process = Process::new();
    let withdrawn = |ago| wait(&process, &Progress::Withdrawn, false, ago);
    assert!(matches!(withdrawn(S), Next::Restart(_)));
    assert!(matches!(
        withdrawn(3 * S),
        Next::Answer(Answer::Unavailable { .. })
    ));
}
