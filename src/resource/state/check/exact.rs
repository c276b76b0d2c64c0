//! Decisions at exact times and in single situations. The exhaustive check forbids wrong answers;
//! these tests demand the right ones.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Tick,
    event::{Outcome, Skip},
    resource::{
        PassReason,
        state::{
            Answer, Basis, Command, Event, Facts, Found, Freshness, GenerationResult, Limits,
            Origin, Progress, Report, State, Step, Version, View, Visitor, Wait,
            check::{
                content::{ModelList, Text},
                setup::{POLICY, SECOND},
            },
        },
    },
    store::LockState,
};

const LIMITS: Limits = Limits {
    patience: Duration::from_millis(500),
    statement: Duration::from_secs(1),
    regenerates: true,
    closing: false,
};

const S: Duration = Duration::from_secs(1);

fn text(epoch: i64) -> Text {
    Text {
        read: epoch,
        basis: Basis { epoch, revision: 0 },
        early: false,
    }
}

/// A process with its clock and its invalidation list.
#[derive(Clone, Copy)]
struct Process {
    now: Tick,
    list: ModelList,
    limits: Limits,
}

impl Process {
    fn new() -> Self {
        Self {
            // Not zero: a time with the wrong sign would not be noticed.
            now: Tick(1000 * SECOND),
            list: ModelList::default(),
            limits: LIMITS,
        }
    }

    fn purged() -> Self {
        let mut process = Self::new();
        process.list.marks.purged = 1;
        process.list.marks.latest = 1;
        process
    }

    fn facts(&self) -> Facts<'_, Text> {
        Facts {
            now: self.now,
            key: "key",
            policy: &POLICY,
            list: &self.list,
            limits: self.limits,
        }
    }

    /// Returns a version of this age.
    fn version(&self, age: Duration, origin: Origin) -> Version<Text> {
        Version::new(text(0), 1, self.now - age, origin)
    }

    fn on(&self, state: &mut State<Text>, event: Event<Text>) -> Step<Text> {
        state.on(&self.facts(), event)
    }

    /// Returns a regeneration that has its permit, and the step after the permit.
    fn permitted(&self, newest: Option<Version<Text>>, begun: bool) -> (State<Text>, Step<Text>) {
        let mut state = State::new(newest, &self.facts());
        self.on(&mut state, Event::Begun);
        state.generator_has_begun(begun);
        self.on(&mut state, Event::Learned);
        let step = self.on(&mut state, Event::Permitted(true));
        (state, step)
    }

    /// Returns a regeneration whose generator runs under the lease with the fence 2.
    fn generating(&self, newest: Option<Version<Text>>) -> State<Text> {
        let (mut state, _) = self.permitted(newest, false);
        self.on(&mut state, found(None, LockState::default()));
        let step = self.on(&mut state, Event::Tried(Some(2)));
        assert!(matches!(step.command, Command::Generate { .. }), "{step:?}");
        state
    }

    /// Returns a regeneration that publishes.
    fn publishing(&self, newest: Option<Version<Text>>) -> State<Text> {
        let mut state = self.generating(newest);
        let other = Text { read: 7, ..text(0) };
        let content = Event::Generated(GenerationResult::Content(other));
        let step = self.on(&mut state, content);
        assert!(matches!(step.command, Command::Publish { .. }), "{step:?}");
        state
    }
}

fn found(version: Option<Version<Text>>, lock: LockState) -> Event<Text> {
    Event::Probed(Found {
        version,
        lock,
        epoch: 0,
    })
}

fn held(remaining: Duration) -> LockState {
    LockState {
        fence: 1,
        owned: true,
        remaining,
    }
}

fn outcome(step: &Step<Text>) -> Option<Outcome> {
    match &step.report {
        Some(Report::Ended(ended)) => Some(ended.outcome),
        _ => None,
    }
}

fn done(step: &Step<Text>) -> &Answer<Text> {
    match &step.progress {
        Some(Progress::Done(answer)) => answer,
        progress => panic!("{progress:?}"),
    }
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
        assert_eq!(version.freshness(&process.facts()), expected, "{age:?}");
    }
    for (age, expected) in [(S - micro, Freshness::Fresh), (S, Freshness::Stale)] {
        let version = process.version(age, Origin::Unsaved);
        assert_eq!(version.freshness(&process.facts()), expected, "{age:?}");
    }
}

#[test]
fn stale_version_is_regenerated_by_a_closure_that_has_begun_in_the_same_epoch() {
    let process = Process::new();
    let stale = process.version(3 * S, Origin::Stored);
    let (mut state, _) = process.permitted(Some(stale), true);
    let step = process.on(&mut state, found(None, LockState::default()));
    assert!(matches!(step.command, Command::Try { .. }), "{step:?}");
    let mut newer = process.version(3 * S, Origin::Stored);
    newer.content = text(1);
    newer.fence = 2;
    let (mut state, _) = process.permitted(None, true);
    let step = process.on(&mut state, found(Some(newer), LockState::default()));
    assert!(
        matches!(step.command, Command::End),
        "it would be older: {step:?}"
    );
}

#[test]
fn process_without_regenerations_tries_nothing_for_a_servable_version() {
    let mut process = Process::new();
    process.limits.regenerates = false;
    for origin in [Origin::Stored, Origin::Published { latest: true }] {
        let stale = process.version(3 * S, origin);
        let (mut state, step) = process.permitted(Some(stale), false);
        assert!(matches!(step.command, Command::Probe { .. }), "{step:?}");
        let step = process.on(&mut state, found(None, LockState::default()));
        assert!(matches!(step.command, Command::End), "{step:?}");
        assert!(matches!(step.report, Some(Report::Skipped(Skip::Limit))));
    }
}

#[test]
fn failing_store_does_not_end_the_wait_for_another_process_before_its_lease_ends() {
    let mut process = Process::new();
    let (mut state, _) = process.permitted(None, false);
    let step = process.on(&mut state, found(None, held(S)));
    assert!(matches!(step.report, Some(Report::Waits(time)) if time == S));
    let began = process.now;
    loop {
        process.now = state.due(&process.facts()).expect("pauses");
        process.on(&mut state, Event::Due);
        process.on(&mut state, Event::Permitted(true));
        let step = process.on(&mut state, Event::Away);
        if process.now < began + S {
            assert!(matches!(step.command, Command::Pause), "{step:?}");
        } else {
            assert!(matches!(step.command, Command::Generate { .. }), "{step:?}");
            break;
        }
    }
    let (mut state, _) = process.permitted(None, false);
    process.on(&mut state, found(None, held(S)));
    process.now = state.due(&process.facts()).expect("pauses");
    process.on(&mut state, Event::Due);
    process.on(&mut state, Event::Permitted(true));
    let again = process.on(&mut state, found(None, held(S)));
    assert!(again.report.is_none(), "the wait is reported once");
}

#[test]
fn regeneration_without_visitors_leaves_after_six_pauses() {
    let mut process = Process::new();
    let (mut state, _) = process.permitted(None, false);
    let mut step = process.on(&mut state, found(None, held(10 * S)));
    for pause in 1..=6 {
        assert!(matches!(step.command, Command::Pause), "{pause}: {step:?}");
        process.now = state.due(&process.facts()).expect("pauses");
        step = process.on(&mut state, Event::LeftAlone);
    }
    assert!(matches!(step.command, Command::Leave), "{step:?}");
}

#[test]
fn expired_version_is_served_for_the_cooldown_after_a_failure_within_stale_if_error() {
    for (age, is_served) in [(5 * S, true), (6 * S, false)] {
        let mut process = Process::new();
        let expired = process.version(age, Origin::Stored);
        let mut state = process.generating(Some(expired));
        let step = process.on(&mut state, Event::Generated(GenerationResult::Failed(())));
        assert_eq!(outcome(&step), Some(Outcome::Failed));
        match done(&step) {
            Answer::Version(version) if is_served => {
                process.now = process.now + (S - Duration::from_micros(1));
                assert_eq!(version.freshness(&process.facts()), Freshness::Stale);
                process.now = process.now + Duration::from_micros(1);
                assert_eq!(version.freshness(&process.facts()), Freshness::Expired);
            }
            Answer::Failed(()) if !is_served => {}
            answer => panic!("{age:?}: {answer:?}"),
        }
    }
}

#[test]
fn hit_for_pass_lasts_until_its_end_or_an_invalidation() {
    let mut process = Process::new();
    let view = || View::<Text>::HitForPass {
        until: Tick(1001 * SECOND),
        why: PassReason::Private,
        metadata: Arc::new(Basis::default()),
    };
    let look = |process: &Process| view().look(&process.facts(), || false);
    assert!(matches!(
        look(&process),
        Ok(Answer::Pass(PassReason::Private))
    ));
    let mut invalidated = process;
    invalidated.list.marks.stale = 1;
    assert!(matches!(look(&invalidated), Err(false)));
    process.now = Tick(1001 * SECOND);
    assert!(matches!(look(&process), Err(false)));
    let stale = View::Version(process.version(3 * S, Origin::Stored).into());
    assert!(matches!(
        stale.clone().look(&process.facts(), || false),
        Err(true)
    ));
    assert!(matches!(
        stale.clone().look(&process.facts(), || true),
        Ok(Answer::Version(_))
    ));
    assert!(matches!(
        stale.look(&Process::purged().facts(), || true),
        Err(false)
    ));
}

#[test]
fn cooldown_lasts_until_its_end_or_a_purge() {
    let mut process = Process::new();
    let view = || View::<Text>::Cooldown {
        until: Tick(1001 * SECOND),
        metadata: Arc::new(Basis::default()),
    };
    let look = |process: &Process| view().look(&process.facts(), || false);
    assert!(matches!(look(&process), Ok(Answer::Unavailable { retry_in }) if retry_in == S));
    assert!(matches!(look(&Process::purged()), Err(false)));
    process.now = Tick(1001 * SECOND);
    assert!(matches!(look(&process), Err(false)));
}

/// Returns the wait of a visitor who arrived this long ago.
fn wait(process: &Process, progress: &Progress<Text>, leads: bool, ago: Duration) -> Wait<Text> {
    let visitor = Visitor {
        arrived: process.now - ago,
        leads,
    };
    progress.wait(visitor, &process.facts())
}

#[test]
fn waits_end_at_the_limits_of_the_policy() {
    let process = Process::new();
    let until = |wait: Wait<Text>| match wait {
        Wait::Until(until) if until.0 < i64::MAX => Some(until - process.now),
        Wait::Until(_) => None,
        wait => panic!("{wait:?}"),
    };
    for (progress, leads, limit) in [
        (Progress::First, false, Some(3 * S)),
        (Progress::First, true, None),
        (Progress::Elsewhere, false, Some(3 * S)),
        (Progress::Looking, false, Some(3 * S)),
        (Progress::Looking, true, Some(2 * S)),
    ] {
        let waits = until(wait(&process, &progress, leads, Duration::ZERO));
        assert_eq!(waits, limit, "{progress:?} {leads}");
        if let Some(limit) = limit {
            let ended = wait(&process, &progress, leads, limit);
            assert!(
                matches!(ended, Wait::Answer(Answer::Unavailable { .. })),
                "{ended:?}"
            );
        }
    }
    let stale = |age, begun| Progress::Stale {
        version: process.version(age, Origin::Stored).into(),
        begun,
    };
    let at_once = wait(&process, &stale(3 * S, true), false, Duration::ZERO);
    assert!(
        matches!(at_once, Wait::Answer(Answer::Version(_))),
        "{at_once:?}"
    );
    for (begun, soft) in [(true, S), (false, S / 2)] {
        let waits = until(wait(&process, &stale(3 * S, begun), true, Duration::ZERO));
        assert_eq!(waits, Some(soft));
        let ended = wait(&process, &stale(3 * S, begun), true, soft);
        assert!(
            matches!(ended, Wait::Answer(Answer::Version(_))),
            "{ended:?}"
        );
    }
    let expired = |leads| until(wait(&process, &stale(5 * S, true), leads, Duration::ZERO));
    assert_eq!((expired(true), expired(false)), (None, Some(3 * S)));
}

#[test]
fn purge_during_a_wait_ends_it_by_the_service_itself() {
    let process = Process::purged();
    let stale = |begun| Progress::Stale {
        version: process.version(3 * S, Origin::Stored).into(),
        begun,
    };
    let leads = |begun, ago| wait(&process, &stale(begun), true, ago);
    assert!(matches!(leads(true, Duration::ZERO), Wait::Until(until) if until == process.now + S));
    assert!(matches!(
        leads(true, S),
        Wait::Answer(Answer::Pass(PassReason::Purged))
    ));
    assert!(matches!(leads(false, S), Wait::Until(Tick(i64::MAX))));
    let done = Progress::Done(Answer::Version(process.version(S, Origin::Stored).into()));
    let pass = |leads, ago| wait(&process, &done, leads, ago);
    assert!(matches!(
        pass(true, Duration::ZERO),
        Wait::Answer(Answer::Pass(_))
    ));
    assert!(matches!(pass(false, Duration::ZERO), Wait::Restart(_)));
    assert!(matches!(pass(false, 3 * S), Wait::Answer(Answer::Pass(_))));
}

#[test]
fn expired_answer_is_for_the_visitors_who_waited_for_it() {
    let process = Process::new();
    let done = |origin| Progress::Done(Answer::Version(process.version(5 * S, origin).into()));
    let own = Origin::Published { latest: true };
    let is_version = |wait| matches!(wait, Wait::Answer(Answer::Version(_)));
    assert!(is_version(wait(
        &process,
        &done(Origin::Stored),
        true,
        Duration::ZERO
    )));
    assert!(is_version(wait(&process, &done(own), false, 6 * S)));
    let other = wait(&process, &done(Origin::Stored), false, Duration::ZERO);
    assert!(matches!(other, Wait::Restart(_)), "{other:?}");
    let late = wait(&process, &done(Origin::Stored), false, 3 * S);
    assert!(
        matches!(late, Wait::Answer(Answer::Unavailable { .. })),
        "{late:?}"
    );
}

#[test]
fn generator_with_a_servable_version_is_cancelled_when_its_lease_is_lost() {
    let process = Process::new();
    let first = process.generating(None);
    assert!(
        !first.gives_up_without_lease(),
        "its visitors have nothing else"
    );
    let mut state = process.generating(Some(process.version(3 * S, Origin::Stored)));
    assert!(state.gives_up_without_lease());
    let step = process.on(&mut state, Event::LeaseLost);
    assert_eq!(outcome(&step), Some(Outcome::LeaseLost));
    assert!(matches!(step.command, Command::Release { cooldown } if cooldown.is_zero()));
    assert!(matches!(done(&step), Answer::Version(_)));
}

#[test]
fn timeout_is_a_failure_with_its_own_outcome() {
    let mut process = Process::new();
    let mut state = process.generating(None);
    let due = state.due(&process.facts()).expect("has a timeout");
    assert_eq!(due, process.now + 2 * S);
    process.now = due;
    let step = process.on(&mut state, Event::Due);
    assert_eq!(outcome(&step), Some(Outcome::TimedOut));
    assert!(matches!(step.command, Command::Release { cooldown } if cooldown == S));
}

#[test]
fn new_version_is_served_unsaved_when_the_patience_ends_and_its_publish_is_repeated() {
    let mut process = Process::new();
    let mut state = process.publishing(None);
    let born = process.now;
    assert_eq!(state.due(&process.facts()), Some(born + S / 2));
    process.now = born + S / 2;
    let step = process.on(&mut state, Event::Due);
    assert!(matches!(done(&step), Answer::Version(version) if version.is_unsaved()));
    assert!(
        matches!(step.command, Command::Continue),
        "the publish still runs"
    );
    let mut pauses = Vec::new();
    loop {
        let step = process.on(&mut state, Event::Away);
        if !matches!(step.command, Command::Pause) {
            assert!(matches!(step.command, Command::Release { .. }), "{step:?}");
            assert_eq!(outcome(&step), Some(Outcome::Unsaved));
            break;
        }
        let due = state.due(&process.facts()).expect("pauses");
        pauses.push((due - process.now).as_millis());
        process.now = due;
        let step = process.on(&mut state, Event::Due);
        assert!(matches!(step.command, Command::Publish { .. }), "{step:?}");
    }
    // For the length of a lease, 2 s. The unsaved version is then stale, and still servable.
    assert_eq!(pauses, [100, 200, 400, 800, 1000]);
}

#[test]
fn response_that_is_not_stored_bypasses_for_the_interval_or_the_cooldown() {
    let process = Process::new();
    let end = |newest: Option<Version<Text>>, result| {
        let mut state = process.generating(newest);
        process.on(&mut state, Event::Generated(result))
    };
    let unshareable = |why| GenerationResult::Unshareable {
        why,
        metadata: Arc::new(Basis::default()),
    };
    for (why, time) in [(PassReason::Private, 2 * S), (PassReason::Status, S)] {
        let step = end(None, unshareable(why));
        assert!(
            matches!(step.view, Some(View::HitForPass { until, why: it, .. }) if until == process.now + time && it == why),
            "{step:?}"
        );
        assert!(matches!(step.command, Command::Remove));
    }
    let step = end(None, GenerationResult::TooLarge);
    assert!(matches!(
        step.view,
        Some(View::HitForPass {
            why: PassReason::TooLarge,
            ..
        })
    ));
    assert!(matches!(step.command, Command::Release { cooldown } if cooldown.is_zero()));
    let stale = process.version(3 * S, Origin::Stored);
    let step = end(Some(stale), GenerationResult::TooLarge);
    assert!(
        matches!(&step.view, Some(View::Version(version)) if version.quiet_until == process.now + S)
    );
    assert!(matches!(done(&step), Answer::Version(_)));
    assert!(matches!(step.command, Command::Release { cooldown } if cooldown == S));
}

#[test]
fn version_that_was_purged_while_it_was_published_answers_nobody() {
    let mut process = Process::new();
    let mut state = process.publishing(None);
    process.list.marks.purged = 1;
    process.list.marks.latest = 1;
    let step = process.on(&mut state, Event::Published(true));
    assert!(
        matches!(done(&step), Answer::Pass(PassReason::Purged)),
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
        (Origin::Published { latest: true }, 6 * S, true),
        (Origin::Stored, 6 * S, false),
    ] {
        let is_made = version(origin).is_made_since(arrived(ago));
        assert_eq!(is_made, expected, "{origin:?}, {ago:?}");
    }
}

#[test]
fn visitors_get_a_servable_version_after_a_panic_of_the_regeneration() {
    let process = Process::new();
    let lost = |age| {
        let progress = Progress::Stale {
            version: Arc::new(process.version(age, Origin::Stored)),
            begun: false,
        };
        progress.lost(&process.facts())
    };
    assert!(matches!(lost(3 * S), Answer::Version(_)));
    let unavailable =
        |answer: &_| matches!(answer, Answer::Unavailable { retry_in } if *retry_in == S);
    assert!(unavailable(&lost(5 * S)));
    assert!(unavailable(&Progress::First.lost(&process.facts())));
    let known = Progress::Done(Answer::Pass(PassReason::TooLarge));
    let answer = known.lost(&process.facts());
    assert!(matches!(answer, Answer::Pass(PassReason::TooLarge)));
}

#[test]
fn published_version_replaces_an_older_one_unless_that_was_purged() {
    let replaces = |process: &Process, newest| {
        let mut state = process.generating(newest);
        let content = Event::Generated(GenerationResult::Content(text(1)));
        match process.on(&mut state, content).command {
            Command::Publish { version } => version.replaces,
            command => panic!("{command:?}"),
        }
    };
    let process = Process::new();
    let stale = process.version(3 * S, Origin::Stored);
    assert!(!replaces(&process, None));
    assert!(replaces(&process, Some(stale.clone())));
    assert!(!replaces(&Process::purged(), Some(stale)));
}
