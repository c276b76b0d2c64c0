//! The figures of the pages as JSON, for programs. New fields may be added without a new schema number; no
//! field is ever removed.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
};
use perennial::{
    Error,
    entries::{Entry, EntryFilter, EntryState},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, access::Viewer, html::Unavailable};

/// The schema version of all figures.
const SCHEMA: u32 = 1;

/// The parameters of the list of entries.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Search {
    pub(crate) prefix: String,
    pub(crate) tag: String,
    pub(crate) state: String,
    /// The order of the entries on the page.
    pub(crate) sort: Sort,
    /// The place of the page.
    pub(crate) from: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sort {
    #[default]
    Key,
    Age,
    Size,
    Time,
}

impl Search {
    pub(crate) fn filter(&self) -> EntryFilter {
        let mut filter = EntryFilter::new().prefix(&self.prefix);
        if !self.tag.is_empty() {
            filter = filter.tag(&self.tag);
        }
        if let Ok(state) = self.state.parse::<EntryState>() {
            filter = filter.state(state);
        }
        match &self.from {
            Some(from) => filter.start_at(from),
            None => filter,
        }
    }

    pub(crate) fn sort(&self, entries: &mut [Entry]) {
        match self.sort {
            Sort::Key => {}
            Sort::Age => entries.sort_by_key(|entry| std::cmp::Reverse(entry.age)),
            Sort::Size => entries.sort_by_key(|entry| std::cmp::Reverse(entry.bytes)),
            Sort::Time => entries.sort_by_key(|entry| std::cmp::Reverse(last_time(entry))),
        }
    }
}

/// The time of the latest generation.
pub(crate) fn last_time(entry: &Entry) -> Duration {
    entry.history.first().map_or(Duration::ZERO, |it| it.took)
}

pub(crate) async fn overview(_: Viewer, State(admin): State<Arc<Admin>>) -> Json<Value> {
    let report = admin.report.of(&admin.site).await;
    Json(json!({ "schema": SCHEMA, "report": *report }))
}

pub(crate) async fn entries(
    _: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(search): Query<Search>,
) -> Result<Json<Value>, Unavailable> {
    let mut page = admin.site.entries(&search.filter()).await?;
    search.sort(&mut page.entries);
    Ok(Json(json!({
        "schema": SCHEMA,
        "entries": page.entries,
        // The value of the parameter `from` for the next page.
        "next": page.next,
    })))
}

pub(crate) async fn locks(
    _: Viewer,
    State(admin): State<Arc<Admin>>,
) -> Result<Json<Value>, Unavailable> {
    let locks = admin.site.locks().list().await?;
    Ok(Json(json!({ "schema": SCHEMA, "locks": locks })))
}

/// The result of a failing statement, for a page: the details are in the log.
impl From<Error> for Unavailable {
    fn from(error: Error) -> Self {
        tracing::error!(target: "perennial_admin", error = format!("{error:#}"), "a page of the status page failed");
        Self
    }
}
