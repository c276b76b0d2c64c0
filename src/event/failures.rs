//! The latest regenerations of this process that have failed. They are part of the figures that processes share
//! through the database, so operators see them long after a failure, when its cooldown is over and its event is
//! gone.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use perennial_store::{
    error::words::{of_seconds, seconds},
    locked,
};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;

use super::{Outcome, Regeneration};

/// The outcomes that count as failures.
pub(super) const FAILURES: [Outcome; 2] = [Outcome::Failed, Outcome::TimedOut];

/// The number of resources whose failures a process remembers.
const LATEST: usize = 5;

/// The time for which a failure is remembered.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// The length at which a key or an error is cut, in characters, so that the row of a process stays small.
const LONGEST: usize = 200;

/// The latest regeneration of a resource that has failed or taken too long; in
/// [`ProcessStats::failures`](super::ProcessStats::failures).
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

impl FailedRegeneration {
    /// Returns true if this is a failure of the resource with this key, as far as the cut key tells.
    pub fn is_of(&self, key: &str) -> bool {
        self.key == cut(key)
    }

    /// Returns true if the key was cut, so that it is not the key of the resource.
    pub fn is_key_cut(&self) -> bool {
        self.key.chars().count() > LONGEST
    }
}

#[derive(Debug)]
struct Remembered {
    at: Instant,
    key: String,
    error: String,
}

/// The latest failures, the latest one first, and one for each resource.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<VecDeque<Remembered>>);

impl Failures {
    pub(super) fn add(&self, failed: &Regeneration) {
        let failure = Remembered {
            at: Instant::now(),
            key: cut(&failed.key),
            error: match &failed.error {
                Some(error) => cut(error),
                None => failed.outcome.to_string(),
            },
        };
        let mut latest = locked(&self.0);
        latest.retain(|other| other.key != failure.key);
        latest.push_front(failure);
        latest.truncate(LATEST);
    }

    pub(super) fn latest(&self) -> Vec<FailedRegeneration> {
        let latest = locked(&self.0);
        let recent = latest.iter().filter(|it| it.at.elapsed() < KEPT_FOR);
        let failures = recent.map(|it| FailedRegeneration {
            key: it.key.clone(),
            error: it.error.clone(),
            ago: it.at.elapsed(),
        });
        failures.collect()
    }
}

fn read_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    f64::deserialize(deserializer).map(of_seconds)
}

/// Returns the beginning of a text, with a `…` if it was cut.
fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
