//! No visitor of a warm page notices that a server is lost or a network fails, whichever operation is
//! under way.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use perennial::{Perennial, Refresh};
use rustix::process::Signal;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use perennial_testkit::{
    Crowd, Db, HANG, Origin, get,
    hooked::{Hook, Hooked, When},
    on_each_server, open, serve,
    server::{Kind, Server},
    until,
    wire::{State, Wire},
};

const INTERVAL: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(2);
const STATEMENT: Duration = Duration::from_secs(4);
/// A time longer than any visit on a slow machine, and shorter than any wait that is a defect.
const SLACK: Duration = Duration::from_secs(10);

on_each_server! {
    a_publish_is_made_good_whichever_reply_is_lost
    no_visitor_of_a_warm_page_waits_for_the_network
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_killed_or_stopped_in_the_middle_of_each_step() {
    if Db::postgres().await.is_some() {
        lost_in_each_step(Kind::Postgres).await;
    }
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn mariadb_is_killed_or_stopped_in_the_middle_of_each_step() {
    if Db::mysql().await.is_some() {
        lost_in_each_step(Kind::MariaDb).await;
    }
}

/// The operations to stop at, each once, with a signal for the arrival.
type Stops = Arc<Mutex<HashMap<&'static str, mpsc::Sender<GoOn>>>>;

/// Continues an operation when dropped.
type GoOn = mpsc::Sender<()>;

/// Returns a hook that stops before these operations until the test lets them go on.
fn stopping(stops: &Stops) -> Hook {
    let stops = Arc::clone(stops);
    Arc::new(move |operation, side| {
        let mut stops = stops.lock().expect("not poisoned");
        let stop = match side {
            When::Before => stops.remove(operation),
            When::After => None,
        };
        Box::pin(async move {
            if let Some(stop) = stop {
                let (go_on, mut told) = mpsc::channel(1);
                stop.send(go_on).await.expect("somebody waits for it");
                told.recv().await;
            }
        })
    })
}

fn policy(lease: Duration) -> Refresh {
    Refresh::every(INTERVAL)
        .lease_duration(lease)
        .cooldown(INTERVAL)
}

/// A site with a store that can stop.
struct Site {
    origin: Origin,
    address: SocketAddr,
    stops: Stops,
}

impl Site {
    async fn open(origin: Origin, url: &str, policy: Refresh) -> Self {
        let database = open(url).await.expect("opens");
        let store = database.store("perennial_").await.expect("prepares");
        let stops = Stops::default();
        let hook = stopping(&stops);
        let store = Hooked { store, hook };
        let builder = Perennial::builder().statement_timeout(STATEMENT);
        let site = builder.with_store(Box::new(store)).expect("opens");
        let address = serve(origin.router().layer(site.layer(&policy))).await;
        Self {
            origin,
            address,
            stops,
        }
    }

    /// Makes the store stop at the next call of this operation. The receiver gets a [`GoOn`] when the
    /// operation is reached.
    fn stop_at(&self, operation: &'static str) -> mpsc::Receiver<GoOn> {
        let (sender, reached) = mpsc::channel(1);
        self.stops
            .lock()
            .expect("not poisoned")
            .insert(operation, sender);
        reached
    }

    /// A returning visitor. No visit fails, and each visit takes less than the statement timeout.
    /// Each visit sees the version of the visit before or a newer version.
    fn visitors(&self, path: &'static str) -> JoinHandle<()> {
        let address = self.address;
        tokio::spawn(async move {
            let mut newest = 0;
            loop {
                let reply = get(address, path).await;
                assert_eq!(reply.status, 200, "{reply:?}");
                assert!(reply.took < STATEMENT, "waited for {:?}", reply.took);
                assert!(reply.run() >= newest, "{} after {newest}", reply.run());
                newest = reply.run();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }

    /// Waits until a version is stored that had not begun before.
    async fn regrows(&self, db: &Db, path: &str) {
        let begun = self.origin.begun();
        until("it regrows", async || {
            get(self.address, path).await;
            let entry = db.entry(path).await;
            let body = entry.map(|(_, body)| body).unwrap_or_default();
            let run = body
                .strip_prefix("run ")
                .and_then(|it| it.split(' ').next()?.parse().ok());
            run.is_some_and(|run: usize| run > begun)
        })
        .await;
    }
}

async fn lost_in_each_step(kind: Kind) {
    let mut server = Server::start(kind).await.expect("starts");
    let paths = ["/idle", "/try-lock", "/generation", "/publish", "/release"];
    // The origins outlive both rounds, because visitors check that the numbers of the runs only
    // grow.
    let origins = paths.map(|_| Origin::default());
    for signal in [Signal::KILL, kind.stop()] {
        // A site for each operation.
        let (url, db) = (server.url(), Db::at(&server.url()));
        let stopped = paths.into_iter().zip(&origins);
        let stopped = stopped.map(|(path, origin)| stopped_in(&url, origin, path));
        let stopped = join_all(stopped).await;
        server.end(signal).await.expect("ends");
        let mut sites = Vec::new();
        for (site, visitors, go_on) in stopped {
            drop(go_on);
            site.origin.let_go();
            sites.push((site, visitors));
        }
        // Time for some requests without the database.
        tokio::time::sleep(2 * INTERVAL).await;
        server.again().await.expect("starts");
        let back = Instant::now();
        let recovered = paths.into_iter().zip(sites);
        let recovered = recovered.map(async |(path, (site, visitors))| {
            site.regrows(&db, path).await;
            let took = back.elapsed();
            assert!(
                took < LEASE + INTERVAL + SLACK,
                "{path} {signal:?}: {took:?}"
            );
            // A second round shows that nothing is stuck.
            site.regrows(&db, path).await;
            let ended = visitors.is_finished();
            assert!(!ended, "{path} {signal:?}: {:?}", visitors.await);
            visitors.abort();
        });
        join_all(recovered).await;
    }
}

/// A site with a page and its visitors, stopped in the middle of the operation that the path names.
async fn stopped_in(
    url: &str,
    origin: &Origin,
    path: &'static str,
) -> (Site, JoinHandle<()>, Option<GoOn>) {
    // No visitor waits for a stopped generator: after half an interval each gets the old version.
    let policy = policy(LEASE).leader_wait(INTERVAL / 2);
    let site = Site::open(origin.clone(), url, policy).await;
    get(site.address, path).await;
    let visitors = site.visitors(path);
    let go_on = match &path[1..] {
        "idle" => None,
        "generation" => {
            site.origin.hold();
            let begun = site.origin.begun();
            until("it generates", async || site.origin.begun() > begun).await;
            None
        }
        operation => {
            let mut reached = site.stop_at(operation);
            let reached = tokio::time::timeout(HANG, reached.recv()).await;
            reached.expect("is reached")
        }
    };
    (site, visitors, go_on)
}

async fn a_publish_is_made_good_whichever_reply_is_lost(db: Db) {
    // A publish has more than one exchange, and any of them may be lost.
    let lost = (0..6).map(async |after| {
        let path: &'static str = ["/0", "/1", "/2", "/3", "/4", "/5"][after];
        let wire = Wire::before(db.url()).await;
        let site = Site::open(Origin::default(), &wire.url(db.url()), policy(10 * LEASE)).await;
        assert_eq!(get(site.address, path).await.run(), 1);
        let visitors = site.visitors(path);
        let mut reached = site.stop_at("publish");
        let reached = tokio::time::timeout(HANG, reached.recv()).await;
        let go_on = reached.expect("is reached").expect("is told");
        wire.set(State::RepliesLost { after });
        let mut again = site.stop_at("publish");
        drop(go_on);
        // No second publish comes if no reply was lost.
        let again = tokio::time::timeout(STATEMENT, again.recv()).await;
        wire.set(State::Open);
        drop(again);
        let lock = format!(
            "SELECT count(*) FROM perennial_lock WHERE kind = 'page' AND name = '{path}' AND owner IS NULL"
        );
        until("the lock is released", async || {
            db.int(&lock).await == Some(1)
        })
        .await;
        assert!(!visitors.is_finished(), "{after}: {:?}", visitors.await);
        visitors.abort();
    });
    join_all(lost).await;
}

async fn no_visitor_of_a_warm_page_waits_for_the_network(db: Db) {
    let states = [
        (State::Slow(Duration::from_secs(1)), "/slow", "/slow/cold"),
        (State::RepliesLost { after: 0 }, "/lost", "/lost/cold"),
        (State::Reset, "/reset", "/reset/cold"),
        (State::Silent, "/silent", "/silent/cold"),
    ];
    let passed = states.map(async |(state, path, cold)| {
        let wire = Wire::before(db.url()).await;
        let site = Site::open(Origin::default(), &wire.url(db.url()), policy(LEASE)).await;
        get(site.address, path).await;
        let visitors = site.visitors(path);
        wire.set(state);
        // Some intervals.
        tokio::time::sleep(3 * INTERVAL).await;
        let asked = Instant::now();
        let first = Crowd::visit(20, &[site.address], cold).rest().await;
        assert!(first.iter().all(|reply| reply.status == 200), "{state:?}");
        // The process syncs, tries and publishes.
        let took = asked.elapsed();
        assert!(took < 3 * STATEMENT + SLACK, "{state:?}: {took:?}");
        wire.set(State::Open);
        let fair = Instant::now();
        site.regrows(&db, path).await;
        site.regrows(&db, cold).await;
        let took = fair.elapsed();
        assert!(took < LEASE + INTERVAL + SLACK, "{state:?}: {took:?}");
        assert!(!visitors.is_finished(), "{state:?}: {:?}", visitors.await);
        visitors.abort();
    });
    join_all(passed).await;
}
