//! The metadata beside a version's response, which every process reads.

use std::{sync::Arc, time::Duration};

use form_urlencoded::Serializer;

use crate::clock::{duration, micros};

/// The metadata of a stored version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// The latest epoch before the generator began. Later invalidations apply to the version.
    pub(crate) epoch: i64,
    /// The epoch in which the generating process's revision was first seen; 0 without a revision.
    pub(crate) revision: i64,
    pub(crate) tags: Arc<[String]>,
    /// The interval, if the generator set one.
    pub(crate) refresh_after: Option<Duration>,
    /// A part of the version was stale, provisional itself, or missing.
    pub(crate) is_provisional: bool,
    /// The time that the generator took.
    pub(crate) took: Duration,
}

impl Metadata {
    pub(crate) fn encode(&self) -> String {
        let mut pairs = Serializer::new(String::new());
        pairs.append_pair("epoch", &self.epoch.to_string());
        if self.revision != 0 {
            pairs.append_pair("revision", &self.revision.to_string());
        }
        if let Some(after) = self.refresh_after {
            pairs.append_pair("refresh_after", &micros(after).to_string());
        }
        if self.is_provisional {
            pairs.append_pair("provisional", "1");
        }
        if !self.took.is_zero() {
            pairs.append_pair("took", &micros(self.took).to_string());
        }
        for tag in &*self.tags {
            pairs.append_pair("tag", tag);
        }
        pairs.finish()
    }

    /// Reads a text. Unreadable parts are ignored, and a version without an epoch counts as older
    /// than every invalidation.
    pub(crate) fn decode(text: &str) -> Self {
        let (mut metadata, mut tags) = (Self::default(), Vec::new());
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "epoch" => metadata.epoch = value.parse().unwrap_or_default(),
                "revision" => metadata.revision = value.parse().unwrap_or_default(),
                "refresh_after" => metadata.refresh_after = value.parse().ok().map(duration),
                "provisional" => metadata.is_provisional = true,
                "took" => metadata.took = value.parse().map_or(Duration::ZERO, duration),
                "tag" => tags.push(value.into_owned()),
                _ => {}
            }
        }
        metadata.tags = tags.into();
        metadata
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
            took in 0..i64::MAX, is_provisional: bool,
        ) {
            let refresh_after = after.map(duration);
            let metadata = Metadata {
                epoch, revision, tags: tags.into(), refresh_after, is_provisional, took: duration(took),
            };
            let text = metadata.encode();
            prop_assert!(text.is_ascii() && !text.is_empty());
            prop_assert_eq!(Metadata::decode(&text), metadata);
        }

        #[test]
        fn garbage_never_panics(text: String) {
            let _ = Metadata::decode(&text);
        }
    }
}
