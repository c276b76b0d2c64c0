//! Reports a regeneration to the log, to the subscribers of events, and to the history of the page. This
//! module observes the driver, and influences nothing.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use perennial_store::{Fence, Lease, name::bounded};

use super::{
    driver::{Driver, Input},
    machine::{Conclusion, Generated, ProbeResult},
};
use crate::{
    cache::{Version, history::PastVersion, metadata::Description, missed::Finding},
    clock::Tick,
    event::{self, Outcome, Reason},
};

/// What the driver has observed of a regeneration, to be reported.
#[derive(Default)]
pub(super) struct RegenerationReport {
    /// Known when the generator begins.
    reason: Option<Reason>,
    /// The time at which the generator began, while it runs.
    generating_since: Option<Tick>,
    /// The time of the generator.
    generation_time: Duration,
    /// The size of the generated body.
    bytes: usize,
    /// The last probe found the expired lease of another holder.
    found_expired_lease: bool,
    /// The newest version when the generator began.
    before: Option<Version>,
}

impl RegenerationReport {
    fn reason(&self) -> Reason {
        self.reason.unwrap_or(Reason::Requested)
    }
}

impl Driver {
    /// Notes what an input says, before the machine decides about it.
    pub(super) fn observe(&mut self, input: &Input) {
        match input {
            Input::Probed(ProbeResult { lock, .. }) => {
                self.report.found_expired_lease = lock.owned && lock.remaining.is_zero();
            }
            Input::Acquired(Some(fence)) if self.report.found_expired_lease => {
                self.emit(event::Event::LeaseTakenOver {
                    key: self.key.clone(),
                    fence: *fence,
                });
            }
            Input::Generated(Generated::Content(page)) => {
                self.generator_has_ended();
                self.report.bytes = page.content().len();
            }
            _ => {}
        }
    }

    /// Returns the strings that are stored together with a version: its metadata with its description, and its
    /// line of the history. `changed` says that the content is not the same as before.
    pub(super) fn texts(&self, version: &Version, changed: bool) -> (String, String) {
        let environment = &self.regenerations.environment;
        let terms = version.page.meta.terms(&self.policy);
        let description = Description {
            layer: self.layer().to_string(),
            stale_while_revalidate: terms.stale_while_revalidate,
            code: environment.settings.revision.clone(),
            key: (bounded(&self.key) != *self.key).then(|| self.key.to_string()),
        };
        let generation = PastVersion {
            fence: self.fence().unwrap_or(Fence::NONE),
            began: SystemTime::UNIX_EPOCH,
            ago: Duration::ZERO,
            reason: self.report.reason(),
            took: self.report.generation_time,
            bytes: self.report.bytes as u64,
            changed,
            process: environment.locks.shown_label().to_owned(),
        };
        let metadata = &version.page.meta.stored;
        (description.encode(metadata), generation.line())
    }

    /// The generator begins.
    pub(super) fn generator_begins(&mut self, reason: Reason) {
        self.report.generating_since = Some(self.regenerations.environment.now());
        self.report.reason = Some(reason);
        self.report.before = self.regeneration.newest().cloned();
        self.emit(event::Event::Regenerating {
            key: self.key.clone(),
            layer: self.layer(),
            reason,
            fence: self.fence(),
        });
    }

    /// Sets the time of the generator, once.
    fn generator_has_ended(&mut self) {
        if let Some(since) = self.report.generating_since.take() {
            self.report.generation_time = self.regenerations.environment.now() - since;
        }
    }

    /// Logs the start of a wait for another process.
    pub(super) fn waits(&self) {
        let now = self.regenerations.environment.now();
        let time = self.regeneration.peer_lease_until() - now;
        tracing::debug!(
            target: "perennial::regeneration",
            key = &*self.key,
            "no version can be served; another process holds the lock, or has crashed: its lease ends in {time:.1?}"
        );
    }

    /// Reports the end.
    pub(super) fn conclude(&mut self, conclusion: Conclusion) {
        let Conclusion {
            outcome,
            failure,
            serves_old,
            cooldown,
        } = conclusion;
        if let (Outcome::Stored, Some(before)) = (outcome, &self.report.before)
            && let Some(after) = self.regeneration.newest()
        {
            let now = self.regenerations.environment.now();
            let reason = self.report.reason();
            let finding = Finding::of(before, after, reason, self.layer(), now);
            if let Some(finding) = finding {
                self.regenerations.missed.note(finding);
            }
        }
        if !outcome.has_begun() {
            return self.emit(event::Event::NotRegenerated {
                key: self.key.clone(),
                layer: self.layer(),
                outcome,
            });
        }
        self.generator_has_ended();
        let has_content = matches!(
            outcome,
            Outcome::Stored
                | Outcome::Renewed
                | Outcome::Unsaved
                | Outcome::KeptApart
                | Outcome::Overtaken
        );
        let regeneration = event::Regeneration {
            key: self.key.clone(),
            layer: self.layer(),
            reason: self.report.reason(),
            outcome,
            took: self.report.generation_time,
            bytes: if has_content { self.report.bytes } else { 0 },
            fence: self.fence(),
            error: failure.map(|failure| failure.full_text().into()),
            serves_old,
            cooldown,
        };
        self.emit(event::Event::Regenerated(regeneration.into()));
    }

    fn layer(&self) -> Arc<str> {
        let work = self.work.as_ref();
        work.map_or_else(Arc::default, |work| Arc::clone(&work.layer))
    }

    fn fence(&self) -> Option<Fence> {
        self.lease.as_ref().map(Lease::fence)
    }

    fn emit(&self, event: event::Event) {
        self.regenerations.environment.observer.emit(event);
    }
}
