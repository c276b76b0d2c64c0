//! The tiles at the top of the overview: what the site does, summed over the processes that share their figures, with
//! the minutes of the last hour. The charts are made here, as SVG, so that the page works without a script.

use std::{collections::BTreeMap, time::SystemTime};

use maud::{Markup, html};
use perennial::event::{MinuteStats, ProcessStats};

use super::html::size;
use crate::Report;

/// The number of minutes in a chart.
const MINUTES: u64 = 60;

/// The minutes of the last hour, of all processes together.
struct SiteHour(Vec<Sum>);

#[derive(Clone, Copy, Default)]
struct Sum {
    requests: u64,
    hits: u64,
    regenerations: u64,
    failures: u64,
}

impl Sum {
    fn add(&mut self, minute: &MinuteStats) {
        self.requests += minute.requests;
        self.hits += minute.hits;
        self.regenerations += minute.regenerations;
        self.failures += minute.failures;
    }
}

impl SiteHour {
    /// Sums the processes up. The last minute is the present one, by the clock of this process or of one that is ahead.
    fn of(processes: &[ProcessStats], now: SystemTime) -> Self {
        let mut sums = BTreeMap::<u64, Sum>::new();
        for minute in processes.iter().flat_map(|process| &process.last_hour) {
            sums.entry(minute.minute).or_default().add(minute);
        }
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let latest = sums.keys().next_back().copied().unwrap_or_default();
        let last = latest.max(now.as_secs() / 60);
        let minutes = (0..MINUTES).map(|n| (last + n + 1).saturating_sub(MINUTES));
        Self(
            minutes
                .map(|minute| sums.get(&minute).copied().unwrap_or_default())
                .collect(),
        )
    }

    fn total(&self) -> Sum {
        let mut total = Sum::default();
        for minute in &self.0 {
            total.requests += minute.requests;
            total.hits += minute.hits;
            total.regenerations += minute.regenerations;
            total.failures += minute.failures;
        }
        total
    }

    /// Returns the last minute that is over.
    fn latest(&self) -> Sum {
        self.0.iter().rev().nth(1).copied().unwrap_or_default()
    }
}

pub(crate) fn tiles(report: &Report) -> Markup {
    let hour = SiteHour::of(&report.processes, SystemTime::now());
    let (total, latest) = (hour.total(), hour.latest());
    let sum = |figure: fn(&ProcessStats) -> u64| report.processes.iter().map(figure).sum::<u64>();
    let (memory, capacity) = (
        sum(|it| it.stats.memory_bytes),
        sum(|it| it.stats.memory_capacity),
    );
    let ratio = |it: &Sum| share(it.hits, it.requests);
    html! {
        section .tiles aria-label="The last hour" {
            (tile(
                "Hit ratio",
                &match total.requests {
                    0 => "–".to_owned(),
                    _ => format!("{:.1} %", 100.0 * ratio(&total)),
                },
                &format!("of {} requests in the last hour", total.requests),
                &chart("hit ratio by minute", hour.0.iter().map(ratio), Some(1.0)),
            ))
            (tile(
                "Requests a second",
                &rate(latest.requests, 60.0),
                "in the last full minute",
                &chart("requests by minute", hour.0.iter().map(|it| float(it.requests)), None),
            ))
            (tile(
                "Regenerations a minute",
                &latest.regenerations.to_string(),
                &match total.failures {
                    0 => "no failure in the last hour".to_owned(),
                    1 => "1 failure in the last hour".to_owned(),
                    many => format!("{many} failures in the last hour"),
                },
                &chart("regenerations by minute", hour.0.iter().map(|it| float(it.regenerations)), None),
            ))
            (tile(
                "Memory and store",
                &size(memory),
                &match report.store_capacity {
                    Some(store) => format!("of {} in memory; {} of {} stored", size(capacity), size(report.stored_bytes), size(store)),
                    None => format!("of {} in memory; {} stored", size(capacity), size(report.stored_bytes)),
                },
                &html! {
                    (bar("share of the memory", share(memory, capacity)))
                    @if let Some(store) = report.store_capacity {
                        (bar("share of the store", share(report.stored_bytes, store)))
                    }
                },
            ))
        }
    }
}

/// The entries by their states, as one bar with a legend.
pub(crate) fn states(report: &Report) -> Markup {
    let fresh = report.pages.saturating_sub(report.stale);
    let cooling = report.failing.len() as u64;
    let parts = [
        ("fresh", "●", fresh),
        ("stale", "◐", report.stale),
        ("cooldown", "✗", cooling),
    ];
    let all = parts.iter().map(|(_, _, count)| count).sum::<u64>();
    let mut from = 0.0;
    let segments = parts.map(|(state, _, count)| {
        let (at, width) = (from, 100.0 * share(count, all));
        from += width;
        (state, at, width)
    });
    let text = parts
        .map(|(state, _, count)| format!("{count} {state}"))
        .join(", ");
    html! {
        figure .states {
            svg viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={ "pages by state: " (text) } {
                rect .ground width="100" height="4" {}
                @for (state, at, width) in segments {
                    rect data-state=(state) x=(format!("{at:.2}")) width=(format!("{width:.2}")) height="4" {}
                }
            }
            figcaption {
                @for (state, sign, count) in parts {
                    span data-state=(state) { (sign) " " (state) " " (count) }
                }
            }
        }
    }
}

fn tile(name: &str, figure: &str, note: &str, chart: &Markup) -> Markup {
    html! {
        div .tile {
            h2 { (name) }
            p .figure { (figure) }
            (chart)
            p .note { (note) }
        }
    }
}

/// A line of bars, one for each minute. `top` is the value of the whole height, or else the greatest value is.
fn chart(name: &str, values: impl Iterator<Item = f64>, top: Option<f64>) -> Markup {
    let values: Vec<_> = values.collect();
    let greatest = values.iter().copied().fold(0.0, f64::max);
    let top = top.unwrap_or(greatest).max(f64::MIN_POSITIVE);
    html! {
        svg .chart viewBox="0 0 240 40" preserveAspectRatio="none" role="img" aria-label=(name) {
            @for (at, value) in values.iter().enumerate() {
                @let height = 38.0 * value / top;
                rect x=(at * 4) y=(format!("{:.1}", 40.0 - height)) width="3" height=(format!("{height:.1}")) {}
            }
        }
    }
}

fn bar(name: &str, share: f64) -> Markup {
    let width = format!("{:.1}", 100.0 * share.min(1.0));
    html! {
        svg .meter viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={ (name) ": " (width) " %" } {
            rect .ground width="100" height="6" {}
            rect width=(width) height="6" {}
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share of a chart")]
fn float(number: u64) -> f64 {
    number as f64
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        float(part) / float(whole)
    }
}

fn rate(count: u64, seconds: f64) -> String {
    let rate = float(count) / seconds;
    if rate < 10.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_and_rates_have_a_value_for_each_number() {
        assert_eq!(
            [0, 30, 600, 60_000].map(|count| rate(count, 60.0)),
            ["0.0", "0.5", "10", "1000"]
        );
        assert_eq!(share(1, 0), 0.0);
        let svg = chart("x", [0.0, 2.0, 1.0].into_iter(), None).into_string();
        assert!(
            svg.contains("height=\"38.0\"") && svg.contains("height=\"19.0\""),
            "{svg}"
        );
        assert!(
            !chart("x", [0.0].into_iter(), None)
                .into_string()
                .contains("NaN")
        );
        let empty =
            tiles(&Report::default()).into_string() + &states(&Report::default()).into_string();
        assert!(!empty.contains("NaN"), "{empty}");
    }
}
