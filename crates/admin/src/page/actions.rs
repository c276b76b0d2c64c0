//! The actions of operators. Each needs an [`Operator`], and is logged. An action on one entry or lock carries
//! the fence that the operator saw, so that it is refused if the entry or the lock has changed since then.

use std::sync::Arc;

use axum::{
    Form, Router,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use maud::{Markup, html};
use perennial::{
    Error,
    entries::{EntryFilter, visible},
    event::Served,
    locks::{Fence, LockKind, LockName},
};
use serde::Deserialize;

use super::{
    Admin,
    access::{Operator, Viewer},
    html::{Unavailable, page},
    pages::query,
};

/// The largest number of matching entries that is counted.
const COUNTED: usize = 1000;

/// The entry that an action is about. It is in the query, because browsers change line breaks in the fields of
/// a form, and a key may contain some.
#[derive(Debug, Deserialize)]
pub(crate) struct OfEntry {
    key: String,
    fence: Fence,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OnEntry {
    act: Act,
    #[serde(default)]
    confirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Act {
    Regenerate,
    Invalidate,
    Purge,
}

pub(crate) async fn on_entry(
    Operator(viewer): Operator,
    State(admin): State<Arc<Admin>>,
    Query(OfEntry { key, fence }): Query<OfEntry>,
    Form(form): Form<OnEntry>,
) -> Result<Response, Unavailable> {
    let stored = admin.site.entry(&key).await?;
    if stored.map(|entry| entry.fence) != Some(fence) {
        let place = format!("entry?{}", query(&[("key", &key)]));
        return Ok(changed(&viewer, "entry", &place));
    }
    if form.act == Act::Purge && !form.confirmed {
        let text = html! {
            "Purge removes the entry and its variants now. The next visitors wait for a new version. "
            "To serve the old version meanwhile, invalidate."
        };
        let action = format!(
            "act/entry?{}",
            query(&[("key", &key), ("fence", &fence.to_string())])
        );
        return Ok(confirm(&viewer, "Purge", &key, &text, &action));
    }
    log(&viewer, &format!("{:?}", form.act), &key);
    let done = match form.act {
        Act::Purge => admin.site.purge(&key).await.map(|()| "purged")?,
        Act::Invalidate => admin.site.invalidate(&key).await.map(|()| "invalidated")?,
        Act::Regenerate => match regenerated(&admin, &key).await? {
            Some(done) => done,
            None => return Ok(not_regenerated(&viewer)),
        },
    };
    let place = format!("entry?{}", query(&[("key", &key), ("done", done)]));
    Ok(redirect(&viewer, &place))
}

/// Regenerates a page. If the request for the page cannot be derived from its key, the page is only
/// invalidated: a cookie or a function of the application may be part of the key. `None` means that the
/// generator has failed.
async fn regenerated(admin: &Admin, key: &str) -> Result<Option<&'static str>, Error> {
    let served = match &admin.pages {
        Some(pages) if key.starts_with('/') && path_gives_key(admin, pages, key).await => {
            let mut visited = admin.site.regenerate(pages.clone(), [key]).await;
            visited.pop().and_then(|visited| visited.result.ok())
        }
        _ => None,
    };
    Ok(Some(match served {
        Some(Served::Hit | Served::Generated | Served::Collapsed) => "regenerated",
        Some(Served::Stale | Served::Unavailable) => "cooldown",
        Some(Served::Bypass(_)) => "not-stored",
        Some(Served::Failed) => return Ok(None),
        // Either no layer has answered, or the answer is one that this release does not know.
        _ => {
            admin.site.invalidate(key).await?;
            "next-request"
        }
    }))
}

/// Returns true if a request for the path gets the page with this key.
async fn path_gives_key(admin: &Admin, pages: &Router, key: &str) -> bool {
    let explanation = admin.site.explain(pages.clone(), key).await;
    let Ok(Some(explanation)) = explanation else {
        return false;
    };
    explanation.key.as_deref() == Some(key)
}

/// The entries of an action on many.
#[derive(Debug, Deserialize)]
pub(crate) struct Many {
    what: What,
    name: String,
    #[serde(default)]
    act: OnMany,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnMany {
    #[default]
    Invalidate,
    Purge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Prefix,
    Tag,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Tag => "tag",
        }
    }
}

/// Counts the entries, and asks.
pub(crate) async fn ask_many(
    Operator(viewer): Operator,
    State(admin): State<Arc<Admin>>,
    Query(Many { what, name, act }): Query<Many>,
) -> Result<Response, Unavailable> {
    let filter = match what {
        What::Prefix => EntryFilter::new().prefix(&name),
        What::Tag => EntryFilter::new().tag(&name),
    };
    let found = admin.site.entries(&filter.limit(COUNTED)).await?;
    let at_least = if found.next.is_some() {
        "at least "
    } else {
        ""
    };
    let matching = match &*name {
        "" => "This concerns every stored entry of the site: ",
        _ => "Stored entries that match: ",
    };
    let (button, word, effect) = match act {
        OnMany::Invalidate => (
            "Invalidate",
            "invalidate",
            "Each becomes stale: visitors get the old version while the next request regenerates it.",
        ),
        OnMany::Purge => (
            "Purge",
            "purge",
            "Each is removed now. The next visitors wait for a new version.",
        ),
    };
    let text = html! { (matching) (at_least) (found.entries.len()) ". " (effect) };
    let fields = [("what", what.word()), ("name", &*name), ("act", word)];
    let action = format!("act/many?{}", query(&fields));
    Ok(confirm(&viewer, button, &name, &text, &action))
}

pub(crate) async fn on_many(
    Operator(viewer): Operator,
    State(admin): State<Arc<Admin>>,
    Query(Many { what, name, act }): Query<Many>,
) -> Result<Response, Unavailable> {
    log(&viewer, &format!("{act:?} {}", what.word()), &name);
    let site = &admin.site;
    let done = match (act, what) {
        (OnMany::Invalidate, What::Prefix) => {
            site.invalidate_prefix(&name).await.map(|()| "invalidated")
        }
        (OnMany::Invalidate, What::Tag) => site.invalidate_tag(&name).await.map(|()| "invalidated"),
        (OnMany::Purge, What::Prefix) => site.purge_prefix(&name).await.map(|_| "purged"),
        (OnMany::Purge, What::Tag) => site.purge_tag(&name).await.map(|_| "purged"),
    };
    let place = query(&[(what.word(), &name), ("done", done?)]);
    Ok(redirect(&viewer, &format!("entries?{place}")))
}

/// The lock of an action.
#[derive(Debug, Deserialize)]
pub(crate) struct OfLock {
    kind: String,
    name: String,
    fence: Fence,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OnLock {
    #[serde(default)]
    confirmed: bool,
}

pub(crate) async fn on_lock(
    Operator(viewer): Operator,
    State(admin): State<Arc<Admin>>,
    Query(OfLock { kind, name, fence }): Query<OfLock>,
    Form(form): Form<OnLock>,
) -> Result<Response, Unavailable> {
    let kinds = [LockKind::Lock, LockKind::Once, LockKind::Page];
    let Some(kind) = kinds.into_iter().find(|it| it.as_str() == kind) else {
        return Ok(changed(&viewer, "lock", "locks"));
    };
    if !form.confirmed {
        let text = html! {
            "The holder may still be at work, and learns of the loss at its next extension. "
            "Another process can take the lock immediately: break it only if the holder is gone or must not go on."
        };
        let action = lock_action(kind, &name, fence);
        return Ok(confirm(&viewer, "Break the lock", &name, &text, &action));
    }
    log(&viewer, "Break", &name);
    let locks = admin.site.locks();
    let name = LockName::of(kind, name);
    if locks.break_lock(name, Some(fence)).await? {
        Ok(redirect(&viewer, "locks?done=broken"))
    } else {
        Ok(changed(&viewer, "lock", "locks"))
    }
}

/// Returns the path of the action on a lock.
pub(crate) fn lock_action(kind: LockKind, name: &str, fence: Fence) -> String {
    let fence = fence.to_string();
    let fields = [("kind", kind.as_str()), ("name", name), ("fence", &fence)];
    format!("act/lock?{}", query(&fields))
}

fn log(viewer: &Viewer, action: &str, name: &str) {
    let (user, name) = (visible(&viewer.user), visible(name));
    tracing::info!(target: "perennial_admin", user, action, name, "an operator acts");
}

fn redirect(viewer: &Viewer, place: &str) -> Response {
    Redirect::to(&format!("{}/{place}", viewer.base)).into_response()
}

/// Refuses an action, as its target has changed since the operator saw it.
fn changed(viewer: &Viewer, what: &str, place: &str) -> Response {
    let body = html! {
        p { "The " (what) " has changed since you saw it, so nothing was done." }
        p { a href={ (viewer.base) "/" (place) } { "Look again" } }
    };
    (
        StatusCode::CONFLICT,
        page(viewer, "Changed meanwhile", &body),
    )
        .into_response()
}

fn not_regenerated(viewer: &Viewer) -> Response {
    let body = html! {
        p { "There is no new version: the generator failed, or took too long. The application's log has the error." }
    };
    (
        StatusCode::BAD_GATEWAY,
        page(viewer, "Not regenerated", &body),
    )
        .into_response()
}

/// Asks before an action that cannot be undone.
fn confirm(viewer: &Viewer, title: &str, name: &str, text: &Markup, action: &str) -> Response {
    let act = title.to_lowercase();
    let body = html! {
        p .key { code { (visible(name)) } }
        p { (text) }
        form method="post" action={ (viewer.base) "/" (action) } {
            input type="hidden" name="act" value=(act);
            button .danger[act == "purge"] name="confirmed" value="true" { (title) }
            " " a href={ (viewer.base) "/entries" } { "Cancel" }
        }
    };
    page(viewer, title, &body).into_response()
}
