//! The latest regenerations of this process that have failed. They are part of the figures that processes share
//! through the database. Operators see them long after a failure, when its cooldown is over and its event is
//! gone.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use perennial_store::{
    error::words::{of_seconds, seconds},
    locked,
};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;

use super::Regeneration;

/// The number of failures that a process remembers.
const LATEST: usize = 5;

/// The length at which a key or an error is cut, in characters, so that the row of a process stays small.
const LONGEST: usize = 200;

/// A regeneration that has failed or taken too long; in [`ProcessStats::failures`](super::ProcessStats::failures).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailedRegeneration {
    /// The key of the resource, cut after 200 characters.
    pub key: String,
    /// The error of the generator, cut after 200 characters. Without one, the [outcome](super::Outcome).
    pub error: String,
    /// How long ago the regeneration failed.
    #[serde(
        rename = "ago_s",
        serialize_with = "seconds",
        deserialize_with = "read_seconds"
    )]
    pub ago: Duration,
}

/// The latest failures, the latest one first.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<VecDeque<(Instant, Arc<Regeneration>)>>);

impl Failures {
    pub(super) fn add(&self, failed: &Arc<Regeneration>) {
        let mut latest = locked(&self.0);
        latest.push_front((Instant::now(), Arc::clone(failed)));
        latest.truncate(LATEST);
    }

    pub(super) fn latest(&self) -> Vec<FailedRegeneration> {
        let latest = locked(&self.0);
        let failures = latest.iter().map(|(at, failed)| FailedRegeneration {
            key: cut(&failed.key),
            error: match &failed.error {
                Some(error) => cut(error),
                None => failed.outcome.to_string(),
            },
            ago: at.elapsed(),
        });
        failures.collect()
    }
}

fn read_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    f64::deserialize(deserializer).map(of_seconds)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
