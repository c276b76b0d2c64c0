//! What a process tells the other processes of its site about itself, as JSON in a row of the database.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use perennial_store::{
    ProcessRow,
    error::words::{of_seconds, seconds, unix_time},
};
use serde::{Deserialize, Serialize};

use super::{FailedRegeneration, Served, Stats, failures::FAILURES};

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
    /// How long the process had been sharing its figures when it wrote these.
    #[serde(rename = "up_for_s", serialize_with = "seconds")]
    pub up_for: Duration,
    /// The time at which the figures were recorded, by the database's clock.
    #[serde(serialize_with = "unix_time")]
    pub noted_at: SystemTime,
    /// How long ago the figures were written: ten seconds at most while the process runs and reaches the database.
    #[serde(rename = "silent_for_s", serialize_with = "seconds")]
    pub silent_for: Duration,
    /// Whether the process was [shut down](crate::Perennial::shutdown). If so, these are its last figures.
    pub ended: bool,
    /// The figures.
    pub stats: Stats,
    /// What happened in each minute of the last hour, the oldest one first. A minute in which nothing happened is left
    /// out.
    pub last_hour: Vec<MinuteStats>,
    /// The latest failures of a day, the latest one first: at most one for each of five resources.
    /// [`FailedRegeneration::ago`] is counted up to the moment at which the figures were read.
    pub failures: Vec<FailedRegeneration>,
}

/// What happened in a process within one minute. [`ProcessStats::last_hour`] has one for each busy minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MinuteStats {
    /// The number of the minute: minutes since 1970, by the process's clock.
    pub minute: u64,
    /// The requests to the site's layers.
    pub requests: u64,
    /// The requests that were [hits](Served::Hit).
    pub hits: u64,
    /// The requests that were answered at once with an old version ([stale](Served::Stale)).
    pub stale: u64,
    /// The requests that no stored version answered: they were [generated](Served::Generated),
    /// [collapsed](Served::Collapsed), [failed](Served::Failed) or [unavailable](Served::Unavailable). They waited
    /// for a generation, except for those that were refused at once during a cooldown.
    pub waited: u64,
    /// The regenerations that have ended.
    pub regenerations: u64,
    /// The regenerations that have [failed](super::Outcome::Failed) or [taken too long](super::Outcome::TimedOut).
    pub failures: u64,
}

/// The minutes of the last hour, as this process counts them.
#[derive(Default)]
pub(crate) struct LastHour {
    minutes: VecDeque<MinuteStats>,
    /// The counts up to the last call, from which the counts of a minute follow.
    before: MinuteStats,
}

impl LastHour {
    /// Adds to this minute what has happened since the last call.
    pub(crate) fn add(&mut self, stats: &Stats, minute: u64) {
        let waited = [
            Served::Generated,
            Served::Collapsed,
            Served::Failed,
            Served::Unavailable,
        ];
        let now = MinuteStats {
            minute,
            requests: Served::all().map(|served| stats.requests(served)).sum(),
            hits: stats.requests(Served::Hit),
            stale: stats.requests(Served::Stale),
            waited: waited.map(|served| stats.requests(served)).iter().sum(),
            regenerations: stats.ended(),
            failures: FAILURES
                .map(|outcome| stats.regenerations(outcome))
                .iter()
                .sum(),
        };
        let before = std::mem::replace(&mut self.before, now);
        if self.minutes.back().is_none_or(|last| last.minute < minute) {
            self.minutes.push_back(MinuteStats {
                minute,
                ..MinuteStats::default()
            });
        }
        if let Some(last) = self.minutes.back_mut() {
            last.requests += now.requests - before.requests;
            last.hits += now.hits - before.hits;
            last.stale += now.stale - before.stale;
            last.waited += now.waited - before.waited;
            last.regenerations += now.regenerations - before.regenerations;
            last.failures += now.failures - before.failures;
        }
        while self
            .minutes
            .front()
            .is_some_and(|first| first.minute + 60 <= minute)
        {
            self.minutes.pop_front();
        }
    }

    /// Returns the minutes in which something happened, as numbers in the order of the fields.
    pub(crate) fn rows(&self) -> Vec<[u64; 7]> {
        let busy = self
            .minutes
            .iter()
            .filter(|it| it.requests + it.regenerations > 0);
        busy.map(|it| {
            [
                it.minute,
                it.requests,
                it.hits,
                it.stale,
                it.waited,
                it.regenerations,
                it.failures,
            ]
        })
        .collect()
    }
}

/// The text of a row.
#[derive(Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) label: String,
    pub(crate) version: String,
    pub(crate) revision: Option<String>,
    pub(crate) up_for_s: f64,
    pub(crate) ended: bool,
    pub(crate) stats: Stats,
    /// See [`LastHour::rows`].
    pub(crate) last_hour: Vec<[u64; 7]>,
    /// Their times are counted back from the writing of the row.
    pub(crate) failures: Vec<FailedRegeneration>,
}

impl Figures {
    /// Returns the text of this process's row.
    pub(crate) fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers have a JSON form")
    }
}

impl ProcessStats {
    /// Reads a row. `None` means that another release has written it, with different figures.
    pub(crate) fn decode(row: &ProcessRow) -> Option<Self> {
        let figures: Figures = serde_json::from_str(&row.figures).ok()?;
        let last_hour = figures.last_hour.into_iter();
        let last_hour = last_hour.map(
            |[
                minute,
                requests,
                hits,
                stale,
                waited,
                regenerations,
                failures,
            ]| MinuteStats {
                minute,
                requests,
                hits,
                stale,
                waited,
                regenerations,
                failures,
            },
        );
        let failures = figures.failures.into_iter();
        let failures = failures.map(|failure| FailedRegeneration {
            ago: row.age.saturating_add(failure.ago),
            ..failure
        });
        Some(Self {
            label: figures.label,
            version: figures.version,
            revision: figures.revision,
            up_for: of_seconds(figures.up_for_s),
            noted_at: row.noted_at,
            silent_for: row.age,
            ended: figures.ended,
            stats: figures.stats,
            last_hour: last_hour.collect(),
            failures: failures.collect(),
        })
    }
}
