//! The longest wait for a database that has stopped answering, in virtual time.

use std::{convert::Infallible, time::Duration};

use axum::{Router, routing::post};
use perennial::{ErrorKind, Perennial, Refresh};
use perennial_jobs::ExclusiveLayer;
use perennial_testing::Database;
use tokio::time::Instant;

use perennial_testkit::{get, request};

const INTERVAL: Duration = Duration::from_secs(60);
const POLICY: Refresh = Refresh::every(INTERVAL);
/// Tokio's timers count whole milliseconds.
const GRAIN: Duration = Duration::from_millis(2);

fn site(database: &Database, patience: Duration) -> Perennial {
    let builder = Perennial::builder().database_patience(patience);
    database.open(builder).expect("opens")
}

/// Makes the visit, which waits for the patience and no longer.
async fn waits<T>(patience: Duration, visit: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = visit.await;
    let took = begun.elapsed();
    assert!(
        patience <= took && took <= patience + GRAIN,
        "{patience:?}: {took:?}"
    );
    answer
}

async fn content(site: &Perennial, content: &'static str) -> String {
    let generated = site.content("key", POLICY, async move || Ok::<_, Infallible>(content));
    generated.await.expect("is served").to_string()
}

const PATIENCES: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(700),
    Duration::from_secs(3),
];

#[tokio::test(start_paused = true)]
async fn stale_version_is_served_when_the_patience_ends() {
    for patience in PATIENCES {
        let database = Database::new();
        let site = site(&database, patience);
        assert_eq!(content(&site, "old").await, "old");
        tokio::time::sleep(INTERVAL).await;
        database.hang();
        assert_eq!(waits(patience, content(&site, "new")).await, "old");
        // The unanswered sync is still running: no other visitor waits for it.
        assert_eq!(waits(Duration::ZERO, content(&site, "new")).await, "old");
    }
}

#[tokio::test(start_paused = true)]
async fn generated_version_is_served_unsaved_when_the_patience_ends() {
    for patience in PATIENCES {
        let database = Database::new();
        let site = site(&database, patience);
        let generator = {
            let database = database.clone();
            async move || {
                database.hang();
                Ok::<_, Infallible>("new")
            }
        };
        let served = waits(patience, site.content("key", POLICY, generator)).await;
        assert_eq!(served.expect("is served").to_string(), "new");
    }
}

#[tokio::test(start_paused = true)]
async fn response_of_an_exclusive_route_is_sent_when_the_patience_ends() {
    for patience in PATIENCES {
        let database = Database::new();
        let site = site(&database, patience);
        let service = {
            let database = database.clone();
            post(async move || database.hang())
                .layer(ExclusiveLayer::new(&site.locks(), |_| "import".into()))
        };
        let router = Router::new().route("/import", service);
        let reply = waits(patience, request(&router, "POST", "/import", &[])).await;
        assert_eq!(reply.status, 200);
    }
}

/// The default is documented.
#[tokio::test(start_paused = true)]
async fn half_a_second_is_the_default() {
    let database = Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    assert_eq!(content(&site, "old").await, "old");
    tokio::time::sleep(INTERVAL).await;
    database.hang();
    let visit = waits(Duration::from_millis(500), content(&site, "new"));
    assert_eq!(visit.await, "old");
}

#[tokio::test(start_paused = true)]
async fn hanging_database_is_waited_for_again_after_a_pause_of_all_requests() {
    for patience in PATIENCES {
        let database = Database::new();
        let site = site(&database, patience);
        assert_eq!(content(&site, "old").await, "old");
        tokio::time::sleep(INTERVAL / 4).await;
        database.hang();
        for waits_for in [patience, Duration::ZERO, Duration::ZERO] {
            assert_eq!(waits(waits_for, content(&site, "new")).await, "old");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(INTERVAL / 4).await;
        assert_eq!(waits(patience, content(&site, "new")).await, "old");
    }
}

#[tokio::test(start_paused = true)]
async fn purge_is_known_to_the_first_request_after_an_outage_and_a_pause() {
    let database = Database::new();
    let patience = Duration::from_millis(700);
    let (here, there) = (site(&database, patience), site(&database, patience));
    assert_eq!(content(&here, "old").await, "old");
    tokio::time::sleep(INTERVAL / 4).await;
    database.hang();
    assert_eq!(waits(patience, content(&here, "new")).await, "old");
    // The sync that hangs fails meanwhile.
    tokio::time::sleep(INTERVAL / 4).await;
    database.recover();
    there.purge("key").await.expect("is done");
    database.slow_down(patience / 2);
    assert_eq!(content(&here, "new").await, "new");
}

#[tokio::test(start_paused = true)]
async fn a_failed_sync_is_no_answer() {
    let database = Database::new();
    let patience = Duration::from_secs(3);
    let (here, there) = (site(&database, patience), site(&database, patience));
    assert_eq!(content(&here, "old").await, "old");
    tokio::time::sleep(INTERVAL / 4).await;
    database.fail();
    assert_eq!(content(&here, "new").await, "old");
    database.recover();
    there.purge("key").await.expect("is done");
    // The next sync is due now, and the visitor waits for the sync.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(content(&here, "new").await, "new");
}

/// Pages that are stored, and not in the memory of a process that has just begun. Of the requests
/// while the database is known to fail, one a second asks it.
#[tokio::test(start_paused = true)]
async fn a_database_that_is_known_to_fail_keeps_few_waiting() {
    for hangs in [false, true] {
        let database = Database::new();
        let app = |site: &Perennial| {
            let layer = site.layer(POLICY);
            Router::new().fallback(async || "a page").layer(layer)
        };
        let visit = async |app: &Router, path: &str| {
            let reply = get(app, path).await;
            assert_eq!(reply.status, 200);
            reply.took
        };
        let paths: Vec<_> = (0..50).map(|page| format!("/{page}")).collect();
        let first = app(&site(&database, Duration::from_millis(500)));
        for path in &paths {
            visit(&first, path).await;
        }
        let second = app(&site(&database, Duration::from_millis(500)));
        visit(&second, "/0").await;
        if hangs {
            database.hang();
        } else {
            database.fail();
        }
        let mut waited = Vec::new();
        for path in &paths[1..] {
            let took = visit(&second, path).await;
            if took > GRAIN {
                waited.push(took);
            }
        }
        // The process knows these pages. In the whole outage, the visits together wait no longer
        // than one sync may take.
        let longest = Duration::from_millis(5500) + 2 * GRAIN;
        let all: Duration = waited.iter().sum();
        assert!(all <= if hangs { longest } else { GRAIN }, "{waited:?}");
        // The process knows of the outage as soon as a statement, such as the next sync, has taken too
        // long and failed.
        perennial_testing::advance(Duration::from_secs(2)).await;
        visit(&second, &paths[1]).await;
        perennial_testing::advance(Duration::from_secs(8)).await;
        // Side by side: one a second waits.
        let others: Vec<_> = (0..50).map(|page| format!("/other/{page}")).collect();
        let visits = others.iter().map(|path| visit(&second, path));
        let mut took = futures_util::future::join_all(visits).await;
        // No request waits for a sync for longer than the site's patience of half a second, except
        // for one request per second, which finds out whether the database is back.
        took.retain(|took| *took > Duration::from_millis(500) + GRAIN);
        assert!(took.len() <= usize::from(hangs), "{hangs}: {took:?}");
        database.recover();
        perennial_testing::advance(Duration::from_secs(8)).await;
        let before = database.generations("/new");
        visit(&second, "/new").await;
        visit(&second, "/new").await;
        assert_eq!(
            database.generations("/new"),
            before + 1,
            "it is asked again"
        );
    }
}

/// Its visitor has gone, and the version that the other process generates is of no use to anybody here.
#[tokio::test(start_paused = true)]
async fn wait_for_another_process_ends_a_second_after_the_last_visitor() {
    let database = Database::new();
    let [here, there] = [(); 2].map(|()| site(&database, Duration::from_millis(500)));
    let running = tokio::spawn(async move {
        let endless = std::future::pending::<Result<&str, Infallible>>;
        there.content("key", POLICY, endless).await.map(drop)
    });
    tokio::time::sleep(GRAIN).await;
    let policy = POLICY.follower_wait(Duration::from_millis(300));
    let visit = || here.content("key", &policy, async || Ok::<_, Infallible>("late"));
    for _ in 0..2 {
        assert_eq!(
            visit().await.expect_err("waits").kind(),
            ErrorKind::Unavailable
        );
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(here.stats().running, 1, "a visitor of this second joins");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(here.stats().running, 0);
    running.abort();
}
