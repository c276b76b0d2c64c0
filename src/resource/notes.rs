//! What is noted of a version beside its response.

use std::{sync::Arc, time::Duration};

use form_urlencoded::Serializer;

use crate::clock::{duration, micros};

/// Noted with each edition, and read by every process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Made when this was the latest epoch: what has been invalidated since makes it stale.
    pub(crate) epoch: i64,
    /// Made by the revision that was first seen in this epoch; 0: by none.
    pub(crate) revision: i64,
    pub(crate) tags: Arc<[String]>,
    /// The interval, where the generator has said it.
    pub(crate) refresh_after: Option<Duration>,
}

impl Notes {
    pub(crate) fn encode(&self) -> String {
        let mut pairs = Serializer::new(String::new());
        pairs.append_pair("epoch", &self.epoch.to_string());
        if self.revision != 0 {
            pairs.append_pair("revision", &self.revision.to_string());
        }
        if let Some(after) = self.refresh_after {
            pairs.append_pair("refresh_after", &micros(after).to_string());
        }
        for tag in &*self.tags {
            pairs.append_pair("tag", tag);
        }
        pairs.finish()
    }

    /// What can't be read says nothing; without an epoch it is as old as can be.
    pub(crate) fn decode(text: &str) -> Self {
        let (mut notes, mut tags) = (Self::default(), Vec::new());
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "epoch" => notes.epoch = value.parse().unwrap_or_default(),
                "revision" => notes.revision = value.parse().unwrap_or_default(),
                "refresh_after" => notes.refresh_after = value.parse().ok().map(duration),
                "tag" => tags.push(value.into_owned()),
                _ => {}
            }
        }
        notes.tags = tags.into();
        notes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn notes_come_back_as_they_were(
            epoch: i64, revision: i64, tags: Vec<String>, after in proptest::option::of(0..i64::MAX),
        ) {
            let notes = Notes { epoch, revision, tags: tags.into(), refresh_after: after.map(duration) };
            let text = notes.encode();
            prop_assert!(text.is_ascii() && !text.is_empty());
            prop_assert_eq!(Notes::decode(&text), notes);
        }

        #[test]
        fn garbage_never_panics(text: String) {
            let _ = Notes::decode(&text);
        }
    }
}
