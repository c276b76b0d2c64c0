//! The checks of the overview: each is one sentence, and a remedy if there is something to do.

use std::time::{Duration, Instant, SystemTime};

use perennial::{Perennial, event::Outcome};
use serde::Serialize;

use crate::{Process, processes};

/// The longest time of the checks' statements together.
const LIMIT: Duration = Duration::from_secs(3);

/// The share of failing regenerations above which the check warns, in percent.
const FAILING: u64 = 10;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) result: Verdict,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Warning,
    Failure,
}

impl Verdict {
    /// The sign in front of the text, so that no meaning is in the colour alone.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::Ok => "✓ ok",
            Self::Warning => "! look",
            Self::Failure => "✗ fails",
        }
    }
}

/// The results of the overview's statements.
pub(crate) struct Seen {
    pub(crate) checks: Vec<Check>,
    pub(crate) processes: Vec<Process>,
}

pub(crate) async fn look(site: &Perennial) -> Seen {
    let asked = Instant::now();
    let listed = tokio::time::timeout(LIMIT, processes(site)).await;
    let took = asked.elapsed();
    let mut checks = Vec::new();
    let mut check = |id, result, text| checks.push(Check { id, result, text });
    let processes = match listed {
        Ok(Ok(processes)) => {
            let text = format!("The database answers in {} ms.", took.as_millis());
            check("database", Verdict::Ok, text);
            processes
        }
        Ok(Err(error)) => {
            tracing::error!(target: "perennial_admin", error = format!("{error:#}"), "the database fails");
            let text =
                "The database fails; pages in memory are still served. The log has the error.";
            check("database", Verdict::Failure, text.to_owned());
            Vec::new()
        }
        Err(_) => {
            let text = format!("The database has not answered within {LIMIT:?}.");
            check("database", Verdict::Failure, text);
            Vec::new()
        }
    };
    if let Some((result, text)) = versions(&processes) {
        check("versions", result, text);
    }
    if let Some((result, text)) = clock(&processes, SystemTime::now()) {
        check("clock", result, text);
    }
    let stats = site.stats();
    let ended: u64 = stats.ended();
    let failed = stats.regenerations(Outcome::Failed) + stats.regenerations(Outcome::TimedOut);
    let (result, text) = regenerations(ended, failed);
    check("regenerations", result, text);
    let lost = stats.regenerations(Outcome::Overtaken);
    if lost > 0 {
        let text = format!(
            "{lost} regenerations of this process lost their lease: the process was paused, or the policy's lease is too short."
        );
        check("leases", Verdict::Warning, text);
    }
    Seen { checks, processes }
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

fn regenerations(ended: u64, failed: u64) -> (Verdict, String) {
    let text = format!("{failed} of {ended} regenerations of this process have failed.");
    if failed * 100 > ended * FAILING {
        let remedy = " The list of entries shows the pages in cooldown, and the log the errors.";
        (Verdict::Warning, text + remedy)
    } else {
        (Verdict::Ok, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_shown_when_they_are_frequent() {
        assert_eq!(regenerations(0, 0).0, Verdict::Ok);
        assert_eq!(regenerations(20, 2).0, Verdict::Ok);
        assert_eq!(regenerations(20, 3).0, Verdict::Warning);
    }
}
