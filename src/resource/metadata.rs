//! The metadata beside a version's response, which every process reads.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::clock::{duration, micros};

/// The metadata of a stored version: a column, and a part of the JSON text beside the content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Metadata {
    /// The latest epoch before the generator began. Later invalidations apply to the version. A
    /// column.
    #[serde(skip)]
    pub(crate) epoch: i64,
    /// The epoch in which the generating process's revision was first seen; 0 without a revision.
    pub(crate) revision: i64,
    pub(crate) tags: Arc<[String]>,
    /// The interval, if the generator set one.
    #[serde(with = "optional_micros", skip_serializing_if = "Option::is_none")]
    pub(crate) refresh_after: Option<Duration>,
    /// A part of the version was stale, provisional itself, or missing.
    #[serde(rename = "provisional")]
    pub(crate) is_provisional: bool,
    /// The time that the generator took.
    #[serde(with = "as_micros")]
    pub(crate) took: Duration,
}

impl Metadata {
    /// Returns the metadata in the store's column and text. The metadata of an unreadable text are
    /// older than every invalidation.
    pub(crate) fn decode(epoch: i64, text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(metadata) => Self { epoch, ..metadata },
            Err(_) => Self::default(),
        }
    }
}

/// The text about a version that the list of entries shows, beside the metadata that decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Description {
    pub(super) layer: String,
    /// The age after which a hit starts a regeneration, if earlier than the interval.
    #[serde(with = "optional_micros", skip_serializing_if = "Option::is_none")]
    pub(super) early: Option<Duration>,
    #[serde(with = "optional_micros", skip_serializing_if = "Option::is_none")]
    pub(super) stale_while_revalidate: Option<Duration>,
    /// The revision of the code, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// The key, if its name in the store is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
}

impl Description {
    /// Returns the JSON text of both.
    pub(super) fn encode(&self, metadata: &Metadata) -> String {
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

    /// Reads a text. An unreadable text describes nothing.
    pub(super) fn decode(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// Durations as whole microseconds.
mod as_micros {
    use super::{Deserialize, Duration, duration, micros};

    pub(super) fn serialize<S: serde::Serializer>(
        time: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(micros(*time))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        i64::deserialize(deserializer).map(duration)
    }
}

mod optional_micros {
    use super::{Deserialize, Duration, duration, micros};

    pub(super) fn serialize<S: serde::Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&time.map(micros), serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<i64>::deserialize(deserializer).map(|micros| micros.map(duration))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn metadata_comes_back_unchanged(
            epoch: i64, revision: i64, tags: Vec<String>, after in proptest::option::of(0..i64::MAX),
            took in 0..i64::MAX, is_provisional: bool, layer: String,
        ) {
            let refresh_after = after.map(duration);
            let early = refresh_after;
            let metadata = Metadata {
                epoch, revision, tags: tags.into(), refresh_after, is_provisional, took: duration(took),
            };
            let description = Description { layer, early, ..Description::default() };
            let text = description.encode(&metadata);
            prop_assert_eq!(Metadata::decode(epoch, &text), metadata);
            prop_assert_eq!(Description::decode(&text), description);
        }

        #[test]
        fn garbage_never_panics(text: String) {
            let _ = (Metadata::decode(1, &text), Description::decode(&text));
        }
    }
}
