//! The way from the generator's result to the end: publish, release, memory and answers.

use std::{sync::Arc, time::Duration};

use super::{
    Answer, AsOf, Decision, Ended, Event, Freshness, GenerationResult, Known, Origin, Page, Phase,
    Report, Shown, Step, Version, search::backoff,
};
use crate::{
    clock::Tick,
    event::{Bypass, Outcome},
    extensions::Tags,
    resource::Meta,
    timing::{PUBLISH_PAUSES, PUBLISH_RETRY, RECHECK},
};

#[derive(Clone, Debug)]
pub(in crate::resource::state) struct Publishing<B> {
    pub(in crate::resource::state) new: Version<B>,
    pub(in crate::resource::state) tries: u32,
    /// The new version has been served unsaved.
    pub(in crate::resource::state) shown: bool,
    /// The time of the next try; `None`: a statement is under way.
    pub(in crate::resource::state) again: Option<Tick>,
}

impl<B: Clone + PartialEq> Decision<'_, B> {
    pub(super) fn generated(
        &mut self,
        lease: Option<i64>,
        as_of: AsOf,
        outcome: GenerationResult<B>,
    ) -> Step<B> {
        let policy_cooldown = self.facts.policy.cooldown_time();
        let cooldown = match outcome {
            GenerationResult::Content(page) => return self.publish(lease, page),
            GenerationResult::Unshareable { why, metadata } => {
                // A status may change soon; the other reasons are properties of the route.
                let time = match why {
                    Bypass::Status => policy_cooldown,
                    _ => self.facts.policy.interval,
                };
                self.report = Some(Report::Ended(Ended {
                    outcome: Outcome::NotStored(why),
                    failure: None,
                    serves_old: false,
                    cooldown: Duration::ZERO,
                }));
                self.hit_for_pass(why, time, metadata);
                if lease.is_some() {
                    // A stored version, if there is one, was shared before and must go. If the
                    // removal fails, the next regeneration tries again.
                    return self.enter(Phase::Removing, Step::Remove);
                }
                Duration::ZERO
            }
            GenerationResult::TooLarge if !self.is_servable() => {
                self.report = Some(Report::ended(Outcome::NotStored(Bypass::TooLarge)));
                let metadata = Arc::new(Meta::without_version(
                    self.facts.key,
                    as_of,
                    Tags::default(),
                ));
                self.hit_for_pass(Bypass::TooLarge, policy_cooldown, metadata);
                // The limit of another process may be larger.
                Duration::ZERO
            }
            GenerationResult::TooLarge => {
                self.report = Some(Report::Ended(Ended {
                    outcome: Outcome::NotStored(Bypass::TooLarge),
                    failure: None,
                    serves_old: true,
                    cooldown: policy_cooldown,
                }));
                self.serve_old_for(policy_cooldown);
                policy_cooldown
            }
            GenerationResult::Failed(failure) => {
                let serves_old =
                    self.is_servable_for(policy_cooldown) && !self.facts.policy.shows_failures;
                let cooldown = match serves_old {
                    true => policy_cooldown,
                    false => self.facts.policy.cooldown_after(self.state.failures),
                };
                let failure = failure.retrying(cooldown);
                self.report = Some(Report::Ended(Ended {
                    outcome: Outcome::Failed,
                    failure: Some(failure.clone()),
                    serves_old,
                    cooldown,
                }));
                self.state.failures = self.state.failures.saturating_add(1);
                if serves_old {
                    self.serve_old_for(cooldown);
                } else {
                    let quiet = match lease {
                        Some(_) => cooldown,
                        // The store may have a version.
                        None => cooldown.min(RECHECK),
                    };
                    self.cool_down(cooldown, quiet, as_of);
                    self.end_with(Answer::Failed(failure));
                }
                cooldown
            }
        };
        match lease {
            Some(_) => self.release(cooldown),
            None => Step::End,
        }
    }

    pub(super) fn publish(&mut self, lease: Option<i64>, page: Arc<Page<B>>) -> Step<B> {
        let newest = self.state.newest.as_ref();
        // The age counts from the first try, whose answer may be lost.
        let mut new = Version::new(page, 0, self.facts.now, Origin::Published { latest: true });
        new.replaces =
            newest.is_some_and(|newest| newest.invalidated(self.facts.list) != Freshness::Purged);
        let Some(fence) = lease else {
            self.report = Some(Report::ended(Outcome::Unsaved));
            self.serve_unsaved(&new);
            return Step::End;
        };
        new.fence = fence;
        let publishing = Publishing {
            new,
            tries: 0,
            shown: false,
            again: None,
        };
        self.send(publishing)
    }

    /// Renews the stored version if the new content is the same, or else publishes the new version.
    pub(super) fn send(&mut self, publishing: Publishing<B>) -> Step<B> {
        let version = publishing.new.clone();
        let same = self
            .state
            .newest
            .as_ref()
            .filter(|newest| !newest.is_unsaved() && newest.page.body == version.page.body);
        let command = match same.map(|newest| newest.fence) {
            Some(known) => Step::Renew { version, known },
            None => Step::Publish { version },
        };
        self.enter(Phase::Publishing(publishing), command)
    }

    /// Continues a publish. While the store fails or is slow, the new version is served unsaved,
    /// and the publish is tried again for the length of a lease, for at most [`PUBLISH_RETRY`], and
    /// only while the version is servable.
    pub(super) fn publishing(
        &mut self,
        mut publishing: Publishing<B>,
        event: &Event<B>,
    ) -> Step<B> {
        match event {
            Event::Renewed(true) | Event::Published(true) => {
                self.report = Some(Report::ended(match event {
                    Event::Renewed(_) => Outcome::Renewed,
                    _ => Outcome::Stored,
                }));
                self.set_newest(publishing.new);
                self.end_with_newest();
                return self.release(Duration::ZERO);
            }
            Event::Renewed(false) => {
                let version = publishing.new.clone();
                return self.enter(Phase::Publishing(publishing), Step::Publish { version });
            }
            // Another process has published a version, or soon will.
            Event::Published(false) => {
                self.report = Some(Report::ended(Outcome::Overtaken));
                if publishing.shown {
                    return self.release(Duration::ZERO);
                }
                let command = self.probe();
                self.state.phase = Phase::Overtaken(publishing.new);
                return command;
            }
            Event::Due if publishing.again.is_some() => {
                publishing.again = None;
                return self.send(publishing);
            }
            Event::Due if !publishing.shown => {
                self.serve_unsaved(&publishing.new);
                publishing.shown = true;
                return self.enter(Phase::Publishing(publishing), Step::Continue);
            }
            Event::Away if !publishing.shown => {
                self.serve_unsaved(&publishing.new);
                publishing.shown = true;
            }
            Event::Away => {
                let retry = self.facts.policy.lease.min(PUBLISH_RETRY);
                if self.facts.now > publishing.new.born + retry {
                    self.report = Some(Report::ended(Outcome::Unsaved));
                    return self.release(Duration::ZERO);
                }
            }
            _ => return self.enter(Phase::Publishing(publishing), Step::Continue),
        }
        if !self.is_servable() {
            // The next visitor starts another regeneration.
            self.report = Some(Report::ended(Outcome::Unsaved));
            return self.release(Duration::ZERO);
        }
        publishing.again = Some(self.facts.now + backoff(PUBLISH_PAUSES, publishing.tries));
        publishing.tries += 1;
        self.enter(Phase::Publishing(publishing), Step::Pause)
    }

    /// Answers the visitors who still wait. They get `stored`, the version that another process has
    /// published, if it is servable, and otherwise the new version.
    pub(super) fn overtaken(&mut self, new: &Version<B>, stored: Option<Version<B>>) -> Step<B> {
        self.adopt(stored);
        if self.is_servable() {
            self.end_with_newest();
        } else {
            self.serve_unsaved(new);
        }
        self.release(Duration::ZERO)
    }

    pub(super) fn release(&mut self, cooldown: Duration) -> Step<B> {
        self.enter(Phase::Releasing, Step::Release { cooldown })
    }

    /// Adopts a version, here and in memory.
    pub(super) fn set_newest(&mut self, version: Version<B>) {
        self.view = Some(Known::Version(version.clone().into()));
        self.state.newest = Some(version);
    }

    /// Serves the new version without a publish. The version keeps the fence of the version before,
    /// so that the next published version replaces it.
    pub(super) fn serve_unsaved(&mut self, new: &Version<B>) {
        let fence = self
            .state
            .newest
            .as_ref()
            .map_or(0, |version| version.fence);
        self.set_newest(Version {
            fence,
            origin: Origin::Unsaved,
            ..new.clone()
        });
        self.end_with_newest();
    }

    /// Returns true if the old version may be served during `cooldown`.
    pub(super) fn is_servable_for(&mut self, cooldown: Duration) -> bool {
        if let Some(newest) = &mut self.state.newest {
            newest.grant_error_grace(cooldown, self.facts);
        }
        self.is_servable()
    }

    /// Ends with the old version. The process asks the store nothing about the version for `time`.
    pub(super) fn serve_old_for(&mut self, time: Duration) {
        let freshness = self.freshness();
        if let Some(newest) = &mut self.state.newest
            && freshness != Some(Freshness::Purged)
        {
            newest.ask_again_at = self.facts.now + time;
            self.view = Some(Known::Version(newest.clone().into()));
        }
        match freshness {
            // The version has expired since the decision to serve the version.
            Some(Freshness::Expired) => self.end_with(Answer::Unavailable { retry_in: time }),
            _ => self.end_with_newest(),
        }
    }

    /// Ends with the old version and without a regeneration.
    pub(super) fn skip(&mut self, outcome: Outcome, time: Duration) -> Step<B> {
        self.report = Some(Report::NotBegun(outcome));
        self.serve_old_for(time);
        Step::End
    }

    /// Runs no generator for `time`, and asks the store nothing for the time `quiet`.
    pub(super) fn cool_down(&mut self, time: Duration, quiet: Duration, as_of: AsOf) {
        self.view = Some(Known::Cooldown {
            until: self.facts.now + time,
            ask_again_at: self.facts.now + quiet,
            failures: self.state.failures,
            meta: Arc::new(Meta::without_version(
                self.facts.key,
                as_of,
                Tags::default(),
            )),
        });
    }

    pub(super) fn hit_for_pass(&mut self, why: Bypass, time: Duration, meta: Arc<Meta>) {
        let until = self.facts.now + time.max(RECHECK);
        self.view = Some(Known::HitForPass { until, why, meta });
        self.end_with(Answer::Pass(why));
    }

    pub(super) fn end_with_newest(&mut self) {
        self.end_with(match &self.state.newest {
            Some(version) => Answer::Version(version.clone().into()),
            None => Answer::Unavailable {
                retry_in: self.facts.policy.cooldown_time(),
            },
        });
    }

    pub(super) fn end_with(&mut self, answer: Answer<B>) {
        self.progress = Some(Shown::Done(answer));
    }
}
