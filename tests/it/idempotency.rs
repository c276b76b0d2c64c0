//! Requests that are sent twice and run once: the example in two processes, and the answers to
//! clients.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    response::{AppendHeaders, IntoResponse},
    routing::{any, post},
};
use perennial::{
    Perennial,
    locks::{IdempotencyLayer, LockKind, LockName, Locks},
};
use tokio::sync::Notify;

use crate::{
    databases::Db,
    support::{HANG, Reply, exchange, serve, until},
};

on_each_database! {
    a_repeat_gets_the_stored_response
    panicked_or_crashed_request_is_refused_or_runs_again
    a_key_is_new_after_its_lifetime_and_on_another_path
    request_with_an_unreadable_response_does_not_run_again
    response_is_stored_when_its_table_was_away_for_longer_than_the_lease
    repeat_of_a_request_with_a_refused_response_gets_409
    request_with_an_unknown_outcome_outlives_other_locks
    expired_responses_are_removed
    housekeeping_is_not_held_for_as_long_as_the_locks_of_requests
}

// The database makes no difference.
on_database! {
    sqlite_file = crate::databases::Db::sqlite();
    another_request_with_the_key_is_refused_and_so_is_a_missing_one
    no_caller_is_given_anothers_response
    a_client_who_disconnects_cancels_nothing
    what_is_too_large_is_told_so
    refusal_that_asks_to_repeat_is_not_stored
    a_layer_beneath_itself_lets_the_request_pass
    a_shutdown_waits_for_what_is_being_done
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use super::*;

    on_each_server! {
        response_is_stored_when_its_server_was_away_for_longer_than_the_lease
        key_is_not_new_when_a_publish_was_refused
    }
}

async fn pay(address: SocketAddr, key: &str) -> Reply {
    let headers = [
        ("idempotency-key", key),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    exchange(address, "POST", "/pay", &headers, "cents=1990").await
}

/// Repeats a request until it is done, as clients do.
async fn paid(address: SocketAddr, key: &str) -> Reply {
    loop {
        let reply = pay(address, key).await;
        if reply.status != 409 {
            return reply;
        }
        assert_eq!(reply.headers["retry-after"], "1", "{reply:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A route that counts its runs, in this process.
struct Counted {
    address: SocketAddr,
    runs: Arc<AtomicUsize>,
}

impl Counted {
    async fn new(db: &Db, layered: impl Fn(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let handler = async move |method: http::Method, headers: HeaderMap, body: String| {
            let run = count.fetch_add(1, SeqCst) + 1;
            let caller = headers
                .get("x-caller")
                .map_or("", |caller| caller.to_str().expect("text"));
            let status = body.parse().map_or(StatusCode::CREATED, |status: u16| {
                StatusCode::from_u16(status).expect("a status")
            });
            let said =
                AppendHeaders([("x-run", run.to_string()), ("set-cookie", "a=b".to_owned())]);
            (
                status,
                said,
                format!("{method} run {run} for {caller}: {body}"),
            )
                .into_response()
        };
        let site = db.site().await;
        let layer = layered(site.locks().idempotency());
        let app = Router::new()
            .route("/{name}", any(handler.clone()).layer(layer.clone()))
            .nest(
                "/nested",
                Router::new().route("/a", any(handler).layer(layer)),
            );
        let address = serve(app).await;
        Self { address, runs }
    }

    async fn send(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        exchange(self.address, "POST", path, headers, body).await
    }

    fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }
}

async fn a_repeat_gets_the_stored_response(db: Db) {
    let route = Counted::new(&db, |layer| layer).await;
    let other = Counted::new(&db, |layer| layer).await;
    for (key, body, status) in [("a", "photo", 201), ("b", "500", 500), ("c", "404", 404)] {
        let key = [("idempotency-key", key)];
        let first = route.send("/a", &key, body).await;
        assert_eq!(first.status, status);
        assert!(!first.headers.contains_key("idempotency-replayed"));
        for process in [&other, &route] {
            let again = process.send("/a", &key, body).await;
            assert_eq!((again.status, &again.body), (status, &first.body));
            assert_eq!(again.headers["idempotency-replayed"], "true");
            for name in ["x-run", "set-cookie", "content-type"] {
                assert_eq!(again.headers[name], first.headers[name]);
            }
        }
    }
    assert_eq!((route.runs(), other.runs()), (3, 0));
    // Other methods can be repeated anyway.
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        for _ in 0..2 {
            let reply =
                exchange(route.address, method, "/a", &[("idempotency-key", "a")], "").await;
            assert_eq!(reply.status, 201, "{reply:?}");
        }
    }
    assert_eq!(route.runs(), 11);
    let patch = exchange(
        route.address,
        "PATCH",
        "/a",
        &[("idempotency-key", "d")],
        "",
    )
    .await;
    let again = exchange(
        route.address,
        "PATCH",
        "/a",
        &[("idempotency-key", "\"d\"")],
        "",
    )
    .await;
    assert_eq!(patch.body, again.body);
}

async fn another_request_with_the_key_is_refused_and_so_is_a_missing_one(db: Db) {
    let route = Counted::new(&db, |layer| layer).await;
    let key = ("idempotency-key", "k");
    assert_eq!(route.send("/a?x=1", &[key], "photo").await.status, 201);
    let json = ("content-type", "application/json");
    for (path, headers, body) in [
        ("/a?x=1", vec![key], "another"),
        ("/a?x=2", vec![key], "photo"),
        ("/a?x=1", vec![key, json], "photo"),
    ] {
        let reply = route.send(path, &headers, body).await;
        assert_eq!(reply.status, 422, "{reply:?}");
        assert_eq!(reply.headers["content-type"], "application/problem+json");
        assert!(
            reply.text().contains("another request had this"),
            "{reply:?}"
        );
    }
    let patch = exchange(route.address, "PATCH", "/a?x=1", &[key], "photo").await;
    assert_eq!(patch.status, 422, "{patch:?}");
    let long = "x".repeat(256);
    for headers in [
        vec![],
        vec![("idempotency-key", "")],
        vec![("idempotency-key", "\"\"")],
        vec![("idempotency-key", &*long)],
        vec![key, key],
    ] {
        let reply = route.send("/a", &headers, "photo").await;
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.text().contains("Idempotency-Key"), "{reply:?}");
    }
    assert_eq!(route.runs(), 1);

    let optional = Counted::new(&db, |layer| layer.optional()).await;
    assert_eq!(optional.send("/a", &[], "photo").await.status, 201);
    assert_eq!(optional.send("/a", &[], "photo").await.status, 201);
    assert_eq!(
        optional
            .send("/a", &[("idempotency-key", "")], "")
            .await
            .status,
        400
    );
    assert_eq!(optional.runs(), 2);
}

async fn no_caller_is_given_anothers_response(db: Db) {
    let unscoped = Counted::new(&db, |layer| layer).await;
    let key = ("idempotency-key", "k");
    let [ann, bob] = [
        ("authorization", "Bearer ann"),
        ("authorization", "Bearer bob"),
    ];
    let cookies = [("cookie", "session=1"), ("cookie", "session=2")];
    assert_eq!(unscoped.send("/a", &[key, ann], "x").await.status, 201);
    assert_eq!(unscoped.send("/a", &[key, ann], "x").await.status, 201);
    assert_eq!(
        unscoped.send("/b", &[key, cookies[0]], "x").await.status,
        201
    );
    for (path, caller) in [
        ("/a", Some(bob)),
        ("/b", Some(cookies[1])),
        ("/b", None),
        ("/a", None),
    ] {
        let headers: Vec<_> = [key].into_iter().chain(caller).collect();
        let reply = unscoped.send(path, &headers, "x").await;
        assert_eq!(reply.status, 422, "{reply:?}");
        assert!(!reply.headers.contains_key("set-cookie"));
    }
    assert_eq!(unscoped.runs(), 2);
    // A header that does not identify the caller may change.
    let volatile = [
        ("user-agent", "x"),
        ("traceparent", "00-1-1-00"),
        ("x-forwarded-for", "10.0.0.1"),
    ];
    for header in volatile {
        let again = unscoped.send("/a", &[key, ann, header], "x").await;
        assert_eq!(again.headers["idempotency-replayed"], "true", "{again:?}");
    }

    let scoped = Counted::new(&db, |layer| {
        layer.scope(|parts| {
            let caller = parts.headers.get("x-caller")?;
            Some(caller.to_str().expect("text").to_owned())
        })
    })
    .await;
    // No two pairs of key and caller get the same response.
    let mut bodies = std::collections::HashSet::new();
    let callers = [
        "ann", "bob", "", "a/b", "a", "a%2Fb", "a/%2Fa", "' OR 1=1", "x\u{9}y",
    ];
    for key in ["k", "b/k", "%2Fa/k", "' --"] {
        for caller in callers {
            let headers = [("idempotency-key", key), ("x-caller", caller), ann];
            let first = scoped.send("/c", &headers, "x").await;
            let headers = [("idempotency-key", key), ("x-caller", caller), bob];
            let again = scoped.send("/c", &headers, "x").await;
            assert_eq!(first.body, again.body, "a caller may have a new token");
            assert!(
                first.text().contains(&format!("for {caller}:")),
                "{first:?}"
            );
            assert!(bodies.insert(first.body));
        }
    }
}

async fn a_client_who_disconnects_cancels_nothing(db: Db) {
    let (go, began) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (going, beginning) = (go.clone(), began.clone());
    let route = post(async move || {
        beginning.notify_one();
        going.notified().await;
        "done"
    });
    let site = db.site().await;
    let address = serve(Router::new().route("/pay", route.layer(site.locks().idempotency()))).await;
    let client = tokio::spawn(async move { pay(address, "k").await });
    began.notified().await;
    client.abort();
    let _ = client.await;
    let meanwhile = pay(address, "k").await;
    assert_eq!(meanwhile.status, 409, "{meanwhile:?}");
    go.notify_one();
    let again = paid(address, "k").await;
    assert_eq!(again.text(), "done");
    assert_eq!(again.headers["idempotency-replayed"], "true");
}

async fn panicked_or_crashed_request_is_refused_or_runs_again(db: Db) {
    for again in [false, true] {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let route = post(async move || {
            assert!(count.fetch_add(1, SeqCst) > 0, "as intended");
            "done"
        });
        let site = db.site().await;
        let layer = site.locks().lease(HANG).idempotency();
        let layer = if again {
            layer.run_again_after_crash()
        } else {
            layer
        };
        let address = serve(Router::new().route("/pay", route.layer(layer))).await;
        let key = if again { "again" } else { "once" };
        let panicked = tokio::spawn(async move { pay(address, key).await });
        panicked.await.expect_err("the connection breaks");
        db.execute("UPDATE perennial_lock SET expires_at = 1").await;
        let said = if again { "done" } else { "is unknown" };
        until(said, async || {
            let reply = pay(address, key).await;
            assert!([200, 409].contains(&reply.status), "{reply:?}");
            reply.text().contains(said)
        })
        .await;
        assert_eq!(runs.load(SeqCst), if again { 2 } else { 1 });
    }
}

async fn what_is_too_large_is_told_so(db: Db) {
    let route = Counted::new(&db, |layer| layer.max_body(40)).await;
    let key = [("idempotency-key", "k")];
    let large = route.send("/a", &key, &"x".repeat(41)).await;
    assert_eq!(large.status, 413, "{large:?}");
    assert_eq!(route.runs(), 0);
    // The response has some words more.
    let body = "y".repeat(40);
    let first = route.send("/a", &key, &body).await;
    assert!(
        first.status == 201 && first.text().ends_with(&body),
        "{first:?}"
    );
    let again = route.send("/a", &key, &body).await;
    assert_eq!(again.status, 409, "{again:?}");
    assert!(again.text().contains("is not stored"), "{again:?}");
    assert_eq!(route.runs(), 1);
}

async fn refusal_that_asks_to_repeat_is_not_stored(db: Db) {
    let site = db.site().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handler = async move || {
        let refusal = |status| (status, AppendHeaders([("retry-after", "1")])).into_response();
        match count.fetch_add(1, SeqCst) {
            0 => refusal(StatusCode::SERVICE_UNAVAILABLE),
            1 => refusal(StatusCode::TOO_MANY_REQUESTS),
            2 => refusal(StatusCode::CONFLICT),
            _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        }
    };
    let layer = site.locks().idempotency().scope(|_| None);
    let address = serve(Router::new().route("/", post(handler).layer(layer))).await;
    let headers = [("idempotency-key", "k")];
    for (status, run) in [(503, 1), (429, 2), (409, 3), (503, 4), (503, 4)] {
        let reply = exchange(address, "POST", "/", &headers, "").await;
        assert_eq!(
            (reply.status, runs.load(SeqCst)),
            (status, run),
            "{reply:?}"
        );
    }
}

async fn a_key_is_new_after_its_lifetime_and_on_another_path(db: Db) {
    let route = Counted::new(&db, |layer| layer.lifetime(HANG)).await;
    let key = [("idempotency-key", "k")];
    let first = route.send("/a", &key, "x").await;
    assert_eq!(route.send("/a", &key, "x").await.body, first.body);
    for path in ["/b", "/nested/a"] {
        assert_ne!(route.send(path, &key, "x").await.body, first.body);
    }
    assert_eq!(route.runs(), 3);
    // By the database's clock.
    let age = "UPDATE perennial_entry SET generated_at = generated_at - 61000000";
    assert_eq!(db.execute(age).await, 3);
    let new = route.send("/a", &key, "another").await;
    assert_eq!(new.status, 201, "{new:?}");
    assert_eq!(route.runs(), 4);
    let again = route.send("/a", &key, "another").await;
    assert_eq!(again.body, new.body);
}

async fn request_with_an_unreadable_response_does_not_run_again(db: Db) {
    let route = Counted::new(&db, |layer| layer).await;
    let key = [("idempotency-key", "k")];
    assert_eq!(route.send("/a", &key, "x").await.status, 201);
    db.execute("UPDATE perennial_entry SET status = 7").await;
    let again = route.send("/a", &key, "x").await;
    assert_eq!(again.status, 409, "{again:?}");
    assert!(again.text().contains("is not stored"), "{again:?}");
}

/// A route that answers `done` when released, with a count of its runs.
struct HeldService {
    route: axum::routing::MethodRouter,
    began: Arc<Notify>,
    go: Arc<Notify>,
    runs: Arc<AtomicUsize>,
}

impl HeldService {
    fn new() -> Self {
        let (go, began) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let runs = Arc::new(AtomicUsize::new(0));
        let (going, beginning, count) = (go.clone(), began.clone(), runs.clone());
        let route = post(async move || {
            count.fetch_add(1, SeqCst);
            beginning.notify_one();
            going.notified().await;
            "done"
        });
        Self {
            route,
            began,
            go,
            runs,
        }
    }
}

/// Long enough for a slow machine to extend, and short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(2);

/// Waits until the lease of the request with the key `k` has expired.
async fn expired(db: &Db) {
    let locks = Locks::with_pool(db.database().await).await.expect("opens");
    until("the lease expires", async || {
        let lock = locks
            .inspect(LockName::of(LockKind::Request, ["", "/pay", "k"]))
            .await;
        let lock = lock.expect("answers").expect("is there");
        lock.remaining.is_zero()
    })
    .await;
}

/// Repeats the request until the stored response is returned.
async fn replayed(address: SocketAddr) {
    until("the response is stored", async || {
        let reply = pay(address, "k").await;
        assert!([200, 409, 503].contains(&reply.status), "{reply:?}");
        reply.status == 200 && reply.text() == "done"
    })
    .await;
}

async fn response_is_stored_when_its_table_was_away_for_longer_than_the_lease(db: Db) {
    let held = HeldService::new();
    let site = db.site().await;
    // The table is away until the lease has ended.
    let locks = site.locks().lease(LEASE).manual_extension();
    let app = Router::new().route("/pay", held.route.layer(locks.idempotency()));
    let address = serve(app).await;
    let first = tokio::spawn(async move { pay(address, "k").await });
    held.began.notified().await;
    db.execute("ALTER TABLE perennial_entry RENAME TO elsewhere")
        .await;
    held.go.notify_one();
    assert_eq!(first.await.expect("answers").text(), "done");
    expired(&db).await;
    db.execute("ALTER TABLE elsewhere RENAME TO perennial_entry")
        .await;
    replayed(address).await;
    assert_eq!(held.runs.load(SeqCst), 1);
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn response_is_stored_when_its_server_was_away_for_longer_than_the_lease(db: Db) {
    use crate::proxy::{Proxy, Weather};

    let held = HeldService::new();
    let proxy = Proxy::before(db.url()).await;
    let site = Perennial::open(&proxy.url(db.url())).await.expect("opens");
    let layer = site.locks().lease(LEASE).idempotency();
    let address = serve(Router::new().route("/pay", held.route.layer(layer))).await;
    let first = tokio::spawn(async move { pay(address, "k").await });
    held.began.notified().await;
    proxy.weather(Weather::Blackout);
    expired(&db).await;
    held.go.notify_one();
    // The first try to store it takes as long as a statement may.
    assert_eq!(first.await.expect("answers").text(), "done");
    proxy.weather(Weather::Fair);
    replayed(address).await;
    assert_eq!(held.runs.load(SeqCst), 1);
}

/// The state on a cluster's node that has not received the lease yet.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn key_is_not_new_when_a_publish_was_refused(db: Db) {
    for (refusals, key) in [(1, "once"), (usize::MAX, "always")] {
        let (site, lag) = crate::loss::lagging(db.url()).await;
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let route = post(async move || {
            count.fetch_add(1, SeqCst);
            "done"
        });
        let layer = site.locks().lease(LEASE).idempotency();
        let address = serve(Router::new().route("/pay", route.layer(layer))).await;
        lag.store(refusals, SeqCst);
        assert_eq!(pay(address, key).await.text(), "done");
        let said = if refusals == 1 { "done" } else { "is unknown" };
        until(said, async || {
            let reply = pay(address, key).await;
            assert!([200, 409].contains(&reply.status), "{reply:?}");
            reply.text().contains(said)
        })
        .await;
        assert_eq!(runs.load(SeqCst), 1);
    }
}

async fn repeat_of_a_request_with_a_refused_response_gets_409(db: Db) {
    let forbid: &[&str] = match db.url().split(':').next().unwrap_or_default() {
        "sqlite" => &[
            "CREATE TRIGGER short BEFORE INSERT ON perennial_entry WHEN length(NEW.body) > 100
                BEGIN SELECT RAISE(ABORT, 'is too long'); END",
        ],
        _ => &["ALTER TABLE perennial_entry ADD CONSTRAINT short CHECK (length(body) <= 100)"],
    };
    let route = Counted::new(&db, |layer| layer).await;
    for statement in forbid {
        db.execute(statement).await;
    }
    let key = [("idempotency-key", "k")];
    let first = route.send("/a", &key, &"x".repeat(100)).await;
    assert_eq!(first.status, 201, "{first:?}");
    let again = route.send("/a", &key, &"x".repeat(100)).await;
    assert_eq!(again.status, 409, "{again:?}");
    assert!(again.text().contains("is not stored"), "{again:?}");
    assert_eq!(route.runs(), 1);
}

async fn request_with_an_unknown_outcome_outlives_other_locks(db: Db) {
    let site = db.site().await;
    let locks = site.locks().lease(Duration::from_millis(100));
    let layer = locks.idempotency();
    let app = Router::new().route("/pay", post(unreachable).layer(layer));
    let address = serve(app).await;
    let panicked = tokio::spawn(async move { pay(address, "k").await });
    panicked.await.expect_err("the connection breaks");
    drop(locks.try_lock("other").await.expect("answers"));
    let brief = Duration::from_millis(100);
    tokio::time::sleep(2 * brief).await;
    until("the other one is forgotten", async || {
        locks.prune(brief).await.expect("answers");
        locks.inspect("other").await.expect("answers").is_none()
    })
    .await;
    let again = pay(address, "k").await;
    assert!(again.text().contains("is unknown"), "{again:?}");
}

async fn a_layer_beneath_itself_lets_the_request_pass(db: Db) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let route = post(async move || count.fetch_add(1, SeqCst).to_string());
    let layer = db.site().await.locks().idempotency();
    let app = Router::new()
        .route("/pay", route.layer(layer.clone()))
        .layer(layer);
    let address = serve(app).await;
    assert_eq!(pay(address, "k").await.text(), "0");
    assert_eq!(pay(address, "k").await.text(), "0");
    assert_eq!(runs.load(SeqCst), 1);
}

async fn expired_responses_are_removed(db: Db) {
    let first = Counted::new(&db, |layer| layer).await;
    for key in ["a", "b", "c"] {
        let reply = first.send("/a", &[("idempotency-key", key)], "x").await;
        assert_eq!(reply.status, 201);
    }
    let entries = "SELECT COUNT(*) FROM perennial_entry";
    assert_eq!(db.int(entries).await, Some(3));
    // The rows are old now. A process without pages removes them.
    db.execute("UPDATE perennial_entry SET retain_until = 1")
        .await;
    let pruned =
        "UPDATE perennial_lock SET expires_at = 1 WHERE kind = 'housekeeping' AND owner IS NULL";
    until("the first process has pruned", async || {
        db.execute(pruned).await > 0
    })
    .await;
    let second = Counted::new(&db, |layer| layer).await;
    assert_eq!(
        second
            .send("/a", &[("idempotency-key", "d")], "x")
            .await
            .status,
        201
    );
    until("they are removed", async || {
        db.int(entries).await == Some(1)
    })
    .await;
}

async fn a_shutdown_waits_for_what_is_being_done(db: Db) {
    let (go, began) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (going, beginning) = (go.clone(), began.clone());
    let route = post(async move || {
        beginning.notify_one();
        going.notified().await;
    });
    let site = db.site().await;
    let address = serve(Router::new().route("/pay", route.layer(site.locks().idempotency()))).await;
    let client = tokio::spawn(async move { pay(address, "k").await });
    began.notified().await;
    client.abort();
    let ends = {
        let site = site.clone();
        tokio::spawn(async move { site.shutdown().await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!ends.is_finished(), "it is being done");
    go.notify_one();
    tokio::time::timeout(HANG, ends)
        .await
        .expect("ends")
        .expect("no panic");
    assert_eq!(
        pay(address, "k").await.headers["idempotency-replayed"],
        "true"
    );
}

#[tokio::test]
async fn without_a_database_nothing_is_done() {
    let pool = sqlx::SqlitePool::connect("sqlite::memory:")
        .await
        .expect("opens");
    let site = Perennial::with_pool(pool.clone()).await.expect("opens");
    let route = post(unreachable).layer(site.locks().idempotency());
    let address = serve(Router::new().route("/pay", route)).await;
    pool.close().await;
    let reply = pay(address, "k").await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(reply.headers["retry-after"], "5");
    assert!(reply.text().contains("request is not done"), "{reply:?}");
    assert!(reply.took < HANG);
}

async fn unreachable() {
    panic!("is not called");
}

async fn housekeeping_is_not_held_for_as_long_as_the_locks_of_requests(db: Db) {
    const DAY: Duration = Duration::from_secs(24 * 3600);

    let locks = Locks::with_pool(db.database().await).await.expect("opens");
    let held = locks.clone().hold_at_least(30 * DAY);
    let route = post(async || "done").layer(held.idempotency());
    let address = serve(Router::new().route("/pay", route)).await;
    assert_eq!(pay(address, "k").await.status, 200);
    until("it has pruned", async || {
        let lock = locks
            .inspect(LockName::of(LockKind::Housekeeping, "prune-requests"))
            .await;
        let lock = lock.expect("answers");
        assert!(
            lock.as_ref().is_none_or(|lock| lock.remaining <= DAY),
            "{lock:?}"
        );
        lock.is_some_and(|lock| lock.holder.is_none())
    })
    .await;
}
