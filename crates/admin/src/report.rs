//! The state of a site as data: what the status page, the JSON and the command line show, and the checks that
//! say whether something needs attention.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use perennial::{
    Error, Perennial,
    entries::PastVersion,
    event::{FailedRegeneration, MissedInvalidation, ProcessStats},
    locks::{LockInfo, LockKind},
};
use serde::Serialize;

use crate::hour::LastHour;

/// The time limit for all statements of the report together.
const LIMIT: Duration = Duration::from_secs(3);

/// The time after which a process has probably ended or cannot reach the database. A running process shares its
/// figures every ten seconds.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// The number of generations among which the slowest ones are found.
const RECENT: usize = 200;

/// The number of lines in each list.
pub(crate) const SHOWN: usize = 15;

/// The state of a site, read from its database by five statements.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The checks.
    pub checks: Vec<Check>,
    /// The number of stored pages.
    pub pages: u64,
    /// How many of the pages are older than their interval. A page that was invalidated counts only when its interval
    /// is over.
    pub stale: u64,
    /// How many bytes the pages take up, including their headers and metadata.
    pub bytes: u64,
    /// How many bytes of the store's capacity the pages take: `bytes`, and 2 KiB more for each page.
    pub stored_bytes: u64,
    /// The capacity of the store, in bytes. `None` means that it is not known, because the command line does not have
    /// the site's settings.
    pub store_capacity: Option<u64>,
    /// How many bytes of memory the pages take, summed over the processes that share their figures and are alive.
    pub memory: Memory,
    /// What the site did in the last hour.
    pub last_hour: LastHour,
    /// The size of each table with its indexes, in bytes; on SQLite, the size of the database file.
    pub tables: Vec<(String, u64)>,
    /// The locks of pages in cooldown: their last regeneration has failed.
    pub failing: Vec<LockInfo>,
    /// The latest failures of the processes that share their figures, the latest one first.
    pub failures: Vec<Failed>,
    /// The locks that are held, except those of housekeeping.
    pub held: Vec<LockInfo>,
    /// The pages that were generated last, the latest one first.
    pub latest: Vec<Generated>,
    /// Of the 200 pages that were generated last, those whose latest generation took longest.
    pub slow: Vec<Generated>,
    /// The processes that [share their figures](Perennial::share_stats), with those that have ended in the last hour.
    pub processes: Vec<ProcessStats>,
    /// The pages that had changed although nobody had invalidated them, as far as this process knows, the newest
    /// first.
    pub missed_invalidations: Vec<Arc<MissedInvalidation>>,
}

/// The memory tiers of the processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Memory {
    /// The size of the pages in memory, in bytes.
    pub bytes: u64,
    /// The capacity, in bytes.
    pub capacity: u64,
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

/// A failed regeneration.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Failed {
    /// What failed, when and why.
    #[serde(flatten)]
    pub regeneration: FailedRegeneration,
    /// The [label](ProcessStats::label) of the process.
    pub process: String,
}

/// A check, with a remedy if there is something to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// A word for programs.
    pub id: &'static str,
    /// The result.
    pub result: Verdict,
    /// What was found, in a sentence.
    pub text: String,
    /// What to do about it, in sentences. Empty if all is well.
    pub remedy: String,
}

impl Check {
    fn ok(id: &'static str, text: impl Into<String>) -> Self {
        Self {
            id,
            result: Verdict::Ok,
            text: text.into(),
            remedy: String::new(),
        }
    }

    fn warning(id: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            id,
            result: Verdict::Warning,
            text: text.into(),
            remedy: remedy.into(),
        }
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
    /// Returns the symbol that is shown in front of a finding of this kind.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Ok => "✓ ok",
            Self::Warning => "! warning",
            Self::Failure => "✗ failure",
        }
    }
}

impl Report {
    /// Reads the report. If that fails, the report is empty, except for a check that says so.
    pub async fn of(site: &Perennial) -> Self {
        Self::read(site).await.unwrap_or_else(|error| {
            tracing::error!(target: "perennial_admin", error = format!("{error:#}"), "the database fails");
            let check = Check {
                id: "database",
                result: Verdict::Failure,
                text: "The database fails. Pages in memory are still served.".to_owned(),
                remedy: "The application's log has the error; `perennial doctor` examines the database.".to_owned(),
            };
            Self {
                checks: vec![check],
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
        let checks = [
            Some(Check::ok(
                "database",
                format!("The database answers in {took} ms."),
            )),
            versions(&report.processes),
            silent(&report.processes),
            clock(&report.processes, SystemTime::now()),
            Some(failing(&report.failing)),
            hits(&report.last_hour),
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
        let processes = site.processes().await?;
        let alive = processes.iter().filter(|process| is_alive(process));
        let memory = alive.fold(Memory::default(), |sum, process| Memory {
            bytes: sum.bytes + process.stats.memory_bytes,
            capacity: sum.capacity + process.stats.memory_capacity,
        });
        let failures = processes.iter().flat_map(|process| {
            let failures = process.failures.iter().cloned();
            failures.map(|regeneration| Failed {
                regeneration,
                process: process.label.clone(),
            })
        });
        let mut failures: Vec<_> = failures.collect();
        failures.sort_by_key(|it| it.regeneration.ago);
        failures.truncate(SHOWN);
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
            failures,
            held: locks.iter().filter(|lock| is_held(lock)).cloned().collect(),
            latest: latest.into_iter().take(SHOWN).collect(),
            slow,
            memory,
            last_hour: LastHour::of(&processes, SystemTime::now()),
            processes,
            missed_invalidations: site.missed_invalidations(),
        })
    }
}

/// Formats a number of bytes for people, such as `12.3 kB`.
#[doc(hidden)]
#[must_use]
pub fn size(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "one digit is shown")]
    let number = bytes as f64;
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", number / 1e6),
        _ => format!("{:.1} GB", number / 1e9),
    }
}

/// Returns a number with separators, such as `12,345`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Returns a duration in its two largest units, such as `3 d 4 h`.
#[doc(hidden)]
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time < Duration::from_millis(1) => "< 1 ms".to_owned(),
        0 => format!("{} ms", time.as_millis()),
        1..10 if time.subsec_millis() >= 100 => {
            format!("{seconds}.{} s", time.subsec_millis() / 100)
        }
        1..60 => format!("{seconds} s"),
        60..3600 => in_units(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => in_units(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => in_units(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

fn in_units(number: u64, unit: &str, rest: u64, smaller: &str) -> String {
    match rest {
        0 => format!("{number} {unit}"),
        rest => format!("{number} {unit} {rest} {smaller}"),
    }
}

/// Describes in words which version of the code a process runs.
#[doc(hidden)]
pub fn runs(process: &ProcessStats) -> String {
    match &process.revision {
        Some(revision) => format!("perennial {}, revision {revision}", process.version),
        None => format!("perennial {}", process.version),
    }
}

/// Returns true if the process has not ended, and has written its figures recently. It then runs, and
/// reaches the database.
fn is_alive(process: &ProcessStats) -> bool {
    !process.ended && process.silent_for < SILENT_AFTER
}

/// All processes should run one version of the code, except during a deploy.
fn versions(processes: &[ProcessStats]) -> Option<Check> {
    let alive = processes.iter().filter(|process| is_alive(process));
    let mut versions: Vec<_> = alive.map(runs).collect();
    let count = versions.len();
    versions.sort_unstable();
    versions.dedup();
    Some(match &versions[..] {
        [] => return None,
        [one] if count == 1 => Check::ok("versions", format!("One process runs {one}.")),
        [one] => Check::ok("versions", format!("{count} processes run {one}.")),
        many => Check::warning(
            "versions",
            format!(
                "The processes run {} versions: {}.",
                many.len(),
                many.join("; ")
            ),
            "During a deploy that is as it should be. Otherwise end the process that was left behind: the list of processes \
             names it.",
        ),
    })
}

/// Finds processes that have stopped without a shutdown.
fn silent(processes: &[ProcessStats]) -> Option<Check> {
    let mut silent = processes
        .iter()
        .filter(|process| !process.ended && !is_alive(process));
    let first = silent.next()?;
    let others = match silent.count() {
        0 => String::new(),
        1 => ", and another one is silent, too".to_owned(),
        many => format!(", and {many} others are silent, too"),
    };
    Some(Check::warning(
        "processes",
        format!(
            "The process {} has given no sign of life for {}{others}.",
            first.label,
            time(first.silent_for)
        ),
        "If it was killed or has crashed, its log says why, and this message goes within an hour: call `Perennial::shutdown` \
         at the end of the program. If it still runs, it does not reach the database.",
    ))
}

/// Compares this machine's clock with the database's. The database reports when some figures were written and
/// how old they are; the sum of both is its current time.
fn clock(processes: &[ProcessStats], now: SystemTime) -> Option<Check> {
    let latest = processes.iter().find(|process| !process.ended)?;
    let database = latest.noted_at.checked_add(latest.silent_for)?;
    let apart = now
        .duration_since(database)
        .unwrap_or_else(|error| error.duration());
    let seconds = apart.as_secs();
    Some(if apart > Duration::from_secs(5) {
        Check::warning(
            "clock",
            format!("The clocks of this machine and of the database are {seconds} s apart."),
            "Let NTP set both. Perennial's ages follow the database's clock alone; the dates of responses follow this \
             machine's.",
        )
    } else {
        let text = "The clocks of this machine and of the database agree within 5 s.";
        Check::ok("clock", text)
    })
}

/// With fewer requests than this in an hour, the hit ratio means nothing.
const MEANINGFUL_REQUESTS: u64 = 1000;

/// If a cache answers less than half of the requests, its keys are usually wrong, or requests bypass it.
fn hits(hour: &LastHour) -> Option<Check> {
    let ratio = hour.hit_ratio()?;
    let percent = 100.0 * ratio;
    let (requests, id) = (count(hour.requests), "hits");
    Some(if hour.requests >= MEANINGFUL_REQUESTS && ratio < 0.5 {
        Check::warning(
            id,
            format!("Only {percent:.0} % of the last hour's {requests} requests were hits."),
            "`perennial explain URL`, or the page Explain, says why a page is not cached. Usual reasons: parameters of the query \
             that do not count are in the key (`Key::query` names those that do), a middleware's extension makes requests \
             bypass the cache, or the interval is shorter than the time between two visits.",
        )
    } else {
        let text = format!("{percent:.1} % of the last hour's {requests} requests were hits.");
        Check::ok(id, text)
    })
}

/// The store may exceed its capacity by the pages that are stored within one minute.
fn capacity(report: &Report) -> Option<Check> {
    let (stored, capacity) = (report.stored_bytes, report.store_capacity?);
    let percent = u128::from(stored) * 100 / u128::from(capacity.max(1));
    let text = format!("The stored pages take {percent} % of the store's capacity.");
    Some(if stored > capacity {
        Check::warning(
            "capacity",
            text,
            "Set a larger `Builder::store_capacity`. Until then, pages that nobody has asked for since they became stale are \
             removed once a minute, and generated again when a visitor asks.",
        )
    } else {
        Check::ok("capacity", text)
    })
}

/// Pages whose data had changed without an invalidation. That was noticed only when they were regenerated
/// because of their age.
fn missed(missed: &[Arc<MissedInvalidation>]) -> Option<Check> {
    let latest = missed.first()?;
    let keys: BTreeSet<_> = missed.iter().map(|missed| &missed.key).collect();
    let (pages, they) = match keys.len() {
        1 => (format!("The page {}", latest.key), "it"),
        many => (format!("{many} pages, such as {},", latest.key), "them"),
    };
    Some(Check::warning(
        "missed-invalidations",
        format!("{pages} had changed although nobody had invalidated {they}."),
        format!(
            "The code that changes the page's data has to name one of its tags ({}), or triggers do it: `perennial triggers` prints \
             them. A page that differs with each generation is listed, too.",
            latest.tags.join(", ")
        ),
    ))
}

fn failing(failing: &[LockInfo]) -> Check {
    let [first, ..] = failing else {
        let text = "No page is in cooldown after a failed regeneration.";
        return Check::ok("regenerations", text);
    };
    let pages = match failing.len() {
        1 => format!("The page {} is", first.name),
        many => format!("{many} pages, such as {}, are", first.name),
    };
    Check::warning(
        "regenerations",
        format!("{pages} in cooldown after a failed regeneration."),
        "The sites' logs have the handlers' errors. Visitors get the old version, and the next attempt follows the cooldown; a \
         purge ends it at once.",
    )
}
