//! What a process tells the other processes of its site about itself, as JSON in a row of the database.

use std::time::{Duration, SystemTime};

use perennial_store::{
    ProcessRow,
    error::words::{of_seconds, seconds, unix_time},
};
use serde::{Deserialize, Serialize};

use super::Stats;

/// The figures of one process of a site; from [`Perennial::processes`](crate::Perennial::processes).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProcessStats {
    /// The process's [label](crate::locks::Locks::label), such as `web1:4711`.
    pub label: String,
    /// Perennial's version.
    pub version: String,
    /// The [revision](crate::Builder::revision) of the site's code.
    pub revision: Option<String>,
    /// The time from the beginning of the sharing to the figures.
    #[serde(rename = "up_for_s", serialize_with = "seconds")]
    pub up_for: Duration,
    /// The time of the figures, by the database's clock.
    #[serde(serialize_with = "unix_time")]
    pub noted_at: SystemTime,
    /// The time since then: ten seconds at most while the process runs and reaches the database.
    #[serde(rename = "silent_for_s", serialize_with = "seconds")]
    pub silent_for: Duration,
    /// The figures.
    pub stats: Stats,
}

/// The text of the row.
#[derive(Serialize, Deserialize)]
struct Text {
    label: String,
    version: String,
    revision: Option<String>,
    up_for_s: f64,
    stats: Stats,
}

impl ProcessStats {
    /// Returns the text of this process's row.
    pub(crate) fn encode(
        label: &str,
        revision: Option<&str>,
        up_for: Duration,
        stats: Stats,
    ) -> String {
        let text = Text {
            label: label.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: revision.map(str::to_owned),
            up_for_s: up_for.as_secs_f64(),
            stats,
        };
        serde_json::to_string(&text).expect("texts and numbers have a JSON form")
    }

    /// Reads a row. `None` means that a release wrote it whose figures are others.
    pub(crate) fn decode(row: &ProcessRow) -> Option<Self> {
        let text: Text = serde_json::from_str(&row.figures).ok()?;
        Some(Self {
            label: text.label,
            version: text.version,
            revision: text.revision,
            up_for: of_seconds(text.up_for_s),
            noted_at: row.noted_at,
            silent_for: row.age,
            stats: text.stats,
        })
    }
}
