//! One contender of many wins a lock, on each database: processes with many connections, and
//! holders asleep past their leases.

use std::{process::Command, sync::Arc, time::Duration};

use perennial::locks::LockName;
use perennial_jobs::Claims;
use perennial_store::{Backend, Fence, LeaseRow, Release, TryLock};
use tokio::task::JoinSet;

use perennial_testkit::{
    Contender, Db, on_each_database, pool_of,
    store::{content, publish, stored, uuid},
};

on_each_database! {
    one_of_a_herd_takes_the_lock
    no_row_is_claimed_twice_by_a_herd
    overslept_holder_never_publishes_over_a_later_one
}

const PROCESSES: usize = 6;
const CONNECTIONS: u32 = 6;
const ROUNDS: usize = 20;

async fn one_of_a_herd_takes_the_lock(db: Db) {
    db.store().await;
    let mut herd: Vec<_> = (0..PROCESSES).map(|_| contender_of(&db)).collect();
    let mut last = 0;
    for round in 0..ROUNDS {
        let fresh = race(&mut herd, &format!("fresh-{round}"));
        assert!(fresh > 0, "round {round}");
        let expired = race(&mut herd, "expired");
        assert!(expired > last, "round {round}: {expired} after {last}");
        last = expired;
        let expire = "UPDATE perennial_lock SET expires_at = 1 WHERE name = 'expired'";
        assert_eq!(db.execute(expire).await, 1);
    }
}

/// Lets all try at once; the fence of the only winner.
fn race(herd: &mut [Contender], name: &str) -> i64 {
    let won = all(herd, &format!("try {name}"));
    assert_eq!(won.len(), 1, "{name}: {won:?}");
    won[0].parse().expect("a fence")
}

/// Runs all of these at once, and returns the results.
fn all(herd: &mut [Contender], what: &str) -> Vec<String> {
    for contender in herd.iter_mut() {
        contender.tell(what);
    }
    herd.iter_mut().flat_map(Contender::said).collect()
}

async fn no_row_is_claimed_twice_by_a_herd(db: Db) {
    const ROWS: usize = 2000;
    db.store().await;
    let table =
        "CREATE TABLE job (id BIGINT PRIMARY KEY, lock_id VARCHAR(36), locked_until BIGINT)";
    db.execute(table).await;
    db.execute("CREATE INDEX job_lock_id ON job (lock_id)")
        .await;
    for first in (0..ROWS).step_by(1000) {
        let rows: Vec<_> = (first..first + 1000)
            .map(|id| format!("({id}, NULL, NULL)"))
            .collect();
        db.execute(&format!("INSERT INTO job VALUES {}", rows.join(", ")))
            .await;
    }
    let mut herd: Vec<_> = (0..3).map(|_| contender_of(&db)).collect();
    // Each worker claims until no row is left.
    let mut claimed: Vec<usize> = all(&mut herd, "claim job")
        .iter()
        .map(|id| id.parse().expect("a number"))
        .collect();
    claimed.sort_unstable();
    assert_eq!(claimed, (0..ROWS).collect::<Vec<_>>());
}

/// Starts a process that tries for locks and rows.
pub(crate) fn contender_of(db: &Db) -> Contender {
    let mut command = Command::new(std::env::current_exe().expect("has a path"));
    command
        .args([
            "lock_contention::contender",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("PERENNIAL_HERD", db.url());
    Contender::run(&mut command)
}

/// No test: a process of the herd.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "is started by the test of the herd"]
async fn contender() {
    let Ok(url) = std::env::var("PERENNIAL_HERD") else {
        return;
    };
    let pool = pool_of(&url, CONNECTIONS).await;
    let store = pool.clone().store("perennial_").await.expect("prepares");
    let store: Arc<dyn Backend> = store.into();
    for line in std::io::stdin().lines() {
        let line = line.expect("is piped");
        let (what, name) = line.split_once(' ').expect("two words");
        let name: Arc<str> = name.into();
        let workers = if what == "claim" { 16 } else { CONNECTIONS };
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            let (store, name, pool) = (Arc::clone(&store), Arc::clone(&name), pool.clone());
            match what {
                "try" => tasks.spawn(async move {
                    let lease = Duration::from_secs(600);
                    let tried = store.ask(TryLock::new(&*name, uuid(), lease, None)).await;
                    let fence = tried.expect("no deadlock, no error").fence;
                    fence.map(|fence| fence.to_string()).into_iter().collect()
                }),
                _ => tasks.spawn(async move {
                    let claims = Claims::with_pool(pool, &*name).order("id");
                    let claims = claims.expires("locked_until", Duration::from_secs(600));
                    let mut ids = Vec::new();
                    loop {
                        let claim = claims.claim(25).await.expect("no deadlock, no error");
                        assert!(claim.ids().len() <= 25);
                        if claim.ids().is_empty() {
                            return ids;
                        }
                        ids.extend(claim.ids().iter().cloned());
                        assert_eq!(
                            claim.complete().await.expect("answers"),
                            claim.ids().len() as u64
                        );
                    }
                }),
            };
        }
        let said: Vec<Vec<String>> = tasks.join_all().await;
        println!("said {}", said.concat().join(" "));
    }
}

/// Holders that sleep past their lease every other time, and then publish all the same.
async fn overslept_holder_never_publishes_over_a_later_one(db: Db) {
    const LEASE: Duration = Duration::from_millis(50);
    const OVERSLEEP: Duration = Duration::from_millis(80);
    // Several locks at once, with two rivals each, to save time.
    const LOCKS: u64 = 8;
    const ROUNDS: usize = 30;

    let store = db.store().await;
    let mut holders = JoinSet::new();
    for holder in 0..2 * LOCKS {
        let store = Arc::clone(&store);
        holders.spawn(async move {
            let name = LockName::from((holder % LOCKS).to_string());
            let (mut accepted, mut refused, mut round) = (Vec::new(), 0, holder / LOCKS);
            while accepted.len() + refused < ROUNDS {
                let owner = uuid();
                let fence = store.ask(TryLock::new(&name, &owner, LEASE, None)).await;
                let Some(fence) = fence.expect("answers").fence else {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    continue;
                };
                round += 1;
                if round % 2 == 0 {
                    tokio::time::sleep(OVERSLEEP).await;
                }
                let lease = LeaseRow {
                    name: name.clone(),
                    owner,
                    fence,
                };
                let body = content(&fence.to_string());
                if publish(&*store, &lease, &body).await {
                    accepted.push((holder % LOCKS, fence));
                } else {
                    refused += 1;
                }
                let released = store.ask(Release::new(&lease, Duration::ZERO)).await;
                released.expect("answers");
            }
            (accepted, refused)
        });
    }
    // A concurrent reader never sees the content go back, nor two contents with one fence.
    let watch = async {
        let mut seen = [Fence::NONE; LOCKS as usize];
        loop {
            for (name, seen) in seen.iter_mut().enumerate() {
                if let Some((fence, body)) = stored(&*store, &name.to_string().into()).await {
                    assert!(fence >= *seen, "it went back");
                    assert_eq!(body, fence.to_string());
                    *seen = fence;
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let results = tokio::select! {
        results = holders.join_all() => results,
        () = watch => unreachable!(),
    };
    let mut accepted: Vec<_> = results.iter().flat_map(|(accepted, _)| accepted).collect();
    let refused: usize = results.iter().map(|(_, refused)| refused).sum();
    let all = accepted.len();
    assert!(
        all + refused > 450 && all > 50 && refused > 50,
        "{all} accepted, {refused} refused"
    );
    // At most one publish for each fence.
    accepted.sort();
    accepted.dedup();
    assert_eq!(accepted.len(), all);
}
