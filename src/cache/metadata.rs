//! The metadata of a version: whatever else, apart from its age, decides whether and how it is served.
//!
//! [`Metadata`] is what the store keeps, in columns and a JSON document. [`Meta`] is what memory keeps: the
//! same data, and some values that this process has computed from them once, such as the age at which the
//! version is verified. If the metadata of a version cannot be read, the version is not used, and is
//! generated anew.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use http::{HeaderMap, Response, StatusCode};
use perennial_store::Epoch;
use serde::{Deserialize, Serialize};

use crate::{
    cache::epochs::{RevisionEpoch, Sighting, Snapshot, Validity},
    clock::{duration, micros},
    extensions::{RefreshAfter, Tags},
    holes::HolePlaces,
    http::terms::{self, Terms},
    key,
    policy::{GenerationTimes, Refresh},
    timing::PROVISIONAL_INTERVAL,
};

/// The metadata of a stored version. `epoch` is a column of its own; the rest is a part of the JSON text
/// beside the content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Metadata {
    /// The latest epoch that was known before the generator began, or an earlier one if a part may be older.
    /// Later invalidations apply to the version.
    #[serde(skip)]
    pub(crate) epoch: Epoch,
    /// This process's latest [sighting](crate::cache::epochs::Sighting) before the generator began. Rows of the
    /// outbox that were seen by then do not apply to the version. A version from the store has the very first
    /// sighting, because the sightings of one process mean nothing to others.
    #[serde(skip)]
    pub(crate) sightings: Sighting,
    /// The revision of the generating process.
    pub(crate) revision: RevisionEpoch,
    pub(crate) tags: Arc<[String]>,
    /// The keys of the parts, at any depth.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) parts: Arc<[String]>,
    /// There were more than 256 tags and parts. The version then has none of them, and *any* invalidation
    /// applies to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) depends_on_everything: bool,
    /// The time until the first of its parts is stale.
    #[serde(with = "optional_micros", skip_serializing_if = "Option::is_none")]
    pub(crate) parts_fresh_for: Option<Duration>,
    /// The interval that the generator has set for this version.
    #[serde(with = "optional_micros", skip_serializing_if = "Option::is_none")]
    pub(crate) refresh_after: Option<Duration>,
    /// The age at which the version ends: it is neither served nor kept.
    #[serde(with = "optional_micros", skip_serializing_if = "Option::is_none")]
    pub(crate) expire_after: Option<Duration>,
    /// A part of the version was stale, provisional itself, or missing.
    #[serde(rename = "provisional")]
    pub(crate) is_provisional: bool,
    /// The generated date of the last modification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) modified: Option<LastModified>,
    /// The holes of the body, which each visitor's request fills.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holes: Option<Arc<HolePlaces>>,
    /// The text in the database cannot be read, so that nobody knows where the body has holes. No process
    /// uses the version.
    #[serde(skip)]
    pub(crate) is_damaged: bool,
}

/// The generated date of a version, for `Last-Modified`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastModified {
    /// The date in whole seconds since 1970.
    pub(crate) seconds: i64,
    /// A client may have this date, or a later one, from an earlier version, so no response has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_ambiguous: bool,
}

impl Metadata {
    /// Reads the metadata from the store's column and text.
    pub(crate) fn decode(epoch: Epoch, text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(metadata) => Self { epoch, ..metadata },
            Err(_) => Self {
                is_damaged: true,
                ..Self::default()
            },
        }
    }
}

/// What the list of entries says about a version. It is stored beside the metadata, and decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Description {
    pub(crate) layer: String,
    #[serde(with = "optional_micros", skip_serializing_if = "Option::is_none")]
    pub(crate) stale_while_revalidate: Option<Duration>,
    /// The revision of the code, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<String>,
    /// The key, if its name in the store is different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

impl Description {
    /// Returns the JSON text of the description and the metadata.
    pub(crate) fn encode(&self, metadata: &Metadata) -> String {
        #[derive(Serialize)]
        struct Both<'a> {
            #[serde(flatten)]
            metadata: &'a Metadata,
            #[serde(flatten)]
            description: &'a Description,
        }
        let both = Both {
            metadata,
            description: self,
        };
        serde_json::to_string(&both).expect("texts, numbers and lists have a JSON form")
    }

    /// Reads the description from the text. If the text cannot be read, the description is empty.
    pub(crate) fn decode(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// Durations as whole microseconds.
mod optional_micros {
    use super::{Deserialize, Duration, duration, micros};

    pub(crate) fn serialize<S: serde::Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&time.map(micros), serializer)
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<i64>::deserialize(deserializer).map(|micros| micros.map(duration))
    }
}

/// The metadata in memory: of a version, or of a key without one.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) key: Box<str>,
    pub(crate) stored: Metadata,
    /// The status of the response.
    status: StatusCode,
    /// The interval and the limits of staleness that the response's headers declare, or `None` if they declare
    /// none. Few pages have them, so they are boxed: that way, the other fields, which each hit reads, are
    /// close together in memory.
    declared: Option<Box<Terms>>,
    /// A hash of the key from 0 to 1. Multiplied by [`Refresh::jitter`], it is this key's fixed share of the
    /// spread.
    unit: f64,
    /// The interval that follows from the policy's schedule, if it has one.
    scheduled: Option<Duration>,
    /// The age at which the version is regenerated to be compared, although it is fresh; see
    /// [`Refresh::verify`].
    verified_after: Option<Duration>,
    /// The validity in the lowest two bits, and above them the number of changes of the invalidation list for
    /// which it was computed.
    validity: AtomicU64,
}

impl Meta {
    pub(crate) fn new(key: &str, stored: Metadata) -> Self {
        Self {
            key: key.into(),
            stored,
            status: StatusCode::OK,
            declared: None,
            unit: key::unit(key),
            scheduled: None,
            verified_after: None,
            // Valid, as of no change at all.
            validity: AtomicU64::new(0),
        }
    }

    /// Creates the metadata of a key without a version.
    pub(crate) fn without_version(key: &str, snapshot: Snapshot, Tags(tags): Tags) -> Self {
        let Snapshot { epoch, revision } = snapshot;
        let stored = Metadata {
            epoch,
            revision,
            tags,
            ..Metadata::default()
        };
        Self::new(key, stored)
    }

    /// Returns a copy that shares no reference counter with this one, except for those of its tags,
    /// parts and holes, to which no hit of a page without holes writes.
    pub(crate) fn copied(&self) -> Self {
        Self {
            key: self.key.clone(),
            stored: self.stored.clone(),
            status: self.status,
            declared: self.declared.clone(),
            unit: self.unit,
            scheduled: self.scheduled,
            verified_after: self.verified_after,
            validity: AtomicU64::new(self.validity.load(Relaxed)),
        }
    }

    /// Adds the latest sighting of this process.
    pub(crate) fn seen(mut self, sightings: Sighting) -> Self {
        self.stored.sightings = sightings;
        self
    }

    /// Adds the times that the response declares.
    pub(crate) fn of_response(self, status: StatusCode, headers: &HeaderMap) -> Self {
        Self {
            status,
            declared: terms::declared(headers).map(Box::new),
            ..self
        }
    }

    /// Sets the times that follow from the policy of the regeneration.
    pub(crate) fn timed(&mut self, policy: &Refresh, times: GenerationTimes) {
        self.scheduled = policy.scheduled(times, self.unit);
        if !self.stored.tags.is_empty() && self.stored.refresh_after.is_none() {
            // The number is the same in each process, and differs from version to version.
            let unit = || key::unit(&format!("{} {}", times.began, self.key));
            self.verified_after = policy.verified_after(unit);
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            epoch: self.stored.epoch,
            revision: self.stored.revision,
        }
    }

    pub(crate) fn is_negative(&self) -> bool {
        terms::is_negative(self.status)
    }

    /// Returns the validity according to a list that has changed this many times. `check` asks the list, which
    /// is needed only once after each change. A version that was invalidated never becomes valid again, so the
    /// worse of the last and the new result holds.
    pub(crate) fn validity_at(&self, changes: u64, check: impl FnOnce() -> Validity) -> Validity {
        let cached = self.validity.load(Relaxed);
        let before = Validity::ALL[(cached & 3) as usize];
        if cached >> 2 == changes {
            return before;
        }
        let validity = check().max(before);
        self.validity.store(changes << 2 | validity as u64, Relaxed);
        validity
    }

    #[inline(always)]
    pub(crate) fn terms(&self, policy: &Refresh) -> Terms {
        let mut terms = self.terms_without_verification(policy);
        if let Some(after) = self.verified_after
            && let Some(early) = terms.interval.checked_sub(after)
        {
            // The version is served for as long as it would be without the verification.
            let later = |limit: Duration| limit.saturating_add(early);
            terms.interval = after;
            terms.stale_while_revalidate = terms.stale_while_revalidate.map(later);
            if !terms.stale_if_error.is_zero() {
                terms.stale_if_error = later(terms.stale_if_error);
            }
        }
        terms
    }

    /// Returns the terms that the version would have if it was not [verified](Refresh::verify).
    #[inline(always)]
    pub(crate) fn terms_without_verification(&self, policy: &Refresh) -> Terms {
        let mut terms = match &self.declared {
            Some(declared) if policy.by_headers => **declared,
            _ => {
                let interval = self.scheduled;
                let interval = interval.unwrap_or_else(|| policy.interval_at(self.unit));
                let interval = terms::interval_for(self.status, interval);
                Terms {
                    interval,
                    stale_while_revalidate: policy.stale_while_revalidate,
                    stale_if_error: policy.stale_if_error,
                }
            }
        };
        if let Some(interval) = self.stored.refresh_after {
            terms.interval = interval;
        }
        if let Some(last) = self.stored.parts_fresh_for {
            terms.interval = terms.interval.min(last);
        }
        if self.stored.is_provisional {
            terms.interval = terms.interval.min(PROVISIONAL_INTERVAL);
        }
        if let Some(end) = self.stored.expire_after {
            terms.interval = terms.interval.min(end);
            let left = end - terms.interval;
            let limited = terms
                .stale_while_revalidate
                .map_or(left, |limit| limit.min(left));
            terms.stale_while_revalidate = Some(limited);
            terms.stale_if_error = terms.stale_if_error.min(left);
        }
        terms
    }
}

/// Returns the interval that a response would have if it were generated now.
pub(crate) fn interval_of<B>(response: &Response<B>, policy: &Refresh) -> Duration {
    let after = response.extensions().get::<RefreshAfter>();
    let metadata = Metadata {
        refresh_after: after.map(|RefreshAfter(after)| *after),
        ..Metadata::default()
    };
    let mut meta = Meta::new("", metadata).of_response(response.status(), response.headers());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = micros(now.unwrap_or_default());
    let times = GenerationTimes {
        began: now,
        published: now,
    };
    meta.timed(policy, times);
    meta.terms(policy).interval
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::holes::{Escape, Place};

    #[test]
    fn unreadable_metadata_is_older_than_every_invalidation() {
        let readable = Metadata::decode(Epoch(7), "{}");
        assert!(!readable.is_damaged);
        assert_eq!(readable.epoch, Epoch(7));
        let unreadable = Metadata::decode(Epoch(7), "{");
        assert!(unreadable.is_damaged);
        assert_eq!(unreadable.epoch, Epoch::NONE);
    }

    proptest! {
        #[test]
        fn metadata_comes_back_unchanged(
            epoch: i64, revision: i64, tags: Vec<String>, parts: Vec<String>, depends_on_everything: bool, after in proptest::option::of(0..i64::MAX),
            is_provisional: bool, layer: String, seconds: i64, is_ambiguous: bool,
        ) {
            let refresh_after = after.map(duration);
            let metadata = Metadata {
                epoch: Epoch(epoch), sightings: Sighting::default(), revision: revision.into(), tags: tags.into(), parts: parts.into(), depends_on_everything, parts_fresh_for: refresh_after, refresh_after, expire_after: refresh_after, is_provisional,
                modified: Some(LastModified { seconds, is_ambiguous }),
                holes: is_ambiguous.then(|| Arc::new(HolePlaces { names: vec!["name".into()], places: vec![Place { at: 7, name: 0, escape: Escape::Text }] })),
                is_damaged: false,
            };
            let description = Description { layer, stale_while_revalidate: refresh_after, ..Description::default() };
            let text = description.encode(&metadata);
            prop_assert_eq!(Metadata::decode(Epoch(epoch), &text), metadata);
            prop_assert_eq!(Description::decode(&text), description);
        }

        #[test]
        fn garbage_never_panics(text: String) {
            let _ = (Metadata::decode(Epoch(1), &text), Description::decode(&text));
        }
    }
}
