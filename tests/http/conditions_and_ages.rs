//! A cached response obeys HTTP: validators, conditions, ranges, ages, and Cache-Status; in virtual
//! time where time matters.

use std::time::Duration;

use axum::{
    Router,
    http::{StatusCode, header},
    routing::get as route,
};
use perennial::{Key, Refresh};
use perennial_testing as testing;

use perennial_testkit::{
    Crowd, Folder, HANG, Origin, Reply, every, get, patient, request, serve, serve_origin, until,
    virtual_time::{Shared, here, origin_behind},
};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn conditions_and_ranges_are_answered_from_the_stored_page() {
    let folder = Folder::new();
    let (origin, address) = serve_origin(&folder.site().await, Refresh::every(LONG)).await;
    get(address, "/").await;
    // A younger version has no date.
    tokio::time::sleep(SHORT).await;
    let whole = get(address, "/").await;
    let (etag, modified) = (whole.header("etag"), whole.header("last-modified"));
    assert!(etag.starts_with("\"p-") && etag.len() == 36, "{whole:?}");
    assert!(modified.ends_with("GMT"), "{whole:?}");
    // A request for a range of a text is answered with that range, although the response does not
    // offer ranges (`Accept-Ranges`).
    assert_eq!(whole.header("accept-ranges"), "");
    let length = whole.body.len();

    // name, value; status, length of the body
    let table = [
        ("if-none-match", etag, 304, 0),
        ("if-none-match", "*", 304, 0),
        ("if-none-match", "\"other\"", 200, length),
        ("if-modified-since", modified, 304, 0),
        ("if-match", etag, 200, length),
        ("if-match", "\"other\"", 412, 0),
        ("if-unmodified-since", modified, 200, length),
        (
            "if-unmodified-since",
            "Sat, 29 Oct 1994 19:43:31 GMT",
            412,
            0,
        ),
        ("range", "bytes=4-8", 206, 5),
        ("range", "bytes=99-", 200, length),
        ("range", "bytes=0-1,3-4", 200, length),
        // A visitor forces nothing.
        ("cache-control", "no-cache", 200, length),
        ("cache-control", "no-store, max-age=0", 200, length),
        ("pragma", "no-cache", 200, length),
    ];
    for (name, value, status, length) in table {
        let reply = request(address, "GET", "/", &[(name, value)]).await;
        assert_eq!(
            (reply.status, reply.body.len()),
            (status, length),
            "{name}: {value}"
        );
        let head = request(address, "HEAD", "/", &[(name, value)]).await;
        let head_status = if status == 206 { 200 } else { status };
        assert_eq!(
            (head.status, head.body.len()),
            (head_status, 0),
            "HEAD {name}: {value}"
        );
        if status == 304 {
            for reply in [reply, head] {
                assert_eq!(reply.header("etag"), etag);
                assert_eq!(reply.header("cache-control"), "no-cache");
                assert!(reply.headers.contains_key("age") && reply.headers.contains_key("date"));
                assert!(!reply.headers.contains_key("content-type"));
            }
        }
    }
    let part = request(address, "GET", "/", &[("range", "bytes=4-8")]).await;
    assert_eq!(part.header("content-range"), format!("bytes 4-8/{length}"));
    assert_eq!(part.body, whole.body.slice(4..9));
    assert_eq!(part.header("content-length"), "5");
    assert_eq!(origin.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_body_keeps_its_validators_in_every_process() {
    let shared = Shared::new();
    let process = || {
        let app = Router::new().route("/", route(async || "always the same"));
        here(app.layer(shared.site().layer(every(SHORT))))
    };
    let addresses = [process(), process()];
    let first = get(addresses[0], "/").await;
    let (mut last, _) = shared.entry("/").await.expect("is stored");
    for round in 1..4 {
        tokio::time::sleep(2 * SHORT).await;
        get(addresses[round % 2], "/").await;
        let (fence, _) = shared.entry("/").await.expect("is stored");
        assert!(fence > last, "it was renewed");
        last = fence;
        for address in &addresses {
            let reply = get(*address, "/").await;
            for name in ["etag", "last-modified"] {
                assert_eq!(reply.header(name), first.header(name), "{name}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn response_has_age_and_cache_status() {
    let shared = Shared::new();
    let policy = Refresh::every(4 * SHORT).in_background();
    let (origin, address) = origin_behind(&shared.site(), policy.clone());
    let status = |reply: &Reply| reply.header("cache-status").to_owned();

    origin.hold();
    let crowd = Crowd::visit(5, &[address], "/");
    until("it generates", async || origin.begun() == 1).await;
    tokio::time::sleep(SHORT / 2).await;
    origin.let_go();
    let mut first: Vec<_> = crowd.rest().await.iter().map(status).collect();
    first.sort();
    assert_eq!(first[0], "perennial; fwd=miss; stored");
    for follower in &first[1..] {
        assert_eq!(follower, "perennial; fwd=miss; stored; collapsed");
    }

    let age = |reply: &Reply| reply.header("age").parse::<u64>().expect("seconds");
    tokio::time::sleep(SHORT).await;
    let hit = get(address, "/").await;
    assert!(status(&hit).starts_with("perennial; hit; ttl="), "{hit:?}");
    assert!((1..4).contains(&age(&hit)), "{hit:?}");
    tokio::time::sleep(5 * SHORT).await;
    let stale = get(address, "/").await;
    assert_eq!(status(&stale), "perennial; hit; ttl=-2", "{stale:?}");
    assert_eq!(age(&stale), 6, "{stale:?}");

    let post = request(address, "POST", "/", &[]).await;
    assert_eq!(status(&post), "perennial; fwd=method");
    assert_eq!(post.header("age"), "");

    // The leader waits for the new version.
    let (_, waiting) = origin_behind(&shared.site(), every(SHORT));
    get(waiting, "/waited").await;
    tokio::time::sleep(2 * SHORT).await;
    let waited = get(waiting, "/waited").await;
    assert_eq!(status(&waited), "perennial; fwd=stale; stored");

    // Another process has generated the version. For this process, that is a hit, because the
    // version is stored.
    tokio::time::sleep(SHORT / 2).await;
    let (_, other) = origin_behind(&shared.site(), Refresh::every(LONG));
    assert!(status(&get(other, "/waited").await).starts_with("perennial; hit; ttl=3"));

    let quiet = shared.open(patient().hide_cache_status());
    let (_, quiet) = origin_behind(&quiet, policy);
    for _ in 0..2 {
        assert_eq!(status(&get(quiet, "/quiet").await), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_what_they_may_do_unless_the_generator_says_it() {
    let folder = Folder::new();
    let site = folder.site().await;
    let plain = || Router::new().route("/plain", route(async || "a"));
    let said = || {
        Router::new()
            .route(
                "/said",
                route(async || ([(header::CACHE_CONTROL, "max-age=7")], "b")),
            )
            .route("/expires", route(async || ([(header::EXPIRES, "0")], "c")))
            .route(
                "/tagged",
                route(async || ([(header::ETAG, "\"own\"")], "d")),
            )
            .route("/missing", route(async || (StatusCode::NOT_FOUND, "e")))
    };
    let revalidate = serve(
        plain()
            .merge(said())
            .layer(site.layer(Refresh::every(LONG))),
    )
    .await;
    for _ in 0..2 {
        assert_eq!(
            get(revalidate, "/plain").await.header("cache-control"),
            "no-cache"
        );
        assert_eq!(
            get(revalidate, "/said").await.header("cache-control"),
            "max-age=7"
        );
        assert_eq!(
            get(revalidate, "/expires").await.header("cache-control"),
            ""
        );
        assert_eq!(get(revalidate, "/tagged").await.header("etag"), "\"own\"");
        let missing = request(revalidate, "GET", "/missing", &[("if-none-match", "*")]).await;
        assert_eq!(
            missing.status, 404,
            "only what would be a 200 is conditional"
        );
    }
    // A browser may keep the page until it is stale, but not for longer than the limit.
    for (limit, expected) in [(2 * LONG, 3600), (LONG / 2, 1800)] {
        let folder = Folder::new();
        let policy = Refresh::every(LONG).browser_cache(limit);
        let address = serve(plain().layer(folder.site().await.layer(&policy))).await;
        let first = get(address, "/plain").await;
        let heard = first.header("cache-control");
        let age = heard.strip_prefix("max-age=");
        let age = age.and_then(|age| age.parse().ok());
        // Some seconds may have gone by.
        assert!(
            age.is_some_and(|age: u64| (expected - 60..=expected + 60).contains(&age)),
            "{heard}"
        );
    }
}

/// A content delivery network in front of the site counts ages from the generation, and would give a
/// response to all visitors.
#[tokio::test(start_paused = true)]
async fn network_in_front_gets_its_own_time_and_no_page_of_one_visitor() {
    const CDN: &str = "cdn-cache-control";
    let shared = Shared::new();
    let site = shared.site();
    let policy = Refresh::every(300 * SHORT)
        .cdn_cache(60 * SHORT)
        .in_background();
    let layer = site.layer(&policy).tag("it").key(Key::by(|parts| {
        let country = parts.headers.get("x-country");
        country.is_none().then_some([("a", "b")])
    }));
    let layer = layer.bypass_if(|parts| parts.headers.contains_key("cookie"));
    let own = async || ([(CDN, "max-age=7")], "own");
    let cookie = async || {
        (
            [(CDN, "max-age=7"), ("set-cookie", "a=b")],
            "of one visitor",
        )
    };
    let app = Router::new()
        .route("/", route("it"))
        .route("/own", route(own))
        .route("/cookie", route(cookie));
    let app = here(app.layer(layer));
    let mut etag = String::new();
    for (after, age, expected) in [
        (0, "0", "max-age=60"),
        (100, "100", "max-age=160"),
        (190, "290", "max-age=300"),
        (20, "310", "no-cache"),
    ] {
        testing::advance(after * SHORT).await;
        let reply = get(app, "/").await;
        assert_eq!((reply.header("age"), reply.header(CDN)), (age, expected));
        assert_eq!(reply.header("cache-control"), "no-cache");
        etag = reply.header("etag").to_owned();
    }
    testing::advance(SHORT).await;
    let unchanged = request(app, "GET", "/", &[("if-none-match", &etag)]).await;
    assert_eq!(
        (unchanged.status, unchanged.header(CDN)),
        (304, "max-age=61")
    );
    site.invalidate_tag("it").await.expect("is stored");
    assert_eq!(get(app, "/").await.header(CDN), "no-cache");
    assert_eq!(get(app, "/own").await.header(CDN), "max-age=7");
    let nothing = ("x-other", "a");
    for (path, visitor) in [
        ("/own", ("cookie", "a=b")),
        ("/own", ("x-country", "DE")),
        ("/cookie", nothing),
        ("/cookie", nothing),
    ] {
        let own = request(app, "GET", path, &[visitor]).await;
        let headers = (own.header("cache-control"), own.header(CDN));
        assert_eq!(headers, ("private", ""), "{visitor:?}");
    }
}

/// A process with an origin that can fail, and a page with this `Cache-Control`.
fn honest(shared: &Shared, cache_control: &'static str) -> (Origin, &'static Router) {
    let origin = Origin::default();
    let page = {
        let origin = origin.clone();
        route(async move || {
            let (status, body) = origin.run("it").await;
            (status, [(header::CACHE_CONTROL, cache_control)], body)
        })
    };
    let policy = Refresh::by_headers(LONG)
        .leader_wait(HANG)
        .cooldown(4 * SHORT);
    let app = Router::new().route("/", page);
    (origin, here(app.layer(shared.site().layer(&policy))))
}

#[tokio::test(start_paused = true)]
async fn a_stale_page_outlives_failures_for_as_long_as_it_says() {
    for (said, served) in [
        ("max-age=1", false),
        ("max-age=1, stale-if-error=3600", true),
        ("max-age=1, stale-if-error=3600, must-revalidate", false),
    ] {
        let shared = Shared::new();
        let (origin, address) = honest(&shared, said);
        assert_eq!(get(address, "/").await.run(), 1);
        origin.status(500);
        tokio::time::sleep(2 * SHORT).await;
        for _ in 0..2 {
            for reply in &Crowd::visit(20, &[address], "/").rest().await {
                assert_eq!(reply.status == 200, served, "{said}: {reply:?}");
            }
            tokio::time::sleep(SHORT).await;
        }
        // Without a servable version, the first cooldown is a second.
        let runs = if served { 2 } else { 3 };
        assert_eq!(origin.begun(), runs, "{said}: the cooldown was not kept");
        origin.status(200);
        tokio::time::sleep(4 * SHORT).await;
        get(address, "/").await;
        assert_eq!(get(address, "/").await.run(), runs + 1, "{said}");
    }
}
