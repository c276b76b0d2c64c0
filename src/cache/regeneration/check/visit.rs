//! The visitors of a process, and the properties of the answers.

use std::time::Duration;

use perennial_store::Epoch;

use crate::{
    cache::{
        entry::Visitor,
        entry::{
            Answer, CacheEntry, DecisionContext, Freshness, InvalidationView, Lookup, Origin,
            Version,
        },
        regeneration::{
            check::{
                content::{Marks, Read, Text},
                process::{Around, Process, Run, Waiting},
                setup::{IF_ERROR, Mutant, NOW, POLICY, Setup},
            },
            machine::State,
            waiting::{Next, Progress},
        },
    },
    clock::Tick,
    event::Bypass,
};
use perennial_testkit::search::Broken;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Ordinary,
    /// There is no permit for a regeneration.
    WithoutPermit,
    /// The application demands a regeneration, on a permit of its own.
    Demand,
}

impl Process {
    /// A request comes.
    pub(crate) fn ask(&mut self, request: Request, around: &mut Around<'_>) -> Result<(), Broken> {
        let is_busy = self.closing || self.run.is_some() || self.is_held();
        let answer = match self.view.clone() {
            Some(view) if request != Request::Demand => {
                let visitor = Visitor::arriving_at(NOW);
                view.lookup(&visitor, &self.context(around.setup), || is_busy)
            }
            _ => Lookup::Miss,
        };
        // A version that was generated at this instant of the model counts as older than the
        // visitor.
        let is_new = |version: &Version<Read>| version.published_at == NOW;
        let seen = self.run.as_ref().and_then(Run::version);
        let visitor = Visitor::arriving_at(Tick(i64::from(seen.is_some_and(is_new))));
        let visitor = match request {
            Request::Demand => Visitor {
                min_epoch: self.known.marks.stale,
                demands: true,
                has_permit: true,
                known_epoch: self.known.marks.latest,
                ..visitor
            },
            Request::Ordinary | Request::WithoutPermit => visitor,
        };
        if let Some(CacheEntry::HitForPass { until, .. }) = &self.view
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
        let context = self.context(around.setup);
        let Answer::Version(version) = answer else {
            return Ok(());
        };
        let is_under_way = self
            .run
            .as_ref()
            .is_some_and(|run| !run.regeneration.is_releasing());
        let has_reason = context.now < version.recheck_at || self.closing || self.is_held();
        if version.freshness(&context) == Freshness::Fresh || is_under_way || has_reason {
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
            && let Lookup::Hit(answer) =
                view.lookup(&visitor, &self.context(around.setup), || self.is_held())
        {
            return self.answered(&answer, None, around);
        }
        if self.closing {
            return Ok(());
        }
        self.start(visitor, request != Request::WithoutPermit, around)
    }

    /// Lets the waiting visitors look at the progress.
    pub(crate) fn serve(&mut self, around: &mut Around<'_>) -> Result<(), Broken> {
        for place in 0..self.waiting.len() {
            let (Some(waiting), Some(run)) = (self.waiting[place], &self.run) else {
                continue;
            };
            let context = self.context(around.setup);
            let is_late = NOW >= waiting.visitor.arrived + POLICY.follower_wait;
            if waiting.anew && !is_late {
                continue;
            }
            let is_waiting = matches!(run.regeneration.state, State::WaitingForPeer { .. });
            let progress = match (&run.progress, around.setup.mutant) {
                (Progress::Passing(_), Some(Mutant::FollowersWaitForTheProbe)) => {
                    &Progress::GeneratingFirst
                }
                (Progress::Done(Answer::Pass(_)), Some(Mutant::LeadersWaitForThePeersProbe))
                    if is_waiting =>
                {
                    &Progress::HeldByPeer
                }
                (progress, _) => progress,
            };
            let wait = match progress.wait(&self.seen_as(waiting.visitor, around), &context) {
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
    pub(crate) fn leave_ended(
        &mut self,
        run: &Run,
        waiting: Waiting,
        around: &mut Around<'_>,
    ) -> Result<(), Broken> {
        let context = self.context(around.setup);
        let wait = run
            .progress
            .wait(&self.seen_as(waiting.visitor, around), &context);
        match wait {
            Next::Answer(answer) if !waiting.anew => {
                self.answered(&answer, Some(waiting.visitor), around)
            }
            Next::Until(_) if !waiting.anew => {
                around.seen.push("regeneration ends without an answer");
                let answer = run.progress.clone().answer_after_panic(&context);
                self.answered(&answer, Some(waiting.visitor), around)
            }
            _ => {
                around.seen.push("visitor begins anew");
                let request = if waiting.visitor.min_epoch > Epoch::NONE {
                    Request::Demand
                } else {
                    Request::Ordinary
                };
                self.join(waiting.visitor, request, around)
            }
        }
    }

    /// Returns the visitor as the decisions get it. A mutant may change some of the visitor's
    /// fields.
    fn seen_as(&self, visitor: Visitor, around: &Around<'_>) -> Visitor {
        match around.setup.mutant {
            Some(Mutant::DemandForgotten) => Visitor {
                min_epoch: Epoch::NONE,
                ..visitor
            },
            _ => visitor,
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
        let context = self.context(around.setup);
        match answer {
            Answer::Version(version) => {
                if version.is_unsaved() {
                    around.seen.push("unsaved version is served");
                }
                if version.age(NOW) > POLICY.interval + Duration::from_secs(2) {
                    around.seen.push("expired version is served after an error");
                }
                if let Some(visitor) = visitor
                    && !visitor.leads
                    && NOW < visitor.arrived + POLICY.follower_wait
                    && version.is_invalidated_before(visitor.min_epoch, &self.known)
                {
                    return Err(
                        "S27: in time, who demands a regeneration gets content from before only as its leader",
                    );
                }
                // The answer to a visitor who has waited for this version.
                if visitor.is_some_and(|it| version.is_made_since(it.arrived)) {
                    return self.may_share(version);
                }
                self.may_serve(version, &context)
            }
            Answer::Unavailable { .. } | Answer::Failed(_) => match &self.view {
                Some(CacheEntry::Version(version)) if version.freshness(&context).is_servable() => {
                    Err("S32: no visitor gets an error while there is a servable version")
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
    pub(crate) fn may_serve(
        &self,
        version: &Version<Read>,
        context: &DecisionContext<'_>,
    ) -> Result<(), Broken> {
        self.may_share(version)?;
        let cooldown = context.policy.cooldown_time();
        let age = version.age(context.now);
        let is_in_error_grace =
            context.now < self.error_grace && age < POLICY.interval + IF_ERROR + cooldown;
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
    pub(crate) fn may_be_fresh(
        &self,
        version: &Version<Read>,
        context: &DecisionContext<'_>,
    ) -> Result<(), Broken> {
        let age = version.age(context.now);
        let Marks {
            stale,
            purged,
            revision,
            ..
        } = self.known.marks;
        let Text { read, snapshot, .. } = Text::of(version);
        if age >= POLICY.interval || version.age_unknown {
            return Err("S8: no version older than its interval is fresh");
        }
        if read < stale.max(purged).max(revision) {
            return Err("S8: no version is fresh whose invalidation is known");
        }
        if snapshot.revision < self.known.revision() {
            return Err("S8: no version of older code is fresh");
        }
        if version.origin == Origin::Unsaved && age >= context.policy.cooldown_time() {
            return Err("S8: no unsaved version is fresh for longer than the cooldown");
        }
        Ok(())
    }

    /// Tests memory, now and at each later time without an event.
    pub(crate) fn memory(&self, setup: &Setup) -> Result<(), Broken> {
        let Some(view) = &self.view else {
            return Ok(());
        };
        let mut context = self.context(setup);
        let mut before = Freshness::Fresh;
        for second in 0..8 {
            context.now = NOW + Duration::from_secs(second);
            if let CacheEntry::Version(version) = view {
                let freshness = version.freshness(&context);
                if freshness < before && second > 0 {
                    return Err("S17: growing older never makes fresher");
                }
                before = freshness;
                if freshness.is_servable() {
                    self.may_serve(version, &context)?;
                }
                if freshness == Freshness::Fresh {
                    self.may_be_fresh(version, &context)?;
                }
            }
            for is_busy in [false, true] {
                if let Lookup::Hit(Answer::Version(version)) =
                    view.clone()
                        .lookup(&Visitor::arriving_at(context.now), &context, || is_busy)
                {
                    self.may_serve(&version, &context)?;
                }
            }
        }
        Ok(())
    }
}

impl Run {
    /// Returns the version that visitors see.
    fn version(&self) -> Option<&Version<Read>> {
        self.regeneration.newest.as_ref()
    }
}
