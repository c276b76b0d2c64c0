//! The HTML of each page. Nothing here changes the site.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    http::{HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use maud::{Markup, html};
use perennial::{
    entries::{Entry, EntryState, PastVersion, visible},
    locks::{LockInfo, LockKind},
};
use serde::Deserialize;

use crate::{
    Generated, Report,
    report::{SHOWN, runs, time},
};

use super::{
    Admin,
    access::Viewer,
    actions::lock_action,
    done::{After, done},
    figures::{Search, last_time},
    glance::{glance, word},
    html::{Unavailable, age_bar, message, page, prose, short, size, sparkline, state},
};

/// The number of missed invalidations that the overview shows. Usually they all have the same cause.
const SHOWN_MISSED: usize = 5;

/// The size of the shown source of a stored page, in bytes.
const SOURCE: usize = 64 << 10;

pub(crate) async fn overview(viewer: Viewer, State(admin): State<Arc<Admin>>) -> Html<String> {
    let report = admin.report.of(&admin.site).await;
    let body = html! {
        div #live data-live={ (viewer.base) "/live" } { (report_of(&viewer, &report)) }
        section .card {
            h2 { "Latest events of this process" }
            ol #events { @for text in admin.latest.texts() { li { (short(&text)) } } }
        }
    };
    page(&viewer, "Overview", &body)
}

/// The report as HTML. An open page gets it anew every five seconds.
pub(crate) fn report_of(viewer: &Viewer, report: &Report) -> Markup {
    let generations = |title: &str, generations: &[Generated]| {
        html! {
            section .card {
                h2 { (title) }
                @if generations.is_empty() { p .note { "No page has been generated yet." } } @else {
                    div .wide { table {
                        thead { tr { th { "Key" } th { "Began" } th .minor { "Reason" } th .number { "Took" } th .number.minor { "Body" } } }
                        @for it in generations {
                            tr {
                                (key_cell(viewer, &it.key))
                                td { (time(it.version.ago)) " ago" } td .minor { (it.version.reason) }
                                td .number { (time(it.version.took)) } td .number.minor { (size(it.version.bytes)) }
                            }
                        }
                    } }
                }
            }
        }
    };
    let (ended, running): (Vec<_>, Vec<_>) = report.processes.iter().partition(|it| it.ended);
    html! {
        (glance(report, &viewer.base))
        @if !report.failing.is_empty() || !report.failures.is_empty() || !report.missed_invalidations.is_empty() { div .columns {
            @if !report.failures.is_empty() {
                section .card {
                    h2 { "Latest failures" }
                    p .note { "The latest one of each page in each process." @if report.failing.is_empty() { " No page is in cooldown now." } }
                    div .wide { table {
                        thead { tr { th { "Key" } th { "Failure" } th .minor { "Process" } } }
                        @for it in &report.failures {
                            tr {
                                @if it.regeneration.is_key_cut() { td .key { (visible(&it.regeneration.key)) } }
                                @else { (key_cell(viewer, &it.regeneration.key)) }
                                td .key { (time(it.regeneration.ago)) " ago: " (visible(&it.regeneration.error)) }
                                td .minor { code { (visible(&it.process)) } }
                            }
                        }
                    } }
                }
            }
            @if !report.failing.is_empty() {
                section .card {
                    h2 { "Pages in cooldown after a failed regeneration" }
                    div .wide { table {
                        thead { tr { th { "Key" } th { "Failed" } th { "Tried again in" } } }
                        @for lock in report.failing.iter().take(SHOWN) {
                            tr { (key_cell(viewer, &lock.name)) td { (time(lock.age)) " ago" } td { (time(lock.remaining)) } }
                        }
                    } }
                }
            }
            @if !report.missed_invalidations.is_empty() {
                section .card {
                    h2 { "Missed invalidations, found by this process" }
                    div .wide { table {
                        thead { tr { th { "Key" } th { "Tags" } th .number { "Bytes changed" } th { "Age of the old version" } } }
                        @for it in report.missed_invalidations.iter().take(SHOWN_MISSED) {
                            tr { (key_cell(viewer, &it.key)) td { (short(&it.tags.join(", "))) }
                                td .number { (it.bytes) } td { (time(it.age)) } }
                        }
                    } }
                }
            }
        } }
        div .columns {
            (generations("Generated last", &report.latest))
            // Few pages would be the same ones in both lists.
            @if report.latest.len() == SHOWN {
                (generations(&format!("Slowest of the {} pages that were generated last", report.pages.min(200)), &report.slow))
            }
        }
        div .columns {
            div {
            section .card.first {
                h2 { "Processes" }
                @if running.is_empty() {
                    p .note { "No process shares its figures: " code { "Perennial::share_stats" } " lets one do so." }
                } @else {
                    div .wide { table {
                        thead { tr { th { "Process" } th .minor { "Runs" } th { "Up for" } th { "Last sign of life" } } }
                        @for process in running {
                            tr { td { code { (visible(&process.label)) } } td .minor { (visible(&runs(process))) }
                                td { (time(process.up_for)) } td { (time(process.silent_for)) " ago" } }
                        }
                    } }
                    @if !ended.is_empty() {
                        p .note { "Shut down in the last hour: " (ended.len()) ". The figures above include theirs." }
                    }
                }
            }
            section .card {
                h2 { "Space" }
                table {
                    @for (table, bytes) in &report.tables {
                        tr { th scope="row" { code { (table) } } td .number { (size(*bytes)) } }
                    }
                }
            }
            }
            section .card {
                h2 { "Checks" }
                ul .checks {
                    @for check in &report.checks {
                        li data-result=(word(check.result)) { strong { (check.result.sign()) } " " span { (prose(&check.text)) } }
                    }
                }
            }
        }
    }
}

/// The cell of a key, which leads to the page of its entry.
pub(crate) fn key_cell(viewer: &Viewer, key: &str) -> Markup {
    let link = format!("{}/entry?{}", viewer.base, query(&[("key", key)]));
    html! { td .key { a href=(link) { (short(key)) } } }
}

pub(crate) async fn entries(
    viewer: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(search): Query<Search>,
    Query(after): Query<After>,
) -> Result<Html<String>, Unavailable> {
    let mut found = admin.site.entries(&search.filter()).await?;
    search.sort(&mut found.entries);
    let next = found.next.map(|from| {
        let fields = [
            ("prefix", &*search.prefix),
            ("tag", &*search.tag),
            ("state", &*search.state),
            ("sort", &*format!("{:?}", search.sort).to_lowercase()),
            ("from", &*from),
        ];
        format!("{}/entries?{}", viewer.base, query(&fields))
    });
    let body = html! {
        (done(&after))
        form .search.card action={ (viewer.base) "/entries" } {
            label { "Key begins with " input name="prefix" value=(search.prefix); }
            label { "Tag " input name="tag" value=(search.tag); }
            label { "State " select name="state" {
                option value="" { "any" }
                @for state in EntryState::all().map(EntryState::as_str) {
                    option value=(state) selected[state == search.state] { (state) }
                }
            } }
            label { "Sort this page by " select name="sort" {
                @for name in ["key", "age", "size", "time"] {
                    option value=(name) selected[format!("{:?}", search.sort).eq_ignore_ascii_case(name)] { (name) }
                }
            } }
            button { "Search" }
        }
        @if found.entries.is_empty() {
            p { "No entry of this page matches." @if next.is_some() { " There are more pages." } }
        } @else {
            div .card.wide { table .entries {
                thead { tr {
                    th { "Key" } th .minor { "Layer" } th { "State" } th { "Age" } th .number.minor { "Stored" }
                    th .number.minor { "In memory" } th .number { "Took" } th .minor { "Latest generations" } th .minor { "Holder" }
                } }
                @for entry in &found.entries { (row(&viewer, entry)) }
            } }
        }
        @if let Some(next) = next { p { a href=(next) { "Next page" } } }
        @if viewer.can_act {
            section .card.many {
            h2 { "Many pages at once" }
            @for (what, label) in [("prefix", "All keys that begin with "), ("tag", "All entries with the tag ")] {
                form action={ (viewer.base) "/many" } {
                    input type="hidden" name="what" value=(what);
                    label { (label) input name="name" required[what == "tag"]; }
                    button name="act" value="invalidate" { "Count and invalidate…" }
                    button .danger name="act" value="purge" { "Count and purge…" }
                }
            }
            }
        }
    };
    Ok(page(&viewer, "Entries", &body))
}

fn row(viewer: &Viewer, entry: &Entry) -> Markup {
    html! {
        tr {
            (key_cell(viewer, &entry.key))
            td .minor { (short(&entry.layer)) }
            td { (state(entry.state)) }
            td .wraps { (age_bar(entry)) }
            td .number.minor { (size(entry.bytes)) }
            td .number.minor { @if let Some(bytes) = entry.memory_bytes { (size(bytes)) } @else { "–" } }
            td .number { @if entry.history.is_empty() { "–" } @else { (time(last_time(entry))) } }
            td .minor { (sparkline(&entry.history)) }
            td .minor { @if let Some(holder) = &entry.holder { code { (short(&holder.label)) } } @else { "–" } }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct OfKey {
    key: String,
}

pub(crate) async fn entry(
    viewer: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(of): Query<OfKey>,
    Query(after): Query<After>,
) -> Result<Response, Unavailable> {
    let Some(entry) = admin.site.entry(&of.key).await? else {
        let text = "Nothing is stored under this key.";
        let body = html! { (done(&after)) p { (text) } p .key { code { (visible(&of.key)) } } };
        return Ok((StatusCode::NOT_FOUND, page(&viewer, "Entry", &body)).into_response());
    };
    let stored = admin.site.stored_response(&of.key).await?;
    let preview = format!("{}/preview?{}", viewer.base, query(&[("key", &entry.key)]));
    let report = admin.report.of(&admin.site).await;
    let failures = report.failures.iter();
    let failures: Vec<_> = failures
        .filter(|it| it.regeneration.is_of(&entry.key))
        .collect();
    let mut history: Vec<_> = entry.history.iter().map(generated_row).collect();
    history.extend(failures.iter().map(|it| failed_row(it)));
    history.sort_by_key(|(ago, _)| *ago);
    let identity = query(&[("key", &entry.key), ("fence", &entry.fence.to_string())]);
    let body = html! {
        (done(&after))
        p .key.title { code { (visible(&entry.key)) } }
        div .columns { div { section .card.first { h2 { "State" } table {
            tr { th scope="row" { "State" } td { (state(entry.state)) } }
            tr { th scope="row" { "Age" } td { (age_bar(&entry)) } }
            tr { th scope="row" { "Next regeneration" } td {
                @if entry.holder.is_some() { "running now" } @else if entry.next_regeneration.is_zero() { "by the next request" } @else { "in " (time(entry.next_regeneration)) }
            } }
            tr { th scope="row" { "Layer" } td { (visible(&entry.layer)) } }
            tr { th scope="row" { "Status" } td { @if let Some(status) = entry.status { (status) } @else { "not stored" } } }
            tr { th scope="row" { "Stored size" } td { (size(entry.bytes)) } }
            tr { th scope="row" { "In the memory of this process" } td {
                @if let Some(bytes) = entry.memory_bytes { (size(bytes)) } @else { "no" } } }
            @if !entry.tags.is_empty() { tr { th scope="row" { "Tags" } td { (visible(&entry.tags.join(", "))) } } }
            @if let Some(revision) = &entry.revision { tr { th scope="row" { "Revision" } td { (visible(revision)) } } }
            tr { th scope="row" { "Holder of the lease" } td {
                @if let Some(holder) = &entry.holder { code { (visible(&holder.label)) } ", ends in " (time(entry.remaining)) } @else { "none" } } }
            tr { th scope="row" { "Fence" } td { (entry.fence) } }
        }
        @if viewer.can_act {
            div .actions { @for (act, label) in [("regenerate", "Regenerate now"), ("invalidate", "Invalidate"), ("purge", "Purge…")] {
                form method="post" action={ (viewer.base) "/act/entry?" (identity) } {
                    button .danger[act == "purge"] name="act" value=(act) { (label) }
                }
            } }
        } }
        @if let Some(stored) = &stored {
            section .card.content { h2 { "Content" }
            table { caption { "Headers" } @for (name, value) in stored.headers() {
                tr { th scope="row" { (name) } td { (visible(&String::from_utf8_lossy(value.as_bytes()))) } }
            } }
            @if is_html(stored.headers().get(header::CONTENT_TYPE)) {
                iframe sandbox="" title="Preview without rights" src=(preview) {}
            }
            details { summary { "Source" } pre { (source(stored.body())) } } }
        } }
        section .card { h2 { "History" }
        div .wide { table {
            thead { tr { th { "When" } th { "Reason" } th .number { "Took" } th .number.minor { "Body" } th .minor { "Content" } th { "Process" } } }
            @for (_, row) in history { (row) }
        } } } }
    };
    Ok(page(&viewer, "Entry", &body).into_response())
}

/// Returns how long ago a version was generated, and its row in the history.
fn generated_row(it: &PastVersion) -> (Duration, Markup) {
    let row = html! {
        tr {
            td { (time(it.ago)) " ago" } td { (it.reason) } td .number { (time(it.took)) }
            td .number.minor { (size(it.bytes)) } td .minor { @if it.changed { "changed" } @else { "unchanged" } }
            td { code { (visible(&it.process)) } }
        }
    };
    (it.ago, row)
}

/// Returns how long ago a regeneration failed, and its row in the history.
fn failed_row(it: &crate::Failed) -> (Duration, Markup) {
    let (regeneration, process) = (&it.regeneration, &it.process);
    let row = html! {
        tr data-result="failure" {
            td { (time(regeneration.ago)) " ago" } td { strong { "failed" } }
            td .key colspan="4" { (visible(&regeneration.error)) ", in " code { (visible(process)) } }
        }
    };
    (regeneration.ago, row)
}

fn is_html(kind: Option<&HeaderValue>) -> bool {
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
}

/// Returns the beginning of a body as text, line by line.
fn source(body: &[u8]) -> String {
    let beginning = &body[..body.len().min(SOURCE)];
    let text = String::from_utf8_lossy(beginning);
    let lines: Vec<_> = text.lines().map(visible).collect();
    lines.join("\n")
}

/// Returns a stored page of HTML in a form that has no rights in the browser, even outside of the frame in
/// which it is shown.
pub(crate) async fn preview(
    _: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(of): Query<OfKey>,
) -> Result<Response, Unavailable> {
    let stored = admin.site.stored_response(&of.key).await?;
    let Some(stored) = stored.filter(|it| is_html(it.headers().get(header::CONTENT_TYPE))) else {
        let nothing = message("Not found", "No page of HTML is stored under this key.");
        return Ok((StatusCode::NOT_FOUND, nothing).into_response());
    };
    let policy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    Ok((headers, stored.into_body()).into_response())
}

pub(crate) async fn locks(
    viewer: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(after): Query<After>,
) -> Result<Html<String>, Unavailable> {
    let mut locks = admin.site.locks().list().await?;
    // Housekeeping leaves a cooldown behind, so that it does not run too often. An operator need not see it.
    locks.retain(|lock| lock.kind != LockKind::Housekeeping || lock.holder.is_some());
    // Only some locks have an action.
    let has_actions = locks.iter().any(|lock| {
        let holder = lock.holder.as_ref();
        holder.is_some_and(|holder| !holder.action.is_empty())
    });
    let body = html! {
        (done(&after))
        p .note { "The locks of all processes that are held or in cooldown. The lock of the kind " code { "page" } " is held while a page is regenerated." }
        @if locks.is_empty() { p .card { "No lock is held or in cooldown." } } @else {
            div .card.wide { table {
                thead { tr {
                    th .minor { "Kind" } th { "Name" } th { "Holder" } @if has_actions { th { "Does" } }
                    th .minor { "Since" } th { "Ends in" } th .minor { "Fence" } th { "" }
                } }
                @for lock in &locks { (lock_row(&viewer, lock, has_actions)) }
            } }
        }
    };
    Ok(page(&viewer, "Locks", &body))
}

fn lock_row(viewer: &Viewer, lock: &LockInfo, has_actions: bool) -> Markup {
    let (holder, action) = match &lock.holder {
        Some(holder) => (short(&holder.label), short(&holder.action)),
        None => ("none: in cooldown".to_owned(), String::new()),
    };
    html! {
        tr {
            td .minor { (lock.kind.as_str()) }
            @if lock.kind == LockKind::Page { (key_cell(viewer, &lock.name)) } @else { td .key { (short(&lock.name)) } }
            td { @if lock.holder.is_some() { code { (holder) } } @else { (holder) } } @if has_actions { td { (action) } }
            td .minor { (time(lock.age)) " ago" } td { (time(lock.remaining)) } td .minor { (lock.fence) }
            td { @if viewer.can_act && lock.kind != LockKind::Housekeeping {
                form method="post" action={ (viewer.base) "/" (lock_action(lock.kind, &lock.name, lock.fence)) } {
                    button .danger aria-label={ "Break the lock " (short(&lock.name)) } { "Break…" }
                }
            } }
        }
    }
}

/// Returns a query string of these fields.
pub(crate) fn query(fields: &[(&str, &str)]) -> String {
    serde_urlencoded::to_string(fields).unwrap_or_default()
}
