//! What the overview shows at a glance: advice, the figures of the last hour as tiles with charts, and the
//! pages by state. The charts are made here, as SVG, so
//! that the page works without a script.

use std::time::Duration;

use maud::{Markup, html};

use super::html::{prose, size};
use crate::{
    Report, Verdict,
    hour::{rate, share},
    report::count,
};

/// The height of a chart, in its own units. A minute is four units wide.
const CHART_HEIGHT: f64 = 40.0;

/// A process that is older than this has written its figures at least twice.
const FIRST_FIGURES_AFTER: Duration = Duration::from_secs(5);

const NOT_KNOWN: &str = "the first figures come within ten seconds";

pub(crate) fn glance(report: &Report, base: &str) -> Markup {
    html! {
        (advice(report))
        (tiles(report))
        (pages_by_state(report, base))
    }
}

/// The checks that call for action, each with its remedy.
fn advice(report: &Report) -> Markup {
    let needed = report
        .checks
        .iter()
        .filter(|check| check.result != Verdict::Ok);
    let needed: Vec<_> = needed.collect();
    html! {
        section .advice aria-label="Advice" {
            @if needed.is_empty() {
                p .card data-result="ok" { strong { "✓ ok" } " All " (report.checks.len()) " checks are fine." }
            }
            @for check in needed {
                div .card data-result=(word(check.result)) {
                    p { strong { (check.result.sign()) } " " (prose(&check.text)) }
                    p .note { (prose(&check.remedy)) }
                }
            }
        }
    }
}

/// Returns the word by which the stylesheet knows a result.
pub(crate) fn word(result: Verdict) -> &'static str {
    match result {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failure => "failure",
    }
}

fn tiles(report: &Report) -> Markup {
    let hour = &report.last_hour;
    let latest = hour.last_full_minute();
    let memory = report.memory;
    // Every process writes its figures every ten seconds. Before the first of these writes, nothing is known.
    let is_known = report
        .processes
        .iter()
        .any(|process| !process.ended && process.up_for >= FIRST_FIGURES_AFTER);
    let failures = match hour.failures {
        _ if !is_known => NOT_KNOWN.to_owned(),
        0 => "no failure in the last hour".to_owned(),
        1 => "1 failure in the last hour".to_owned(),
        many => format!("{many} failures in the last hour"),
    };
    // The present minute is not over, and would look as if the traffic had ended.
    let minutes = &hour.minutes[..hour.minutes.len().saturating_sub(1)];
    let ratios = minutes.iter().map(|it| {
        let stale = share(it.stale, it.requests);
        Bar::of(share(it.hits, it.requests) + stale, stale)
    });
    let requests = minutes.iter().map(|it| Bar::of(float(it.requests), 0.0));
    let regenerations = minutes
        .iter()
        .map(|it| Bar::of(float(it.regenerations), float(it.failures)));
    let busiest = minutes.iter().map(|it| it.requests).max();
    let most = minutes.iter().map(|it| it.regenerations).max();
    html! {
        section .tiles aria-label="The last hour" {
            (tile(
                "Hit ratio",
                &hour.hit_ratio().map_or_else(|| "–".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio)),
                &format!(
                    "of {} requests in the last hour got a fresh page, {:.1} % an old one at once; {} waited or failed",
                    count(hour.requests), 100.0 * share(hour.stale, hour.requests), count(hour.waited)
                ),
                &chart("fresh pages in each minute, old ones above them", ratios, 1.0, "100 %"),
            ))
            (tile(
                "Requests a second",
                &rate(latest.requests, 60),
                "in the last full minute",
                &chart("the requests of each minute", requests, float(busiest.unwrap_or(0)), &format!("max {}", rate(busiest.unwrap_or(0), 60))),
            ))
            (tile(
                "Regenerations a minute",
                &latest.regenerations.to_string(),
                &failures,
                &chart(
                    "the regenerations of each minute, failures in red",
                    regenerations,
                    float(most.unwrap_or(0)),
                    &format!("max {}", most.unwrap_or(0)),
                ),
            ))
            div .tile.card {
                h2 { "Memory and store" }
                p .figure { @if is_known { (size(memory.bytes)) } @else { "–" } }
                p .note { @if is_known { "in memory, of " (size(memory.capacity)) " in all processes" } @else { (NOT_KNOWN) } }
                (meter("share of the memory", share(memory.bytes, memory.capacity)))
                @if let Some(store) = report.store_capacity {
                    p .note { (size(report.stored_bytes)) " of " (size(store)) " in the store, which counts 2 KiB more for each page" }
                    (meter("share of the store", share(report.stored_bytes, store)))
                } @else {
                    p .note { (size(report.stored_bytes)) " stored" }
                }
            }
        }
    }
}

fn tile(name: &str, figure: &str, note: &str, chart: &Markup) -> Markup {
    html! {
        div .tile.card {
            h2 { (name) }
            p .figure { (figure) }
            p .note { (note) }
            (chart)
        }
    }
}

/// The stored pages by their states, as one bar with a legend that leads to the lists.
fn pages_by_state(report: &Report, base: &str) -> Markup {
    let fresh = report.pages.saturating_sub(report.stale);
    let cooling = report.failing.len() as u64;
    let parts = [
        ("fresh", "●", fresh),
        ("stale", "◐", report.stale),
        ("cooldown", "✗", cooling),
    ];
    // A page in cooldown may or may not be stored, so it has no part in the bar.
    let width_of_fresh = 100.0 * share(fresh, report.pages);
    let segments = [
        ("fresh", 0.0, width_of_fresh),
        (
            "stale",
            width_of_fresh,
            100.0 * share(report.stale, report.pages),
        ),
    ];
    let text = parts.map(|(state, _, count)| format!("{count} {state}"));
    let text = text.join(", ");
    html! {
        section .card.states {
            h2 { strong #stored-pages { (report.pages) } " stored pages, " (size(report.bytes)) }
            svg viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={ "pages by state: " (text) } {
                rect .ground width="100" height="4" {}
                @for (state, at, width) in segments {
                    rect data-state=(state) x=(format!("{at:.2}")) width=(format!("{width:.2}")) height="4" {}
                }
            }
            p .legend {
                @for (state, sign, count) in &parts {
                    @let name = if *state == "cooldown" { "in cooldown" } else { state };
                    a href={ (base) "/entries?state=" (state) } { span data-state=[(*count > 0).then_some(state)] { (sign) } " " (count) " " (name) }
                }
                a href={ (base) "/locks" } {
                    @if report.held.len() == 1 { "1 lock held" } @else { (report.held.len()) " locks held" }
                }
            }
        }
    }
}

/// A bar of a chart, whose upper part has a different colour.
struct Bar {
    whole: f64,
    upper: f64,
}

impl Bar {
    fn of(whole: f64, upper: f64) -> Self {
        Self { whole, upper }
    }
}

/// Draws one bar for each minute. `top` is the value that a bar of the full height stands for, and `label` is
/// how that value is written.
fn chart(name: &str, bars: impl Iterator<Item = Bar>, top: f64, label: &str) -> Markup {
    let scale = CHART_HEIGHT / top.max(f64::MIN_POSITIVE);
    let units = |height: f64| format!("{height:.1}");
    html! {
        figure .chart {
            svg viewBox="0 0 240 40" preserveAspectRatio="none" role="img" aria-label={ (name) ", up to " (label) } {
                @for (at, bar) in bars.enumerate() {
                    @let (whole, upper) = (scale * bar.whole, scale * bar.upper);
                    @if whole > 0.0 {
                        rect x=(at * 4) y=(units(CHART_HEIGHT - whole)) width="3" height=(units(whole)) {}
                    }
                    @if upper > 0.0 {
                        rect .upper x=(at * 4) y=(units(CHART_HEIGHT - whole)) width="3" height=(units(upper)) {}
                    }
                }
            }
            figcaption aria-hidden="true" { span { "60 min ago" } span { (label) } span { "1 min ago" } }
        }
    }
}

fn meter(name: &str, share: f64) -> Markup {
    let width = format!("{:.1}", 100.0 * share.min(1.0));
    html! {
        svg .meter viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={ (name) ": " (width) " %" } {
            rect .ground width="100" height="6" {}
            rect width=(width) height="6" {}
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "the height of a bar")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_separators() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn charts_have_a_value_for_each_number() {
        let bars = [0.0, 2.0, 1.0].map(|whole| Bar::of(whole, whole / 2.0));
        let svg = chart("x", bars.into_iter(), 2.0, "2").into_string();
        let heights = ["40.0", "20.0", "10.0"];
        assert!(
            heights
                .iter()
                .all(|height| svg.contains(&format!("height=\"{height}\""))),
            "{svg}"
        );
        let empty = glance(&Report::default(), "").into_string();
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }
}
