//! The shared parts of a simulated site: the store, the data, the faults and the journal.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use perennial::Refresh;
use perennial_store::{Call, Fence, Inspect, LeaseRow, Probe, Publish, Remove, Reply, TryLock};
use perennial_testing::Memory;
use tokio::time::Instant;

use crate::plan::Plan;

pub(crate) struct Ground {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) store: Arc<Memory>,
    start: Instant,
    journal: Mutex<Vec<Event>>,
    /// For each key, the number of changes of its data, and the number of its generator's runs.
    data: Mutex<Vec<(u32, u32)>>,
    /// From then on there are no faults.
    pub(crate) quiet: AtomicBool,
    pub(crate) weather: Mutex<Weather>,
}

/// The end of the store's outage, and whether calls are refused or never answered until then.
#[derive(Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) away_until: Instant,
    pub(crate) hangs: bool,
}

/// A resource of the simulated site.
pub(crate) struct Resource {
    pub(crate) name: String,
    /// A route with the tag `list` generates the content.
    pub(crate) route: bool,
    /// The content carries the number of the run, so that no two contents are the same.
    pub(crate) numbered: bool,
    pub(crate) policy: Refresh,
    pub(crate) terms: Terms,
}

/// The part of a policy that the oracle needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) interval: Duration,
    pub(crate) stale_while_revalidate: Option<Duration>,
    pub(crate) wait: Duration,
    pub(crate) first: Duration,
    pub(crate) timeout: Duration,
    pub(crate) cooldown: Duration,
}

pub(crate) struct Event {
    /// Microseconds since the beginning.
    pub(crate) at: u64,
    pub(crate) process: u32,
    pub(crate) what: What,
}

#[derive(Debug)]
#[allow(dead_code, reason = "the journal shows all of it")]
pub(crate) enum What {
    /// A process called the store.
    Called(u64, Arc<Call>),
    /// The store carried the call out.
    Applied(u64, CallResult),
    /// The store carried a call out that was sent twice, and whose other sending has a number.
    Repeated(Arc<Call>, CallResult),
    /// The process got an answer.
    Answered(u64),
    /// The process got an error.
    Refused(u64),
    /// A generator began. `epoch` is the store's latest one then, and `own` says that it runs for one visitor
    /// alone.
    Began {
        key: usize,
        run: u32,
        datum: u32,
        epoch: i64,
        own: bool,
    },
    Ended {
        key: usize,
        run: u32,
        how: &'static str,
    },
    Arrived {
        visit: u32,
        key: usize,
    },
    Got {
        visit: u32,
        key: usize,
        answer: Answer,
    },
    Left {
        visit: u32,
    },
    /// The data of a key changed.
    Changed {
        key: usize,
        datum: u32,
    },
    /// A transaction that purges pages was committed. `data` has the version of each key's data.
    Committed {
        id: String,
        name: String,
        data: Vec<u32>,
    },
    Telling {
        key: usize,
        how: &'static str,
    },
    Told {
        key: usize,
        how: &'static str,
        done: &'static str,
    },
    Locked {
        fence: i64,
    },
    Unlocked {
        fence: i64,
        kept: bool,
    },
    WorkBegan {
        name: String,
        fence: i64,
    },
    WorkEnded {
        name: String,
        how: &'static str,
    },
    WorkAnswered {
        name: String,
        how: &'static str,
        waited: Duration,
    },
    /// The response to an idempotent request.
    Paid {
        name: String,
        body: String,
    },
    /// In the end the row of an idempotent request says that the outcome is unknown.
    Unknown {
        name: String,
    },
    /// From now on there are no faults, and all work must succeed.
    Settling,
    Started {
        revision: u32,
    },
    Cut,
    Away {
        hangs: bool,
    },
    SetBack(Duration),
    /// A process has no visitors for a while.
    Lull,
    Quiet,
    Stopped,
}

/// The result of a call.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "the journal shows all of it")]
pub(crate) enum CallResult {
    Fence(Option<i64>, i64),
    Done(bool),
    /// The result of a publish, a renewal or a removal.
    Written(bool, Before),
    /// With the version of each key's data.
    Epoch(i64, Vec<u32>),
    Names(usize),
    /// The ids of the rows of the outbox, with their epochs.
    Numbered(Vec<(String, i64)>),
    Found(Option<Found>, i64),
    Other,
}

/// The stored row before a publish, a renewal or a removal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Before {
    /// The lock carries the lease's fence and its owner.
    pub(crate) holds: bool,
    /// The entry's fence; 0: there is no entry.
    pub(crate) fence: i64,
    /// The stored content is the one in the call.
    pub(crate) same: bool,
}

/// The entry in a probe's answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) fence: i64,
    pub(crate) epoch: i64,
    pub(crate) age: Duration,
}

/// The answer to a visitor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    Content {
        datum: u32,
        run: u32,
        /// The number of the visit, which the service writes into a response for one visitor alone.
        own: Option<u32>,
        said: ServedAs,
    },
    Failed,
    Unavailable,
}

/// The `Cache-Status` of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ServedAs {
    Nothing,
    Fresh,
    Stale,
    Forwarded,
}

impl Ground {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let now = Instant::now();
        Self {
            seed,
            store: Arc::new(Memory::default()),
            start: now,
            journal: Mutex::default(),
            data: Mutex::new(vec![(1, 0); plan.resources.len()]),
            quiet: AtomicBool::new(false),
            weather: Mutex::new(Weather {
                away_until: now,
                hangs: false,
            }),
            plan,
        }
    }

    pub(crate) fn note(&self, process: u32, what: What) {
        let at = self.start.elapsed().as_micros() as u64;
        lock(&self.journal).push(Event { at, process, what });
    }

    pub(crate) fn journal(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.journal))
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Relaxed)
    }

    /// The rest of the time with faults.
    pub(crate) fn chaos_left(&self) -> Duration {
        self.plan.chaos.saturating_sub(self.start.elapsed())
    }

    /// Reads the data of a key. Returns its version and the store's epoch.
    pub(crate) fn read(&self, key: usize) -> (u32, i64) {
        (self.datum(key), self.store.epoch().0)
    }

    /// Records the start of a generator that has read these data, and returns the number of the
    /// run.
    pub(crate) fn begin(&self, process: u32, key: usize, own: bool, read: (u32, i64)) -> u32 {
        let run = {
            let mut data = lock(&self.data);
            data[key].1 += 1;
            data[key].1
        };
        let (datum, epoch) = read;
        let began = What::Began {
            key,
            run,
            datum,
            epoch,
            own,
        };
        self.note(process, began);
        run
    }

    /// The version of the data of a key.
    pub(crate) fn datum(&self, key: usize) -> u32 {
        lock(&self.data)[key].0
    }

    pub(crate) fn change(&self, process: u32, key: usize) {
        let datum = {
            let mut data = lock(&self.data);
            data[key].0 += 1;
            data[key].0
        };
        self.note(process, What::Changed { key, datum });
    }

    /// Changes data and purges their pages in one transaction, by a program that has no site.
    pub(crate) fn commit(&self, id: String, key: usize) {
        self.change(0, key);
        let name = format!("purged:{}", self.plan.resources[key].name);
        self.store.commit_invalidation(&id, &name);
        let data = self.all_data();
        self.note(0, What::Committed { id, name, data });
    }

    fn all_data(&self) -> Vec<u32> {
        lock(&self.data).iter().map(|(datum, _)| *datum).collect()
    }

    /// Carries a call out, and records its result.
    pub(crate) fn apply(&self, process: u32, number: u64, call: &Call) -> Reply {
        let (reply, outcome) = self.carry_out(call);
        self.note(process, What::Applied(number, outcome));
        reply
    }

    /// Carries out a call that was sent twice.
    pub(crate) fn apply_again(&self, process: u32, call: &Arc<Call>) {
        let (_, outcome) = self.carry_out(call);
        self.note(process, What::Repeated(Arc::clone(call), outcome));
    }

    fn carry_out(&self, call: &Call) -> (Reply, CallResult) {
        let stored = match call {
            Call::TryLock(TryLock { name, .. }) => self.store.fence_of(name),
            _ => Fence::NONE,
        };
        let before = match call {
            Call::Publish(Publish { lease, entry }) => {
                Some(self.before(lease, Some(&entry.content)))
            }
            Call::Remove(Remove { lease }) => Some(self.before(lease, None)),
            _ => None,
        };
        let reply = self.store.apply(call);
        let outcome = match &reply {
            Reply::TryLock(tried) => CallResult::Fence(tried.fence.map(|fence| fence.0), stored.0),
            Reply::Extend(done)
            | Reply::Release(done)
            | Reply::Publish(done)
            | Reply::Remove(done)
            | Reply::BreakLock(done) => match before {
                Some(before) => CallResult::Written(*done, before),
                None => CallResult::Done(*done),
            },
            Reply::Invalidate(epoch) => CallResult::Epoch(epoch.0, self.all_data()),
            Reply::Invalidated(synced) => CallResult::Names(synced.names.len()),
            Reply::Number(numbered) => {
                let rows = numbered.rows.iter();
                CallResult::Numbered(rows.map(|(row, epoch)| (row.id.clone(), epoch.0)).collect())
            }
            Reply::LatestNames(names) => CallResult::Names(names.len()),
            Reply::Probe(probe) => {
                let entry = probe.entry.as_ref().map(|entry| Found {
                    fence: entry.fence.0,
                    epoch: entry.epoch.0,
                    age: entry.age,
                });
                CallResult::Found(entry, probe.lock.fence.0)
            }
            _ => CallResult::Other,
        };
        (reply, outcome)
    }
}

impl Ground {
    /// Returns the rows by which a publish or a removal decides, read in another way than the
    /// store's.
    fn before(&self, lease: &LeaseRow, content: Option<&Response<Bytes>>) -> Before {
        let holds = match self.store.apply(&Call::Inspect(Inspect {
            name: lease.name.clone(),
        })) {
            Reply::Inspect(Some(row)) => {
                row.fence == lease.fence && row.owner.as_ref() == Some(&lease.owner)
            }
            _ => false,
        };
        let (name, known) = (lease.name.clone(), 0);
        let entry = match self.store.apply(&Call::Probe(Probe {
            name,
            known: Fence(known),
        })) {
            Reply::Probe(probe) => probe.entry,
            _ => None,
        };
        Before {
            holds,
            fence: entry.as_ref().map_or(0, |entry| entry.fence.0),
            same: entry
                .zip(content)
                .is_some_and(|(entry, content)| entry.content.body() == content.body()),
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at as f64 / 1e6;
        write!(f, "{at:>10.6} p{} ", self.process)?;
        match &self.what {
            What::Called(number, call) => write!(f, "#{number} {}", text(call)),
            What::Repeated(call, result) => write!(f, "repeated: {} {result:?}", text(call)),
            what => write!(f, "{what:?}"),
        }
    }
}

/// The events of a journal that concern one key: its visits and generators, the calls about it with their
/// answers, and what happens to whole processes.
pub(crate) struct OfKey<'a> {
    key: usize,
    name: &'a str,
    /// The numbers of the calls about the key.
    calls: HashSet<u64>,
    visits: HashSet<u32>,
}

impl<'a> OfKey<'a> {
    pub(crate) fn new(key: usize, resource: &'a Resource) -> Self {
        Self {
            key,
            name: &resource.name,
            calls: HashSet::new(),
            visits: HashSet::new(),
        }
    }

    /// Returns true for an event of the key. The events come in the order of the journal.
    pub(crate) fn concerns(&mut self, event: &Event) -> bool {
        match &event.what {
            What::Called(number, call) => {
                // A sync and an invalidation concern every key.
                let is_of_all = matches!(**call, Call::Invalidated(_) | Call::Invalidate(_));
                let concerns = is_of_all || text(call).contains(&format!("{:?}", self.name));
                let concerns = concerns || text(call).contains(&format!(" {} ", self.name));
                concerns && self.calls.insert(*number)
            }
            What::Repeated(call, _) => text(call).contains(self.name),
            What::Applied(number, _) | What::Answered(number) | What::Refused(number) => {
                self.calls.contains(number)
            }
            What::Arrived { visit, key } => *key == self.key && self.visits.insert(*visit),
            What::Left { visit } => self.visits.contains(visit),
            What::Began { key, .. }
            | What::Ended { key, .. }
            | What::Got { key, .. }
            | What::Changed { key, .. }
            | What::Telling { key, .. }
            | What::Told { key, .. } => *key == self.key,
            What::Committed { .. }
            | What::Settling
            | What::Started { .. }
            | What::Cut
            | What::Away { .. }
            | What::SetBack(_)
            | What::Lull
            | What::Quiet
            | What::Stopped => true,
            What::Locked { .. }
            | What::Unlocked { .. }
            | What::WorkBegan { .. }
            | What::WorkEnded { .. }
            | What::WorkAnswered { .. }
            | What::Paid { .. }
            | What::Unknown { .. } => false,
        }
    }
}

/// Returns a call as a text, without the owner and the process, which differ from run to run.
pub(crate) fn text(call: &Call) -> String {
    if let Call::Publish(Publish { lease, entry }) = call {
        let (key, fence) = (lease.name.as_str(), lease.fence);
        let body = String::from_utf8_lossy(entry.content.body());
        let (epoch, metadata, renews) = (entry.epoch, &entry.metadata, entry.renews);
        return format!("publish {key} {fence} {body:?} {epoch} {metadata} renews {renews:?}");
    }
    let text = format!("{call:?}");
    let mut parts = text.split("owner: ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, rest| {
        text + rest.splitn(3, '"').last().unwrap_or_default()
    })
}
