//! The path of calls from one process to the store, with its faults.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use perennial_store::{
    Backend, Call, CallFuture, Extend, Probe, Publish, Release, Remove, Reply, Revoke, TryLock,
    error::BoxError,
};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    ground::{Ground, What, lock, text},
    plan::LIMIT,
    random::Random,
};

/// The delays of a call that is carried out when all visitors have got their answers.
const LATE: Duration = Duration::from_secs(400);
const LATEST: Duration = Duration::from_secs(890);

pub(crate) struct Line {
    pub(crate) ground: Arc<Ground>,
    pub(crate) process: u32,
    /// The process has crashed: its calls are neither carried out nor answered.
    pub(crate) cut: Arc<AtomicBool>,
    /// The number of calls of each stream.
    pub(crate) numbers: Mutex<HashMap<String, u64>>,
}

/// The fate of a call.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Done,
    /// An error, and nothing was done.
    Refused,
    /// Done, and then an error.
    Lost,
    /// Neither done nor answered.
    Never,
}

/// The delays of a call: the turns and the time before its execution, and after it.
struct Way {
    fate: Fate,
    before: (u64, Duration),
    after: (u64, Duration),
    /// The connection broke, and the call was sent twice: one sending is carried out and answered,
    /// and the other one is carried out after this time.
    again: Option<Duration>,
}

impl Line {
    /// Returns the number of a call, and its delays. Calls of one operation about one resource have
    /// numbers of their own: tokio wakes the waiters of one event in a random order, which must not
    /// matter.
    fn way(&self, call: &Call) -> (u64, Way) {
        let plan = &self.ground.plan;
        let stream = stream(call);
        let number = {
            let mut numbers = lock(&self.numbers);
            let count = numbers.entry(stream.clone()).or_default();
            *count += 1;
            Random::new(u64::from(self.process), &stream, *count).below(1 << 40)
        };
        let random = &mut Random::new(self.ground.seed, "way", number);
        let quiet = self.ground.is_quiet();
        let latency = if quiet {
            Duration::from_millis(5)
        } else {
            plan.latency
        };
        let mut before = random.time(latency, plan.grain.min(latency));
        let mut after = random.time(latency, plan.grain.min(latency));
        let turns = (random.below(4), random.below(4));
        let mut fate = Fate::Done;
        if !quiet && random.chance(plan.faults) {
            let slow = random.time(LIMIT * 2, Duration::from_millis(50));
            match random.below(6) {
                0 => fate = Fate::Refused,
                1 => fate = Fate::Lost,
                2 => fate = Fate::Never,
                // After the caller has given up, perhaps.
                3 | 4 => before += slow,
                _ => after += slow,
            }
        }
        let mut again = None;
        let random = &mut Random::new(self.ground.seed, "late", number);
        let is_try = matches!(call, Call::TryLock(_));
        let may_be_late = is_try || matches!(call, Call::Begin(_));
        if !quiet && may_be_late && random.chance(plan.faults) {
            let late = match random.below(2) {
                // A late statement ends either while faults are still injected, or long after
                // everything else has ended.
                0 => {
                    let late = random.time(Duration::from_secs(20), Duration::from_millis(50));
                    late.min(self.ground.chaos_left())
                }
                _ => LATE + random.time(LATEST - LATE, Duration::from_secs(1)),
            };
            match random.below(2) {
                1 if is_try => again = Some(late),
                _ => before = late,
            }
        }
        let weather = *lock(&self.ground.weather);
        if Instant::now() < weather.away_until {
            fate = match weather.hangs {
                true => Fate::Never,
                false if plan.read_only && !call.writes() => fate,
                false => Fate::Refused,
            };
        }
        let way = Way {
            fate,
            before: (turns.0, before),
            after: (turns.1, after),
            again,
        };
        (number, way)
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }
}

impl Line {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let (number, way) = self.way(&call);
        let call = Arc::new(call);
        self.ground
            .note(self.process, What::Called(number, Arc::clone(&call)));
        let (reply, replied) = oneshot::channel();
        let (ground, process, cut) = (
            Arc::clone(&self.ground),
            self.process,
            Arc::clone(&self.cut),
        );
        if let Some(again) = way.again {
            let (ground, cut) = (Arc::clone(&ground), Arc::clone(&cut));
            let call = Arc::clone(&call);
            tokio::spawn(async move {
                tokio::time::sleep(again).await;
                if !cut.load(Relaxed) {
                    ground.apply_again(process, &call);
                }
            });
        }
        // A task of its own: a call may still be carried out after its caller has given up.
        tokio::spawn(async move {
            tokio::time::sleep(way.before.1).await;
            Random::turns(way.before.0).await;
            if way.fate == Fate::Never || cut.load(Relaxed) {
                return;
            }
            let done = (way.fate != Fate::Refused).then(|| ground.apply(process, number, &call));
            // The caller may have given up.
            let _ = reply.send(done);
        });
        let Ok(reply) = replied.await else {
            std::future::pending().await
        };
        tokio::time::sleep(way.after.1).await;
        Random::turns(way.after.0).await;
        if self.is_cut() {
            std::future::pending::<()>().await;
        }
        match reply {
            Some(mut reply) if way.fate == Fate::Done => {
                if let Reply::TryLock(tried) = &mut reply {
                    tried.resent = way.again.is_some();
                }
                self.ground.note(self.process, What::Answered(number));
                Ok(reply)
            }
            _ => {
                self.ground.note(self.process, What::Refused(number));
                Err("the simulated database fails".into())
            }
        }
    }
}

impl Backend for Line {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(self.answer(call))
    }

    fn wall_clock(&self) -> SystemTime {
        self.ground.store.simulated_wall_clock()
    }
}

/// The step and its resource.
fn stream(call: &Call) -> String {
    match call {
        Call::Probe(Probe { name, .. }) => format!("probe {}", name.as_str()),
        Call::TryLock(TryLock { name, .. }) => format!("try {}", name.as_str()),
        Call::Extend(Extend { lease, .. }) => format!("extend {}", lease.name.as_str()),
        Call::Release(Release { lease, .. }) => format!("release {}", lease.name.as_str()),
        Call::Publish(Publish { lease, .. }) => format!("publish {}", lease.name.as_str()),
        Call::Remove(Remove { lease }) => format!("remove {}", lease.name.as_str()),
        Call::Invalidated(_) => "sync".to_owned(),
        Call::Revoke(Revoke { name, .. }) => format!("revoke {}", name.as_str()),
        other => text(other),
    }
}
