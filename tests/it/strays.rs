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

use perennial::{
    Perennial,
    locks::{Locks, OnceOutcome},
    sql::Database,
    testing::{
        self,
        internal::{Backend, BoxError, Call, CallFuture, Reply},
    },
};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    databases::Db,
    support::{is_database, until},
};

on_each_database! {
    late_note_of_work_that_was_cancelled_does_not_count_as_done
}

// `network` has similar tests on servers.
on_database! {
    sqlite_file = crate::databases::Db::sqlite();
    late_try_on_a_name_never_held_leaves_the_lock_free
    try_that_was_never_sent_costs_nothing_afterwards
}

/// Longer than any test.
const LEASE: Duration = Duration::from_secs(600);

/// A store that counts, and that delays some steps until their callers have given up.
#[derive(Clone)]
struct Late(Arc<State>);

struct State {
    store: Box<dyn Backend>,
    /// The delayed steps, each once.
    late: Mutex<HashSet<&'static str>>,
    go: Semaphore,
    /// No try has an answer, and none is carried out.
    deaf: AtomicBool,
    tries: AtomicUsize,
    reclaims: AtomicUsize,
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
            tries: AtomicUsize::new(0),
            reclaims: AtomicUsize::new(0),
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

    /// The next such step is late.
    fn hold(&self, step: &'static str) {
        self.0.late.lock().expect("not poisoned").insert(step);
    }

    /// Carries out the delayed step.
    async fn let_go(&self) {
        self.0.go.add_permits(1);
        until("the late step is done", async || {
            self.0.arrived.load(SeqCst) == 1
        })
        .await;
    }
}

impl Late {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let (state, step) = (&self.0, call.name());
        match step {
            "try-lock" => {
                state.tries.fetch_add(1, SeqCst);
                if state.deaf.load(SeqCst) {
                    return pending().await;
                }
            }
            "reclaim" => {
                state.reclaims.fetch_add(1, SeqCst);
            }
            _ => {}
        }
        if state.late.lock().expect("not poisoned").remove(step) {
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
        if matches!(step, "release" | "reclaim") {
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

/// Waits until the lock can be taken, which is long before the lease would end.
async fn is_free(locks: &Locks, name: &str) {
    until("the lock is free", async || {
        locks.try_lock(name).await.expect("answers").is_some()
    })
    .await;
}

async fn late_try_on_a_name_never_held_leaves_the_lock_free(db: Db) {
    let store = Late::open(db.database().await).await;
    let locks = store.site(Duration::from_secs(1)).locks().lease(LEASE);
    store.hold("try-lock");
    let error = locks.try_lock("a").await.expect_err("is late");
    assert!(is_database(&error), "{error}");
    until("the first check is over", async || {
        store.0.freed.load(SeqCst) > 0
    })
    .await;
    store.let_go().await;
    is_free(&db.site().await.locks(), "a").await;
}

async fn late_note_of_work_that_was_cancelled_does_not_count_as_done(db: Db) {
    let store = Late::open(db.database().await).await;
    let site = store.site(Duration::from_secs(60));
    store.hold("release");
    let once = site.locks().once("mail");
    let noting = tokio::spawn(once.run(|| async { panic!("is cancelled before") as u8 }));
    until("it is being noted", async || store.0.held.load(SeqCst) == 1).await;
    noting.abort();
    assert!(noting.await.expect_err("is cancelled").is_cancelled());
    until("the lock is freed", async || {
        store.0.freed.load(SeqCst) == 1
    })
    .await;
    store.let_go().await;
    let once = db.site().await.locks().once("mail");
    assert_eq!(once.done().await.expect("answers"), None);
    let ran = once.run(|| async { 7 }).await.expect("answers");
    assert_eq!(ran, OnceOutcome::Ran(7));
}

async fn try_that_was_never_sent_costs_nothing_afterwards(db: Db) {
    const TRIES: usize = 5;
    // Creates the SQLite file.
    let _site = db.site().await;
    with_pool!(db, pool => {
        let store = Late::open(pool.clone().into()).await;
        // Shorter than the pool waits for a connection.
        let locks = store.site(Duration::from_millis(500)).locks();
        let mut connections = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            connections.push(pool.acquire().await.expect("is free"));
        }
        let mut tries = JoinSet::new();
        for n in 0..TRIES {
            let locks = locks.clone();
            tries.spawn(async move { locks.try_lock(n.to_string()).await.map(drop) });
        }
        for tried in tries.join_all().await {
            assert!(is_database(&tried.expect_err("has no connection")));
        }
        drop(connections);
        // By then the first check would be over.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(store.0.tries.load(SeqCst), TRIES);
        assert_eq!(store.0.freed.load(SeqCst), 0);
    });
}

/// Returns the number of calls in the two hours after 5,000 tries without an answer.
async fn asked_after_lost_tries(database: testing::Database) -> usize {
    const TRIES: usize = 5000;
    let store = Late::new(Box::new(database));
    store.0.deaf.store(true, SeqCst);
    let locks = store.site(Duration::from_secs(5)).locks();
    let mut tries = JoinSet::new();
    for n in 0..TRIES {
        let locks = locks.clone();
        tries.spawn(async move { locks.try_lock(n.to_string()).await.map(drop) });
    }
    for tried in tries.join_all().await {
        tried.expect_err("has no answer");
    }
    let runtime = tokio::runtime::Handle::current();
    let tasks = runtime.metrics().num_alive_tasks();
    assert!(tasks <= 1, "{tasks} tasks");
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert_eq!(runtime.metrics().num_alive_tasks(), 0);
    assert_eq!(store.0.tries.load(SeqCst), TRIES);
    store.0.reclaims.load(SeqCst)
}

#[tokio::test(start_paused = true)]
async fn lost_tries_are_checked_by_one_task_many_at_a_time() {
    let asked = asked_after_lost_tries(testing::Database::new()).await;
    // Six times, fifty at once.
    assert!((600..=606).contains(&asked), "asked {asked} times");
}

#[tokio::test(start_paused = true)]
async fn database_that_stays_away_is_asked_for_lost_tries_each_ten_seconds_for_an_hour() {
    let database = testing::Database::new();
    database.hang();
    let asked = asked_after_lost_tries(database).await;
    // A statement may take five seconds, and the pause after it is as long.
    assert!(asked <= 3600 / 10 + 100, "asked {asked} times");
}

/// Similar tests, with a network that delivers a message late.
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod network {
    use perennial::locks::Claims;

    use super::*;
    use crate::proxy::Proxy;

    on_each_server! {
        try_that_arrives_late_leaves_the_lock_free
        claim_that_arrives_late_leaves_its_rows_unclaimed
    }

    /// A pool of one connection. When the connection is at rest, the next statement is the next
    /// message.
    async fn one_connection(url: &str) -> (Database, Box<dyn Fn() -> bool>) {
        use sqlx::pool::PoolOptions;

        match url.split(':').next().unwrap_or_default() {
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

    const ROW: &str = "SELECT count(*) FROM perennial_lock WHERE name = 'a'";

    async fn try_that_arrives_late_leaves_the_lock_free(db: Db) {
        let proxy = Proxy::before(db.url()).await;
        let (database, at_rest) = one_connection(&proxy.url(db.url())).await;
        let store = Late::open(database).await;
        let locks = store.site(Duration::from_secs(2)).locks().lease(LEASE);
        // From here on a statement is one message.
        let other = locks.try_lock("other").await.expect("answers");
        other.expect("is free").release().await.expect("is ours");
        let freed = store.0.freed.load(SeqCst);
        until("the connection is at rest", async || at_rest()).await;
        proxy.hold();
        let error = locks.try_lock("a").await.expect_err("is held up");
        assert!(is_database(&error), "{error}");
        assert!(proxy.is_holding());
        until("the first check is over", async || {
            store.0.freed.load(SeqCst) > freed
        })
        .await;
        proxy.let_go();
        until("the try arrives", async || db.int(ROW).await == Some(1)).await;
        is_free(&db.site().await.locks(), "a").await;
    }

    async fn claim_that_arrives_late_leaves_its_rows_unclaimed(db: Db) {
        db.execute("CREATE TABLE job (id BIGINT PRIMARY KEY, lock_id VARCHAR(36))")
            .await;
        db.execute("INSERT INTO job VALUES (1, NULL), (2, NULL)")
            .await;
        let proxy = Proxy::before(db.url()).await;
        let (database, at_rest) = one_connection(&proxy.url(db.url())).await;
        let jobs = Claims::with_pool(database, "job");
        let claim = jobs.claim(1).await.expect("answers");
        claim.release().await.expect("answers");
        let claimed = async |claimed| {
            let not = if claimed { "NOT" } else { "" };
            let rows = format!("SELECT count(*) FROM job WHERE lock_id IS {not} NULL");
            db.int(&rows).await
        };
        until("the connection is at rest", async || at_rest()).await;
        proxy.hold();
        let error = jobs.claim(1).await.expect_err("is held up");
        assert!(is_database(&error), "{error}");
        assert!(proxy.is_holding());
        // Some checks are over by then.
        tokio::time::sleep(Duration::from_secs(8)).await;
        proxy.let_go();
        until("the claim arrives", async || claimed(true).await == Some(1)).await;
        until("the row is released", async || {
            claimed(false).await == Some(2)
        })
        .await;
    }
}
