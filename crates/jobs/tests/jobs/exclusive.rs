//! Routes that run once at a time, and the answers to their clients.

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
use perennial::locks::{Fence, Locks};
use perennial_jobs::ExclusiveLayer;
use tokio::sync::{Notify, mpsc};

use perennial_testkit::{Db, HANG, exchange, on_database, on_each_database, request, serve, until};

on_each_database! {
    the_service_is_called_under_the_lock_which_is_free_before_its_answer_is_given
}

// The database makes no difference.
on_database! {
    sqlite_file = perennial_testkit::Db::sqlite();
    refused_client_learns_the_resource_and_the_action
    the_lock_is_free_when_the_client_has_gone_or_the_service_has_panicked
    the_lock_can_be_held_until_the_body_is_sent
    a_service_whose_lease_is_lost_finishes_or_is_cancelled
}

/// A route in this process.
async fn layered(
    db: &Db,
    route: axum::routing::MethodRouter,
    layer: Layering,
) -> (SocketAddr, Locks) {
    let locks = db.site().await.locks();
    let long = locks.clone().lease_duration(Duration::from_secs(600));
    let exclusive = ExclusiveLayer::new(&long, |parts| ["route", parts.uri.path()].into());
    let exclusive = exclusive.action("upload");
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
        assert!(info.holder.is_some() && info.fence.0 == fence, "{info:?}");
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
        let layer = locks.clone().lease_duration(Duration::from_millis(300));
        let layer = ExclusiveLayer::new(&layer, |_| NAME.into()).action("upload");
        let layer = if cancelled {
            layer.cancel_when_lost()
        } else {
            layer
        };
        let address = serve(Router::new().route("/a", route.layer(layer))).await;
        let reply = tokio::spawn(async move { request(address, "POST", "/a", &[]).await });
        until_held(&locks).await;
        assert!(locks.break_lock(NAME, None).await.expect("answers"));
        if cancelled {
            let reply = reply.await.expect("is answered");
            assert_eq!(reply.status, 500, "{reply:?}");
            assert!(reply.text().contains("nobody knows"), "{reply:?}");
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
    let locks = Locks::with_pool(pool.clone()).await.expect("opens");
    let layer = ExclusiveLayer::new(&locks, |_| "a".into());
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
