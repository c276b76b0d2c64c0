//! The path from the generator's result to the end: publish, release, memory and answers.

use std::{sync::Arc, time::Duration};

use perennial_store::Fence;

use super::{
    Answer, AsOf, Decision, Ended, Event, Generated, Known, Origin, Page, Phase, Shown, Step,
    Verdict, Version,
};
use crate::{
    clock::Tick,
    event::{Bypass, Outcome},
    extensions::Tags,
    page::{Failure, Meta},
    timing::{PUBLISH_PAUSES, PUBLISH_RETRY, RECHECK},
};

#[derive(Clone, Debug)]
pub(super) struct Publishing<B> {
    pub(super) new: Version<B>,
    /// The last statement renews the stored version.
    pub(super) renews: bool,
    pub(super) tries: u32,
    /// The new version has been served unsaved.
    pub(super) shown: bool,
    /// The time of the next try; `None`: a statement is under way.
    pub(super) again: Option<Tick>,
}

impl<B: Clone + PartialEq> Decision<'_, B> {
    pub(super) fn generated(
        &mut self,
        lease: Option<Fence>,
        as_of: AsOf,
        generated: Generated<Arc<Page<B>>>,
    ) {
        let policy = self.facts.policy;
        let (cooldown, removes) = match generated {
            Generated::Content(page) => return self.publish(lease, page),
            Generated::NotStored(Bypass::TooLarge, _) if self.is_servable() => {
                let cooldown = policy.cooldown_time();
                self.effect.ended = Some(Ended {
                    outcome: Outcome::NotStored(Bypass::TooLarge),
                    failure: None,
                    serves_old: true,
                    cooldown,
                });
                self.serve_old_for(cooldown);
                (cooldown, false)
            }
            Generated::NotStored(why, tags) => {
                // A status and a size may change soon; the other reasons are properties of the
                // route.
                let time = match why {
                    Bypass::Status | Bypass::TooLarge => policy.cooldown_time(),
                    _ => policy.interval,
                };
                self.ended(Outcome::NotStored(why));
                self.hit_for_pass(why, time, as_of, tags);
                // A stored version, if there is one, was shared before and must go. If the removal
                // fails, the next regeneration tries again. A version that is too large here stays,
                // as another process may have a larger limit.
                (Duration::ZERO, why != Bypass::TooLarge)
            }
            Generated::Failed(failure) => (self.failed(lease, as_of, failure), false),
        };
        match lease {
            Some(_) => self.enter(Phase::Releasing, Step::Release { cooldown, removes }),
            None => self.end(),
        }
    }

    /// Answers after a failure, and returns the cooldown.
    fn failed(&mut self, lease: Option<Fence>, as_of: AsOf, failure: Failure) -> Duration {
        let policy = self.facts.policy;
        let serves_old = self.is_servable_for(policy.cooldown_time()) && !policy.shows_failures;
        let cooldown = if serves_old {
            policy.cooldown_time()
        } else {
            policy.cooldown_after(self.flight.failures)
        };
        let failure = failure.retrying(cooldown);
        let text = failure.text();
        self.effect.ended = Some(Ended {
            outcome: Outcome::Failed,
            failure: Some(failure.clone()),
            serves_old,
            cooldown,
        });
        self.flight.failures = self.flight.failures.saturating_add(1);
        if let Some(newest) = &mut self.flight.newest {
            newest.failure = Some(Arc::clone(&text));
        }
        if serves_old {
            self.serve_old_for(cooldown);
        } else {
            let quiet = match lease {
                Some(_) => cooldown,
                // The store may have a version.
                None => cooldown.min(RECHECK),
            };
            self.cool_down(cooldown, quiet, as_of, Some(text));
            self.answer(Answer::Failed(failure));
        }
        cooldown
    }

    fn publish(&mut self, lease: Option<Fence>, page: Arc<Page<B>>) {
        let newest = self.flight.newest.as_ref();
        // The age counts from the first try, whose answer may be lost.
        let mut new = Version::new(
            page,
            Fence::NONE,
            self.facts.now,
            Origin::Published { latest: true },
        );
        new.replaces =
            newest.is_some_and(|newest| newest.invalidated(self.facts.list) != Verdict::Purged);
        let Some(fence) = lease else {
            self.ended(Outcome::Unsaved);
            self.serve_unsaved(&new);
            return self.end();
        };
        new.fence = fence;
        self.send(Publishing {
            new,
            renews: false,
            tries: 0,
            shown: false,
            again: None,
        });
    }

    /// Renews the stored version if the new content is the same, or else publishes the new version.
    fn send(&mut self, publishing: Publishing<B>) {
        let newest = self.flight.newest.as_ref();
        let same = newest
            .filter(|newest| !newest.is_unsaved() && newest.page.body == publishing.new.page.body);
        let renews = same.map(|newest| newest.fence);
        self.send_as(renews, publishing);
    }

    fn send_as(&mut self, renews: Option<Fence>, publishing: Publishing<B>) {
        let version = publishing.new.clone();
        let publishing = Publishing {
            renews: renews.is_some(),
            again: None,
            ..publishing
        };
        let step = Step::Publish { version, renews };
        self.enter(Phase::Publishing(publishing), step);
    }

    /// Continues a publish. While the store fails or is slow, the new version is served unsaved,
    /// and the publish is tried again for the length of a lease, for at most [`PUBLISH_RETRY`], and
    /// only while the version is servable.
    pub(super) fn publishing(&mut self, mut publishing: Publishing<B>, event: &Event<B>) {
        match event {
            Event::Published(true) => {
                self.ended(if publishing.renews {
                    Outcome::Renewed
                } else {
                    Outcome::Stored
                });
                self.set_newest(publishing.new);
                self.answer_with_newest();
                self.release();
            }
            // Another version is stored than the one with the same content.
            Event::Published(false) if publishing.renews => self.send_as(None, publishing),
            // Another process has published a version, or soon will.
            Event::Published(false) => {
                self.ended(Outcome::Overtaken);
                if publishing.shown {
                    self.release();
                } else {
                    self.look(Some(publishing.new));
                }
            }
            Event::Due if publishing.again.is_some() => self.send(publishing),
            Event::Due if !publishing.shown => {
                self.serve_unsaved(&publishing.new);
                publishing.shown = true;
                self.flight.phase = Phase::Publishing(publishing);
            }
            Event::Away => {
                let retry = self.facts.policy.lease.min(PUBLISH_RETRY);
                let is_over = publishing.shown && self.facts.now > publishing.new.born + retry;
                if !publishing.shown {
                    self.serve_unsaved(&publishing.new);
                    publishing.shown = true;
                }
                // If the version is not servable, the next visitor starts another regeneration.
                if is_over || !self.is_servable() {
                    self.ended(Outcome::Unsaved);
                    return self.release();
                }
                publishing.again = Some(self.facts.now + PUBLISH_PAUSES.after(publishing.tries));
                publishing.tries += 1;
                self.enter(Phase::Publishing(publishing), Step::Wait);
            }
            _ => self.flight.phase = Phase::Publishing(publishing),
        }
    }

    /// Answers the visitors who still wait, with `stored`, which another process has published, or
    /// with the old version. If neither is servable, they get the new version.
    pub(super) fn overtaken(&mut self, new: &Version<B>, stored: Option<Version<B>>) {
        self.adopt(stored);
        if self.is_servable() {
            self.answer_with_newest();
        } else {
            self.serve_unsaved(new);
        }
        self.release();
    }

    /// Releases the lease without a cooldown.
    fn release(&mut self) {
        let step = Step::Release {
            cooldown: Duration::ZERO,
            removes: false,
        };
        self.enter(Phase::Releasing, step);
    }

    /// Reports an end without a failure.
    pub(super) fn ended(&mut self, outcome: Outcome) {
        self.effect.ended = Some(Ended {
            outcome,
            failure: None,
            serves_old: false,
            cooldown: Duration::ZERO,
        });
    }

    /// Adopts a version, here and in memory.
    pub(super) fn set_newest(&mut self, version: Version<B>) {
        self.effect.known = Some(Known::Version(version.clone().into()));
        self.flight.newest = Some(version);
    }

    /// Serves the new version without a publish. The version keeps the fence of the version before,
    /// so that the next published version replaces it.
    fn serve_unsaved(&mut self, new: &Version<B>) {
        self.set_newest(Version {
            fence: self.flight.fence(),
            origin: Origin::Unsaved,
            ..new.clone()
        });
        self.answer_with_newest();
    }

    /// Returns true if the old version may be served during `cooldown`.
    pub(super) fn is_servable_for(&mut self, cooldown: Duration) -> bool {
        if let Some(newest) = &mut self.flight.newest {
            newest.grant_error_grace(cooldown, self.facts);
        }
        self.is_servable()
    }

    /// Answers with the old version. The process asks the store nothing about the version for
    /// `time`.
    pub(super) fn serve_old_for(&mut self, time: Duration) {
        if let Some(newest) = &mut self.flight.newest {
            newest.ask_again_at = self.facts.now + time;
            self.effect.known = Some(Known::Version(newest.clone().into()));
        }
        self.answer_with_newest();
    }

    /// Ends with the old version and without a regeneration.
    pub(super) fn skip(&mut self, outcome: Outcome, time: Duration) {
        self.ended(outcome);
        self.serve_old_for(time);
        self.end();
    }

    /// Runs no generator for `time`, and asks the store nothing for the time `quiet`.
    pub(super) fn cool_down(
        &mut self,
        time: Duration,
        quiet: Duration,
        as_of: AsOf,
        failure: Option<Arc<str>>,
    ) {
        self.effect.known = Some(Known::Cooldown {
            until: self.facts.now + time,
            ask_again_at: self.facts.now + quiet,
            failures: self.flight.failures,
            failure,
            meta: self.without_version(as_of, Tags::default()),
        });
    }

    fn without_version(&self, as_of: AsOf, tags: Tags) -> Arc<Meta> {
        let meta = Meta::without_version(self.facts.key, as_of, tags);
        Arc::new(meta.seen(self.facts.list.sightings()))
    }

    fn hit_for_pass(&mut self, why: Bypass, time: Duration, as_of: AsOf, tags: Tags) {
        self.effect.known = Some(Known::HitForPass {
            until: self.facts.now + time.max(RECHECK),
            why,
            meta: self.without_version(as_of, tags),
        });
        self.answer(Answer::Pass(why));
    }

    pub(super) fn answer_with_newest(&mut self) {
        self.answer(match &self.flight.newest {
            Some(version) => Answer::Version(version.clone().into()),
            None => Answer::Unavailable {
                retry_in: self.facts.policy.cooldown_time(),
            },
        });
    }

    pub(super) fn answer(&mut self, answer: Answer<B>) {
        self.effect.shown = Some(Shown::Done(answer));
    }
}
