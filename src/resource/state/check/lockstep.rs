//! The lockstep with the machine before this one (`before.rs`): both get each event of the search,
//! and have to decide the same.
//!
//! Intended differences:
//! - `Event::LeaseLost` is gone: a generator whose lease is lost runs to its end, and the fence
//!   refuses its publish. The policy's timeout bounds it.
//! - `Event::LeftAlone` is gone: the task ends a flight for which no visitor waits, without a
//!   decision about the resource.
//! - `Visitor::has_placeholder` is gone: such a visitor does not lead, and has a policy that waits for
//!   no first version. A follower waits for a silent store for the site's patience, and no longer for
//!   the limit of a statement.
//! - `Limits::regenerates` is gone: to open a site that may run no regeneration is an error.

use std::{sync::Arc, time::Duration};

use crate::{
    event::Bypass,
    resource::{
        Failure,
        state::{
            Answer, AsOf, Effect, Ended, Event, Facts, Flight, Generated, Known, Next, Phase,
            Shown, Step, Version, Visitor,
            before::{self, Publishing},
            check::content::{Read, meta},
        },
    },
    search::Broken,
};

/// The machine before, and what its visitors see.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) flight: before::Flight<Read>,
    pub(super) shown: before::Shown<Read>,
    /// The last publish renews.
    renews: bool,
}

impl Before {
    /// Begins as the other machine has begun, whose visitors see `shown`.
    pub(super) fn new(
        view: Option<Known<Read>>,
        facts: &Facts<'_>,
        shown: &Shown<Read>,
    ) -> Result<Self, Broken> {
        let mut flight = before::Flight::new(view, facts);
        let effect = flight.on(facts, before::Event::Begun);
        let before = Self {
            flight,
            shown: effect.progress.unwrap_or(before::Shown::Looking),
            renews: false,
        };
        match same_shown(&before.shown, shown) {
            true => Ok(before),
            false => Err("lockstep: what the first visitor sees differs"),
        }
    }

    /// Passes the event to the machine before.
    pub(super) fn on(&mut self, facts: &Facts<'_>, event: &Event<Read>) -> Decided {
        let as_of = match self.flight.phase {
            before::Phase::Generating { as_of, .. } => as_of,
            _ => AsOf::default(),
        };
        let event = old_event(event, self.renews, as_of);
        let mut effect = self.flight.on(facts, event);
        // Today the facts have the permit.
        if matches!(effect.command, before::Step::Permit) {
            let permitted = before::Event::Permitted(facts.permit);
            effect = self.flight.on(facts, permitted);
        }
        // Today the release removes the version first.
        let removes = matches!(effect.command, before::Step::Remove);
        if removes {
            effect.command = self.flight.on(facts, before::Event::Removed).command;
        }
        match effect.command {
            before::Step::Renew { .. } => self.renews = true,
            before::Step::Publish { .. } => self.renews = false,
            _ => {}
        }
        if let Some(shown) = &effect.progress {
            self.shown = shown.clone();
        }
        Decided { effect, removes }
    }

    /// Compares the effects of the same event, and the states after it.
    pub(super) fn agrees(
        &self,
        before: &Decided,
        effect: &Effect<Read>,
        flight: &Flight<Read>,
        facts: &Facts<'_>,
    ) -> Result<(), Broken> {
        let Decided {
            effect: before,
            removes,
        } = before;
        if !same_step(&before.command, *removes, effect.next.as_ref()) {
            return Err("lockstep: the next steps differ");
        }
        if !same(before.view.as_ref(), effect.known.as_ref(), same_known) {
            return Err("lockstep: the contents of memory differ");
        }
        if !same(before.progress.as_ref(), effect.shown.as_ref(), same_shown) {
            return Err("lockstep: what visitors see differs");
        }
        // The task logs the begin of a wait.
        let report = before.report.as_ref();
        let report = report.filter(|report| !matches!(report, before::Report::Waits(_)));
        if !same(report, effect.ended.as_ref(), same_ended) {
            return Err("lockstep: the ends differ");
        }
        let old = &self.flight;
        if old.due(facts) != flight.due(facts) {
            return Err("lockstep: the deadlines differ");
        }
        let [before, now] = [&old.cooldown, &flight.cooldown]
            .map(|it| it.as_ref().map(|(until, meta)| (*until, meta.as_of())));
        if !same(old.newest.as_ref(), flight.newest.as_ref(), same_version)
            || old.failures != flight.failures
            || old.polls != flight.polls
            || old.held_until != flight.held_until
            || before != now
            || !same_phase(&old.phase, &flight.phase)
        {
            return Err("lockstep: the states differ");
        }
        Ok(())
    }

    /// Compares the waits of a visitor.
    pub(super) fn waits(
        &self,
        visitor: Visitor,
        facts: &Facts<'_>,
        next: &Next<Read>,
    ) -> Result<(), Broken> {
        let before = before::Visitor {
            arrived: visitor.arrived,
            leads: visitor.leads,
            has_placeholder: false,
        };
        let is_same = match (self.shown.wait(before, facts), next) {
            (before::Next::Answer(before), Next::Answer(answer)) => same_answer(&before, answer),
            (before::Next::Until(before), Next::Until(until))
            | (before::Next::Restart(before), Next::Restart(until)) => before == *until,
            _ => false,
        };
        match is_same {
            true => Ok(()),
            false => Err("lockstep: a visitor's wait differs"),
        }
    }

    /// Compares the answers after the end without an answer.
    pub(super) fn loses(&self, facts: &Facts<'_>, answer: &Answer<Read>) -> Result<(), Broken> {
        match same_answer(&self.shown.clone().lost(facts), answer) {
            true => Ok(()),
            false => Err("lockstep: the answers differ"),
        }
    }
}

/// The effect of an event on the machine before. `removes`: with the removal of the version.
pub(super) struct Decided {
    effect: before::Effect<Read>,
    removes: bool,
}

/// Returns the event in the words of the machine before.
fn old_event(event: &Event<Read>, renews: bool, as_of: AsOf) -> before::Event<Read> {
    match event {
        Event::Published(done) if renews => before::Event::Renewed(*done),
        Event::Begun => before::Event::Learned,
        Event::Probed(found) => before::Event::Probed(found.clone()),
        Event::Acquired(fence) => before::Event::Tried(*fence),
        Event::Generated(generated) => before::Event::Generated(match generated {
            Generated::Content(page) => before::GenerationResult::Content(page.clone()),
            Generated::NotStored(Bypass::TooLarge, _) => before::GenerationResult::TooLarge,
            Generated::NotStored(why, _) => before::GenerationResult::Unshareable {
                why: *why,
                metadata: meta(as_of).into(),
            },
            Generated::Failed(failure) => before::GenerationResult::Failed(failure.clone()),
        }),
        Event::Published(done) => before::Event::Published(*done),
        Event::Released => before::Event::Released,
        Event::Away => before::Event::Away,
        Event::Due => before::Event::Due,
    }
}

fn same<A, B>(before: Option<&A>, now: Option<&B>, same: impl Fn(&A, &B) -> bool) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => same(before, now),
        (None, None) => true,
        _ => false,
    }
}

fn same_step(before: &before::Step<Read>, removes: bool, now: Option<&Step<Read>>) -> bool {
    let Some(now) = now else {
        return matches!(before, before::Step::Continue);
    };
    match (before, now) {
        (before::Step::Pause, Step::Wait) | (before::Step::End, Step::End) => true,
        (before::Step::Probe { known: a }, Step::Probe { known: b })
        | (before::Step::Try { seen: a }, Step::Acquire { seen: b }) => a == b,
        (before::Step::Generate { as_of: a }, Step::Generate { as_of: b }) => a == b,
        (
            before::Step::Renew {
                version: a,
                known: x,
            },
            Step::Publish {
                version: b,
                renews: Some(y),
            },
        ) => same_version(a, b) && x == y,
        (
            before::Step::Publish { version: a },
            Step::Publish {
                version: b,
                renews: None,
            },
        ) => same_version(a, b),
        (
            before::Step::Release { cooldown: a },
            Step::Release {
                cooldown: b,
                removes: c,
            },
        ) => a == b && removes == *c,
        _ => false,
    }
}

fn same_known(before: &Known<Read>, now: &Known<Read>) -> bool {
    match (before, now) {
        (Known::Version(a), Known::Version(b)) => same_version(a, b),
        (
            Known::HitForPass {
                until: a,
                why: x,
                meta: m,
            },
            Known::HitForPass {
                until: b,
                why: y,
                meta: n,
            },
        ) => (a, x, m.as_of()) == (b, y, n.as_of()),
        (
            Known::Cooldown {
                until: a,
                ask_again_at: x,
                failures: f,
                meta: m,
            },
            Known::Cooldown {
                until: b,
                ask_again_at: y,
                failures: g,
                meta: n,
            },
        ) => (a, x, f, m.as_of()) == (b, y, g, n.as_of()),
        _ => false,
    }
}

fn same_shown(before: &before::Shown<Read>, now: &Shown<Read>) -> bool {
    match (before, now) {
        (before::Shown::Looking, Shown::Looking)
        | (before::Shown::First, Shown::First)
        | (before::Shown::Elsewhere, Shown::Elsewhere) => true,
        (
            before::Shown::Stale {
                version: a,
                begun: x,
            },
            Shown::Stale {
                version: b,
                begun: y,
            },
        ) => same_version(a, b) && x == y,
        (before::Shown::Done(a), Shown::Done(b)) => same_answer(a, b),
        _ => false,
    }
}

fn same_answer(before: &Answer<Read>, now: &Answer<Read>) -> bool {
    match (before, now) {
        (Answer::Version(a), Answer::Version(b)) => same_version(a, b),
        (Answer::Pass(a), Answer::Pass(b)) => a == b,
        (Answer::Failed(a), Answer::Failed(b)) => same_failure(a, b),
        (Answer::Unavailable { retry_in: a }, Answer::Unavailable { retry_in: b }) => a == b,
        _ => false,
    }
}

fn same_ended(before: &before::Report, now: &Ended) -> bool {
    let failure = now.failure.as_ref();
    let is_same = (now.outcome, now.serves_old, now.cooldown);
    match before {
        before::Report::Waits(_) => false,
        before::Report::NotBegun(outcome) => {
            failure.is_none() && is_same == (*outcome, false, Duration::ZERO)
        }
        before::Report::Ended(ended) => {
            same(ended.failure.as_ref(), failure, same_failure)
                && is_same == (ended.outcome, ended.serves_old, ended.cooldown)
        }
    }
}

fn same_failure(before: &Failure, now: &Failure) -> bool {
    before.retry_in == now.retry_in && before.error.to_string() == now.error.to_string()
}

/// Both machines get the same content by the same pointer.
fn same_version(before: &Version<Read>, now: &Version<Read>) -> bool {
    let rest = |version: &Version<Read>| {
        let flags = (version.origin, version.undated, version.replaces);
        let times = (version.ask_again_at, version.error_grace_until);
        (version.fence, version.born, flags, times)
    };
    Arc::ptr_eq(&before.page, &now.page) && rest(before) == rest(now)
}

fn same_phase(before: &before::Phase<Read>, now: &Phase<Read>) -> bool {
    use before::Phase as Old;
    match (before, now) {
        (Old::Learning | Old::Over, Phase::Idle)
        | (Old::Probing, Phase::Looking { overtaken: None })
        | (Old::Releasing, Phase::Releasing) => true,
        (Old::Trying { epoch_seen: a }, Phase::Acquiring { probed: b }) => a == b,
        (Old::Pausing { until: a }, Phase::Waiting { until: b }) => a == b,
        (
            Old::Generating {
                lease: a,
                as_of: x,
                until: t,
                gives_up: _,
            },
            Phase::Generating {
                lease: b,
                as_of: y,
                until: u,
            },
        ) => (a, x, t) == (b, y, u),
        (Old::Publishing(a), Phase::Publishing(b)) => {
            let Publishing {
                new,
                tries,
                shown,
                again,
            } = a;
            same_version(new, &b.new) && (tries, shown, again) == (&b.tries, &b.shown, &b.again)
        }
        (Old::Overtaken(a), Phase::Looking { overtaken: Some(b) }) => same_version(a, b),
        _ => false,
    }
}

/// Changes each time of a state of the machine before.
pub(super) fn of_before(
    before: &mut Before,
    change: &impl Fn(&mut crate::clock::Tick),
    of_version: &impl Fn(&mut Version<Read>),
) {
    let Before { flight, shown, .. } = before;
    flight.newest.iter_mut().for_each(of_version);
    change(&mut flight.held_until);
    if let Some((until, _)) = &mut flight.cooldown {
        change(until);
    }
    match &mut flight.phase {
        before::Phase::Pausing { until } | before::Phase::Generating { until, .. } => change(until),
        before::Phase::Publishing(Publishing { new, again, .. }) => {
            of_version(new);
            again.iter_mut().for_each(change);
        }
        before::Phase::Overtaken(new) => of_version(new),
        _ => {}
    }
    match shown {
        before::Shown::Stale { version, .. } | before::Shown::Done(Answer::Version(version)) => {
            of_version(Arc::make_mut(version));
        }
        _ => {}
    }
}
