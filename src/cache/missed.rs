//! Missed invalidations: pages whose content has changed although nobody invalidated them.
//!
//! A page with tags is meant to become stale when its data change. If a page is regenerated only because it has
//! aged, and the content is different all the same, then some change of the data has not named any tag of the
//! page. Somebody has forgotten that, in a handler, a trigger or a program, and visitors have had the old page
//! for up to its interval. A regeneration [notes](MissedInvalidations::note) what it has found, and a later
//! sync [judges](MissedInvalidations::judge) it. By then this process also knows of invalidations that were
//! written at the same moment as the data.
//!
//! This module observes, and decides nothing about a page.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use crate::{
    cache::{Meta, Version, entry::InvalidationView, epochs::Validity},
    clock::Tick,
    event::{Event, MissedInvalidation, Observer, Reason},
    mode::Mode,
    ordered::{Ordered, Place},
    timing::MISSED_INVALIDATION_WAIT,
};

/// The most findings that are kept while they wait for their judgement, and the most pages that are remembered
/// as already named in a warning.
const MAX_KEPT: usize = 100;

/// The missed invalidations that this process has noticed.
pub(crate) struct MissedInvalidations(Ordered<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Finding>,
    /// The latest ones, the latest one first.
    missed: VecDeque<Arc<MissedInvalidation>>,
    /// The keys that a warning has named.
    warned: HashSet<Arc<str>>,
}

/// A page that was found changed.
pub(crate) struct Finding {
    found: MissedInvalidation,
    /// The metadata of the version before.
    before: Meta,
    at: Tick,
}

impl Finding {
    /// Compares a page with the version before it, after a regeneration for this reason. Returns `None` where a
    /// change says nothing about invalidations.
    pub(crate) fn of(
        before: &Version,
        after: &Version,
        reason: Reason,
        layer: Arc<str>,
        now: Tick,
    ) -> Option<Self> {
        let stored = &before.page.meta.stored;
        let is_by_age = matches!(reason, Reason::Stale | Reason::Verified);
        // If one of the page's parts has been regenerated because of its age, the page's content may differ for
        // that reason alone. That is not a missed invalidation.
        let follows_parts = stored.parts_fresh_for.is_some() || stored.is_provisional;
        let has_tags = !stored.tags.is_empty();
        if !is_by_age || follows_parts || !has_tags || before.is_unsaved() || before.age_unknown {
            return None;
        }
        let (old, new) = (&before.page, &after.page);
        let difference = match old.status() == new.status() {
            true => difference(old.content(), new.content()),
            false => old.content().len().max(new.content().len()).max(1),
        };
        // If the bodies are equal, only headers differ, such as a request ID.
        (difference > 0).then(|| Self {
            found: MissedInvalidation {
                key: before.page.meta.key().into(),
                layer,
                tags: stored.tags.to_vec(),
                bytes: difference,
                age: before.age(now),
            },
            before: Meta::new(before.page.meta.key(), stored.clone()),
            at: now,
        })
    }
}

impl MissedInvalidations {
    pub(crate) fn new() -> Self {
        Self(Ordered::new(Place::Last, State::default()))
    }

    /// Keeps a finding until it is judged.
    pub(crate) fn note(&self, finding: Finding) {
        let mut state = self.0.lock();
        if state.waiting.len() < MAX_KEPT {
            state.waiting.push_back(finding);
        }
    }

    /// Judges the findings that are old enough: a sync that began at this time has told the process all
    /// invalidations that matter for them.
    pub(crate) fn judge(
        &self,
        synced_at: Tick,
        list: &dyn InvalidationView,
        observer: &Observer,
        mode: Mode,
    ) {
        let mut missed = Vec::new();
        let mut state = self.0.lock();
        let is_over = |finding: &mut Finding| finding.at + MISSED_INVALIDATION_WAIT <= synced_at;
        while let Some(Finding { found, before, .. }) = state.waiting.pop_front_if(is_over) {
            if list.validity(&before) == Validity::Valid {
                let found = Arc::new(found);
                state.missed.push_front(Arc::clone(&found));
                let warns = mode == Mode::Development
                    && state.warned.len() < MAX_KEPT
                    && state.warned.insert(found.key.clone());
                missed.push((found, warns));
            }
        }
        state.missed.truncate(MAX_KEPT);
        drop(state);
        for (found, warns) in missed {
            if warns {
                warn(&found);
            }
            observer.emit(Event::MissedInvalidation(found));
        }
    }

    /// Returns the latest missed invalidations, the latest one first.
    pub(crate) fn latest(&self) -> Vec<Arc<MissedInvalidation>> {
        self.0.lock().missed.iter().cloned().collect()
    }

    /// Returns the latest one of a page.
    pub(crate) fn of(&self, key: &str) -> Option<Arc<MissedInvalidation>> {
        let state = self.0.lock();
        state.missed.iter().find(|it| &*it.key == key).cloned()
    }
}

fn warn(found: &MissedInvalidation) {
    tracing::warn!(
        target: "perennial::invalidation",
        key = &*found.key,
        layer = &*found.layer,
        tags = found.tags.join(", "),
        bytes = found.bytes,
        "this page has changed by itself: it was regenerated for its age, its content was another one, and no invalidation has named it. \
         Visitors had the old page until then. Does the code that changes its data invalidate one of these tags, or a trigger \
         (`perennial triggers`)? A page that differs with each generation, as by a time of day, has this warning, too (logged once for \
         each page)"
    );
}

/// Returns the size of the part that differs. That is the length of the longer text without the beginning and
/// the end that both have in common.
fn difference(old: &[u8], new: &[u8]) -> usize {
    let same = |(a, b): &(&u8, &u8)| a == b;
    let begin = old.iter().zip(new).take_while(same).count();
    let ends = old[begin..].iter().rev().zip(new[begin..].iter().rev());
    let end = ends.take_while(same).count();
    old.len().max(new.len()) - begin - end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_is_what_two_texts_do_not_share() {
        for (old, new, expected) in [
            ("", "", 0),
            ("price: 10 EUR", "price: 10 EUR", 0),
            ("price: 10 EUR", "price: 12 EUR", 1),
            ("price: 10 EUR", "price: 100 EUR", 1),
            ("price: 100 EUR", "price: 10 EUR", 1),
            ("aaa", "aa", 1),
            ("abab", "ab", 2),
            ("abc", "xyz", 3),
            ("", "abc", 3),
        ] {
            assert_eq!(
                difference(old.as_bytes(), new.as_bytes()),
                expected,
                "{old} {new}"
            );
        }
    }
}
