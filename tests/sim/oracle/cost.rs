//! The number of statements in a journal: none for a hit, three for a refresh, and one a second
//! while another process regenerates the key; S5 and S14 of docs/invariants.md.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use perennial_store::{Call, Invalidate, Probe, Publish, TryLock};

use super::{MICROS, Oracle, Under};
use crate::{
    ground::{CallResult, Found},
    plan::LIMIT,
};

/// The largest number of statements of a process about a key in a second.
const MOST: usize = 60;

/// The same number, if each visitor regenerates the page.
const MOST_OF_VISITORS: usize = 400;

const SECOND: u64 = 1_000_000;

/// A version in the memory of a process: the latest time of its creation, and its metadata.
#[derive(Clone, Copy, Debug)]
struct Version {
    born: i64,
    epoch: i64,
}

/// A process's knowledge of a key.
#[derive(Default)]
pub(super) struct Way {
    version: Option<Version>,
    /// Content that was generated later, and may be stored.
    unsaved: Option<u64>,
    /// The fence of a running publish, and its start.
    publishing: Option<(i64, u64)>,
    running: u32,
    /// The last time at which the process asked, got an answer or ended a run.
    pub(super) last: u64,
    recent: VecDeque<u64>,
    /// The numbers of probes, and of tries that did not take the lock.
    probes: u64,
    refused: u64,
}

/// The stored version of a key, and the number of acquisitions of its lock.
#[derive(Default)]
pub(super) struct Stored {
    at: Option<(i64, i64)>,
    won: HashMap<u32, u64>,
    begun: u64,
    published: u64,
    released: u64,
    /// The last acquisition of the lock, and the lock's total time with a holder.
    taken: u64,
    held: u64,
    first: Option<u64>,
}

impl Oracle<'_> {
    /// A version that is not to be regenerated: younger than the interval, and without a known
    /// invalidation.
    fn is_fresh(&self, key: usize, born: i64, epoch: i64, by: Option<u32>, at: u64) -> bool {
        let resource = &self.ground.plan.resources[key];
        let knows = |index: usize| match by {
            Some(process) => self.processes[&process]
                .learned
                .get(&index)
                .is_some_and(|learned| *learned <= at),
            None => true,
        };
        let mut tellings = self.tellings.iter().enumerate();
        let means = |(index, telling): (usize, &super::Telling)| {
            telling.epoch > epoch && telling.means(resource) && knows(index)
        };
        at as i64 - born < resource.terms.interval.as_micros() as i64 && !tellings.any(means)
    }

    /// Returns true if the process has a fresh version of the key.
    pub(super) fn holds_fresh(&self, process: u32, key: usize, at: u64) -> bool {
        let way = self.ways.get(&(process, key));
        let version = way.filter(|way| way.unsaved.is_none());
        let version = version.and_then(|way| way.version);
        version.is_some_and(|it| self.is_fresh(key, it.born, it.epoch, Some(process), at))
    }

    /// Returns true if the process has a version of the key in memory, or content that is not known
    /// to be stored.
    pub(super) fn holds(&self, process: u32, key: usize) -> bool {
        let way = self.ways.get(&(process, key));
        way.is_some_and(|way| way.version.is_some() || way.unsaved.is_some())
    }

    pub(super) fn asks(&mut self, under: &Under) -> Result<(), String> {
        let (Some(key), process, at) = (under.key, under.process, under.at) else {
            return Ok(());
        };
        let is_look = matches!(
            &*under.call,
            Call::Probe(Probe { .. }) | Call::TryLock(TryLock { .. })
        );
        if is_look && !self.ground.plan.revisions && self.holds_fresh(process, key, at) {
            let version = self.ways[&(process, key)].version;
            return Err(format!(
                "S5: a statement about {version:?} of key {key}, which is fresh"
            ));
        }
        let way = self.ways.entry((process, key)).or_default();
        way.last = at;
        way.recent.push_back(at);
        while way.recent.front().is_some_and(|first| first + SECOND <= at) {
            way.recent.pop_front();
        }
        let recent = way.recent.len();
        match &*under.call {
            Call::Probe(Probe { .. }) => way.probes += 1,
            Call::Publish(Publish { lease, .. }) => match way.publishing {
                Some((fence, _)) if fence == lease.fence.0 => {}
                _ => way.publishing = Some((lease.fence.0, at)),
            },
            _ => {}
        }
        let terms = self.ground.plan.resources[key].terms;
        let most = match terms.interval {
            Duration::ZERO => MOST_OF_VISITORS,
            _ => MOST,
        };
        if recent > most {
            return Err(format!(
                "S14: {recent} statements about one key in a second"
            ));
        }
        Ok(())
    }

    pub(super) fn wrote(
        &mut self,
        under: &Under,
        outcome: &CallResult,
        at: u64,
    ) -> Result<(), String> {
        let (Some(key), process) = (under.key, under.process) else {
            return Ok(());
        };
        let calm = self.ground.plan.calm;
        match (&*under.call, outcome) {
            (Call::TryLock(TryLock { .. }), CallResult::Fence(Some(_), _)) => {
                let stored = self.stored_of(key).at;
                // The age of a version is counted from a moment before the process asked for it.
                let slack = 2 * (self.ground.plan.latency.as_micros() as u64 + MICROS) * 2;
                if calm
                    && let Some((born, epoch)) = stored
                    && self.is_fresh(key, born, epoch, None, at + slack)
                {
                    return Err("S5: a version that is fresh is being regenerated".to_owned());
                }
                let stored = self.stored_of(key);
                stored.taken = at;
                *stored.won.entry(process).or_default() += 1;
            }
            (Call::TryLock(TryLock { .. }), CallResult::Fence(None, _)) => {
                self.ways.entry((process, key)).or_default().refused += 1;
            }
            (Call::Publish(Publish { entry, .. }), CallResult::Written(true, _)) => {
                let epoch = entry.epoch;
                let stored = self.stored_of(key);
                stored.at = Some((at as i64, epoch.0));
                stored.published += 1;
            }
            (Call::Release(_), CallResult::Done(true)) => {
                let stored = self.stored_of(key);
                stored.released += 1;
                let held = at - stored.taken;
                stored.held += held;
                stored.first.get_or_insert(held);
            }
            _ => {}
        }
        Ok(())
    }

    fn stored_of(&mut self, key: usize) -> &mut Stored {
        self.entries.entry(key).or_default()
    }

    pub(super) fn hears(&mut self, under: &Under, outcome: &CallResult, at: u64) {
        if let Call::Invalidate(Invalidate { names }) = &*under.call
            && let Some(purged) = names[0].strip_prefix("purged:")
        {
            // A purge removes the page from the memory of the process that carries it out, even if
            // the version there is newer.
            let mut resources = self.ground.plan.resources.iter();
            if let Some(key) = resources.position(|resource| resource.name == purged) {
                let way = self.ways.entry((under.process, key)).or_default();
                (way.version, way.unsaved) = (None, None);
            }
        }
        let Some(key) = under.key else { return };
        let way = self.ways.entry((under.process, key)).or_default();
        way.last = at;
        match (&*under.call, outcome) {
            (Call::Probe(Probe { .. }), CallResult::Found(Some(Found { epoch, age, .. }), _)) => {
                let born = under.at as i64 - age.as_micros() as i64;
                if way.unsaved.is_none_or(|made| (made as i64) < born) {
                    way.unsaved = None;
                    let epoch = *epoch;
                    way.version = Some(Version { born, epoch });
                }
            }
            (Call::Publish(Publish { lease, entry }), CallResult::Written(true, _)) => {
                let born = match way.publishing {
                    Some((fence, since)) if fence == lease.fence.0 => since as i64,
                    _ => return,
                };
                way.unsaved = None;
                let epoch = entry.epoch;
                way.version = Some(Version {
                    born,
                    epoch: epoch.0,
                });
            }
            _ => {}
        }
    }

    pub(super) fn fails(&mut self, under: &Under, at: u64) {
        if let Some(key) = under.key {
            self.ways.entry((under.process, key)).or_default().last = at;
        }
    }

    pub(super) fn runs(&mut self, process: u32, key: usize) {
        self.ways.entry((process, key)).or_default().running += 1;
        self.stored_of(key).begun += 1;
    }

    pub(super) fn ran(&mut self, process: u32, key: usize, how: &'static str, at: u64) {
        let way = self.ways.entry((process, key)).or_default();
        way.running -= 1;
        way.last = at;
        if how == "made" {
            way.unsaved = Some(at);
        }
    }

    /// S14: a process that serves a stale version asks for a newer one, or asked recently.
    pub(super) fn rests(&mut self, process: u32, key: usize, at: u64) {
        // A key without a permit asks for nothing.
        let Some(way) = self
            .ways
            .get(&(process, key))
            .filter(|_| !self.ground.plan.one)
        else {
            return;
        };
        let limit = LIMIT.as_micros() as u64;
        // While the database keeps requests waiting, only requests for one key at a time ask it.
        let is_about = |it: &&Under| it.process == process && !it.answered;
        let rest = self.ground.plan.resources[key].terms.cooldown;
        let rest = SECOND.max(rest.as_micros() as u64) + MICROS;
        let about = self.calls.values().filter(is_about);
        // The database has refused the call, or has not answered it yet.
        let mut ends = about.map(|it| it.refused.unwrap_or(it.at + limit));
        // A second is added, because a request for another key may be the one that asks the
        // database.
        let rests = |end: u64| end + limit + SECOND + rest >= at;
        if way.running == 0 && way.last + rest < at && !ends.any(rests) {
            // The process may be about to ask.
            self.idle.push((process, key, at));
        }
    }

    /// S14: the due questions have been asked when time advances.
    pub(super) fn has_asked(&mut self, at: u64) -> Result<(), String> {
        if self
            .idle
            .first()
            .is_none_or(|(_, _, then)| then + MICROS >= at)
        {
            return Ok(());
        }
        for (process, key, then) in self.idle.drain(..) {
            let asked = self.ways.get(&(process, key)).map_or(0, |way| way.last);
            // A process first reads the invalidations from before its start.
            let reads = self
                .processes
                .get(&process)
                .is_some_and(|it| it.asked.is_none() && it.syncs >= Some(then));
            if asked < then && !reads {
                return Err(format!(
                    "S14: a stale version was served at {:.3} s, and nothing was asked for since {:.3} s",
                    then as f64 / 1e6,
                    asked as f64 / 1e6
                ));
            }
        }
        Ok(())
    }

    /// S5: without faults the statements are those of the cost model.
    pub(super) fn costs(&mut self) -> Result<(), String> {
        if !self.ground.plan.calm {
            return Ok(());
        }
        for (key, stored) in &self.entries {
            let won: u64 = stored.won.values().sum();
            let (begun, published, released) = (stored.begun, stored.published, stored.released);
            if [begun, published, released] != [won; 3] {
                return Err(format!(
                    "S5: {won} leases, {begun} runs, {published} publishes, {released} releases of one key"
                ));
            }
            for ((process, _), way) in self.ways.iter().filter(|((_, of), _)| of == key) {
                let own = stored.won.get(process).copied().unwrap_or_default();
                let others = won - own;
                // The process probes once a second while another process generates, and once more
                // for the result. The statements of the page's first version come on top.
                let first = 8 + 2 * stored.first.unwrap_or_default() / SECOND;
                let held = stored.held / SECOND;
                // If the policy lets versions expire, visitors wait for each following version, and
                // the process then sends the statements of a first version each time.
                let expires = self.ground.plan.resources[*key]
                    .terms
                    .stale_while_revalidate
                    .is_some();
                let waits = if expires { 6 * others + 2 * held } else { 0 };
                let most = own + 2 * others + held + first + waits;
                if way.probes > most || way.refused > others {
                    return Err(format!(
                        "S5: process {process} has asked {} times, {most} at most, and tried {} times in vain, {others} at most",
                        way.probes, way.refused
                    ));
                }
            }
        }
        Ok(())
    }
}
