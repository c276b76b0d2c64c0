//! The parts that every page has. maud escapes all text, and [`visible`] makes invisible characters visible.

use axum::{
    http::StatusCode,
    response::{Html, IntoResponse, Response},
};
use maud::{DOCTYPE, Markup, html};
use perennial::entries::{Entry, EntryState, PastVersion, visible};

use super::access::Viewer;
pub(crate) use crate::size;
use crate::time;

/// The length at which the lists truncate a string, in characters.
const SHORT: usize = 120;

/// A page whose statement failed. The log has the error.
#[derive(Debug)]
pub(crate) struct Unavailable;

impl IntoResponse for Unavailable {
    fn into_response(self) -> Response {
        let text = "The database fails. The application's log has the error.";
        (
            StatusCode::SERVICE_UNAVAILABLE,
            message("Unavailable", text),
        )
            .into_response()
    }
}

/// Returns a string with at most 120 characters, in which invisible characters are shown.
pub(crate) fn short(text: &str) -> String {
    let shown = visible(text);
    match shown.char_indices().nth(SHORT) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// Returns a sentence in which the parts between backticks are code.
pub(crate) fn prose(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() {
            @if n % 2 == 1 { code { (visible(part)) } } @else { (visible(part)) }
        }
    }
}

/// The drawing beside the name.
const LEAVES: maud::PreEscaped<&str> = maud::PreEscaped(
    r#"<svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true"><path d="M10 19V9m0 0C10 5 7 2 2 2c0 5 3 7 8 7zm0 4c0-4 3-6 8-6 0 4-3 6-8 6z"/></svg>"#,
);

/// Returns a page with the navigation.
pub(crate) fn page(viewer: &Viewer, title: &str, body: &Markup) -> Html<String> {
    let base = &viewer.base;
    let overview = if base.is_empty() { "/" } else { base };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " – Perennial" }
                link rel="icon" href={ (base) "/icon.svg" };
                link rel="stylesheet" href={ (base) "/admin.css" };
                script defer src={ (base) "/admin.js" } {}
            }
            body {
                a .skip href="#main" { "To the content" }
                header {
                    a .brand href=(overview) { (LEAVES) "Perennial" }
                    nav aria-label="Pages" {
                        @for (path, name) in [("", "Overview"), ("/entries", "Entries"), ("/locks", "Locks"), ("/explain", "Explain")] {
                            @let here = name == title || name == "Entries" && title == "Entry";
                            a href=@if path.is_empty() { (overview) } @else { (base) (path) }
                                aria-current=[here.then_some("page")] { (name) }
                        }
                    }
                    form role="search" action={ (base) "/entries" } {
                        input type="search" name="prefix" aria-label="Find a page by its key" placeholder="Find a page: /books";
                    }
                    span .user { (visible(&viewer.user)) @if !viewer.can_act { " (read-only)" } }
                }
                main #main {
                    @if !viewer.can_act {
                        p .banner { "You may see these pages, and change nothing." }
                    }
                    h1 { (title) }
                    (body)
                }
            }
        }
    };
    Html(page.into_string())
}

/// Returns a page with only a message, which needs no style sheet.
pub(crate) fn message(title: &str, text: &str) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head { meta charset="utf-8"; title { (title) " – Perennial" } }
            body { h1 { (title) } p { (text) } }
        }
    };
    Html(page.into_string())
}

/// Returns a state as a word with a symbol, so that no state is conveyed by colour alone.
pub(crate) fn state(state: EntryState) -> Markup {
    let sign = match state {
        EntryState::Fresh => "●",
        EntryState::Stale => "◐",
        EntryState::Expired => "○",
        EntryState::Cooldown => "✗",
        _ => "→",
    };
    html! { span .state data-state=(state.as_str()) { (sign) " " (state.as_str()) } }
}

/// Returns the age against the interval, as a bar.
pub(crate) fn age_bar(entry: &Entry) -> Markup {
    let share = if entry.interval.is_zero() {
        1.0
    } else {
        (entry.age.as_secs_f64() / entry.interval.as_secs_f64()).min(1.0)
    };
    let width = format!("{:.1}", share * 60.0);
    // A line ends before the interval, and not within a time.
    let [age, interval] = [entry.age, entry.interval].map(|it| time(it).replace(' ', "\u{a0}"));
    let text = format!("{age} of {interval}");
    html! {
        @if entry.status.is_none() { "–" } @else {
            svg .bar.age data-state=[(share >= 1.0).then_some("stale")] viewBox="0 0 60 8" width="60" height="8" role="img" aria-label=(text) {
                rect width="60" height="8" fill="currentColor" fill-opacity="0.15" {}
                rect width=(width) height="8" fill="currentColor" fill-opacity="0.6" {}
            }
            " " (text)
        }
    }
}

/// Returns a line of bars that shows how long the generations took, oldest first. The bar of a generation whose
/// content was unchanged is lighter.
pub(crate) fn sparkline(history: &[PastVersion]) -> Markup {
    let longest = history.iter().map(|it| it.took).max().unwrap_or_default();
    let longest = longest.as_secs_f64().max(1e-6);
    html! {
        // One bar would have the full height, whatever it stands for.
        @if history.len() < 2 { "–" } @else {
            svg .bar viewBox="0 0 80 16" width="80" height="16" role="img"
                aria-label={ "times of the latest " (history.len()) " generations" } {
                @for (at, generation) in history.iter().rev().enumerate() {
                    @let height = 1.0 + 15.0 * generation.took.as_secs_f64() / longest;
                    rect x=(at * 4) y=(format!("{:.1}", 16.0 - height)) width="3" height=(format!("{height:.1}"))
                        fill="currentColor" fill-opacity=(if generation.changed { "0.8" } else { "0.35" }) {
                        title { (time(generation.took)) ", " (generation.reason) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn text_that_acts_is_made_visible() {
        assert_eq!(
            visible("a\u{202e}b\n\u{1b}[31m"),
            "a\\u{202e}b\\u{a}\\u{1b}[31m"
        );
        assert_eq!(short(&"ä".repeat(500)).chars().count(), SHORT + 1);
    }

    #[test]
    fn units_are_readable() {
        let short_times = [999, 1000, 1050, 1500, 9900, 10_900]
            .map(Duration::from_millis)
            .map(time);
        assert_eq!(
            short_times,
            ["999 ms", "1 s", "1 s", "1.5 s", "9.9 s", "10 s"]
        );
        let times = [0, 59, 60, 3599, 3600, 90_000].map(|it| time(Duration::from_secs(it)));
        assert_eq!(
            times,
            ["< 1 ms", "59 s", "1 min", "59 min 59 s", "1 h", "1 d 1 h"]
        );
        assert_eq!(
            [999, 1500, 2_000_000, 3_500_000_000].map(size),
            ["999 B", "1.5 kB", "2.0 MB", "3.5 GB"]
        );
    }
}
