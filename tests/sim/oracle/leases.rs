//! The promises about leases and cooldowns in a journal: S4, S12, S15 and S18 of
//! docs/invariants.md.

use std::{collections::HashMap, time::Duration};

use perennial::locks::{LockKind, LockName};
use perennial_store::{BreakLock, Call, Extend, Purge, Release, Revoke, TryLock};

use super::{MICROS, Oracle, Under};
use crate::{
    ground::{CallResult, Terms},
    plan::LIMIT,
};

/// A lease in its process's view.
struct Lease {
    process: u32,
    owner: String,
    fence: i64,
    /// The end of the lease by the process's clock.
    until: u64,
    /// The generator's run under the lease: its start, and its end and result.
    run: Option<(u64, Option<(&'static str, u64)>)>,
    /// The process knows the lease.
    told: bool,
    /// The lock was taken from the process.
    broken: bool,
    /// The process gave the lease up.
    over: bool,
}

#[derive(Default)]
pub(super) struct Leases {
    /// By the name of the lock.
    held: HashMap<LockName, Vec<Lease>>,
    /// The end of the cooldown of a lock.
    cooldowns: HashMap<LockName, u64>,
    /// The number of failures in a row at a lock, and the fence of the latest.
    failures: HashMap<LockName, (u32, i64)>,
}

impl Leases {
    fn of(&mut self, name: &LockName, process: u32, fence: i64) -> Option<&mut Lease> {
        let leases = self.held.get_mut(name)?;
        leases
            .iter_mut()
            .rev()
            .find(|lease| lease.process == process && lease.fence == fence)
    }

    /// The lease of a process on a lock, if it has not given the lease up.
    fn latest(&mut self, name: &LockName, process: u32) -> Option<&mut Lease> {
        let leases = self.held.get_mut(name)?;
        leases
            .iter_mut()
            .rev()
            .find(|lease| lease.process == process && lease.told && !lease.over)
    }

    /// S4: two processes never rely on one lock at once.
    fn alone(&self, name: &LockName, owner: &str, at: u64) -> Result<(), String> {
        let leases = self.held.get(name).into_iter().flatten();
        let other = leases
            .filter(|lease| lease.owner != owner && lease.told && !lease.over)
            .find(|lease| lease.until > at && !lease.broken);
        match other {
            None => Ok(()),
            Some(other) => Err(format!(
                "S4: {name:?} was taken, and process {} relies on its lease until {:.3} s",
                other.process,
                other.until as f64 / 1e6
            )),
        }
    }

    /// The lock was taken from its holder.
    fn broken(&mut self, name: &LockName) {
        self.cooldowns.remove(name);
        for lease in self.held.get_mut(name).into_iter().flatten() {
            lease.broken = true;
        }
    }

    pub(super) fn asked(
        &mut self,
        process: u32,
        call: &Call,
        terms: Option<Terms>,
    ) -> Result<(), String> {
        let Call::Release(Release {
            lease: row,
            cooldown,
        }) = call
        else {
            return Ok(());
        };
        let Some(lease) = self.of(&row.name, process, row.fence.0) else {
            return Ok(());
        };
        lease.over = true;
        let Some(terms) = terms else { return Ok(()) };
        let has_failed = match lease.run {
            Some((_, Some(("failed" | "panicked", _)))) => true,
            Some((begun, Some(("cancelled", ended)))) => ended - begun >= micros(terms.timeout),
            _ => false,
        };
        if !has_failed {
            return Ok(());
        }
        // Where there is no version to serve, the cooldown has to be at least this long.
        let failures = match self.failures.get(&row.name) {
            Some((failures, fence)) if *fence < row.fence.0 => *failures,
            _ => 0,
        };
        let due = terms
            .cooldown
            .min(Duration::from_secs(1 << failures.min(10)));
        if *cooldown < due {
            return Err(format!(
                "S12: {:?} is released after a failure with a cooldown of {cooldown:?}, not {due:?}",
                row.name
            ));
        }
        Ok(())
    }

    pub(super) fn applied(
        &mut self,
        under: &Under,
        outcome: &CallResult,
        at: u64,
    ) -> Result<(), String> {
        match (&*under.call, outcome) {
            (
                Call::TryLock(TryLock {
                    name,
                    owner,
                    length,
                    ..
                }),
                CallResult::Fence(Some(fence), _),
            ) => {
                if let Some(until) = self.cooldowns.remove(name)
                    && until > at
                {
                    return Err(format!(
                        "S12: {name:?} was taken before the end of its cooldown at {:.3} s",
                        until as f64 / 1e6
                    ));
                }
                self.alone(name, owner, at)?;
                let leases = self.held.entry(name.clone()).or_default();
                let is_same = |it: &Lease| it.owner == *owner && it.fence == *fence && !it.over;
                if leases.iter().any(is_same) {
                    return Ok(());
                }
                leases.push(Lease {
                    process: under.process,
                    owner: owner.clone(),
                    fence: *fence,
                    until: under.at + micros(*length),
                    run: None,
                    told: false,
                    broken: false,
                    over: false,
                });
            }
            (
                Call::Release(Release {
                    lease: row,
                    cooldown,
                }),
                CallResult::Done(true),
            ) => {
                let failures = self.failures.entry(row.name.clone()).or_default();
                let (count, fence) = *failures;
                if cooldown.is_zero() {
                    *failures = (0, row.fence.0);
                } else if fence < row.fence.0 {
                    *failures = (count + 1, row.fence.0);
                }
                self.cooldowns
                    .insert(row.name.clone(), at + micros(*cooldown));
            }
            (Call::BreakLock(BreakLock { name, .. }), _) => self.broken(name),
            (Call::Purge(Purge { key }), _) => self.broken(&LockName::of(LockKind::Page, key)),
            (Call::Revoke(Revoke { name, owner }), _) => {
                let leases = self.held.get_mut(name).into_iter().flatten();
                for lease in leases.filter(|lease| lease.owner == *owner) {
                    lease.over = true;
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn answered(
        &mut self,
        under: &Under,
        outcome: &CallResult,
        at: u64,
    ) -> Result<(), String> {
        let process = under.process;
        match (&*under.call, outcome) {
            (Call::TryLock(TryLock { name, owner, .. }), CallResult::Fence(Some(fence), _)) => {
                let Some(lease) = self.of(name, process, *fence) else {
                    return Ok(());
                };
                lease.told = true;
                // The answer may come after the end.
                if lease.until > at && !lease.broken {
                    self.alone(name, owner, at)?;
                }
            }
            (Call::Extend(Extend { lease: row, length }), CallResult::Done(extended)) => {
                if let Some(lease) = self.of(&row.name, process, row.fence.0) {
                    if *extended {
                        lease.until = lease.until.max(under.at + micros(*length));
                    } else {
                        lease.until = under.at;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Oracle<'_> {
    /// S18: a generator runs under a lease, or the database has just failed. While it is known to
    /// keep requests waiting, the request of another key is the one that asks.
    pub(super) fn begins(&mut self, process: u32, key: usize, at: u64) -> Result<(), String> {
        let name = LockName::of(LockKind::Page, &self.ground.plan.resources[key].name);
        if let Some(lease) = self.leases.latest(&name, process) {
            lease.run = Some((at, None));
            return Ok(());
        }
        self.count("generators begun without a lease");
        let limit = micros(LIMIT);
        let failed = |it: &Under| {
            it.process == process
                && (it.key == Some(key) || it.key.is_none())
                && match it.refused {
                    Some(refused) => refused + MICROS >= at,
                    None => !it.answered && it.at + limit <= at && at <= it.at + limit + MICROS,
                }
        };
        if self.calls.values().any(failed) {
            return Ok(());
        }
        let of_others = self.calls.values().filter(|it| it.process == process);
        // The process knows of the outage if one call has failed. It may generate without a lease
        // if its latest call has failed recently, or has no answer yet.
        let ends = of_others.filter(|it| !it.answered);
        let ends: Vec<_> = ends.map(|it| it.refused.unwrap_or(it.at + limit)).collect();
        let is_known = ends.iter().any(|end| *end <= at);
        if is_known && ends.iter().any(|end| end + limit + 1_000 * MICROS >= at) {
            return Ok(());
        }
        Err("S18: a generator runs without a lease, and the database has not failed".to_owned())
    }

    pub(super) fn ends(&mut self, process: u32, key: usize, how: &'static str, at: u64) {
        let name = LockName::of(LockKind::Page, &self.ground.plan.resources[key].name);
        let leases = self.leases.held.get_mut(&name).into_iter().flatten();
        let mut runs = leases
            .rev()
            .filter(|lease| lease.process == process)
            .filter_map(|lease| lease.run.as_mut());
        if let Some((_, ended @ None)) = runs.next() {
            *ended = Some((how, at));
        }
    }

    /// S15: no living process leaves a lease behind, whether its answer arrived or not, and whenever
    /// the database carries the try out within a quarter of an hour.
    pub(super) fn idle(&self) -> Result<(), String> {
        let lives = |process: u32| !self.processes.get(&process).is_some_and(|it| it.cut);
        for (name, leases) in &self.leases.held {
            if let Some(lease) = leases.iter().find(|it| !it.over && lives(it.process)) {
                let told = if lease.told {
                    ""
                } else {
                    ", of which it was not told"
                };
                return Err(format!(
                    "S15: process {} has never released fence {} of {name:?}{told}",
                    lease.process, lease.fence
                ));
            }
        }
        Ok(())
    }
}

fn micros(time: std::time::Duration) -> u64 {
    time.as_micros() as u64
}
