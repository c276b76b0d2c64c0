//! The figures of the pages as JSON, with the number of their schema. A field is added without a new
//! number, and never renamed or removed.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
};
use perennial::{
    Error,
    entries::{Entry, EntryFilter, EntryState},
    event::{Outcome, Served},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Admin, access::Viewer, checks, html::Failed};

/// The number of the schema of all figures.
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

#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) requests: Vec<(&'static str, u64)>,
    pub(crate) regenerations: Vec<(&'static str, u64)>,
    pub(crate) last_minute: Vec<(&'static str, u64)>,
    pub(crate) running: usize,
    pub(crate) memory_entries: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_capacity: u64,
    database_available: bool,
}

impl Figures {
    pub(crate) fn of(admin: &Admin) -> Self {
        let stats = admin.site.stats();
        let [ended, failed] = admin.latest.last_minute();
        Self {
            last_minute: vec![("regenerations", ended), ("failures", failed)],
            requests: by_word(Served::all().map(|it| (it.as_str(), stats.requests(it)))),
            regenerations: by_word(Outcome::all().map(|it| (it.as_str(), stats.regenerations(it)))),
            running: stats.running,
            memory_entries: stats.memory_entries,
            memory_bytes: stats.memory_bytes,
            memory_capacity: stats.memory_capacity,
            database_available: stats.database_available,
        }
    }
}

/// Adds the numbers of each word, which stand beside each other.
fn by_word(numbers: impl Iterator<Item = (&'static str, u64)>) -> Vec<(&'static str, u64)> {
    let mut sums: Vec<(_, u64)> = Vec::new();
    for (word, number) in numbers {
        match sums.last_mut() {
            Some((last, sum)) if *last == word => *sum += number,
            _ => sums.push((word, number)),
        }
    }
    sums
}

pub(crate) async fn overview(_: Viewer, State(admin): State<Arc<Admin>>) -> Json<Value> {
    let seen = checks::look(&admin.site).await;
    Json(json!({
        "schema": SCHEMA,
        "checks": seen.checks,
        // Of this process.
        "figures": Figures::of(&admin),
        "processes": seen.processes,
    }))
}

pub(crate) async fn entries(
    _: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(search): Query<Search>,
) -> Result<Json<Value>, Failed> {
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
) -> Result<Json<Value>, Failed> {
    let locks = admin.site.locks().list().await?;
    Ok(Json(json!({ "schema": SCHEMA, "locks": locks })))
}

/// The result of a failing statement, for a page: the details are in the log.
impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        tracing::error!(target: "perennial_admin", error = format!("{error:#}"), "a page of the status page failed");
        Self
    }
}
