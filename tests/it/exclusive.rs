//! Routes that run once at a time: the example in two processes, and the answers to clients.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    routing::{any, post},
};
use bytes::Bytes;
use perennial::locks::{ExclusiveLayer, Fence, Locks};
use rustix::process::Signal;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};

use crate::{
    databases::Db,
    support::{HANG, Program, Reply, exchange, get, request, serve, until},
};

on_each_database! {
    an_albums_count_stays_right_on_two_processes
    one_device_of_a_customer_syncs_while_other_customers_go_on
    a_killed_process_keeps_its_customer_for_no_longer_than_its_lease
    late_write_of_an_overtaken_process_is_refused
    the_service_is_called_under_the_lock_which_is_free_before_its_answer_is_given
}

// The database makes no difference.
on_database! {
    sqlite_file = crate::databases::Db::sqlite();
    without_the_lock_the_count_goes_wrong
    refused_client_learns_the_resource_and_the_action
    the_lock_is_free_when_the_client_has_gone_or_the_service_has_panicked
    the_lock_can_be_held_until_the_body_is_sent
    a_service_whose_lease_is_lost_finishes_or_is_cancelled
}

fn two(db: &Db, options: &str) -> [Program; 2] {
    [(); 2].map(|()| Program::start("exclusive", db.url(), options))
}

/// 50 changes at once, at two processes in turn: 30 photos more and 20 less.
async fn fifty_changes(programs: &[Program; 2]) -> Vec<Reply> {
    let mut changes = JoinSet::new();
    for change in 0..50 {
        let method = if change % 5 < 3 { "POST" } else { "DELETE" };
        let address = programs[change % 2].address;
        // Three spellings of one album.
        let album = ["7", "07", "%37"][change % 3];
        let path = format!("/albums/{album}/photos");
        changes.spawn(async move { request(address, method, &path, &[]).await });
    }
    changes.join_all().await
}

async fn an_albums_count_stays_right_on_two_processes(db: Db) {
    let programs = two(&db, "--work 2ms --wait 60s");
    for reply in fifty_changes(&programs).await {
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let count = get(programs[1].address, "/albums/7").await;
    assert_eq!(count.text(), "10\n");
}

async fn without_the_lock_the_count_goes_wrong(db: Db) {
    let programs = two(&db, "--work 50ms --unlocked");
    let first = request(programs[0].address, "POST", "/albums/7/photos", &[]).await;
    assert_eq!(first.text(), "1\n");
    // Otherwise the other test could not fail.
    let mut right = 1;
    until("the count goes wrong", async || {
        for reply in fifty_changes(&programs).await {
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        right += 10;
        let count = get(programs[1].address, "/albums/7").await;
        count.text() != format!("{right}\n")
    })
    .await;
}

/// The answer to a refused sync.
fn assert_refused(reply: &Reply) {
    assert_eq!(reply.status, 409, "{reply:?}");
    assert!(reply.text().contains("sync/bookmarks/ann"), "{reply:?}");
}

async fn one_device_of_a_customer_syncs_while_other_customers_go_on(db: Db) {
    let [a, b] = two(&db, "--sync 6s");
    let locks = db.site().await.locks();
    for _ in 0..2 {
        let mut syncs = JoinSet::new();
        let mut sync = |address: SocketAddr, path: &'static str| {
            syncs.spawn(async move { (path, request(address, "POST", path, &[]).await) });
        };
        // Two devices at two processes at once: one of them syncs.
        sync(a.address, "/sync/ann");
        sync(b.address, "/sync/ann");
        sync(b.address, "/sync/bob");
        until("both customers sync", async || {
            let held = locks.list().await.expect("answers");
            let names: Vec<_> = held.iter().map(|lock| &*lock.name).collect();
            names == ["sync/bookmarks/ann", "sync/bookmarks/bob"]
        })
        .await;
        // Refusals come before the others have finished.
        let (path, reply) = syncs
            .join_next()
            .await
            .expect("there are three")
            .expect("is answered");
        assert_eq!(path, "/sync/ann");
        assert_refused(&reply);
        for (_, reply) in syncs.join_all().await {
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
}

async fn a_killed_process_keeps_its_customer_for_no_longer_than_its_lease(db: Db) {
    let [a, b] = [
        Program::start("exclusive", db.url(), "--sync 120s --lease 6s"),
        Program::start("exclusive", db.url(), "--sync 10ms --lease 60s"),
    ];
    let address = a.address;
    tokio::spawn(async move { request(address, "POST", "/sync/ann", &[]).await });
    let sync = async || request(b.address, "POST", "/sync/ann", &[]).await;
    let locks = db.site().await.locks();
    until_taken(&locks, "sync/bookmarks/ann").await;
    // A living process extends its lease.
    let expiry = "SELECT expires_at FROM perennial_lock WHERE name = 'sync/bookmarks/ann'";
    let first = db.int(expiry).await;
    until("it is extended", async || db.int(expiry).await > first).await;
    assert_refused(&sync().await);
    a.signal(Signal::KILL);
    let lock = locks.inspect("sync/bookmarks/ann").await.expect("answers");
    assert!(lock.is_some_and(|lock| lock.remaining <= Duration::from_secs(6)));
    until("b syncs", async || sync().await.status == 200).await;
}

async fn late_write_of_an_overtaken_process_is_refused(db: Db) {
    let [slow, quick] = [
        Program::start("exclusive", db.url(), "--work 6s --lease 1s"),
        Program::start("exclusive", db.url(), "--work 1ms --lease 60s --wait 60s"),
    ];
    let add = |address| {
        tokio::spawn(async move { request(address, "POST", "/albums/7/photos", &[]).await })
    };
    assert_eq!(add(quick.address).await.expect("answers").text(), "1\n");
    let locks = db.site().await.locks();
    until("the lock is free", async || {
        let lock = locks.inspect("album/7").await.expect("answers");
        lock.is_some_and(|lock| lock.holder.is_none())
    })
    .await;
    let held_up = add(slow.address);
    until_taken(&locks, "album/7").await;
    slow.signal(Signal::STOP);
    assert_eq!(add(quick.address).await.expect("answers").text(), "2\n");
    slow.signal(Signal::CONT);
    let late = held_up.await.expect("is answered");
    assert_eq!(late.status, 409, "{late:?}");
    assert_eq!(get(quick.address, "/albums/7").await.text(), "2\n");
}

async fn until_taken(locks: &Locks, name: &str) {
    until("the lock is held", async || {
        let info = locks.inspect(name).await.expect("answers");
        info.is_some_and(|info| info.holder.is_some())
    })
    .await;
}

/// A route in this process.
async fn layered(
    db: &Db,
    route: axum::routing::MethodRouter,
    layer: Layering,
) -> (SocketAddr, Locks) {
    let locks = db.site().await.locks();
    let exclusive = locks
        .clone()
        .lease(Duration::from_secs(600))
        .exclusive(|parts| ["route", parts.uri.path()].into())
        .action("upload");
    let app = Router::new().route("/{name}", route.layer(layer(exclusive)));
    (serve(app).await, locks)
}

type Layering = fn(ExclusiveLayer) -> ExclusiveLayer;

const NAME: [&str; 2] = ["route", "/a"];

async fn until_free(locks: &Locks) {
    until("the lock is free", async || {
        locks.try_lock(NAME).await.expect("answers").is_some()
    })
    .await;
}

async fn until_held(locks: &Locks) {
    until("the lock is held", async || {
        let info = locks.inspect(NAME).await.expect("answers");
        info.is_some_and(|info| info.holder.is_some_and(|holder| holder.action == "upload"))
    })
    .await;
}

async fn refused_client_learns_the_resource_and_the_action(db: Db) {
    let refusals: [(Layering, u16, &str); 2] = [
        (
            |layer| layer.wait(Duration::from_millis(300)),
            409,
            "Conflict",
        ),
        (
            |layer| layer.wait(Duration::from_millis(300)).too_many_requests(),
            429,
            "Too Many Requests",
        ),
    ];
    for (layer, status, title) in refusals {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let route = post(async move || counted.fetch_add(1, SeqCst).to_string());
        let (address, locks) = layered(&db, route, layer).await;
        let lease = locks.label("\"secret\"").lock(NAME).wait(HANG).await;
        let lease = lease.expect("is free");
        let reply = request(address, "POST", "/a", &[]).await;
        assert_eq!(calls.load(SeqCst), 0, "it is not called without the lock");
        assert!(reply.took >= Duration::from_millis(300));
        assert_eq!(reply.status, status);
        assert_eq!(reply.headers["content-type"], "application/problem+json");
        assert_eq!(reply.headers["retry-after"], "1");
        assert_eq!(reply.headers["cache-control"], "no-store");
        let problem: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert_eq!(problem["title"], title);
        assert_eq!(problem["status"], status);
        assert_eq!(problem["resource"], "route/%2Fa");
        assert_eq!(problem["action"], "upload");
        assert!(
            !reply.text().contains("secret"),
            "who holds it is not a client's"
        );
        lease.release().await.expect("is ours");
        assert_eq!(request(address, "POST", "/a", &[]).await.text(), "0");
    }
}

async fn the_service_is_called_under_the_lock_which_is_free_before_its_answer_is_given(db: Db) {
    let locks = db.site().await.locks();
    let inside = locks.clone();
    let route = post(async move |Extension(Fence(fence)): Extension<Fence>| {
        let info = inside
            .inspect(NAME)
            .await
            .expect("answers")
            .expect("is there");
        assert!(info.holder.is_some() && info.fence == fence, "{info:?}");
        fence.to_string()
    });
    let (address, _) = layered(&db, route, |layer| layer.wait(Duration::ZERO)).await;
    let mut last = 0;
    for _ in 0..20 {
        let reply = exchange(address, "POST", "/a", &[], "a photo").await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let fence: i64 = reply.text().parse().expect("a fence");
        assert!(fence > last);
        last = fence;
    }
}

async fn the_lock_is_free_when_the_client_has_gone_or_the_service_has_panicked(db: Db) {
    let route = any(async |method: http::Method| {
        assert_ne!(method, "DELETE", "as intended");
        std::future::pending::<()>().await;
    });
    let (address, locks) = layered(&db, route, |layer| layer).await;
    let client = tokio::spawn(async move { request(address, "POST", "/a", &[]).await });
    until_held(&locks).await;
    client.abort();
    until_free(&locks).await;
    let client = tokio::spawn(async move { request(address, "DELETE", "/a", &[]).await });
    client.await.expect_err("the connection breaks");
    until_free(&locks).await;
}

async fn the_lock_can_be_held_until_the_body_is_sent(db: Db) {
    let layers: [Layering; 2] = [|layer| layer.until_sent(), |layer| layer];
    for (held, layer) in [true, false].into_iter().zip(layers) {
        let (parts, body) = mpsc::unbounded_channel::<Result<Bytes, std::io::Error>>();
        let body = Arc::new(std::sync::Mutex::new(Some(body)));
        let route = post(async move || {
            let mut parts = body.lock().expect("not poisoned").take().expect("one call");
            Body::from_stream(futures_util::stream::poll_fn(move |cx| parts.poll_recv(cx)))
        });
        let (address, locks) = layered(&db, route, layer).await;
        let reply = tokio::spawn(async move { request(address, "POST", "/a", &[]).await });
        if held {
            until_held(&locks).await;
            parts.send(Ok(Bytes::from_static(b"a "))).expect("is read");
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(locks.try_lock(NAME).await.expect("answers").is_none());
        } else {
            parts.send(Ok(Bytes::from_static(b"a "))).expect("is read");
            until("it has begun", async || {
                locks.inspect(NAME).await.expect("answers").is_some()
            })
            .await;
            until_free(&locks).await;
        }
        parts.send(Ok(Bytes::from_static(b"b"))).expect("is read");
        drop(parts);
        assert_eq!(reply.await.expect("is answered").text(), "a b");
        until_free(&locks).await;
        db.execute("DELETE FROM perennial_lock").await;
    }
}

async fn a_service_whose_lease_is_lost_finishes_or_is_cancelled(db: Db) {
    for cancelled in [false, true] {
        let go = Arc::new(Notify::new());
        let went = go.clone();
        let finished = Arc::new(AtomicUsize::new(0));
        let count = finished.clone();
        let route = post(async move || {
            went.notified().await;
            count.fetch_add(1, SeqCst);
        });
        let locks = db.site().await.locks();
        let layer = locks.clone().lease(Duration::from_millis(300));
        let layer = layer.exclusive(|_| NAME.into()).action("upload");
        let layer = if cancelled {
            layer.cancel_when_lost()
        } else {
            layer
        };
        let address = serve(Router::new().route("/a", route.layer(layer))).await;
        let reply = tokio::spawn(async move { request(address, "POST", "/a", &[]).await });
        until_held(&locks).await;
        assert!(locks.break_lock(NAME).await.expect("answers"));
        if cancelled {
            let reply = reply.await.expect("is answered");
            assert_eq!(reply.status, 500, "{reply:?}");
            assert!(reply.text().contains("is unknown"), "{reply:?}");
            go.notify_one();
        } else {
            tokio::time::sleep(Duration::from_millis(500)).await;
            go.notify_one();
            assert_eq!(reply.await.expect("is answered").status, 200);
        }
        assert_eq!(finished.load(SeqCst), usize::from(!cancelled));
        until_free(&locks).await;
    }
}

#[tokio::test]
async fn without_a_database_nothing_is_run() {
    let pool = sqlx::SqlitePool::connect("sqlite::memory:")
        .await
        .expect("opens");
    let locks = Locks::new(pool.clone()).await.expect("opens");
    let layer = locks.exclusive(|_| "a".into());
    let route = post(unreachable).layer(layer);
    let address = serve(Router::new().route("/", route)).await;
    pool.close().await;
    let reply = request(address, "POST", "/", &[]).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(reply.headers["content-type"], "application/problem+json");
    assert_eq!(reply.headers["retry-after"], "5");
}

async fn unreachable() {
    panic!("is not called");
}
