//! No visitor sees, changes or uses up another visitor's resources.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, Method, Response, header},
};
use http_body_util::BodyExt;
use perennial::{
    Perennial, Refresh,
    event::{Bypass, Served},
    locks::LockKind,
};
use perennial_store::{Backend, Call, PruneLocks, Reply, Unused};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use tower::Layer;

use perennial_testkit::{
    Ask, Folder, get, request, rounds,
    virtual_time::{Shared, here},
};

const LONG: Duration = Duration::from_secs(3600);

const HOSTILE: &[&str] = &[
    "cookie",
    "authorization",
    "proxy-authorization",
    "host",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-prefix",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method-override",
    "x-method-override",
    "x-real-ip",
    "accept",
    "accept-encoding",
    "accept-language",
    "user-agent",
    "referer",
    "origin",
    "cache-control",
    "pragma",
    "if-none-match",
    "if-modified-since",
    "range",
    "expect",
    "te",
    "connection",
    "content-length",
    "transfer-encoding",
    "cache-status",
    "age",
];

/// By HEAD or not, which path, headers by their place in the list with values, a body.
type SafetyRequest = (bool, u8, Vec<(usize, Vec<u8>)>, Vec<u8>);

fn requests() -> impl Strategy<Value = SafetyRequest> {
    let value = prop_oneof![
        Just(b"no-cache".to_vec()),
        Just(b"evil.example".to_vec()),
        Just(b"bytes=0-1".to_vec()),
        proptest::collection::vec(prop_oneof![Just(9_u8), 32..=126_u8, 128..=255_u8], 0..40),
    ];
    let headers = proptest::collection::vec((0..HOSTILE.len(), value), 0..8);
    let body = proptest::collection::vec(any::<u8>(), 0..20);
    (any::<bool>(), 0..5_u8, headers, body)
}

#[tokio::test]
async fn generator_and_store_see_nothing_of_a_visitor() {
    let runs = Arc::new(AtomicUsize::new(0));
    let leaked = Arc::new(Mutex::new(Vec::new()));
    let generator = {
        let (runs, leaked) = (Arc::clone(&runs), Arc::clone(&leaked));
        Router::new().fallback(async move |request: Request| {
            runs.fetch_add(1, SeqCst);
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("is read").to_bytes();
            if !head.headers.is_empty() || !body.is_empty() || head.method != Method::GET {
                leaked
                    .lock()
                    .expect("not poisoned")
                    .push(format!("{head:?} {body:?}"));
            }
            format!("{} {:?} {body:?}", head.uri, head.headers)
        })
    };
    // Many requests regenerate, as nothing is fresh for long.
    let site = Shared::new().site();
    let policy = Refresh::every(Duration::from_micros(1));
    let service = site.layer(&policy).layer(generator);

    let mut runner = TestRunner::new(Config::default());
    let strategy = requests();
    let mut bodies = HashMap::new();
    for _ in 0..rounds(4000, 1000) {
        let tree = strategy.new_tree(&mut runner).expect("a request");
        let (head, path, headers, body) = tree.current();
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = if head { Method::HEAD } else { Method::GET };
        *request.uri_mut() = format!("/{path}").parse().expect("a URI");
        for (name, value) in headers {
            let name = HeaderName::from_static(HOSTILE[name]);
            request
                .headers_mut()
                .append(name, HeaderValue::from_bytes(&value).expect("a value"));
        }
        let (answer, body) = service.ask(request).await;
        let status = answer.status.as_u16();
        assert!(matches!(status, 200 | 206 | 304), "{status}");
        if status == 200 && !head {
            let first = bodies.entry(path).or_insert_with(|| body.clone());
            let said = &answer.headers["cache-status"];
            assert_eq!(
                *first, body,
                "depends on who asks, or was not stored: {said:?}"
            );
        }
    }
    assert_eq!(*leaked.lock().expect("not poisoned"), Vec::<String>::new());
    assert!(runs.load(SeqCst) > 400, "{} runs", runs.load(SeqCst));
    assert_eq!(bodies.len(), 5);
    site.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn badly_framed_response_is_not_stored_and_replaces_nothing() {
    let folder = Folder::new();
    let site = folder.site().await;
    let framings: &[(&[(&str, &str)], bool)] = &[
        (&[("content-length", "6")], true),
        (&[("content-length", "6"), ("content-length", "6")], true),
        (&[("content-length", "6, 6")], true),
        (&[("transfer-encoding", "chunked")], true),
        (&[("content-length", "5")], false),
        (&[("content-length", "7")], false),
        (&[("content-length", "6"), ("content-length", "7")], false),
        (&[("content-length", "+6")], false),
        (&[("content-length", "six")], false),
        (
            &[("content-length", "6"), ("transfer-encoding", "chunked")],
            false,
        ),
        (&[("transfer-encoding", "xchunked")], false),
        (&[("transfer-encoding", "gzip")], false),
    ];
    for (n, (headers, stored)) in framings.iter().enumerate() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let policy = Refresh::every(Duration::ZERO).follower_wait(Duration::ZERO);
        let service = site
            .layer(&policy)
            .layer(tower::service_fn(move |_: Request<Body>| {
                let sound = counted.fetch_add(1, SeqCst) < n % 2;
                async move {
                    let mut response =
                        Response::new(Body::from(if sound { "before" } else { "a page" }));
                    for (name, value) in headers.iter().filter(|_| !sound) {
                        let value = HeaderValue::from_static(value);
                        response.headers_mut().append(*name, value);
                    }
                    Ok::<_, std::convert::Infallible>(response)
                }
            }));
        // With an old version, and without one.
        let address = here(Router::new().fallback_service(service));
        let mut reply = get(address, &format!("/{n}")).await;
        while runs.load(SeqCst) <= n % 2 {
            reply = get(address, &format!("/{n}")).await;
        }
        assert!(!reply.headers.contains_key("transfer-encoding"));
        let (status, body) = (reply.status, reply.text());
        match (*stored, n % 2) {
            (true, _) => assert_eq!((status, body), (200, "a page"), "{headers:?}"),
            (false, 0) => assert_eq!(status, 503, "{headers:?}"),
            (false, _) => assert_eq!((status, body), (200, "before"), "{headers:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_who_invents_keys_fills_neither_the_database_nor_the_memory() {
    const KEYS: usize = 50;
    let folder = Folder::new();
    let site = folder.site().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let generator = {
        let runs = Arc::clone(&runs);
        Router::new().fallback(async move |request: Request| {
            runs.fetch_add(1, SeqCst);
            let cookie = request.headers().get(header::COOKIE).cloned();
            format!("{} {cookie:?}", request.uri())
        })
    };
    let layer = site.layer(Refresh::every(LONG)).max_keys(KEYS);
    let address = here(generator.layer(layer));
    let ask = async |key| request(address, "GET", &format!("/{key}"), &[("cookie", "me")]).await;
    for key in 0..4 * KEYS {
        let reply = ask(key).await;
        // Visitors get responses of their own for keys beyond the limit.
        assert_eq!(reply.text().contains("me"), key >= KEYS, "{reply:?}");
    }
    // A key that is asked for again is stored, up to the same limit.
    for key in 0..4 * KEYS {
        let reply = ask(key).await;
        let is_hit = reply.header("cache-status").contains("hit");
        assert_eq!(is_hit, key < KEYS, "{reply:?}");
        let is_own = reply.text().contains("me");
        assert!(is_own || key < 2 * KEYS + KEYS / 2, "{reply:?}");
    }
    assert_eq!(
        runs.load(SeqCst),
        7 * KEYS,
        "no key is generated twice at once"
    );
    site.shutdown().await;
    let pool = sqlx::SqlitePool::connect(&folder.url())
        .await
        .expect("opens");
    for table in ["entry", "lock WHERE kind = 'page'"] {
        let count = format!("SELECT count(*) FROM perennial_{table}");
        let count = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(count));
        let count = count.fetch_one(&pool).await.expect("counts");
        assert_eq!(count, 2 * KEYS as i64, "{table}");
    }
}

/// An attack by invented paths and queries, while others visit real pages.
///
/// `PERENNIAL_TEST_ATTACK=200000 cargo test --release --all-features --test http invented -- --nocapture`
#[tokio::test(start_paused = true)]
async fn invented_keys_do_not_keep_real_pages_out() {
    const DEFAULT: usize = 10_000;
    let invented = std::env::var("PERENNIAL_TEST_ATTACK");
    let invented = invented.map_or(DEFAULT, |number| number.parse().expect("a number"));
    // Without `PERENNIAL_TEST_ATTACK`, the limit is a tenth of the layer's default, so that the
    // test is quick.
    let (pages, keys) = match invented {
        DEFAULT => (100, 1_000),
        _ => (1_000, 10_000),
    };
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let layer = site.layer(Refresh::every(perennial::DAY)).max_keys(keys);
    let page = async |request: Request| format!("{:2000}", request.uri().to_string());
    let app = Router::new().fallback(page).layer(layer);
    let hit = async |path: String| {
        get(&app, &path)
            .await
            .header("cache-status")
            .contains("hit")
    };
    // The attack has begun before the first real visitor comes.
    let (mut visits, mut hits, mut warm_visits, mut warm_hits) = (0, 0, 0, 0);
    for number in 0..invented {
        match number % 2 {
            0 => hit(format!("/invented/{number}")).await,
            _ => hit(format!("/pages/1?invented={number}")).await,
        };
        perennial_testing::advance(Duration::from_millis(100)).await;
        if number >= invented / 5 {
            let was_hit = hit(format!("/pages/{}", number % pages)).await;
            (visits, hits) = (visits + 1, hits + usize::from(was_hit));
            if number >= invented / 2 {
                (warm_visits, warm_hits) = (warm_visits + 1, warm_hits + usize::from(was_hit));
            }
        }
    }
    let stats = site.stats();
    let rows = site.counted().await.expect("answers").pages as usize;
    println!(
        "{invented} invented keys in {:?}; {pages} pages: {hits} hits of {visits} visits, {warm_hits} of {warm_visits} in the second half; \
         {rows} rows; memory {} of {} bytes",
        Duration::from_millis(100) * invented as u32,
        stats.memory_bytes,
        stats.memory_capacity,
    );
    assert!(
        warm_hits * 100 >= warm_visits * 99,
        "{warm_hits} of {warm_visits}"
    );
    assert!(stats.memory_bytes <= stats.memory_capacity);
    assert!(rows <= keys + pages, "{rows}");
}

/// Two routers with the same route and clones of one layer, told apart by the host.
#[tokio::test(start_paused = true)]
async fn a_service_never_generates_for_the_host_of_another() {
    use axum::routing::get;
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let layer = site
        .layer(Refresh::every(LONG))
        .key(perennial::Key::new().host());
    let shop = |owner: &'static str| {
        let page = move || async move { format!("the shop of {owner}") };
        Router::new().route("/{page}", get(page).layer(layer.clone()))
    };
    let visit = async |router: &Router, host: &str, path: &str| {
        let request = Request::get(path).header("host", host);
        let request = request.body(Body::empty()).expect("a request");
        let (_, body) = router.ask(request).await;
        String::from_utf8(body.to_vec()).expect("text")
    };
    let [ann, bob] = ["Ann", "Bob"].map(shop);
    for path in ["/x", "/y"] {
        assert_eq!(visit(&ann, "ann.example", path).await, "the shop of Ann");
        assert_eq!(visit(&bob, "bob.example", path).await, "the shop of Bob");
    }
    let request = |host: &str| {
        let request = Request::get("/x").header("host", host);
        request.body(()).expect("a request")
    };
    let [anns, bobs] = [(&ann, "ann.example"), (&bob, "bob.example")];
    for (router, host) in [anns, bobs, anns] {
        let done = site.regenerate(router.clone(), [request(host)]).await;
        assert!(matches!(done[0].result, Ok(Served::Generated)), "{host}");
    }
    // A path alone gives the request no host.
    let done = site.regenerate(ann.clone(), ["/x"]).await;
    assert!(matches!(done[0].result, Ok(Served::Bypass(Bypass::NoKey))));
    for path in ["/x", "/y"] {
        assert_eq!(visit(&ann, "ann.example", path).await, "the shop of Ann");
        assert_eq!(visit(&bob, "bob.example", path).await, "the shop of Bob");
    }
}

/// Invented keys, each asked for twice: the rows of pages and locks stay within the documented bound
/// for as long as it goes on, and are gone afterwards.
#[tokio::test(start_paused = true)]
async fn keys_that_are_invented_all_day_are_pruned_within_the_hour() {
    const LIMIT: usize = 20;
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let layer = site.layer(Refresh::every(LONG)).max_keys(LIMIT);
    let app = Router::new().fallback(async || "a page").layer(layer);
    let visit = async |path: String| get(&app, &path).await;
    let pages = async || site.counted().await.expect("answers").pages as usize;
    let locks = async || {
        let mut locks = 0;
        let mut after = None;
        loop {
            let never = Duration::MAX;
            let unused = Unused {
                released: never,
                expired: never,
                alone: never,
            };
            let call = Call::PruneLocks(PruneLocks {
                kind: LockKind::Page,
                unused,
                after: after.clone(),
            });
            let Reply::PruneLocks(next) = database.call(call).await.expect("answers") else {
                panic!("a name");
            };
            let Some(next) = next else { break locks };
            locks += 1;
            after = Some(next);
        }
    };
    let mut most = 0;
    for second in (0..24 * 3600).step_by(10) {
        for _ in 0..2 {
            visit(format!("/invented/{second}")).await;
        }
        perennial_testing::advance(Duration::from_secs(10)).await;
        if second % 600 == 0 {
            most = most.max(pages().await);
        }
    }
    assert!(most <= 5 * LIMIT, "{most}");
    let batches = locks().await;
    assert!(batches * 100 <= 10 * LIMIT, "{batches} times 100 locks");
    // A visitor of a real page an hour later.
    for _ in 0..4 {
        perennial_testing::advance(LONG).await;
        for _ in 0..3 {
            visit("/real".into()).await;
            perennial_testing::advance(Duration::from_secs(2)).await;
        }
    }
    let pages = pages().await;
    // The first invented keys were stored, as those of real pages are.
    assert!(pages <= LIMIT + 1, "{pages}");
}
