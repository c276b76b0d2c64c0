//! The visitors of a process, and the properties of the answers.

use std::time::Duration;

use crate::{
    clock::Tick,
    event::Bypass,
    page::flight::{
        Answer, Facts, Freshness, Known, Lookup, Next, Origin, Phase, Shown, Verdicts, Version,
        Visitor,
        check::{
            content::{Marks, Read, Text},
            process::{Around, Process, Run, Waiting},
            setup::{IF_ERROR, Mutant, NOW, POLICY, Setup},
        },
    },
    search::Broken,
};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Ordinary,
    /// There is no permit for a regeneration.
    WithoutPermit,
}

impl Process {
    /// A request comes.
    pub(super) fn ask(&mut self, request: Request, around: &mut Around<'_>) -> Result<(), Broken> {
        let is_busy = self.closing || self.run.is_some() || self.is_held();
        let answer = match self.view.clone() {
            Some(view) => view.look(&self.facts(around.setup), || is_busy),
            None => Lookup::Miss,
        };
        // A version that was generated at this instant of the model counts as older than the
        // visitor.
        let is_new = |version: &Version<Read>| version.born == NOW;
        let seen = self.run.as_ref().and_then(Run::version);
        let visitor = Visitor {
            arrived: Tick(i64::from(seen.is_some_and(is_new))),
            leads: false,
        };
        if let Some(Known::HitForPass { until, .. }) = &self.view
            && *until > NOW
            && !matches!(answer, Lookup::Hit(_))
        {
            around.seen.push("hit-for-pass is ended by an invalidation");
        }
        match answer {
            Lookup::Hit(answer) => {
                self.is_regenerated(&answer, around)?;
                self.answered(&answer, None, around)
            }
            Lookup::Stale | Lookup::Purged | Lookup::Miss => self.join(visitor, request, around),
        }
    }

    /// Tests that an answer that is not fresh comes with a regeneration, or a reason why there is
    /// none.
    fn is_regenerated(&self, answer: &Answer<Read>, around: &Around<'_>) -> Result<(), Broken> {
        let facts = self.facts(around.setup);
        let Answer::Version(version) = answer else {
            return Ok(());
        };
        let is_under_way = self.run.as_ref().is_some_and(|run| !run.state.is_over());
        let has_reason = facts.now < version.ask_again_at || self.closing || self.is_held();
        if version.freshness(&facts) == Freshness::Fresh || is_under_way || has_reason {
            Ok(())
        } else {
            Err("S23: a version that is not fresh is served only while the next one is under way")
        }
    }

    /// Joins the running regeneration, or starts one.
    fn join(
        &mut self,
        visitor: Visitor,
        request: Request,
        around: &mut Around<'_>,
    ) -> Result<(), Broken> {
        if self.run.is_some() {
            self.waiting[1] = Some(Waiting {
                visitor,
                anew: false,
                slept: false,
            });
            return self.serve(around);
        }
        if let Some(view) = self.view.clone()
            && let Lookup::Hit(answer) = view.look(&self.facts(around.setup), || self.is_held())
        {
            return self.answered(&answer, None, around);
        }
        if self.closing {
            return Ok(());
        }
        self.start(visitor, request != Request::WithoutPermit, around)
    }

    /// Lets the waiting visitors look at the progress.
    pub(super) fn serve(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        for place in 0..self.waiting.len() {
            let (Some(waiting), Some(run)) = (self.waiting[place], &self.run) else {
                continue;
            };
            let facts = self.facts(around.setup);
            let is_late = NOW >= waiting.visitor.arrived + POLICY.first_wait;
            if waiting.anew && !is_late {
                continue;
            }
            let is_waiting = matches!(run.state.phase, Phase::Waiting { .. });
            let progress = match (&run.progress, around.setup.mutant) {
                (Shown::Passing(_), Some(Mutant::FollowersWaitForTheProbe)) => &Shown::First,
                (Shown::Done(Answer::Pass(_)), Some(Mutant::LeadersWaitForThePeersProbe))
                    if is_waiting =>
                {
                    &Shown::Elsewhere
                }
                (progress, _) => progress,
            };
            let wait = match progress.wait(waiting.visitor, &facts) {
                Next::Restart(_) if around.setup.mutant == Some(Mutant::EachGeneratesAlone) => {
                    Next::Answer(Answer::Pass(Bypass::Purged))
                }
                wait => wait,
            };
            match wait {
                Next::Answer(answer) => {
                    self.waiting[place] = None;
                    self.answered(&answer, Some(waiting.visitor), around)?;
                }
                Next::Restart(_) => {
                    self.waiting[place] = Some(Waiting {
                        anew: true,
                        ..waiting
                    });
                }
                Next::Until(until) if until <= NOW => {
                    return Err("S13: a visitor waits for the past");
                }
                Next::Until(_) => {}
            }
        }
        Ok(())
    }

    /// Handles the end of the regeneration that the visitor watched.
    pub(super) fn leave_ended(
        &mut self,
        run: &Run,
        waiting: Waiting,
        around: &mut Around<'_>,
    ) -> Result<(), Broken> {
        let facts = self.facts(around.setup);
        let wait = run.progress.wait(waiting.visitor, &facts);
        match wait {
            Next::Answer(answer) if !waiting.anew => {
                self.answered(&answer, Some(waiting.visitor), around)
            }
            Next::Until(_) if !waiting.anew => {
                around.seen.push("regeneration ends without an answer");
                let answer = run.progress.clone().lost(&facts);
                self.answered(&answer, Some(waiting.visitor), around)
            }
            _ => {
                around.seen.push("visitor begins anew");
                self.join(waiting.visitor, Request::Ordinary, around)
            }
        }
    }

    /// Tests the visitor's answer.
    fn answered(
        &self,
        answer: &Answer<Read>,
        visitor: Option<Visitor>,
        around: &mut Around<'_>,
    ) -> Result<(), Broken> {
        around.seen.push(super::names::answer(answer));
        let facts = self.facts(around.setup);
        match answer {
            Answer::Version(version) => {
                if version.is_unsaved() {
                    around.seen.push("unsaved version is served");
                }
                if version.age(NOW) > POLICY.interval + Duration::from_secs(2) {
                    around.seen.push("expired version is served after an error");
                }
                // The answer to a visitor who has waited for this version.
                if visitor.is_some_and(|it| version.is_made_since(it.arrived)) {
                    return self.may_share(version);
                }
                self.may_serve(version, &facts)
            }
            Answer::Unavailable { .. } | Answer::Failed(_) => match &self.view {
                Some(Known::Version(version)) if version.freshness(&facts).is_servable() => {
                    Err("no visitor gets an error while there is a servable version")
                }
                _ => Ok(()),
            },
            Answer::Pass(Bypass::Purged) if !visitor.is_some_and(|it| it.leads) => {
                Err("S20: of the visitors of a purged generation, only the leader generates alone")
            }
            Answer::Pass(_) => Ok(()),
        }
    }

    /// Tests the time and the purges, by the rules of the policy and the data that the generator
    /// has read.
    pub(super) fn may_serve(
        &self,
        version: &Version<Read>,
        facts: &Facts<'_>,
    ) -> Result<(), Broken> {
        self.may_share(version)?;
        let cooldown = facts.policy.cooldown_time();
        let age = version.age(facts.now);
        let is_in_error_grace =
            facts.now < self.error_grace && age < POLICY.interval + IF_ERROR + cooldown;
        let stale_while_revalidate = POLICY.stale_while_revalidate.unwrap_or(Duration::MAX);
        if age > POLICY.interval.saturating_add(stale_while_revalidate) && !is_in_error_grace {
            return Err("S7: no expired version is served, unless a failure excuses it");
        }
        Ok(())
    }

    fn may_share(&self, version: &Version<Read>) -> Result<(), Broken> {
        if version.page.body < self.known.marks.purged {
            Err("S6: no version is served whose purge is known")
        } else {
            Ok(())
        }
    }

    /// Tests a version that the decisions call fresh.
    pub(super) fn may_be_fresh(
        &self,
        version: &Version<Read>,
        facts: &Facts<'_>,
    ) -> Result<(), Broken> {
        let age = version.age(facts.now);
        let Marks {
            stale,
            purged,
            revision,
            ..
        } = self.known.marks;
        let Text { read, as_of, .. } = Text::of(version);
        if age >= POLICY.interval || version.undated {
            return Err("S8: no version older than its interval is fresh");
        }
        if read < stale.max(purged).max(revision) {
            return Err("S8: no version is fresh whose invalidation is known");
        }
        if as_of.revision < self.known.revision() {
            return Err("S8: no version of older code is fresh");
        }
        if version.origin == Origin::Unsaved && age >= facts.policy.cooldown_time() {
            return Err("S8: no unsaved version is fresh for longer than the cooldown");
        }
        Ok(())
    }

    /// Tests memory, now and at each later time without an event.
    pub(super) fn memory(&self, setup: &Setup) -> Result<(), Broken> {
        let Some(view) = &self.view else {
            return Ok(());
        };
        let mut facts = self.facts(setup);
        let mut before = Freshness::Fresh;
        for second in 0..8 {
            facts.now = NOW + Duration::from_secs(second);
            if let Known::Version(version) = view {
                let freshness = version.freshness(&facts);
                if freshness < before && second > 0 {
                    return Err("S17: growing older never makes fresher");
                }
                before = freshness;
                if freshness.is_servable() {
                    self.may_serve(version, &facts)?;
                }
                if freshness == Freshness::Fresh {
                    self.may_be_fresh(version, &facts)?;
                }
            }
            for is_busy in [false, true] {
                if let Lookup::Hit(Answer::Version(version)) = view.clone().look(&facts, || is_busy)
                {
                    self.may_serve(&version, &facts)?;
                }
            }
        }
        Ok(())
    }
}

impl Run {
    /// Returns the version that visitors see.
    fn version(&self) -> Option<&Version<Read>> {
        self.state.newest.as_ref()
    }
}
