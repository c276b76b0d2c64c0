use std::time::{Duration, SystemTime};

use perennial_store::{Fence, Lease, name::bounded};

use super::Task;
use crate::{
    event::{self, Outcome, Reason, Regeneration},
    http::terms::Terms,
    page::{
        Event, Facts, Version,
        flight::{Ended, Found, Freshness, Generated, Verdict},
        history::PastVersion,
        meta::Description,
    },
};

/// Returns the reason for a regeneration, from the newest version before.
fn reason(newest: Option<&Version>, facts: &Facts<'_>) -> Reason {
    let Some(newest) = newest else {
        return Reason::Miss;
    };
    match newest.freshness(facts) {
        Freshness::Purged => Reason::Purged,
        Freshness::Expired => Reason::Expired,
        _ if newest.invalidated(facts.list) != Verdict::Valid => Reason::Invalidated,
        Freshness::Fresh | Freshness::Stale => Reason::Stale,
    }
}

impl Task {
    /// Measures an event before the state decides about the event.
    pub(super) fn measure(&mut self, event: &Event) {
        match event {
            Event::Probed(Found { lock, .. }) => {
                self.found_expired = lock.owned && lock.remaining.is_zero();
            }
            Event::Acquired(Some(fence)) if self.found_expired => {
                self.emit(event::Event::LeaseTakenOver {
                    key: self.key.clone(),
                    fence: *fence,
                });
            }
            Event::Generated(Generated::Content(page)) => {
                self.ran();
                self.bytes = page.response().body().len();
            }
            _ => {}
        }
    }

    /// Returns the texts beside a version in the store: its metadata with its description, and its
    /// line of the history.
    pub(super) fn texts(&self, version: &Version, terms: Terms, changed: bool) -> [String; 2] {
        let description = Description {
            layer: self.given.layer.to_string(),
            stale_while_revalidate: terms.stale_while_revalidate,
            code: self.pages.settings.revision.clone(),
            key: (bounded(&self.key) != *self.key).then(|| self.key.to_string()),
        };
        let metadata = &version.page.meta.stored;
        let generation = PastVersion {
            fence: self.lease.as_ref().map_or(Fence::NONE, Lease::fence),
            began: SystemTime::UNIX_EPOCH,
            ago: Duration::ZERO,
            reason: self.reason,
            took: self.took,
            bytes: self.bytes as u64,
            changed,
            process: self.pages.locks.shown_label().to_owned(),
        };
        [description.encode(metadata), generation.line()]
    }

    pub(super) fn started(&mut self, fence: Option<Fence>) {
        self.began = Some(self.pages.now());
        if !self.given.is_requested {
            let facts = self.pages.facts(&self.key, &self.policy);
            self.reason = reason(self.flight.newest(), &facts);
        }
        self.emit(event::Event::Regenerating {
            key: self.key.clone(),
            layer: self.given.layer.clone(),
            reason: self.reason,
            fence,
        });
    }

    /// Sets the time of the generator, once.
    fn ran(&mut self) {
        if let Some(began) = self.began.take() {
            self.took = self.pages.now() - began;
        }
    }

    /// Logs the begin of a wait for another process.
    pub(super) fn waits(&self) {
        let time = self.flight.held_until() - self.pages.now();
        tracing::debug!(
            target: "perennial::regeneration",
            key = &*self.key,
            "no version can be served; another process holds the lock, or has crashed: its lease ends in {time:.1?}"
        );
    }

    pub(super) fn ended(&mut self, ended: Ended) {
        if !ended.outcome.has_begun() {
            return self.emit(event::Event::NotRegenerated {
                key: self.key.clone(),
                layer: self.given.layer.clone(),
                outcome: ended.outcome,
            });
        }
        self.ran();
        let error = ended.failure.map(|failure| failure.whole_text().into());
        let has_content = matches!(
            ended.outcome,
            Outcome::Stored | Outcome::Renewed | Outcome::Unsaved | Outcome::Overtaken
        );
        let regeneration = Regeneration {
            key: self.key.clone(),
            layer: self.given.layer.clone(),
            reason: self.reason,
            outcome: ended.outcome,
            took: self.took,
            bytes: if has_content { self.bytes } else { 0 },
            fence: self.lease.as_ref().map(Lease::fence),
            error,
            serves_old: ended.serves_old,
            cooldown: ended.cooldown,
        };
        self.emit(event::Event::Regenerated(regeneration.into()));
    }

    fn emit(&self, event: event::Event) {
        self.pages.observer().emit(event);
    }
}
