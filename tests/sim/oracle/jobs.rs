//! The promises about work beside the pages in a journal: once-only work, exclusive routes, and the
//! waits of requests: S4, S13, W1, I2, I4 and I5 of docs/invariants.md.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use perennial_store::{Begin, Call};

use super::Oracle;
use crate::{jobs::WAIT, plan::LIMIT};

#[derive(Default)]
pub(super) struct Jobs(HashMap<String, Job>);

#[derive(Default)]
struct Job {
    begun: u32,
    /// The processes that run the work.
    running: Vec<u32>,
    fence: i64,
    /// A caller got the answer that the work is done.
    done: bool,
    /// The response of the service.
    body: Option<String>,
    /// The processes that sent a `Begin`.
    senders: HashSet<u32>,
}

impl Jobs {
    pub(super) fn asked(&mut self, process: u32, call: &Call) {
        if let Call::Begin(Begin { name, .. }) = call
            && let Some((_, name)) = name.split_once('/')
        {
            let job = self.0.entry(name.to_owned()).or_default();
            job.senders.insert(process);
        }
    }

    /// Forgets the work of a crashed process.
    pub(super) fn cut(&mut self, process: u32) {
        for job in self.0.values_mut() {
            job.running.retain(|by| *by != process);
        }
    }
}

impl Oracle<'_> {
    pub(super) fn works(&mut self, process: u32, name: &str, fence: i64) -> Result<(), String> {
        let kind = name.split('-').next().unwrap_or_default();
        let job = self.jobs.0.entry(name.to_owned()).or_default();
        job.begun += 1;
        let tally = match kind {
            "week" | "pay" if job.begun > 1 => {
                return Err(format!("W1: {name} is done {} times", job.begun));
            }
            "mail" | "vault" if !job.running.is_empty() => {
                return Err(format!("S4: {name} is done by two processes at once"));
            }
            "mail" if job.done => return Err(format!("W1: {name} is done again")),
            "vault" if fence <= job.fence => {
                return Err(format!("fences: {fence} comes after {}", job.fence));
            }
            "week" => "work begun once",
            "pay" => "idempotent requests begun",
            "mail" => "work begun until it is done",
            _ => "exclusive requests begun",
        };
        job.fence = fence;
        job.running.push(process);
        self.count(tally);
        Ok(())
    }

    pub(super) fn worked(&mut self, process: u32, name: &str) {
        let job = self.jobs.0.entry(name.to_owned()).or_default();
        if let Some(place) = job.running.iter().position(|by| *by == process) {
            job.running.swap_remove(place);
        }
    }

    pub(super) fn work_answered(
        &mut self,
        name: &str,
        how: &'static str,
        waited: Duration,
        settling: bool,
    ) -> Result<(), String> {
        let kind = name.split('-').next().unwrap_or_default();
        let job = self.jobs.0.entry(name.to_owned()).or_default();
        let (begun, calm) = (job.begun > 0, self.ground.plan.calm);
        match (kind, how) {
            (_, "refused") => return Err(format!("I4: {name} was refused as another request")),
            // Once-only work is marked before it begins.
            ("mail", "done before") if !begun => {
                return Err(format!(
                    "W1: {name} is called done, and nobody has begun it"
                ));
            }
            ("mail", "ran" | "done before") => job.done = true,
            ("pay", "unknown") if !begun && calm => {
                return Err(format!("{name}: nobody has begun what is called unknown"));
            }
            ("week" | "mail" | "pay", _) if settling && calm && !begun => {
                return Err(format!("liveness: {name} is never begun"));
            }
            // At the end the work is done, or its outcome is unknown.
            (_, "in progress" | "away" | "taken" | "lost") if settling => {
                return Err(format!("liveness: {name} is {how} in the end"));
            }
            (_, "unknown") if settling && calm => {
                return Err(format!("liveness: {name} is {how} without a fault"));
            }
            _ => {}
        }
        let most = match kind {
            "job" | "vault" => WAIT + 2 * LIMIT,
            _ => 4 * LIMIT,
        } + Duration::from_secs(4);
        if waited > most + LIMIT {
            return Err(format!("S13: {name} was answered after {waited:?}"));
        }
        self.count(match (kind, how) {
            ("job", "ran") => "locks waited for and taken",
            ("job", "taken") => "locks waited for in vain",
            ("vault", "ran") => "exclusive requests served",
            ("vault", "taken") => "exclusive requests refused",
            ("vault", "lost") => "exclusive requests cancelled",
            ("week", "ran") | ("mail", "ran") => "work done",
            ("week", "done before") | ("mail", "done before") => "work found done",
            ("pay", "ran") => "idempotent requests answered",
            ("pay", "in progress") => "idempotent requests in progress",
            ("pay", "unknown") => "idempotent requests of unknown outcome",
            (_, "left") => "callers left",
            (_, "away") => "work that the database did not let begin",
            _ => "work not begun or failed",
        });
        Ok(())
    }

    /// I5: only a process that crashed leaves the row of a request that never ran.
    pub(super) fn stays_unknown(&mut self, name: &str) -> Result<(), String> {
        let job = self.jobs.0.entry(name.to_owned()).or_default();
        let has_crashed = |process| self.processes.get(process).is_some_and(|it| it.cut);
        if job.begun == 0 && !job.senders.iter().any(has_crashed) {
            return Err(format!("I5: {name} never ran, and stays unknown"));
        }
        self.count("idempotent requests unknown in the end");
        Ok(())
    }

    pub(super) fn paid(&mut self, name: &str, body: &str) -> Result<(), String> {
        let job = self.jobs.0.entry(name.to_owned()).or_default();
        match &job.body {
            Some(first) if first != body => Err(format!(
                "I2: {name} was answered {first:?} and then {body:?}"
            )),
            Some(_) => {
                self.count("idempotent responses repeated");
                Ok(())
            }
            None => {
                job.body = Some(body.to_owned());
                Ok(())
            }
        }
    }
}
