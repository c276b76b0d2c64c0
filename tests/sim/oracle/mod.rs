//! Judges the journal of a simulation: a run fails if an event breaks a promise, or if an expected
//! event is missing at the end.
//!
//! The numbers of the promises are those of docs/invariants.md, which has their reasons. Each module judges
//! some of them: `statements` what is stored, `leases` leases and cooldowns, `visitors` what visitors get,
//! `cost` the number of statements, and `jobs` named work and idempotent requests. S16 is only counted here,
//! and S9 is judged here alone.

mod cost;
mod jobs;
mod leases;
mod statements;
mod visitors;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use perennial::locks::LockKind;
use perennial_store::{Call, Extend, Probe, Publish, Release, Remove, TryLock};

use crate::{
    ground::{CallResult, Event, Ground, Resource, What},
    world::Run,
};

/// The age of a sync's result that has to be renewed before an answer.
const OVERDUE: u64 = 1_250_000;

/// The time that a visitor with a version waits for the database.
const PATIENCE: u64 = 500_000;

/// The longest wait of a visitor. Each statement, lease and generator has ended before.
const LONGEST_VISIT: u64 = 60_000_000;

/// The grain of the runtime's timers.
const MICROS: u64 = 1_000;

/// The numbers of situations. A simulation without a situation proves nothing about it.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

/// A broken promise: the index of the event, and a sentence.
type Verdict = Result<(), (usize, String)>;

/// An invalidation in the store. Content from data before `data` is subject to it.
struct Telling {
    name: String,
    /// The id of its row in the outbox, if a transaction has written it.
    row: Option<String>,
    /// The greatest number, until it has an epoch.
    epoch: i64,
    applied: u64,
    data: Vec<u32>,
}

#[derive(Default)]
struct Process {
    cut: bool,
    /// The times at which the process learned of invalidations, by their index.
    learned: BTreeMap<usize, u64>,
    /// The times at which it learned of the epochs of those that transactions have committed.
    numbered: BTreeMap<usize, u64>,
    /// The start of the last sync with an answer.
    asked: Option<u64>,
    /// The time of the last refused sync, and the start of a sync without an answer.
    refused: Option<u64>,
    open: Option<u64>,
    /// The start of the latest sync.
    syncs: Option<u64>,
    /// The last time at which a visitor came or went, or an invalidation began or ended.
    acted: Option<u64>,
    /// The times of the last content for visitors, by key.
    got: HashMap<usize, u64>,
}

/// A visitor under way.
struct Visit {
    process: u32,
    arrived: u64,
    /// The time of the last content in the process.
    had: Option<u64>,
    /// The answer to the question for invalidations was overdue.
    overdue: bool,
    /// The process had a fresh version, and knew of all invalidations.
    hit: bool,
    /// Nothing has happened in the process for a while.
    paused: bool,
}

/// A run of a generator: the store's epoch at its start, and its end.
#[derive(Default)]
struct Made {
    epoch: i64,
    ended: Option<u64>,
    /// The last publish of the content; 0: never.
    stored: u64,
}

struct Under {
    process: u32,
    at: u64,
    call: Arc<Call>,
    /// The resource of the call.
    key: Option<usize>,
    /// The number of invalidations at the execution of the call, or the invalidation's own number.
    tellings: usize,
    outcome: Option<CallResult>,
    answered: bool,
    refused: Option<u64>,
}

struct Oracle<'a> {
    ground: &'a Ground,
    tally: &'a mut Tally,
    processes: HashMap<u32, Process>,
    calls: HashMap<u64, Under>,
    tellings: Vec<Telling>,
    visits: HashMap<u32, Visit>,
    /// By key, data and the run's number. Number 0 is the latest run with these data, for content
    /// that does not have its run's number.
    runs: HashMap<(usize, u32, u32), Made>,
    /// The data of each key's run, and whether the run was one visitor's own.
    numbers: HashMap<(usize, u32), (u32, bool)>,
    running: HashMap<usize, u32>,
    /// The fence, epoch and process of the stored version.
    stored: HashMap<String, (i64, i64, u32)>,
    set_back: bool,
    leases: leases::Leases,
    jobs: jobs::Jobs,
    settling: bool,
    /// The fence of the named lock, and its holder.
    holder: Option<(i64, u32)>,
    /// The state of each process and key.
    ways: HashMap<(u32, usize), cost::Way>,
    entries: HashMap<usize, cost::Stored>,
    /// Stale versions that were served although nothing had been asked for long.
    idle: Vec<(u32, usize, u64)>,
}

pub(crate) fn judge(run: &Run, tally: &mut Tally) -> Verdict {
    let mut oracle = Oracle {
        ground: &run.ground,
        tally,
        processes: HashMap::new(),
        calls: HashMap::new(),
        tellings: Vec::new(),
        visits: HashMap::new(),
        runs: HashMap::new(),
        numbers: HashMap::new(),
        running: HashMap::new(),
        stored: HashMap::new(),
        set_back: false,
        leases: leases::Leases::default(),
        jobs: jobs::Jobs::default(),
        settling: false,
        holder: None,
        ways: HashMap::new(),
        entries: HashMap::new(),
        idle: Vec::new(),
    };
    for (index, event) in run.journal.iter().enumerate() {
        oracle.see(event).map_err(|broken| (index, broken))?;
    }
    let last = run.journal.len().saturating_sub(1);
    match run.unsettled.first() {
        Some(unsettled) => Err((last, format!("liveness: {unsettled}"))),
        None => oracle.end().map_err(|it| (last, it)),
    }
}

impl Oracle<'_> {
    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn see(&mut self, event: &Event) -> Result<(), String> {
        let (at, number) = (event.at, event.process);
        self.has_asked(at)?;
        let process = self.processes.entry(number).or_default();
        match &event.what {
            What::Called(call, what) => {
                if let Call::Invalidated(sync) = &**what {
                    process.open.get_or_insert(at);
                    process.syncs = Some(at);
                    for (key, resource) in self.ground.plan.resources.iter().enumerate() {
                        if sync.peer_keys.contains(&resource.name)
                            && let Some(way) = self.ways.get_mut(&(number, key))
                        {
                            way.last = at;
                        }
                    }
                }
                let key = self.key_of(what);
                let under = Under {
                    process: number,
                    at,
                    call: Arc::clone(what),
                    key,
                    tellings: 0,
                    outcome: None,
                    answered: false,
                    refused: None,
                };
                let terms = key.map(|key| self.ground.plan.resources[key].terms);
                self.leases.asked(number, what, terms)?;
                self.jobs.asked(number, what);
                self.asks(&under)?;
                self.calls.insert(*call, under);
            }
            What::Applied(call, outcome) => return self.applied(*call, outcome, at),
            What::Repeated(call, outcome) => return self.repeated(number, call, outcome, at),
            What::Answered(call) => return self.answered(*call, at),
            What::Refused(call) => {
                if let Some(mut under) = self.calls.remove(call) {
                    if matches!(*under.call, Call::Invalidated(_)) {
                        process.refused = Some(at);
                        process.open = None;
                    }
                    under.refused = Some(at);
                    self.fails(&under, at);
                    self.calls.insert(*call, under);
                }
                self.count("calls refused");
            }
            What::Began {
                key,
                run,
                datum,
                epoch,
                own,
            } => {
                let begun = Made {
                    epoch: *epoch,
                    ..Made::default()
                };
                self.runs.insert((*key, *datum, *run), begun);
                self.numbers.insert((*key, *run), (*datum, *own));
                if *own {
                    self.count("answers of the service to one visitor");
                    return Ok(());
                }
                self.count("generators begun");
                self.runs(number, *key);
                self.begins(number, *key, at)?;
                let running = self.running.entry(*key).or_default();
                *running += 1;
                if self.ground.plan.calm && *running > 1 {
                    return Err("S5: two generators run at once, without a fault".to_owned());
                }
            }
            What::Ended { key, run, how } => {
                let (datum, own) = self.numbers[&(*key, *run)];
                for run in [*run, 0] {
                    let made = self.runs.entry((*key, datum, run)).or_default();
                    made.ended = Some(at);
                }
                if !own {
                    *self.running.entry(*key).or_default() -= 1;
                    self.ran(number, *key, how, at);
                    self.ends(number, *key, how, at);
                }
                self.count(match *how {
                    "made" => "generators made content",
                    "failed" => "generators failed",
                    "panicked" => "generators panicked",
                    _ => "generators cancelled",
                });
            }
            What::Arrived { visit, key } => {
                // A sync may still be running for an earlier request, for example for a call of
                // `regenerate`, and then the process does not count as paused.
                let paused = process.open.is_none()
                    && !self.visits.values().any(|it| it.process == number)
                    && process.acted.is_none_or(|acted| acted + OVERDUE <= at);
                process.acted = Some(at);
                let overdue = process.asked.is_none_or(|asked| asked + OVERDUE <= at);
                let had = process.got.get(key).copied();
                let had = had.filter(|_| self.holds(number, *key));
                let visitor = Visit {
                    process: number,
                    paused,
                    arrived: at,
                    had,
                    // A process of a new revision syncs more than once.
                    overdue: overdue || self.ground.plan.revisions,
                    hit: !overdue
                        && !self.ground.plan.revisions
                        && self.holds_fresh(number, *key, at),
                };
                if paused {
                    self.count("visitors after a pause");
                }
                self.visits.insert(*visit, visitor);
            }
            What::Left { visit } => {
                process.acted = Some(at);
                let is_cut = process.cut;
                let visitor = self.visits.remove(visit);
                if !is_cut && visitor.is_some_and(|it| it.arrived + LONGEST_VISIT <= at) {
                    return Err("S13: a visitor waits for ever".to_owned());
                }
                self.count("visitors left");
            }
            What::Got { visit, key, answer } => {
                process.acted = Some(at);
                let Some(visitor) = self.visits.remove(visit) else {
                    return Ok(());
                };
                return self.got(*visit, &visitor, *key, *answer, at);
            }
            What::Committed { id, name, data } => {
                self.tellings.push(Telling {
                    name: name.clone(),
                    row: Some(id.clone()),
                    epoch: i64::MAX,
                    applied: at,
                    data: data.clone(),
                });
                self.count("purges committed by others");
            }
            What::Told { how, done, .. } => {
                process.acted = Some(at);
                self.count(match (*how, *done) {
                    (_, "left") => "invalidations whose callers have left",
                    ("purge", "yes") => "purges done",
                    ("purge", _) => "purges failed",
                    ("regenerate", "yes") => "regenerations on request done",
                    ("regenerate", "no") => "regenerations on request without effect",
                    ("regenerate", _) => "regenerations on request failed",
                    (_, "yes") => "invalidations done",
                    _ => "invalidations failed",
                });
            }
            What::Locked { fence } => {
                self.count("named lock taken");
                if let Some((other, by)) = self.holder.replace((*fence, number))
                    && other != *fence
                {
                    return Err(format!("S4: process {by} still holds the named lock"));
                }
            }
            What::Unlocked { fence, kept } => {
                if self.holder.is_some_and(|(held, _)| held == *fence) {
                    self.holder = None;
                }
                if !kept {
                    self.count("named lock lost");
                }
            }
            What::WorkBegan { name, fence } => return self.works(number, name, *fence),
            What::WorkEnded { name, .. } => self.worked(number, name),
            What::WorkAnswered { name, how, waited } => {
                return self.work_answered(name, how, *waited, self.settling);
            }
            What::Paid { name, body } => return self.paid(name, body),
            What::Unknown { name } => return self.stays_unknown(name),
            What::Settling => self.settling = true,
            What::Started { revision: 0 } => self.count("processes started"),
            What::Started { .. } => self.count("processes of a newer revision"),
            What::Cut => {
                process.cut = true;
                self.jobs.cut(number);
                self.holder = self.holder.filter(|(_, by)| *by != number);
                self.count("processes cut off");
            }
            What::Away { hangs: true } => self.count("store hung"),
            What::Away { hangs: false } if self.ground.plan.read_only => {
                self.count("store refused writes");
            }
            What::Away { hangs: false } => self.count("store refused all"),
            What::SetBack(_) => {
                self.set_back = true;
                self.count("clock set back");
            }
            What::Telling { .. } => process.acted = Some(at),
            What::Lull => self.count("processes left alone"),
            What::Changed { .. } | What::Quiet | What::Stopped => {}
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        self.idle()?;
        self.costs()
    }

    /// Returns the resource of a call.
    fn key_of(&self, call: &Call) -> Option<usize> {
        let name = match call {
            Call::Probe(Probe { name, .. }) | Call::TryLock(TryLock { name, .. }) => name,
            Call::Publish(Publish { lease, .. })
            | Call::Remove(Remove { lease })
            | Call::Extend(Extend { lease, .. })
            | Call::Release(Release { lease, .. }) => &lease.name,
            _ => return None,
        };
        if name.kind() != LockKind::Page {
            return None;
        }
        let mut resources = self.ground.plan.resources.iter();
        resources.position(|resource| resource.name == name.as_str())
    }
}

impl Telling {
    fn means(&self, resource: &Resource) -> bool {
        let name = &*resource.name;
        match self.name.split_once(':') {
            Some(("key" | "purged", key)) => key == name,
            Some(("prefix", prefix)) => name.starts_with(prefix),
            Some(("tag" | "tag_prefix", _)) => resource.route,
            Some(("revision", _)) => true,
            _ => false,
        }
    }
}
