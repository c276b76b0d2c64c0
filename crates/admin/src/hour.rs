//! The last hour of a site: the figures that its processes have reported for each minute, added up.

use std::{collections::BTreeMap, time::SystemTime};

use perennial::event::{MinuteStats, ProcessStats};
use serde::Serialize;

/// The number of minutes in an hour, and of bars in a chart.
const MINUTES: u64 = 60;

/// What a site did in the last hour, summed over the processes that [share their
/// figures](perennial::Perennial::share_stats).
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct LastHour {
    /// The requests to the site's layers.
    pub requests: u64,
    /// Those of them that were hits.
    pub hits: u64,
    /// The requests that were answered at once with an old version.
    pub stale: u64,
    /// The requests that no stored version answered. See [`MinuteStats::waited`].
    pub waited: u64,
    /// The regenerations that have ended.
    pub regenerations: u64,
    /// Those of them that have failed.
    pub failures: u64,
    /// The sixty minutes, the oldest one first. The last one is the present minute, which is not over yet.
    pub minutes: Vec<MinuteStats>,
}

impl LastHour {
    /// Adds up the figures of the processes. The current minute is taken from this process's clock, or from the
    /// clock of a process that is ahead of it.
    pub(crate) fn of(processes: &[ProcessStats], now: SystemTime) -> Self {
        let mut sums = BTreeMap::<u64, MinuteStats>::new();
        for minute in processes.iter().flat_map(|process| &process.last_hour) {
            add(sums.entry(minute.minute).or_default(), minute);
        }
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        // The clock of a process that has ended may have been ahead.
        let running = processes.iter().filter(|process| !process.ended);
        let latest = running.filter_map(|process| Some(process.last_hour.last()?.minute));
        let latest = latest.max().unwrap_or_default();
        let present = latest.max(now.as_secs() / 60);
        let minutes: Vec<_> = (0..MINUTES)
            .map(|n| {
                let number = (present + n + 1).saturating_sub(MINUTES);
                let mut minute = sums.get(&number).copied().unwrap_or_default();
                minute.minute = number;
                minute
            })
            .collect();
        let mut total = MinuteStats::default();
        for minute in &minutes {
            add(&mut total, minute);
        }
        Self {
            requests: total.requests,
            hits: total.hits,
            stale: total.stale,
            waited: total.waited,
            regenerations: total.regenerations,
            failures: total.failures,
            minutes,
        }
    }

    /// Returns the last minute that is over.
    #[must_use]
    pub fn last_full_minute(&self) -> MinuteStats {
        self.minutes
            .iter()
            .rev()
            .nth(1)
            .copied()
            .unwrap_or_default()
    }

    /// Returns the share of hits among the requests, from 0 to 1. `None` means that there were no requests.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.requests > 0).then(|| share(self.hits, self.requests))
    }
}

fn add(sum: &mut MinuteStats, minute: &MinuteStats) {
    sum.requests += minute.requests;
    sum.hits += minute.hits;
    sum.stale += minute.stale;
    sum.waited += minute.waited;
    sum.regenerations += minute.regenerations;
    sum.failures += minute.failures;
}

/// Returns a part of a whole as a number from 0 to 1. If the whole is 0, the result is 0.
#[allow(clippy::cast_precision_loss, reason = "a share of a chart")]
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Returns a rate with as many digits as a reader needs: `0.5`, `12`.
#[doc(hidden)]
#[must_use]
pub fn rate(count: u64, seconds: u32) -> String {
    let rate = share(count, u64::from(seconds));
    if rate < 10.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rate_has_a_digit_behind_the_point_where_it_is_small() {
        let rates = [0, 30, 600, 60_000].map(|count| rate(count, 60));
        assert_eq!(rates, ["0.0", "0.5", "10", "1000"]);
    }

    #[test]
    fn hour_without_processes_has_sixty_empty_minutes() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(7200);
        let hour = LastHour::of(&[], now);
        assert_eq!(hour.minutes.len(), 60);
        assert_eq!(hour.minutes.last().map(|it| it.minute), Some(120));
        assert_eq!(hour.hit_ratio(), None);
    }
}
