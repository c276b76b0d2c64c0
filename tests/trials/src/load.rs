//! The visitors and the payers.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use tokio::task::JoinSet;

use crate::{
    client::Client,
    history::{Fact, Micros},
    process::Front,
    record::{Recorder, now},
};

/// The number of pages of each kind, without the cold ones.
pub(crate) const WARM: u64 = 100;
pub(crate) const STALE: u64 = 5;

/// The time between the load and the last look. Leases end, and responses that the site could not
/// store are stored.
const REST: Duration = Duration::from_secs(20);
/// Payers at a time.
const PAYERS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A fresh page.
    Warm,
    /// A page that becomes stale again and again.
    Stale,
    /// A page that nobody has asked for before.
    Cold,
    Payment,
}

/// A request and its outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) from: Micros,
    pub(crate) took: Duration,
    /// 0: there was no answer.
    pub(crate) status: u16,
}

impl Request {
    pub(crate) fn failed(&self) -> bool {
        self.status != 200
    }
}

#[derive(Clone)]
pub(crate) struct Load(Arc<Shared>);

struct Shared {
    client: Client,
    fronts: Vec<Front>,
    recorder: Recorder,
    requests: Mutex<Vec<Request>>,
    payments: Mutex<Vec<String>>,
    count: AtomicU64,
    ends: AtomicBool,
    /// The beginning of the payments' names, as another trial may have used the same database.
    begun: Micros,
}

impl Load {
    pub(crate) fn new(fronts: Vec<Front>, recorder: Recorder) -> Self {
        Self(Arc::new(Shared {
            client: Client::new(),
            fronts,
            recorder,
            requests: Mutex::default(),
            payments: Mutex::default(),
            count: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            begun: now(),
        }))
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        lock(&self.0.requests).clone()
    }

    /// Asks each process for each warm and stale page, until all of them answer.
    pub(crate) async fn warm_up(&self) {
        for front in &self.0.fronts {
            let mut visits = JoinSet::new();
            for path in paths() {
                let (load, front) = (self.clone(), front.clone());
                visits.spawn(async move {
                    while load.visit(&front, Kind::Warm, &path).await.failed() {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                });
            }
            visits.join_all().await;
        }
        lock(&self.0.requests).clear();
    }

    /// Sends `rate` visitors a second to each process, and payers, until the end.
    pub(crate) fn begin(&self, rate: u32) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for front in self.0.fronts.clone() {
            let load = self.clone();
            tasks.spawn(async move { load.visitors(front, rate).await });
        }
        let load = self.clone();
        tasks.spawn(async move { load.explorers().await });
        for _ in 0..PAYERS {
            let load = self.clone();
            tasks.spawn(async move { load.payer().await });
        }
        tasks
    }

    /// Ends the load. Requests under way still get their answers.
    /// Afterwards each payment is sent once more. Returns the statuses of these.
    pub(crate) async fn end(&self, tasks: JoinSet<()>) -> Vec<u16> {
        self.0.ends.store(true, SeqCst);
        tasks.join_all().await;
        tokio::time::sleep(REST).await;
        self.pay_again().await
    }

    fn goes_on(&self) -> bool {
        !self.0.ends.load(SeqCst)
    }

    async fn visitors(&self, front: Front, rate: u32) {
        let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
        let mut visits = JoinSet::new();
        while self.goes_on() {
            tick.tick().await;
            let (kind, path) = match fastrand::u32(0..4) {
                0 => (Kind::Stale, format!("/stale/{}", fastrand::u64(0..STALE))),
                _ => (Kind::Warm, format!("/warm/{}", popular(WARM))),
            };
            let (load, front) = (self.clone(), front.clone());
            visits.spawn(async move { load.visit(&front, kind, &path).await });
            while visits.try_join_next().is_some() {}
        }
        visits.join_all().await;
    }

    /// Visitors of pages that are new, of each at all processes at the same time.
    async fn explorers(&self) {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        let mut visits = JoinSet::new();
        while self.goes_on() {
            tick.tick().await;
            let path = format!("/cold/{}", self.0.count.fetch_add(1, SeqCst));
            for front in self.0.fronts.clone() {
                let (load, path) = (self.clone(), path.clone());
                visits.spawn(async move { load.visit(&front, Kind::Cold, &path).await });
            }
            while visits.try_join_next().is_some() {}
        }
        visits.join_all().await;
    }

    async fn visit(&self, front: &Front, kind: Kind, path: &str) -> Request {
        let (from, begun, process) = (now(), Instant::now(), front.name());
        let answer = self.0.client.get(front.address, path).await;
        let until = now();
        let status = answer.as_ref().map_or(0, |(status, _)| status.as_u16());
        // If the process has been restarted during the visit, it is not known which one answered,
        // so the answer is not recorded.
        if let Ok((StatusCode::OK, body)) = &answer
            && process == front.name()
        {
            self.0.recorder.note(&Fact::Visited {
                key: path.to_owned(),
                number: body.parse().expect("a page is a number"),
                process,
                from,
                until,
            });
        }
        self.done(kind, from, begun, status)
    }

    async fn payer(&self) {
        while self.goes_on() {
            let payment = format!("{}-{}", self.0.begun, self.0.count.fetch_add(1, SeqCst));
            lock(&self.0.payments).push(payment.clone());
            let front = fastrand::choice(&self.0.fronts).expect("there are processes");
            let (from, begun) = (now(), Instant::now());
            let status = self.pay(front, &payment).await;
            self.done(Kind::Payment, from, begun, status);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(200..400))).await;
        }
    }

    async fn pay(&self, front: &Front, payment: &str) -> u16 {
        let path = format!("/pay/{payment}");
        let answer = self
            .0
            .client
            .post(front.address, &path, Some(payment))
            .await;
        let Ok((status, body)) = answer else {
            return 0;
        };
        self.0.recorder.note(&Fact::Answered {
            payment: payment.to_owned(),
            status: status.as_u16(),
            body,
        });
        status.as_u16()
    }

    async fn pay_again(&self) -> Vec<u16> {
        let payments = Arc::new(Mutex::new(lock(&self.0.payments).clone()));
        let mut payers = JoinSet::new();
        for _ in 0..PAYERS {
            let (load, payments) = (self.clone(), Arc::clone(&payments));
            payers.spawn(async move {
                let mut statuses = Vec::new();
                let next = || lock(&payments).pop();
                while let Some(payment) = next() {
                    let front = fastrand::choice(&load.0.fronts).expect("there are processes");
                    statuses.push(load.pay(front, &payment).await);
                }
                statuses
            });
        }
        payers.join_all().await.concat()
    }

    fn done(&self, kind: Kind, from: Micros, begun: Instant, status: u16) -> Request {
        let request = Request {
            kind,
            from,
            took: begun.elapsed(),
            status,
        };
        lock(&self.0.requests).push(request);
        request
    }
}

/// Returns one of `count` numbers by Zipf's law: the number n as often as 1 / (n + 1).
pub(crate) fn popular(count: u64) -> u64 {
    let weight = |n: u64| 1.0 / (n + 1) as f64;
    let mut rest = fastrand::f64() * (0..count).map(weight).sum::<f64>();
    let chosen = (0..count).find(|&n| {
        rest -= weight(n);
        rest < 0.0
    });
    chosen.unwrap_or(0)
}

/// The pages that are not cold.
fn paths() -> impl Iterator<Item = String> {
    let warm = (0..WARM).map(|n| format!("/warm/{n}"));
    warm.chain(stale_paths())
}

pub(crate) fn stale_paths() -> impl Iterator<Item = String> {
    (0..STALE).map(|n| format!("/stale/{n}"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
