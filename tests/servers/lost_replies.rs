//! A statement that reaches the database after its caller has given up leaves nothing locked or
//! claimed.

use std::{
    collections::HashSet,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use perennial::{Perennial, locks::Locks, sql::Database};
use perennial_jobs::{Once, OnceOutcome};
use perennial_store::{Backend, Call, CallFuture, Reply, error::BoxError};
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use perennial_testkit::{Db, on_each_database, on_each_server, until};

on_each_database! {
    late_note_of_work_that_was_cancelled_does_not_count_as_done
}

/// Longer than a test in real time.
const LEASE: Duration = Duration::from_secs(600);

/// The limit of a statement, in virtual time.
const LIMIT: Duration = Duration::from_secs(5);

const SECOND: Duration = Duration::from_secs(1);

/// The number of lost replies that a site undoes at a time.
const MOST: usize = 1_000;

/// A store that counts, and that delays some operations until their callers have given up.
#[derive(Clone)]
struct Late(Arc<State>);

struct State {
    store: Box<dyn Backend>,
    /// The delayed operations, each once.
    late: Mutex<HashSet<&'static str>>,
    go: Semaphore,
    /// No try has an answer, and none is carried out.
    deaf: AtomicBool,
    revocations: AtomicUsize,
    /// The number of times that locks were freed.
    freed: AtomicUsize,
    held: AtomicUsize,
    arrived: AtomicUsize,
}

impl Late {
    fn new(store: Box<dyn Backend>) -> Self {
        Self(Arc::new(State {
            store,
            late: Mutex::default(),
            go: Semaphore::new(0),
            deaf: AtomicBool::new(false),
            revocations: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
        }))
    }

    async fn open(database: Database) -> Self {
        Self::new(database.store("perennial_").await.expect("prepares"))
    }

    fn site(&self, limit: Duration) -> Perennial {
        let builder = Perennial::builder().statement_timeout(limit);
        let store = Box::new(self.clone());
        builder.with_store(store).expect("opens")
    }

    /// The next such operation is late.
    fn hold(&self, operation: &'static str) {
        self.0.late.lock().expect("not poisoned").insert(operation);
    }

    /// Carries out the delayed operation.
    async fn let_go(&self) {
        self.0.go.add_permits(1);
        until("the late operation is done", async || {
            self.0.arrived.load(SeqCst) == 1
        })
        .await;
    }
}

impl Late {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let (state, operation) = (&self.0, call.name());
        match operation {
            "try-lock" if state.deaf.load(SeqCst) => return pending().await,
            "revoke" => {
                state.revocations.fetch_add(1, SeqCst);
            }
            _ => {}
        }
        if state.late.lock().expect("not poisoned").remove(operation) {
            state.held.fetch_add(1, SeqCst);
            let state = Arc::clone(state);
            tokio::spawn(async move {
                state.go.acquire().await.expect("is not closed").forget();
                state.store.call(call).await.expect("answers");
                state.arrived.fetch_add(1, SeqCst);
            });
            return pending().await;
        }
        let reply = state.store.call(call).await;
        if matches!(operation, "release" | "revoke" | "break-lock") {
            state.freed.fetch_add(1, SeqCst);
        }
        reply
    }
}

impl Backend for Late {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(self.answer(call))
    }
}

async fn late_note_of_work_that_was_cancelled_does_not_count_as_done(db: Db) {
    let store = Late::open(db.database().await).await;
    let site = store.site(Duration::from_secs(60));
    store.hold("release");
    let once = Once::new(&site.locks(), "mail");
    let noting = tokio::spawn(once.run(|| async { panic!("is cancelled before") as u8 }));
    until("it is being noted", async || store.0.held.load(SeqCst) == 1).await;
    noting.abort();
    assert!(noting.await.expect_err("is cancelled").is_cancelled());
    until("the lock is freed", async || {
        store.0.freed.load(SeqCst) == 1
    })
    .await;
    store.let_go().await;
    let once = Once::new(&db.site().await.locks(), "mail");
    assert_eq!(once.done().await.expect("answers"), None);
    let ran = once.run(|| async { 7 }).await.expect("answers");
    assert_eq!(ran, OnceOutcome::Ran(7));
}

/// A site whose database is deaf to tries, and the number of tries that got no answer.
async fn lost_tries(store: &Late, tries: usize) -> Locks {
    store.0.deaf.store(true, SeqCst);
    let locks = store.site(LIMIT).locks().lease_duration(LEASE);
    let mut lost = JoinSet::new();
    for n in 0..tries {
        let locks = locks.clone();
        lost.spawn(async move { locks.try_lock(n.to_string()).await.map(drop) });
    }
    for tried in lost.join_all().await {
        tried.expect_err("has no answer");
    }
    locks
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn late_try_holds_its_lock_until_the_next_revocation() {
    let revoked = [1, 5, 20, 60, 300, 900].map(|after| after * SECOND);
    for revocation in revoked {
        let store = Late::new(Box::new(perennial_testing::Database::new()));
        let locks = store.site(LIMIT).locks().lease_duration(LEASE);
        store.hold("try-lock");
        locks.try_lock("a").await.expect_err("is late");
        let lost = Instant::now();
        sleep_until(lost + revocation - SECOND / 2).await;
        store.let_go().await;
        let taken = locks.try_lock("a").await.expect("answers");
        assert!(taken.is_none(), "the late try has taken the lock");
        sleep_until(lost + revocation + SECOND / 2).await;
        let taken = locks.try_lock("a").await.expect("answers");
        assert!(taken.is_some(), "after {revocation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn thousand_lost_tries_are_undone_at_a_time_with_six_statements_each() {
    let store = Late::new(Box::new(perennial_testing::Database::new()));
    let _locks = lost_tries(&store, 5 * MOST).await;
    assert_eq!(tasks(), MOST);
    sleep(901 * SECOND).await;
    assert_eq!(tasks(), 0);
    assert_eq!(store.0.revocations.load(SeqCst), 6 * MOST);
}

#[tokio::test(start_paused = true)]
async fn closed_site_is_kept_open_by_no_lost_reply() {
    let store = Late::new(Box::new(perennial_testing::Database::new()));
    let locks = lost_tries(&store, 10).await;
    sleep(6 * SECOND).await;
    assert_eq!(store.0.revocations.load(SeqCst), 2 * 10);
    drop(locks);
    assert_eq!(Arc::strong_count(&store.0), 1);
    sleep(901 * SECOND).await;
    assert_eq!(store.0.revocations.load(SeqCst), 2 * 10);
    assert_eq!(tasks(), 0);
}

/// Similar tests, with a network that delivers a message late.
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod network {
    use perennial_jobs::Claims;
    use perennial_store::TryLock;

    use super::*;
    use perennial_testkit::wire::{State, Wire};

    on_each_server! {
        try_whose_connection_breaks_is_said_to_be_sent_twice
        claim_that_arrives_late_leaves_its_rows_unclaimed
    }

    /// A pool of one connection. When the connection is at rest, the next statement is the next
    /// message.
    async fn one_connection(url: &str) -> (Database, Box<dyn Fn() -> bool>) {
        use sqlx::pool::PoolOptions;

        match url.split(':').next().unwrap_or_default() {
            #[cfg(feature = "postgres")]
            "postgres" if perennial_testkit::by_deadpool(url) => {
                let pool = perennial_testkit::deadpool_of(url, 1);
                let database = perennial_testkit::Deadpool::new(pool.clone()).into();
                (database, Box::new(move || pool.status().available == 1))
            }
            #[cfg(feature = "postgres")]
            "postgres" => {
                let pool = PoolOptions::<sqlx::Postgres>::new().max_connections(1);
                let pool = pool.test_before_acquire(false).connect(url).await;
                let pool = pool.expect("opens");
                (pool.clone().into(), Box::new(move || pool.num_idle() == 1))
            }
            #[cfg(feature = "mysql")]
            "mysql" => {
                let pool = PoolOptions::<sqlx::MySql>::new().max_connections(1);
                let pool = pool.test_before_acquire(false).connect(url).await;
                let pool = pool.expect("opens");
                (pool.clone().into(), Box::new(move || pool.num_idle() == 1))
            }
            _ => unreachable!("is a server's"),
        }
    }

    /// The server carries the first sending out, and its reply is cut. The second sending gets the
    /// fence.
    async fn try_whose_connection_breaks_is_said_to_be_sent_twice(db: Db) {
        let wire = Wire::before(db.url()).await;
        let (database, at_rest) = one_connection(&wire.url(db.url())).await;
        let store = database.store("perennial_").await.expect("prepares");
        let tried = store.ask(TryLock::new("other", "me", LEASE, None)).await;
        assert!(!tried.expect("answers").resent);
        until("the connection is at rest", async || at_rest()).await;
        wire.set(State::Reset);
        let cut = until("a reply is cut", async || wire.replied() > 0);
        let cut = async {
            cut.await;
            wire.set(State::Open);
        };
        let tried = store.ask(TryLock::new("a", "me", LEASE, None));
        let (tried, ()) = tokio::join!(tried, cut);
        let tried = tried.expect("answers");
        assert!(tried.fence.is_some() && tried.resent, "{tried:?}");
    }

    async fn claim_that_arrives_late_leaves_its_rows_unclaimed(db: Db) {
        db.execute("CREATE TABLE job (id BIGINT PRIMARY KEY, lock_id VARCHAR(36))")
            .await;
        db.execute("INSERT INTO job VALUES (1, NULL), (2, NULL)")
            .await;
        let wire = Wire::before(db.url()).await;
        let (database, at_rest) = one_connection(&wire.url(db.url())).await;
        let jobs = Claims::with_pool(database, "job");
        let claim = jobs.claim(1).await.expect("answers");
        claim.release().await.expect("answers");
        let claimed = async |claimed| {
            let not = if claimed { "NOT" } else { "" };
            let rows = format!("SELECT count(*) FROM job WHERE lock_id IS {not} NULL");
            db.int(&rows).await
        };
        until("the connection is at rest", async || at_rest()).await;
        wire.hold();
        // The statement is held up, and the claim is tried again under another lock id.
        let again = jobs.claim(1).await.expect("is tried again");
        assert_eq!(again.ids().len(), 1);
        assert!(wire.is_holding());
        // The first release is over by then.
        sleep(3 * SECOND).await;
        wire.let_go();
        until("the claim arrives", async || claimed(true).await == Some(2)).await;
        until("the row is released", async || {
            claimed(false).await == Some(1)
        })
        .await;
    }
}
