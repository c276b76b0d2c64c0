//! The state of a site as data: what the status page, the JSON and the command line show, and the checks that
//! say whether something needs attention.

use std::{
    cmp::Reverse,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use perennial::{
    Error, Perennial,
    entries::PastVersion,
    event::{MissedInvalidation, ProcessStats},
    locks::{LockInfo, LockKind},
};
use serde::Serialize;

/// The longest time of the report's statements together.
const LIMIT: Duration = Duration::from_secs(3);

/// The time after which a process that shares its figures each ten seconds has ended, or does not reach the
/// database.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// The number of generations among which the slowest ones are found.
const RECENT: usize = 200;

/// The number of lines in each list.
pub(crate) const SHOWN: usize = 15;

/// The state of a site, from its database: five statements.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The checks.
    pub checks: Vec<Check>,
    /// The number of stored pages.
    pub pages: u64,
    /// Those whose interval is over. An invalidated page counts only then.
    pub stale: u64,
    /// The size of their bodies, headers and metadata, in bytes.
    pub bytes: u64,
    /// The size of the pages as it counts for the capacity: `bytes` and 2 KiB for each page.
    pub stored_bytes: u64,
    /// The capacity of the store, in bytes. `None` means that it is not known: the command line has no
    /// setting for it.
    pub store_capacity: Option<u64>,
    /// The size of each table with its indexes, in bytes; on SQLite, of the file.
    pub tables: Vec<(String, u64)>,
    /// The locks of pages in cooldown: their last regeneration has failed.
    pub failing: Vec<LockInfo>,
    /// The locks that are held, without those of housekeeping.
    pub held: Vec<LockInfo>,
    /// The latest generations, the latest one first.
    pub latest: Vec<Generated>,
    /// The slowest of the latest 200 generations.
    pub slow: Vec<Generated>,
    /// The processes that [share their figures](Perennial::share_stats).
    pub processes: Vec<ProcessStats>,
    /// The pages that this process has found changed although nobody had invalidated them, the latest one first.
    pub missed_invalidations: Vec<Arc<MissedInvalidation>>,
}

/// A generation of a page.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Generated {
    /// The key of the page.
    pub key: String,
    /// The generation.
    #[serde(flatten)]
    pub version: PastVersion,
}

/// A check, with a remedy if there is something to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// A word for programs.
    pub id: &'static str,
    /// The result.
    pub result: Verdict,
    /// The result in a sentence.
    pub text: String,
}

impl Check {
    fn new(id: &'static str, result: Verdict, text: String) -> Self {
        Self { id, result, text }
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// Something may need attention.
    Warning,
    /// Something fails.
    Failure,
}

impl Verdict {
    /// Returns the sign in front of the text.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Ok => "✓ ok",
            Self::Warning => "! look",
            Self::Failure => "✗ fails",
        }
    }
}

impl Report {
    /// Reads the report. After an error: an empty report with a check that fails.
    pub async fn of(site: &Perennial) -> Self {
        Self::read(site).await.unwrap_or_else(|error| {
            tracing::error!(target: "perennial_admin", error = format!("{error:#}"), "the database fails");
            let text =
                "The database fails; pages in memory are still served. The log has the error.";
            Self {
                checks: vec![Check::new("database", Verdict::Failure, text.to_owned())],
                ..Self::default()
            }
        })
    }

    /// Reads the report.
    ///
    /// # Errors
    ///
    /// The database fails, or does not answer within 3 s.
    pub async fn read(site: &Perennial) -> Result<Self, Error> {
        let asked = Instant::now();
        let read = tokio::time::timeout(LIMIT, Self::unchecked(site)).await;
        let mut report = read.unwrap_or_else(|_| Err(Error::timeout("report", LIMIT)))?;
        let took = asked.elapsed().as_millis();
        let answers = format!("The database answers in {took} ms.");
        let checks = [
            Some(Check::new("database", Verdict::Ok, answers)),
            versions(&report.processes),
            clock(&report.processes, SystemTime::now()),
            Some(failing(&report.failing)),
            capacity(&report),
            missed(&report.missed_invalidations),
        ];
        report.checks = checks.into_iter().flatten().collect();
        Ok(report)
    }

    async fn unchecked(site: &Perennial) -> Result<Self, Error> {
        let counted = site.counted().await?;
        let locks = site.locks().list().await?;
        let entries = site.latest(RECENT).await?.into_iter();
        let latest = entries.filter_map(|entry| {
            let version = entry.history.into_iter().next()?;
            let key = entry.key;
            Some(Generated { key, version })
        });
        let mut latest: Vec<_> = latest.collect();
        latest.sort_by_key(|it| Reverse(it.version.fence));
        let mut slow = latest.clone();
        slow.sort_by_key(|it| Reverse(it.version.took));
        slow.truncate(SHOWN);
        let is_failing = |lock: &LockInfo| lock.kind == LockKind::Page && lock.holder.is_none();
        let is_held =
            |lock: &LockInfo| lock.kind != LockKind::Housekeeping && lock.holder.is_some();
        Ok(Self {
            checks: Vec::new(),
            pages: counted.pages,
            stale: counted.stale,
            bytes: counted.bytes,
            stored_bytes: counted.weight(),
            store_capacity: site.stats().store_capacity,
            tables: site.sizes().await?,
            failing: locks
                .iter()
                .filter(|lock| is_failing(lock))
                .cloned()
                .collect(),
            held: locks.iter().filter(|lock| is_held(lock)).cloned().collect(),
            latest: latest.into_iter().take(SHOWN).collect(),
            slow,
            processes: site.processes().await?,
            missed_invalidations: site.missed_invalidations(),
        })
    }
}

/// Returns a duration in its two largest units, such as `3 d 4 h`.
#[doc(hidden)]
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Returns what code a process runs, in words.
#[doc(hidden)]
pub fn runs(process: &ProcessStats) -> String {
    match &process.revision {
        Some(revision) => format!("perennial {}, revision {revision}", process.version),
        None => format!("perennial {}", process.version),
    }
}

/// Returns true if the process has written its figures as often as one that runs, and reaches the database.
fn is_alive(process: &ProcessStats) -> bool {
    process.silent_for < SILENT_AFTER
}

/// All processes should run one version of the code, except during a deploy.
fn versions(processes: &[ProcessStats]) -> Option<Check> {
    let alive = processes.iter().filter(|process| is_alive(process));
    let mut versions: Vec<_> = alive.map(runs).collect();
    let count = versions.len();
    versions.sort_unstable();
    versions.dedup();
    let (result, text) = match &versions[..] {
        [] => return None,
        [one] => (
            Verdict::Ok,
            match count {
                1 => format!("One process runs {one}."),
                many => format!("{many} processes run {one}."),
            },
        ),
        many => (
            Verdict::Warning,
            format!(
                "The processes run {} versions ({}): fine during a deploy, and a process that was left behind otherwise.",
                many.len(),
                many.join("; ")
            ),
        ),
    };
    Some(Check::new("versions", result, text))
}

/// Compares this machine's clock with the database's: the sum of the time and the age of some figures.
fn clock(processes: &[ProcessStats], now: SystemTime) -> Option<Check> {
    let latest = processes.first()?;
    let database = latest.noted_at.checked_add(latest.silent_for)?;
    let apart = now
        .duration_since(database)
        .unwrap_or_else(|error| error.duration());
    let (result, text) = if apart > Duration::from_secs(5) {
        let text = format!(
            "The clocks of this machine and of the database are {} s apart. Perennial's ages follow the database's alone; the dates of responses follow this machine's.",
            apart.as_secs()
        );
        (Verdict::Warning, text)
    } else {
        let text = "The clocks of this machine and of the database agree within 5 s.";
        (Verdict::Ok, text.to_owned())
    };
    Some(Check::new("clock", result, text))
}

/// The store may exceed its capacity by the pages of a minute.
fn capacity(report: &Report) -> Option<Check> {
    let (stored, capacity) = (report.stored_bytes, report.store_capacity?);
    let percent = u128::from(stored) * 100 / u128::from(capacity.max(1));
    let (result, text) = if stored > capacity {
        (
            Verdict::Warning,
            format!(
                "The stored pages take {percent} % of the store's capacity: those that nobody has asked for since they became stale are removed once a \
                 minute, and generated again when a visitor asks. A larger `store_capacity` keeps them."
            ),
        )
    } else {
        (
            Verdict::Ok,
            format!("The stored pages take {percent} % of the store's capacity."),
        )
    };
    Some(Check::new("capacity", result, text))
}

/// Pages whose age alone has shown that their data had changed.
fn missed(missed: &[Arc<MissedInvalidation>]) -> Option<Check> {
    let latest = missed.first()?;
    let text = format!(
        "{} had changed although nobody had invalidated {}, such as {}: look for the code that changes its data, which has to name one of \
         its tags ({}), or make triggers (`perennial triggers`). A page that differs with each generation is listed, too.",
        match missed.len() {
            1 => "One page".to_owned(),
            many => format!("{many} pages"),
        },
        if missed.len() == 1 { "it" } else { "them" },
        latest.key,
        latest.tags.join(", "),
    );
    Some(Check::new("missed-invalidations", Verdict::Warning, text))
}

fn failing(failing: &[LockInfo]) -> Check {
    let (result, text) = match failing {
        [] => (
            Verdict::Ok,
            "No page is in cooldown after a failed regeneration.".to_owned(),
        ),
        [first, ..] => {
            let text = format!(
                "{} in cooldown after a failed regeneration, such as {}. The sites' logs have the errors.",
                match failing.len() {
                    1 => "One page is".to_owned(),
                    many => format!("{many} pages are"),
                },
                first.name
            );
            (Verdict::Warning, text)
        }
    };
    Check::new("regenerations", result, text)
}
