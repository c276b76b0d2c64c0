//! The figures of the pages as JSON, with the number of their schema. A field is added without a new
//! number, and never renamed or removed.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
};
use perennial::{
    Error,
    entries::{Entry, EntryFilter, EntryState, Generation},
    event::Outcome,
    locks::{LockInfo, Process},
};
use serde::{Deserialize, Serialize};

use crate::{Admin, access::Viewer, checks, html::Failed};

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
        if let Some(state) = EntryState::named(&self.state) {
            filter = filter.state(state);
        }
        match &self.from {
            Some(from) => filter.from(from),
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
}

impl Figures {
    pub(crate) fn of(admin: &Admin) -> Self {
        let stats = admin.site.stats();
        let [ended, failed] = admin.latest.last_minute();
        Self {
            last_minute: vec![("regenerations", ended), ("failures", failed)],
            requests: stats.requests.by_result().to_vec(),
            regenerations: Outcome::ALL
                .map(|outcome| (outcome.as_str(), stats.regenerations(outcome)))
                .to_vec(),
            running: stats.running,
            memory_entries: stats.memory_entries,
            memory_bytes: stats.memory_bytes,
            memory_capacity: stats.memory_capacity,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct OverviewJson {
    schema: u32,
    checks: Vec<checks::Check>,
    /// Of this process.
    figures: Figures,
    processes: Vec<ProcessJson>,
}

#[derive(Serialize)]
struct ProcessJson {
    process: String,
    runs: String,
    age_s: f64,
    silent_for_s: f64,
}

impl From<Process> for ProcessJson {
    fn from(process: Process) -> Self {
        Self {
            process: process.label,
            runs: process.runs,
            age_s: process.age.as_secs_f64(),
            silent_for_s: process.silent_for.as_secs_f64(),
        }
    }
}

pub(crate) async fn overview(_: Viewer, State(admin): State<Arc<Admin>>) -> Json<OverviewJson> {
    let seen = checks::look(&admin.site).await;
    Json(OverviewJson {
        schema: SCHEMA,
        checks: seen.checks,
        figures: Figures::of(&admin),
        processes: seen.processes.into_iter().map(Into::into).collect(),
    })
}

#[derive(Serialize)]
pub(crate) struct EntriesJson {
    schema: u32,
    entries: Vec<EntryJson>,
    /// The value of the parameter `from` for the next page.
    next: Option<String>,
}

#[derive(Serialize)]
struct EntryJson {
    key: String,
    layer: String,
    state: &'static str,
    status: Option<u16>,
    age_s: f64,
    interval_s: f64,
    next_regeneration_s: f64,
    bytes: u64,
    memory_bytes: Option<u64>,
    tags: Vec<String>,
    revision: Option<String>,
    fence: i64,
    holder: Option<String>,
    history: Vec<GenerationJson>,
}

#[derive(Serialize)]
struct GenerationJson {
    fence: i64,
    reason: &'static str,
    took_s: f64,
    bytes: u64,
    changed: bool,
    process: String,
}

impl From<Generation> for GenerationJson {
    fn from(generation: Generation) -> Self {
        Self {
            fence: generation.fence,
            reason: generation.reason.as_str(),
            took_s: generation.took.as_secs_f64(),
            bytes: generation.bytes,
            changed: generation.changed,
            process: generation.process,
        }
    }
}

impl From<Entry> for EntryJson {
    fn from(entry: Entry) -> Self {
        Self {
            key: entry.key,
            layer: entry.layer,
            state: entry.state.as_str(),
            status: entry.status,
            age_s: entry.age.as_secs_f64(),
            interval_s: entry.interval.as_secs_f64(),
            next_regeneration_s: entry.next_regeneration.as_secs_f64(),
            bytes: entry.bytes,
            memory_bytes: entry.memory_bytes,
            tags: entry.tags,
            revision: entry.revision,
            fence: entry.fence,
            holder: entry.holder.map(|holder| holder.label),
            history: entry.history.into_iter().map(Into::into).collect(),
        }
    }
}

pub(crate) async fn entries(
    _: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(search): Query<Search>,
) -> Result<Json<EntriesJson>, Failed> {
    let mut page = admin.site.entries(&search.filter()).await?;
    search.sort(&mut page.entries);
    Ok(Json(EntriesJson {
        schema: SCHEMA,
        entries: page.entries.into_iter().map(Into::into).collect(),
        next: page.next,
    }))
}

#[derive(Serialize)]
pub(crate) struct LocksJson {
    schema: u32,
    locks: Vec<LockJson>,
}

#[derive(Serialize)]
pub(crate) struct LockJson {
    kind: &'static str,
    name: String,
    fence: i64,
    holder: Option<String>,
    action: Option<String>,
    age_s: f64,
    remaining_s: f64,
}

impl From<&LockInfo> for LockJson {
    fn from(lock: &LockInfo) -> Self {
        let holder = lock.holder.as_ref();
        Self {
            kind: lock.kind.as_str(),
            name: lock.name.clone(),
            fence: lock.fence,
            holder: holder.map(|holder| holder.label.clone()),
            action: holder.map(|holder| holder.action.clone()),
            age_s: lock.age.as_secs_f64(),
            remaining_s: lock.remaining.as_secs_f64(),
        }
    }
}

pub(crate) async fn locks(
    _: Viewer,
    State(admin): State<Arc<Admin>>,
) -> Result<Json<LocksJson>, Failed> {
    let locks = admin.site.locks().list().await?;
    Ok(Json(LocksJson {
        schema: SCHEMA,
        locks: locks.iter().map(LockJson::from).collect(),
    }))
}

/// The result of a failing statement, for a page: the details are in the log.
impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        tracing::error!(target: "perennial_admin", %error, "a page of the status page failed");
        Self
    }
}
