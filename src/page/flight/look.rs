//! The way to the generator: permit, probe, lease, and the wait for another process.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use perennial_store::{Epoch, Fence};

use super::{
    Answer, AsOf, Decision, Facts, Found, Freshness, HeldElsewhere, Known, Origin, Phase, Shown,
    Step, Verdict, Version,
};
use crate::{
    clock::Tick,
    event::Outcome,
    page::Meta,
    timing::{POLL_PAUSES, RECHECK},
};

impl<B: Clone + PartialEq> Decision<'_, B> {
    /// Begins to look for a newer version. Without a permit a stale version is served on; a first
    /// version is never held back, as a visitor waits.
    pub(super) fn begin(&mut self) {
        let is_servable = self.is_servable();
        if is_servable && !self.facts.permit {
            return self.skip(Outcome::Busy, RECHECK);
        }
        if let Some(newest) = &mut self.flight.newest
            && is_servable
            && newest.origin == (Origin::Published { latest: true })
        {
            newest.origin = Origin::Published { latest: false };
            let (seen, verdict) = (newest.fence, newest.invalidated(self.facts.list));
            self.effect.known = Some(Known::Version(newest.clone().into()));
            if verdict == Verdict::Valid {
                // Unless another process has acquired the lock since, the lock's fence is the fence
                // of this process's own version, and a probe is needless.
                return self.enter(Phase::Acquiring { probed: None }, Step::Acquire { seen });
            }
        }
        self.look(None);
    }

    /// Asks the store for a version.
    pub(super) fn look(&mut self, overtaken: Option<Version<B>>) {
        let known = self.flight.fence();
        self.enter(Phase::Looking { overtaken }, Step::Probe { known });
    }

    pub(super) fn probed(&mut self, found: Found<B>) {
        let stored = found
            .version
            .as_ref()
            .map_or(Fence::NONE, |stored| stored.fence);
        let known = stored.max(self.flight.fence());
        self.adopt(found.version);
        let is_servable = self.show_stale(false);
        if self.freshness() == Some(Freshness::Fresh) {
            self.answer_with_newest();
            return self.end();
        }
        let lock = found.lock;
        self.flight.failures = lock.failures;
        // The database's clock may have been ahead when the lock was released, and was then set back:
        // the cooldown seems to last for years.
        let remaining = lock
            .remaining
            .min(self.facts.policy.cooldown_time().max(RECHECK));
        if lock.remaining.is_zero() {
            if is_servable && !self.facts.permit {
                return self.skip(Outcome::Busy, RECHECK);
            }
            let probed = Some(found.epoch);
            return self.enter(
                Phase::Acquiring { probed },
                Step::Acquire { seen: lock.fence },
            );
        }
        if lock.owned {
            let until = self.facts.now + remaining;
            self.effect.held = Some(HeldElsewhere { known, until });
            self.flight.held_until = until;
        }
        match (lock.owned, is_servable) {
            // The sync tells when to look again.
            (true, _) if self.satisfies() => self.skip(Outcome::Elsewhere, Duration::ZERO),
            (true, _) => self.wait(),
            (false, true) => self.skip(Outcome::Cooldown, remaining),
            (false, false) => {
                let as_of = self.as_of(found.epoch);
                if self.is_servable_for(remaining) {
                    self.serve_old_for(remaining);
                } else {
                    self.cool_down(remaining, remaining, as_of, None);
                    self.answer(Answer::Unavailable {
                        retry_in: remaining,
                    });
                }
                self.end();
            }
        }
    }

    /// Adopts a stored version if the verdict of the invalidations on the stored one is better than
    /// on the newest one, or if the verdicts are equal and the stored one is the later one. Fences
    /// do not decide: an unsaved version has the fence of the version before.
    pub(super) fn adopt(&mut self, stored: Option<Version<B>>) {
        let Some(stored) = stored else { return };
        let adopts = self.flight.newest.as_ref().is_none_or(|newest| {
            let [stored_is, newest_is] =
                [&stored, newest].map(|it| it.invalidated(self.facts.list));
            match stored_is.cmp(&newest_is) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => stored.born >= newest.born,
            }
        });
        if adopts {
            self.set_newest(stored);
        }
    }

    /// Waits before the next sync or probe, as no version can be served to the leader and another process
    /// holds the lease.
    pub(super) fn wait(&mut self) {
        let longest = self.flight.held_until - self.facts.now;
        let pause = if longest.is_zero() {
            POLL_PAUSES.after(self.flight.polls)
        } else {
            POLL_PAUSES.after(self.flight.polls).min(longest)
        };
        self.flight.polls += 1;
        match self.flight.passes {
            // The other process finds out whether the next response may be stored, and nobody waits
            // for that here.
            Some(why) if !self.is_servable() => self.answer(Answer::Pass(why)),
            _ => self.show(Shown::Elsewhere),
        }
        let until = self.facts.now + pause;
        self.enter(Phase::Waiting { until }, Step::Wait);
    }

    /// Continues while the database is unavailable: an old version is served on; a first version is
    /// generated without a lease and not stored.
    pub(super) fn without_store(&mut self) {
        if self.is_servable() {
            return self.skip(Outcome::DatabaseUnavailable, RECHECK);
        }
        let Some((until, meta)) = self.cools_down() else {
            return self.generate(None, self.as_of(Epoch::NONE));
        };
        self.effect.known = Some(Known::Cooldown {
            until,
            ask_again_at: until.min(self.facts.now + RECHECK),
            failures: self.flight.failures,
            failure: None,
            meta,
        });
        self.ended(Outcome::DatabaseUnavailable);
        self.end();
    }

    /// Returns the cooldown that this process alone knows of, if it lasts, and answers visitors
    /// accordingly.
    pub(super) fn cools_down(&mut self) -> Option<(Tick, Arc<Meta>)> {
        let (until, meta) = self.flight.cooldown.clone()?;
        if self.facts.now >= until || self.facts.list.judge(&meta) == Verdict::Purged {
            return None;
        }
        let retry_in = until - self.facts.now;
        self.answer(Answer::Unavailable { retry_in });
        Some((until, meta))
    }

    pub(super) fn generate(&mut self, lease: Option<Fence>, as_of: AsOf) {
        if !self.show_stale(true) {
            self.show(Shown::First);
        }
        let generating = Phase::Generating {
            lease,
            as_of,
            until: self.facts.now + self.facts.policy.timeout,
        };
        self.enter(generating, Step::Generate { as_of });
    }

    /// Returns true if a version may be served to the leader, too.
    pub(super) fn satisfies(&self) -> bool {
        let facts = Facts {
            not_before: self.flight.not_before,
            ..*self.facts
        };
        let newest = self.flight.newest.as_ref();
        newest.is_some_and(|newest| newest.freshness(&facts).is_servable())
    }

    /// Offers the old version to visitors, if it is servable, or else lets them pass where the last
    /// response was not stored, or else shows this progress.
    pub(super) fn show(&mut self, otherwise: Shown<B>) {
        if !self.show_stale(false) {
            self.effect.shown = Some(match self.flight.passes {
                Some(why) => Shown::Passing(why),
                None => otherwise,
            });
        }
    }

    /// Offers the old version to visitors, if the version is servable. Returns true if so.
    pub(super) fn show_stale(&mut self, begun: bool) -> bool {
        let is_servable = self.is_servable();
        if let Some(version) = self.flight.newest.clone().filter(|_| is_servable) {
            let version = version.into();
            self.effect.shown = Some(Shown::Stale { version, begun });
        }
        is_servable
    }
}
