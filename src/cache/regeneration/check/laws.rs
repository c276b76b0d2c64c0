//! The properties of a process in a single state.

use std::time::Duration;

use crate::{
    cache::{
        entry::{CacheEntry, Version},
        regeneration::{
            check::{
                content::{Read, Text},
                database::Database,
                process::Process,
                setup::{Fault, NOW, POLICY, Setup},
                world::World,
            },
            machine::{Publishing, State},
        },
    },
    timing::RECHECK_INTERVAL,
};
use perennial_testkit::search::Broken;

/// No visitor waits longer: for the first version, and then for three statements, the generator and
/// the publish.
const LONGEST: Duration = Duration::from_secs(9);

impl Process {
    /// Tests for how long visitors wait.
    pub(crate) fn patience(&self, setup: &Setup) -> Result<(), Broken> {
        let context = self.context(setup);
        if self.sleep.is_some() {
            return Ok(());
        }
        for waiting in self.waiting.iter().flatten().filter(|it| !it.slept) {
            let waited = NOW - waiting.visitor.arrived;
            let is_servable = match &self.view {
                Some(CacheEntry::Version(version)) => version
                    .freshness_for(&context, waiting.visitor.min_epoch)
                    .is_servable(),
                _ => false,
            };
            if is_servable && !waiting.visitor.leads {
                return Err(
                    "S19: no visitor waits for another one's regeneration while there is a servable version",
                );
            }
            if is_servable && waited >= POLICY.leader_wait {
                return Err(
                    "S13: no leader waits longer than the soft timeout while there is a servable version",
                );
            }
            let probes_here = self
                .run
                .as_ref()
                .is_none_or(|run| !matches!(run.regeneration.state, State::WaitingForPeer { .. }));
            if matches!(self.view, Some(CacheEntry::HitForPass { .. }))
                && !(waiting.visitor.leads && probes_here)
            {
                return Err(
                    "S22: nobody but the leader of its own process waits for a response that was not stored the last time",
                );
            }
            if waited > LONGEST {
                return Err("S13: each visitor is answered in time");
            }
        }
        Ok(())
    }

    /// Tests the versions of the process.
    pub(crate) fn versions(&self, setup: &Setup, database: &Database) -> Result<(), Broken> {
        let view = match &self.view {
            Some(CacheEntry::Version(version)) => Some(&**version),
            _ => None,
        };
        let run = self.run.as_ref();
        let newest = run.and_then(|run| run.regeneration.newest.as_ref());
        let new = run.and_then(|run| match &run.regeneration.state {
            State::Publishing(Publishing { new, .. })
            | State::ProbingAfterRefusal { refused: new } => Some(new),
            _ => None,
        });
        for version in [view, newest, new].into_iter().flatten() {
            self.version(version, setup, database)?;
        }
        Ok(())
    }

    fn version(
        &self,
        version: &Version<Read>,
        setup: &Setup,
        database: &Database,
    ) -> Result<(), Broken> {
        let Text { read, snapshot, .. } = Text::of(version);
        if snapshot.epoch > read {
            return Err("S10: the epoch of a version was known before its generator began");
        }
        if version.recheck_at > NOW + RECHECK_INTERVAL.max(setup.policy().cooldown_time()) {
            return Err("S14: a process asks again after a second or the cooldown");
        }
        let stored = database
            .entry
            .filter(|stored| stored.fence == version.fence);
        if let Some(stored) = stored
            && !version.is_unsaved()
            && !self.suspended
            && setup.faults[Fault::ClockBack as usize] == 0
            && version.published_at > stored.made
        {
            return Err("S29: a version is at least as old in memory as in the store");
        }
        Ok(())
    }
}

impl World {
    /// Tests the properties of this state.
    pub(crate) fn laws(&self) -> Result<(), Broken> {
        for process in &self.processes {
            process.memory(self.setup)?;
            process.patience(self.setup)?;
            process.versions(self.setup, &self.database)?;
        }
        let lock = self.database.lock;
        for process in &self.processes {
            let lease = process.acting().and_then(|run| run.lease);
            let Some(lease) = lease.filter(|lease| !lease.lost && lease.until > NOW) else {
                continue;
            };
            if process.suspended || lease.row.fence < self.database.broken {
                continue;
            }
            // So one process at a time has a valid lease.
            if !self.database.is_held_by(lease.row) {
                return Err("S4: the lock is its holder's while the lease is valid");
            }
            if lock.expires < lease.until {
                return Err("S30: a lease is not valid for longer than the lock");
            }
        }
        Ok(())
    }
}
