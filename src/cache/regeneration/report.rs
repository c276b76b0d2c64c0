use std::time::{Duration, SystemTime};

use perennial_store::{Fence, Lease, name::bounded};

use super::driver::Task;
use crate::{
    cache::{
        DecisionContext, Input, Version,
        entry::{Freshness, Validity},
        history::PastVersion,
        metadata::Description,
        regeneration::{Ended, Generated, ProbeResult},
    },
    event::{self, Outcome, Reason, Regeneration},
    http::terms::Terms,
};

/// Returns the reason for a regeneration, from the newest version before.
fn reason(newest: Option<&Version>, context: &DecisionContext<'_>) -> Reason {
    let Some(newest) = newest else {
        return Reason::Miss;
    };
    match newest.freshness(context) {
        Freshness::Purged => Reason::Purged,
        Freshness::Expired => Reason::Expired,
        _ if newest.invalidated(context.list) != Validity::Valid => Reason::Invalidated,
        Freshness::Fresh | Freshness::Stale => Reason::Stale,
    }
}

impl Task {
    /// Measures an event before the state decides about the event.
    pub(crate) fn measure(&mut self, event: &Input) {
        match event {
            Input::Probed(ProbeResult { lock, .. }) => {
                self.found_expired = lock.owned && lock.remaining.is_zero();
            }
            Input::Acquired(Some(fence)) if self.found_expired => {
                self.emit(event::Event::LeaseTakenOver {
                    key: self.key.clone(),
                    fence: *fence,
                });
            }
            Input::Generated(Generated::Content(page)) => {
                self.ran();
                self.bytes = page.response().body().len();
            }
            _ => {}
        }
    }

    /// Returns the texts beside a version in the store: its metadata with its description, and its
    /// line of the history.
    pub(crate) fn texts(&self, version: &Version, terms: Terms, changed: bool) -> [String; 2] {
        let description = Description {
            layer: self.given.layer.to_string(),
            stale_while_revalidate: terms.stale_while_revalidate,
            code: self.cache.settings.revision.clone(),
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
            process: self.cache.locks.shown_label().to_owned(),
        };
        [description.encode(metadata), generation.line()]
    }

    pub(crate) fn started(&mut self, fence: Option<Fence>) {
        self.began = Some(self.cache.now());
        if !self.given.is_requested {
            let context = self.cache.context(&self.key, &self.policy);
            self.reason = reason(self.regeneration.newest(), &context);
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
            self.took = self.cache.now() - began;
        }
    }

    /// Logs the begin of a wait for another process.
    pub(crate) fn waits(&self) {
        let time = self.regeneration.held_until() - self.cache.now();
        tracing::debug!(
            target: "perennial::regeneration",
            key = &*self.key,
            "no version can be served; another process holds the lock, or has crashed: its lease ends in {time:.1?}"
        );
    }

    pub(crate) fn ended(&mut self, ended: Ended) {
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
        self.cache.observer().emit(event);
    }
}
