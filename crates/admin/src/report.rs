//! The report: the state of a site from its database, with checks of one sentence each.

use std::{
    cmp::Reverse,
    time::{Duration, Instant, SystemTime},
};

use perennial::{
    Error, Perennial,
    entries::PastVersion,
    locks::{LockInfo, LockKind},
};
use serde::Serialize;

use crate::Process;

/// The longest time of the report's statements together.
const LIMIT: Duration = Duration::from_secs(3);

/// The number of generations among which the slowest ones are found.
const RECENT: usize = 200;

/// The number of generations in each list.
const SHOWN: usize = 15;

/// The state of a site, from its database: three statements, of which one reads a few columns of all
/// pages.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The checks.
    pub checks: Vec<Check>,
    /// The number of stored pages.
    pub pages: u64,
    /// Those whose interval is over. An invalidated page counts only then.
    pub stale: u64,
    /// The size of their bodies, in bytes.
    pub bytes: u64,
    /// The locks of pages in cooldown: their last regeneration has failed.
    pub failing: Vec<LockInfo>,
    /// The locks that are held, without those of processes.
    pub held: Vec<LockInfo>,
    /// The latest generations, the latest one first.
    pub latest: Vec<Generated>,
    /// The slowest of the latest 200 generations.
    pub slow: Vec<Generated>,
    /// The processes that have announced themselves.
    pub processes: Vec<Process>,
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
    /// Returns the sign in front of the text, so that no meaning is in a colour alone.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Ok => "✓ ok",
            Self::Warning => "! look",
            Self::Failure => "✗ fails",
        }
    }
}

impl Report {
    /// Reads the report. A database that fails, or does not answer within 3 s, is a check that fails in
    /// an empty report.
    pub async fn of(site: &Perennial) -> Self {
        let asked = Instant::now();
        let read = tokio::time::timeout(LIMIT, Self::read(site)).await;
        let took = asked.elapsed().as_millis();
        let mut report = Self::default();
        let (result, text) = match read {
            Ok(Ok(read)) => {
                report = read;
                (Verdict::Ok, format!("The database answers in {took} ms."))
            }
            Ok(Err(error)) => {
                tracing::error!(target: "perennial_admin", error = format!("{error:#}"), "the database fails");
                let text =
                    "The database fails; pages in memory are still served. The log has the error.";
                (Verdict::Failure, text.to_owned())
            }
            Err(_) => {
                let text = format!("The database has not answered within {LIMIT:?}.");
                (Verdict::Failure, text)
            }
        };
        let is_read = result == Verdict::Ok;
        let checks = [
            ("database", Some((result, text))),
            ("versions", versions(&report.processes)),
            ("clock", clock(&report.processes, SystemTime::now())),
            ("regenerations", is_read.then(|| failing(&report.failing))),
        ];
        let checks = checks.into_iter().filter_map(|(id, check)| {
            let (result, text) = check?;
            Some(Check { id, result, text })
        });
        report.checks = checks.collect();
        report
    }

    async fn read(site: &Perennial) -> Result<Self, Error> {
        let counted = site.counted().await?;
        let locks = site.locks().list().await?;
        let entries = site.latest(RECENT).await?.into_iter();
        let latest = entries.filter_map(|entry| {
            let version = entry.history.into_iter().next()?;
            let key = entry.key;
            Some(Generated { key, version })
        });
        let latest: Vec<_> = latest.collect();
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
            failing: locks
                .iter()
                .filter(|lock| is_failing(lock))
                .cloned()
                .collect(),
            held: locks.iter().filter(|lock| is_held(lock)).cloned().collect(),
            latest: latest.into_iter().take(SHOWN).collect(),
            slow,
            processes: locks.into_iter().filter_map(Process::of).collect(),
        })
    }
}

/// All processes should run one version of the code, except during a deploy.
fn versions(processes: &[Process]) -> Option<(Verdict, String)> {
    let mut versions: Vec<_> = processes.iter().map(|it| &*it.runs).collect();
    versions.sort_unstable();
    versions.dedup();
    match &versions[..] {
        [] => None,
        [one] => Some((
            Verdict::Ok,
            format!("{} processes run {one}.", processes.len()),
        )),
        many => Some((
            Verdict::Warning,
            format!(
                "The processes run {} versions ({}): fine during a deploy, and a process that was left behind otherwise.",
                many.len(),
                many.join("; ")
            ),
        )),
    }
}

/// The time of the latest announcement and its age are by the database's clock, to be compared with
/// this machine's.
fn clock(processes: &[Process], now: SystemTime) -> Option<(Verdict, String)> {
    let latest = processes.iter().max_by_key(|it| it.announced_at)?;
    let database = latest.announced_at.checked_add(latest.age)?;
    let apart = now
        .duration_since(database)
        .unwrap_or_else(|error| error.duration());
    Some(if apart > Duration::from_secs(5) {
        let text = format!(
            "The clocks of this machine and of the database are {} s apart. Perennial's ages follow the database's alone; the dates of responses follow this machine's.",
            apart.as_secs()
        );
        (Verdict::Warning, text)
    } else {
        let text = "The clocks of this machine and of the database agree within 5 s.";
        (Verdict::Ok, text.to_owned())
    })
}

fn failing(failing: &[LockInfo]) -> (Verdict, String) {
    match failing {
        [] => (
            Verdict::Ok,
            "No page is in cooldown after a failed regeneration.".to_owned(),
        ),
        [first, ..] => {
            let text = format!(
                "{} pages are in cooldown after a failed regeneration, such as {}. The log has the errors.",
                failing.len(),
                first.name
            );
            (Verdict::Warning, text)
        }
    }
}
