//! What a regeneration leaves: in memory, and for those who wait.

use super::*;

impl Regeneration {
    /// Ends with what is no content. Returns the cooldown that other processes are to keep.
    pub(super) fn refuse(&mut self, generated: Generated, basis: Basis) -> Duration {
        let cooldown = self.policy.cooldown();
        match generated {
            Generated::Content(_) => unreachable!("content is published"),
            Generated::Unshareable { why, tags } => {
                // A status may be over soon; the rest is what the route is like.
                let time = if why == Pass::Status {
                    cooldown
                } else {
                    tracing::info!(
                        key = self.key,
                        "the response is not stored, as {}: each request goes to the service",
                        why.reason()
                    );
                    self.policy.interval
                };
                let notes = self.notes(basis, tags, None);
                self.pass_for(why, time.max(RECHECK), notes);
                Duration::ZERO
            }
            Generated::TooLarge if self.servable().is_none() => {
                tracing::info!(
                    key = self.key,
                    "the response is too large to be stored: each request goes to the service"
                );
                let notes = self.notes(basis, Tags::default(), None);
                self.pass_for(Pass::TooLarge, cooldown, notes);
                // Others may find that it fits their limit.
                Duration::ZERO
            }
            Generated::TooLarge => {
                tracing::warn!(
                    key = self.key,
                    "the response is too large to be stored; the old version goes on being served"
                );
                self.rest(cooldown);
                cooldown
            }
            Generated::Failed(failure) => {
                let servable = self.is_servable_for(cooldown);
                tracing::warn!(
                    key = self.key,
                    error = %failure.error,
                    again_in = ?cooldown,
                    "the generator failed{}",
                    if servable { "; the old version goes on being served" } else { "" }
                );
                if servable {
                    self.rest(cooldown);
                } else {
                    self.remember_cooldown(cooldown, basis);
                    self.end(Answer::Failed(failure));
                }
                cooldown
            }
        }
    }

    pub(super) fn failed(&self, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Generated {
        Generated::Failed(Failure {
            error: Arc::from(error.into()),
            response: None,
            retry_in: self.policy.cooldown(),
        })
    }

    /// The old version goes on being served, and nothing is asked about it for so long.
    pub(super) fn rest(&self, time: Duration) {
        if let Some(version) = &self.version {
            version.rest_until(self.engine.clock.now() + time);
            if self.servable().is_none() && version.void(&self.engine.known) != Void::Purged {
                // It has expired since it was decided that it may be served.
                return self.end(Answer::Unavailable { retry_in: time });
            }
        }
        self.end_with_newest();
    }

    /// Whether the old version may be served in a cooldown of this time.
    pub(super) fn is_servable_for(&self, cooldown: Duration) -> bool {
        let now = self.engine.clock.now();
        let excused = self.version.as_ref().is_some_and(|version| {
            version.excuse_until(now + cooldown, now, &self.policy, &self.engine.known)
        });
        excused || self.servable().is_some()
    }

    pub(super) fn cool_down(&self, time: Duration, basis: Basis) {
        if self.is_servable_for(time) {
            return self.rest(time);
        }
        self.remember_cooldown(time, basis);
        self.end(Answer::Unavailable { retry_in: time });
    }

    pub(super) fn remember_cooldown(&self, time: Duration, basis: Basis) {
        let notes = self.notes(basis, Tags::default(), None);
        self.remember(Slot::Cooldown {
            until: self.engine.clock.now() + time,
            standing: Arc::new(Standing::new(notes)),
        });
    }

    pub(super) fn pass_for(&self, why: Pass, time: Duration, notes: Notes) {
        self.remember(Slot::Pass {
            until: self.engine.clock.now() + time,
            why,
            standing: Arc::new(Standing::new(notes)),
        });
        self.end(Answer::Pass(why));
    }

    /// Keeps the fence of the version before it, so that whatever is published next replaces it.
    pub(super) fn hold_unsaved(&mut self, content: Response<Bytes>, born: Tick, basis: Basis) {
        let fence = self.version.as_ref().map_or(0, |version| version.fence);
        self.hold(self.made(content, fence, born, basis).unsaved());
    }

    pub(super) fn serve_unsaved(&mut self, content: Response<Bytes>, born: Tick, basis: Basis) {
        self.hold_unsaved(content, born, basis);
        self.end_with_newest();
    }

    /// A version that was made here.
    pub(super) fn made(
        &self,
        content: Response<Bytes>,
        fence: i64,
        born: Tick,
        basis: Basis,
    ) -> Version {
        let said = content.extensions();
        let tags = said.get().cloned().unwrap_or_default();
        let notes = self.notes(basis, tags, said.get().copied());
        let version = Version::new(&self.key, content, fence, born, notes);
        version.replacing(self.version.as_deref(), &self.engine.known)
    }

    pub(super) fn notes(
        &self,
        basis: Basis,
        Tags(tags): Tags,
        after: Option<RefreshAfter>,
    ) -> Notes {
        Notes {
            epoch: basis.epoch,
            revision: basis.revision,
            tags,
            refresh_after: after.map(|after| after.0),
        }
    }

    /// Takes a version over, here and in memory.
    pub(super) fn hold(&mut self, version: Version) {
        #[cfg(feature = "compression")]
        let version = match &self.version {
            Some(before) => version.like(before),
            None => version,
        };
        let version = Arc::new(version.with_seed(self.seed.clone()));
        self.remember(Slot::Version(Arc::clone(&version)));
        #[cfg(feature = "compression")]
        self.engine.code_like(self.version.as_deref(), &version);
        self.version = Some(version);
    }

    pub(super) fn remember(&self, slot: Slot) {
        self.engine.memory.insert(&self.key, slot);
    }

    pub(super) fn end_with_newest(&self) {
        self.end(match &self.version {
            // Purged while it was made.
            Some(version) if version.void(&self.engine.known) == Void::Purged => {
                Answer::Pass(Pass::Purged)
            }
            Some(version) => Answer::Version(Arc::clone(version)),
            None => Answer::Unavailable {
                retry_in: self.policy.cooldown(),
            },
        });
    }

    /// Gives up its place among the keys that are being regenerated, unless a visitor has come who waits.
    pub(super) fn leave(&mut self) -> bool {
        let mut running = self.engine.running();
        if self.stage.receiver_count() > 0 {
            return false;
        }
        running.remove(&self.key);
        self.left = true;
        true
    }

    pub(super) fn end(&self, answer: Answer) {
        self.stage.send_replace(Stage::Done(answer));
    }

    pub(super) fn freshness(&self) -> Option<Freshness> {
        let now = self.engine.clock.now();
        self.version
            .as_ref()
            .map(|version| version.freshness(now, &self.policy, &self.engine.known))
    }

    /// The version, if it may be served.
    pub(super) fn servable(&self) -> Option<Arc<Version>> {
        match self.freshness() {
            None | Some(Freshness::Expired) => None,
            Some(Freshness::Fresh | Freshness::Stale) => self.version.clone(),
        }
    }

    pub(super) fn lock_name(&self) -> String {
        format!("{REFRESH}{}", bounded(&self.key))
    }
}
