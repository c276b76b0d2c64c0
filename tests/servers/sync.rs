//! A process learns of other processes' invalidations, also after its database or its runtime was
//! away.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::Request, http::StatusCode, routing::get as route};
#[cfg(feature = "postgres")]
use perennial::Perennial;
use perennial::Refresh;
use perennial::event::{Bypass, Served};
use tower::{Service, ServiceExt};

use perennial_testkit::{
    Crowd, Db, Folder, HANG, Origin, get, on_database, on_each_database, on_each_server,
    peers::{HEARD, Process, hears},
    serve, until,
};

const LONG: Duration = Duration::from_secs(3600);

on_each_database! {
    purge_is_known_to_a_process_that_slept_through_ten_thousand_others
    an_invalidation_that_the_database_has_lost_makes_nothing_stale_for_ever
}

/// Three visitors at once get the page that the first of them has the process generate.
pub(crate) async fn generates_for_all(process: &Process, origin: &Origin, path: &str) {
    let begun = origin.begun();
    origin.hold();
    let crowd = Crowd::visit(3, &[process.address], path);
    until("it generates", async || origin.begun() == begun + 1).await;
    origin.let_go();
    let replies = crowd.rest().await;
    assert!(replies.iter().all(|reply| reply.run() == begun + 1));
}

async fn purge_is_known_to_a_process_that_slept_through_ten_thousand_others(db: Db) {
    let origin = Origin::default();
    let a = Process::new(&db, &origin, |layer| layer).await;
    let b = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(b.run("/p").await, 1);
    // The other names sort before the name of the page, so a process reads them first.
    db.invalidate_ten_thousand("purged:!", 0).await;
    a.site.purge("/p").await.expect("is done");
    tokio::time::sleep(HEARD).await;
    generates_for_all(&b, &origin, "/p").await;
}

async fn an_invalidation_that_the_database_has_lost_makes_nothing_stale_for_ever(db: Db) {
    let origin = Origin::default();
    let a = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(a.run("/p").await, 1);
    a.site.invalidate("/p").await.expect("is done");
    // The state after a failover to a server without the latest commits.
    db.execute("DELETE FROM perennial_invalidation").await;
    assert_eq!(hears(&a, "/p", 1).await, 2);
    let start = Instant::now();
    while start.elapsed() < HEARD {
        assert_eq!(a.run("/p").await, 2);
    }
    // Later epochs are greater.
    let b = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(b.run("/p").await, 2);
    b.site.invalidate("/p").await.expect("is done");
    hears(&a, "/p", 2).await;
}

/// A runtime of its own, on this thread.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

#[test]
fn a_runtime_that_ends_takes_no_question_with_it() {
    let folder = Folder::new();
    let first = runtime();
    let origin = Origin::default();
    let (site, other) = first.block_on(async { (folder.site().await, folder.site().await) });
    let app = origin.router().layer(site.layer(Refresh::every(LONG)));
    first.block_on(get(&app, "/p"));
    std::thread::sleep(Duration::from_millis(1200));
    // A sync is due. It is started in a runtime that nobody drives, so its task never runs.
    let second = runtime();
    {
        let _entered = second.enter();
        let request = Request::get("/p").body(Body::empty()).expect("a request");
        drop(app.clone().call(request));
        let future = app
            .clone()
            .oneshot(Request::get("/p").body(Body::empty()).expect("a request"));
        let _ = poll_once(future);
    }
    drop(second);
    first.block_on(async {
        other.invalidate("/p").await.expect("is done");
        until("it is heard of", async || get(&app, "/p").await.run() != 1).await;
    });
}

/// The state of a worker in the middle of a request while its runtime shuts down.
#[test]
fn request_on_a_runtime_that_has_ended_blocks_nobody() {
    let folder = Folder::new();
    let first = runtime();
    let site = first.block_on(folder.site());
    let app = Origin::default()
        .router()
        .layer(site.layer(Refresh::every(LONG)));
    first.block_on(get(&app, "/p"));
    // A question to the database is due.
    std::thread::sleep(Duration::from_millis(1200));
    let ended = runtime().handle().clone();
    let (polled, is_polled) = mpsc::channel::<()>();
    let late = app.clone();
    std::thread::spawn(move || {
        let _polled = polled;
        let _entered = ended.enter();
        for path in ["/p", "/new"] {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            let _ = poll_once(late.clone().oneshot(request));
        }
    });
    let hangs = is_polled.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout);
    assert!(!hangs, "the request waits for itself");
    assert_eq!(first.block_on(get(&app, "/p")).run(), 1);
}

/// Polls a future once.
fn poll_once<F: Future>(future: F) -> bool {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    future.as_mut().poll(&mut context).is_ready()
}

#[tokio::test]
async fn state_of_a_handler_is_freed_with_the_site() {
    let folder = Folder::new();
    let held = Arc::new(());
    let site = folder.site().await;
    let state = (Arc::clone(&held), site.clone());
    let page = move || {
        let state = state.clone();
        async move { format!("{}", Arc::strong_count(&state.0)) }
    };
    let layer = site.layer(Refresh::every(LONG));
    // `with_state` finishes the router, as it is when it is served. Without it, axum would create
    // its layers again for each request.
    let app = Router::new()
        .route("/", route(page).layer(layer))
        .with_state(());
    get(&app, "/").await;
    let made = site.regenerate(app.clone(), ["/"]).await;
    assert!(matches!(made[0].result, Ok(Served::Generated)));
    site.shutdown().await;
    let closed = site.regenerate(app.clone(), ["/"]).await;
    let answer = Served::Bypass(Bypass::ShuttingDown);
    assert_eq!(closed[0].result.clone().ok(), Some(answer));
    drop((app, site));
    until("the handler's state is freed", async || {
        Arc::strong_count(&held) == 1
    })
    .await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn listening_to_sqlite_is_an_error() {
    let folder = Folder::new();
    let error = Perennial::builder().listen().open(&folder.url()).await;
    assert!(
        error
            .expect_err("is SQLite")
            .to_string()
            .contains("only PostgreSQL")
    );
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn listening_on_the_only_connection_is_an_error() {
    let Some(db) = perennial_testkit::Db::postgres().await else {
        return;
    };
    let pool = perennial_testkit::pool_of(db.url(), 1).await;
    let error = Perennial::builder().listen().with_pool(pool).await;
    let error = error.expect_err("nothing is left for the rest").to_string();
    assert!(error.contains("`PoolOptions::max_connections`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_routes_are_invalidated_by_the_original_path() {
    let folder = Folder::new();
    let site = folder.site().await;
    let origin = Origin::default();
    let key = perennial::Key::new().header("x-kind".parse().expect("a name"));
    let inner = origin
        .router()
        .layer(site.layer(Refresh::every(LONG)).key(key.query(["page"])));
    let app = Router::new().nest("/shop", inner);
    let mut runs = 0;
    for path in ["/shop/books?page=2", "/shop/books"] {
        get(&app, path).await;
        runs += 1;
        site.invalidate(path).await.expect("is done");
        // The regeneration before may still be ending.
        until("it is invalidated", async || {
            get(&app, path).await;
            origin.begun() == runs + 1
        })
        .await;
        site.purge(path).await.expect("is done");
        let reply = get(&app, path).await;
        assert!(
            reply.header("cache-status").contains("fwd="),
            "{path} is purged"
        );
        let made = site.regenerate(app.clone(), [path]).await;
        assert!(matches!(made[0].result, Ok(Served::Generated)));
        runs += 3;
        assert_eq!(origin.begun(), runs);
    }
    let reply = get(&app, "/shop/books?page=2").await;
    assert_eq!(reply.run(), 4);
    assert!(reply.header("cache-status").contains("hit"), "{reply:?}");
    assert_eq!(
        get(serve(app).await, "/shop/books").await.status,
        StatusCode::OK
    );
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod on_servers {
    use super::*;
    use perennial_testkit::peers::pair;

    #[cfg(feature = "postgres")]
    on_database! {
        postgres_listening = perennial_testkit::Db::postgres();
        listening_process_hears_at_once_and_misses_nothing_while_disconnected
    }

    #[cfg(feature = "postgres")]
    async fn listening_process_hears_at_once_and_misses_nothing_while_disconnected(db: Db) {
        let origin = Origin::default();
        let a = Process::new(&db, &origin, |layer| layer).await;
        let listening = perennial_testkit::patient().listen();
        let b = Process::with(&db, listening, &origin, |layer| layer).await;
        let listeners = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()";
        let mut run = a.run("/p").await;
        // Without a notification a process syncs a second after its last sync. On a slow machine it
        // may take some rounds until a notification arrives before such a sync.
        let (begun, mut rounds, mut shortest) = (Instant::now(), 0, HEARD);
        while rounds < 4 || shortest >= Duration::from_millis(700) {
            assert!(begun.elapsed() < HANG, "never at once: {shortest:?}");
            let kills = matches!(rounds, 1 | 2);
            rounds += 1;
            until("it listens", async || db.int(listeners).await == Some(1)).await;
            // The process has just synced, and syncs again in a second.
            tokio::time::sleep(Duration::from_millis(1100)).await;
            assert_eq!(b.run("/p").await, run);
            if kills {
                db.execute(&listeners.replace("count(*)", "pg_terminate_backend(pid)"))
                    .await;
            }
            a.site.invalidate("/p").await.expect("is done");
            let start = Instant::now();
            run = hears(&b, "/p", run).await;
            shortest = shortest.min(start.elapsed());
        }
        assert_eq!(a.run("/p").await, run);
    }

    on_each_server! {
        invalidation_that_is_committed_late_is_not_missed
    }

    /// A client in another language invalidates in an open transaction.
    async fn invalidation_that_is_committed_late_is_not_missed(db: Db) {
        let origin = Origin::default();
        let brief = Refresh::every(Duration::from_millis(500));
        let [a, b] = pair(&db, &origin, &["/p", "/q"], |layer| layer).await;
        let aging = serve(origin.router().layer(a.site.layer(brief))).await;
        a.site.invalidate("/nothing").await.expect("is done");

        let mut late = db.uncommitted(&db.raise_epochs(1)).await;
        for name in ["key:/p", "key:/aging"] {
            let insert = format!(
                "INSERT INTO perennial_invalidation (name, epoch) VALUES ('{name}', ({}))",
                db.latest_epoch()
            );
            let insert = sqlx::query(sqlx::AssertSqlSafe(insert));
            insert.execute(&mut *late).await.expect("is done");
        }
        // A later invalidation waits; otherwise it would become visible before the open one.
        let after = tokio::spawn({
            let site = a.site.clone();
            async move { site.invalidate("/q").await }
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2500) {
            assert_eq!([a.run("/p").await, b.run("/p").await], [1; 2]);
            get(aging, "/aging").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!after.is_finished());
        let held = get(aging, "/aging").await;
        late.commit().await.expect("is done");
        after.await.expect("no panic").expect("is done");
        let new = hears(&b, "/p", 1).await;
        assert_eq!(hears(&a, "/p", 1).await, new);
        hears(&b, "/q", 2).await;
        // `held` was generated before the other client's commit, so the page has to be generated
        // once more.
        let made = held.run();
        let status = async || get(aging, "/aging").await.run();
        until("it regrows at once", async || status().await > made).await;
    }
}
