//! The line at the top of a page; it says what the last action has done, after the redirection that follows
//! each action.

use maud::{Markup, html};
use serde::Deserialize;

/// The result of an action.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Done {
    Regenerated,
    Cooldown,
    NotStored,
    NextRequest,
    Invalidated,
    Purged,
    Broken,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct After {
    done: Option<Done>,
}

pub(crate) fn done(after: &After) -> Markup {
    let text = after.done.map(|done| match done {
        Done::Regenerated => "There is a new version.",
        Done::Cooldown => {
            "Another regeneration still runs, or has failed shortly before. The entry is stale, and the next request after that regenerates it."
        }
        Done::NotStored => "The new response may not be stored, or the site shuts down. The entry is stale.",
        Done::NextRequest => {
            "The entry is stale now, and the next request regenerates it."
        }
        Done::Invalidated => "Invalidated: the next request of each page regenerates it.",
        Done::Purged => "Purged: nothing of it is stored.",
        Done::Broken => "The lock was taken from its holder.",
    });
    html! { @if let Some(text) = text { p .done role="status" { (text) } } }
}
