//! Requests that are sent twice and run once, and the answers to their clients.

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
    http::{HeaderMap, StatusCode, request::Parts},
    response::{AppendHeaders, IntoResponse},
    routing::{any, post},
};
use perennial_idempotency::{IdempotencyLayer, Scope};
use tokio::sync::Notify;

use perennial_testkit::{Db, HANG, Reply, exchange, on_database, on_each_database, pay, serve};

on_each_database! {
    a_repeat_gets_the_stored_response
    panicked_request_is_refused_or_runs_again
    request_with_an_unreadable_response_does_not_run_again
    repeat_of_a_request_with_a_refused_response_gets_409
}

// The database makes no difference.
on_database! {
    sqlite_file = perennial_testkit::Db::sqlite();
    another_request_with_the_key_is_refused_and_so_is_a_missing_one
    no_caller_is_given_anothers_response
    a_client_who_disconnects_cancels_nothing
    what_is_too_large_is_told_so
    refusal_that_asks_to_repeat_is_not_stored
    a_layer_beneath_itself_lets_the_request_pass
}

/// For a site without users.
fn public(_: &Parts) -> Option<Scope> {
    Some(Scope::public())
}

/// Makes each request that has not finished count as unknown, and as begun long ago.
async fn expire(db: &Db) {
    let expire = "UPDATE perennial_request SET begun_at = 1, expires_at = 1 WHERE status IS NULL AND name <> 'prune'";
    assert_eq!(db.execute(expire).await, 1);
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
        let layer = layered(IdempotencyLayer::new(&site.locks(), public));
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
    for (method, path, headers, body, differs) in [
        ("POST", "/a?x=1", vec![key], "another", "another body"),
        ("POST", "/a?x=2", vec![key], "photo", "another query"),
        (
            "POST",
            "/a?x=1",
            vec![key, json],
            "photo",
            "another `Content-Type`",
        ),
        ("PATCH", "/a?x=1", vec![key], "photo", "another method"),
        (
            "POST",
            "/b?x=2",
            vec![key],
            "photo",
            "another path and query",
        ),
        ("POST", "/nested/a?x=1", vec![key], "photo", "another path"),
    ] {
        let reply = exchange(route.address, method, path, &headers, body).await;
        assert_eq!(reply.status, 422, "{reply:?}");
        assert_eq!(reply.headers["content-type"], "application/problem+json");
        assert!(reply.text().contains(differs), "{reply:?}");
    }
    let long = "x".repeat(10_000);
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
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handler = async move |headers: HeaderMap| {
        let caller = headers["x-caller"].to_str().expect("text");
        format!("run {} for {caller}", count.fetch_add(1, SeqCst))
    };
    let layer = IdempotencyLayer::new(&db.site().await.locks(), |parts| {
        let caller = parts.headers.get("x-caller")?;
        Some(Scope::of(caller.to_str().expect("text")))
    });
    let address = serve(Router::new().route("/c", post(handler).layer(layer))).await;
    let send = async |headers: &[(&str, &str)]| exchange(address, "POST", "/c", headers, "x").await;
    let [ann, bob] = ["ann", "bob"].map(|token| ("authorization", token));
    // No two pairs of key and caller get the same response.
    let mut bodies = std::collections::HashSet::new();
    let callers = [
        "ann", "bob", "", "a/b", "a", "a%2Fb", "a/%2Fa", "' OR 1=1", "x\u{9}y", "public",
    ];
    for key in ["k", "b/k", "%2Fa/k", "' --"] {
        for caller in callers {
            let headers = [("idempotency-key", key), ("x-caller", caller), ann];
            let first = send(&headers).await;
            let headers = [("idempotency-key", key), ("x-caller", caller), bob];
            let again = send(&headers).await;
            assert_eq!(first.body, again.body, "a caller may have a new token");
            assert!(
                first.text().ends_with(&format!("for {caller}")),
                "{first:?}"
            );
            assert!(bodies.insert(first.body));
        }
    }
    let unknown = send(&[("idempotency-key", "k")]).await;
    assert_eq!(unknown.status, 400, "{unknown:?}");
    assert!(unknown.text().contains("caller"), "{unknown:?}");
    assert_eq!(runs.load(SeqCst), bodies.len());
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
    let address = serve(Router::new().route(
        "/pay",
        route.layer(IdempotencyLayer::new(&site.locks(), public)),
    ))
    .await;
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

async fn panicked_request_is_refused_or_runs_again(db: Db) {
    for again in [false, true] {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let route = post(async move || {
            assert!(count.fetch_add(1, SeqCst) > 0, "as intended");
            "done"
        });
        let layer = IdempotencyLayer::new(&db.site().await.locks(), public);
        let layer = if again {
            layer.run_again_after(HANG)
        } else {
            layer
        };
        let address = serve(Router::new().route("/pay", route.layer(layer))).await;
        let key = if again { "again" } else { "once" };
        let panicked = tokio::spawn(async move { pay(address, key).await });
        panicked.await.expect_err("the connection breaks");
        let early = pay(address, key).await;
        assert_eq!(early.headers["retry-after"], "1", "{early:?}");
        expire(&db).await;
        let reply = pay(address, key).await;
        if again {
            assert_eq!(reply.text(), "done");
        } else {
            assert!(reply.text().contains("nobody knows"), "{reply:?}");
        }
        assert!(!reply.headers.contains_key("retry-after"));
        assert_eq!(runs.load(SeqCst), if again { 2 } else { 1 });
        db.execute("DELETE FROM perennial_request").await;
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
    assert!(again.text().contains("could not be stored"), "{again:?}");
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
    let layer = IdempotencyLayer::new(&site.locks(), public);
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

async fn request_with_an_unreadable_response_does_not_run_again(db: Db) {
    let route = Counted::new(&db, |layer| layer).await;
    let key = [("idempotency-key", "k")];
    assert_eq!(route.send("/a", &key, "x").await.status, 201);
    db.execute("UPDATE perennial_request SET status = 7 WHERE status IS NOT NULL")
        .await;
    let again = route.send("/a", &key, "x").await;
    assert_eq!(again.status, 409, "{again:?}");
    assert!(again.text().contains("could not be stored"), "{again:?}");
}

async fn repeat_of_a_request_with_a_refused_response_gets_409(db: Db) {
    let forbid: &[&str] = match db.url().split(':').next().unwrap_or_default() {
        "sqlite" => &[
            "CREATE TRIGGER short BEFORE UPDATE ON perennial_request WHEN length(NEW.body) > 100
                BEGIN SELECT RAISE(ABORT, 'is too long'); END",
        ],
        _ => &["ALTER TABLE perennial_request ADD CONSTRAINT short CHECK (length(body) <= 100)"],
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
    assert!(again.text().contains("could not be stored"), "{again:?}");
    assert_eq!(route.runs(), 1);
}

async fn a_layer_beneath_itself_lets_the_request_pass(db: Db) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let route = post(async move || count.fetch_add(1, SeqCst).to_string());
    let layer = IdempotencyLayer::new(&db.site().await.locks(), public);
    let app = Router::new()
        .route("/pay", route.layer(layer.clone()))
        .layer(layer);
    let address = serve(app).await;
    assert_eq!(pay(address, "k").await.text(), "0");
    assert_eq!(pay(address, "k").await.text(), "0");
    assert_eq!(runs.load(SeqCst), 1);
}
