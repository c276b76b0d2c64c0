//! Content that is invalidated, purged, pruned or of an older revision regrows in every process; in
//! virtual time.

use std::{
    convert::Infallible,
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{any, get as route, post},
};
use futures_util::FutureExt;
use perennial::{
    Generation, Key, Perennial, Refresh, Tags,
    entries::{EntryFilter, EntryState},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use perennial_testkit::{
    Crowd, Origin, get,
    hooked::{Hook, Hooked, When},
    patient, request, until,
    virtual_time::{Process, Shared, here, synced},
};

const LONG: Duration = Duration::from_secs(3600);

/// Two processes.
fn pair(shared: &Shared, origin: &Origin) -> [Process; 2] {
    [(); 2].map(|()| Process::new(shared, origin))
}

#[tokio::test(start_paused = true)]
async fn pages_of_an_invalidated_prefix_or_tag_regrow_in_every_process() {
    let shared = Shared::new();
    let sites = [shared.site(), shared.site()];
    let runs = Arc::new(AtomicUsize::new(0));
    let [a, b] = sites.each_ref().map(|site| {
        let runs = Arc::clone(&runs);
        let page = move |Path(id): Path<u32>| async move {
            let run = runs.fetch_add(1, SeqCst) + 1;
            (
                Tags::new([format!("book-{id}")]),
                format!("run {run} of {id}"),
            )
        };
        let layer = || site.layer(Refresh::every(LONG).stale_while_revalidate(LONG));
        let app = Router::new()
            .route(
                "/books/{id}",
                route(page.clone()).layer(layer().tag("catalog")),
            )
            .route("/other/{id}", route(page).layer(layer()));
        here(app)
    });
    let paths = ["/books/1", "/books/2", "/other/1"];
    let all = async |address| {
        let mut all = Vec::new();
        for path in paths {
            all.push(get(address, path).await.run());
        }
        all
    };
    let mut old = all(a).await;
    assert_eq!(all(b).await, old);
    let (site, mut expected) = (&sites[0], 3);
    for (what, hit) in [
        ("invalidate tag catalog", [true, true, false]),
        ("invalidate tag book-1", [true, false, true]),
        ("invalidate tag book-", [false, false, false]),
        ("invalidate tag_prefix book-", [true, true, true]),
        ("invalidate tag_prefix cat", [true, true, false]),
        ("invalidate tag_prefix book-10", [false, false, false]),
        ("invalidate prefix /books/", [true, true, false]),
        ("invalidate prefix /", [true, true, true]),
        ("invalidate prefix ", [true, true, true]),
        ("purge tag book-1", [true, false, true]),
        ("purge tag book-", [false, false, false]),
        ("purge tag_prefix catalog", [true, true, false]),
        ("purge prefix /books/", [true, true, false]),
        ("purge prefix ", [true, true, true]),
    ] {
        let (how, text) = what.rsplit_once(' ').expect("words");
        match how {
            "invalidate tag" => site.invalidate_tag(text).await,
            "invalidate tag_prefix" => site.invalidate_tag_prefix(text).await,
            "invalidate prefix" => site.invalidate_prefix(text).await,
            "purge tag" => site.purge_tag(text).await,
            "purge tag_prefix" => site.purge_tag_prefix(text).await,
            _ => site.purge_prefix(text).await,
        }
        .expect("is done");
        for (path, hit) in paths.into_iter().zip(hit) {
            let is_removed = hit && what.starts_with("purge");
            assert_eq!(shared.entry(path).await.is_none(), is_removed, "{what}");
        }
        let new = all(a).await;
        let changed: Vec<_> = new.iter().zip(&old).map(|(new, old)| new != old).collect();
        assert_eq!(changed, hit, "{what}");
        synced().await;
        assert_eq!(all(b).await, new, "{what}");
        old = new;
        expected += hit.into_iter().filter(|hit| *hit).count();
    }
    assert_eq!(runs.load(SeqCst), expected, "each once for both");
    let long = site.purge_prefix(&"x".repeat(181)).await;
    assert!(long.expect_err("fails").to_string().contains("180 bytes"));
}

/// The visitors of a generation that a purge has overtaken share the next one.
#[tokio::test(start_paused = true)]
async fn crowd_that_waits_while_its_page_is_purged_causes_no_generation_for_each() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let [a, b] = pair(&shared, &origin);
    assert_eq!(a.run("/other").await, 1);
    for (round, purger) in [&a, &b].into_iter().enumerate() {
        let path = format!("/{round}");
        let before = origin.begun();
        origin.hold();
        let mut first = Crowd::visit(1, &[a.address], &path);
        until("a generates", async || origin.begun() == before + 1).await;
        let waiting = Crowd::visit(100, &[a.address, b.address], &path);
        tokio::time::sleep(Duration::from_millis(1)).await;
        purger.site.purge(&path).await.expect("is done");
        let late = Crowd::visit(100, &[a.address, b.address], &path);
        synced().await;
        // A request makes an idle process ask for invalidations.
        assert_eq!(a.run("/other").await, 1);
        origin.let_go();
        let first = first.first(1).await.into_iter();
        let others = waiting.rest().await.into_iter().chain(late.rest().await);
        for reply in first.chain(others) {
            assert_eq!(reply.status, 200);
            assert!(reply.run() > before + 1, "is not what was purged");
        }
        // The handler ran once before the purge and once after it. It may have run a third time, for the
        // visitor whose request started the first run.
        let generations = origin.begun() - before;
        assert!((2..=3).contains(&generations), "{generations}");
    }
}

/// In all processes, the age counts from the publish, and not from the start of the generator.
#[tokio::test(start_paused = true)]
async fn page_that_took_longer_than_its_interval_is_fresh_when_it_is_stored() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let interval = Duration::from_secs(8);
    let app = || {
        let layer = shared.site().layer(Refresh::every(interval));
        here(origin.router().layer(layer))
    };
    let (maker, other) = (app(), app());
    origin.hold();
    let crowd = Crowd::visit(1, &[maker], "/");
    tokio::time::sleep(interval * 5 / 4).await;
    origin.let_go();
    assert_eq!(crowd.rest().await[0].run(), 1);
    // The regeneration may still be ending.
    tokio::time::sleep(Duration::from_millis(1)).await;
    for address in [maker, other] {
        let reply = get(address, "/").await;
        assert_eq!(reply.headers["cache-status"], "perennial; hit; ttl=7");
        assert_eq!(reply.run(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_revision_makes_older_content_stale_once() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let process = |revision: &str| {
        let builder = patient().revision(revision);
        Process::with(&shared, builder, &origin, |layer| layer)
    };
    let old = process("1");
    assert_eq!([old.run("/p").await, old.run("/p").await], [1; 2]);
    // A new process of the same revision invalidates nothing.
    assert_eq!(process("1").run("/p").await, 1);

    // Followers get the old version during the regeneration.
    origin.hold();
    let new = process("2");
    let mut events = new.site.subscribe();
    let mut crowd = Crowd::visit(3, &[new.address], "/p");
    for reply in crowd.first(2).await {
        assert_eq!(reply.run(), 1);
    }
    origin.let_go();
    crowd.rest().await;
    assert_eq!(new.run("/p").await, 2);
    let told = std::iter::from_fn(|| events.try_next());
    let of_revision = |event| matches!(event, perennial::event::Event::Invalidated { name, .. } if name.starts_with("revision:"));
    assert_eq!(
        told.filter(|it| of_revision(it.clone())).count(),
        1,
        "a CDN is purged after a deploy"
    );
    synced().await;
    assert_eq!(
        old.run("/p").await,
        2,
        "the old code's process takes it over"
    );
    assert_eq!(process("2").run("/p").await, 2);

    // The two revisions come to rest after one or two generations, and it does not matter which of them
    // generates first.
    for (invalidator, other) in [(&old, &new), (&new, &old)] {
        let before = origin.begun();
        invalidator.site.invalidate("/p").await.expect("is done");
        for _ in 0..1000 {
            invalidator.run("/p").await;
            other.run("/p").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let made = origin.begun() - before;
        assert!((1..=2).contains(&made), "{made} times: they fight");
    }
    let last = new.run("/p").await;
    assert_eq!(new.run("/p").await, last);
    // The last version is from the new code.
    assert_eq!(process("2").run("/p").await, last);

    // When an old revision comes back, as in a rollback, it makes all pages stale once, like a new
    // revision. Processes of the other revision that still run do not regenerate its pages again
    // and again.
    let back = process("1");
    assert_eq!(back.run("/p").await, last + 1);
    assert_eq!(process("1").run("/p").await, last + 1);
    for process in [&old, &new, &back].into_iter().cycle().take(9) {
        process.run("/p").await;
    }
    let made = origin.begun();
    assert!(made <= last + 2, "{made}: they fight");
    assert_eq!(process("2").run("/p").await, made + 1);
}

#[tokio::test(start_paused = true)]
async fn successful_writing_request_invalidates_the_tags_of_its_layer() {
    let site = Shared::new().site();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let list = move || async move { format!("run {} of list", counted.fetch_add(1, SeqCst) + 1) };
    let waits = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::clone(&waits);
    let change = move |Path(status): Path<u16>| async move {
        match status {
            0 => {
                waiting.fetch_add(1, SeqCst);
                std::future::pending().await
            }
            status => StatusCode::from_u16(status)
                .expect("a status")
                .into_response(),
        }
    };
    let app = Router::new()
        .route(
            "/list",
            route(list).layer(site.layer(Refresh::every(LONG)).tag("list")),
        )
        .route(
            "/change/{status}",
            any(change).layer(site.invalidate_on_success(["list", "other"])),
        )
        .route(
            "/tagging",
            any(async || Tags::new(["list"])).layer(site.invalidate_by_response_tags()),
        );
    let address = here(app);
    let run = async || get(address, "/list").await.run();
    let mut current = run().await;
    for (method, path, changes) in [
        ("POST", "/change/200", true),
        ("PUT", "/change/204", true),
        ("DELETE", "/change/303", true),
        ("PATCH", "/change/201", true),
        ("POST", "/change/400", false),
        ("POST", "/change/409", false),
        ("POST", "/change/500", false),
        ("GET", "/change/200", false),
        ("HEAD", "/change/200", false),
        ("OPTIONS", "/change/200", false),
        ("POST", "/tagging", true),
    ] {
        let reply = request(address, method, path, &[]).await;
        let status = path.strip_prefix("/change/").unwrap_or("200");
        assert_eq!(reply.status.to_string(), status);
        let now = run().await;
        assert_eq!(now != current, changes, "{method} {path}");
        current = now;
    }
    // The outcome is unknown.
    let gone = tokio::spawn(async move { request(address, "POST", "/change/0", &[]).await });
    until("it is at it", async || waits.load(SeqCst) == 1).await;
    gone.abort();
    until("it is invalidated all the same", async || {
        run().await > current
    })
    .await;
    // The service begins its work when called, as a buffer does, and its answer is not awaited.
    current = run().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let change = service_fn(move |_: Request| {
        called.fetch_add(1, SeqCst);
        ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    });
    let mut change = site.invalidate_on_success(["list"]).layer(change);
    let request = Request::post("/").body(Body::empty()).expect("a request");
    drop(change.ready().await.expect("is ready").call(request));
    assert_eq!(calls.load(SeqCst), 1);
    until("it is invalidated, too", async || run().await > current).await;
}

#[tokio::test(start_paused = true)]
async fn long_unused_entries_are_pruned_by_requests() {
    const RETENTION: Duration = Duration::from_secs(24 * 3600);
    let (shared, origin) = (Shared::new(), Origin::default());
    let site = shared.open(patient().retention(RETENTION));
    let app = |every| here(origin.router().layer(site.layer(Refresh::every(every))));
    let (brief, long) = (app(Duration::from_secs(1)), app(10 * RETENTION));
    get(brief, "/unused").await;
    get(long, "/fresh").await;
    tokio::time::sleep(2 * RETENTION).await;
    assert!(
        shared.entry("/unused").await.is_some(),
        "nothing is done without a request"
    );
    until("what is unused is gone", async || {
        get(brief, "/used").await;
        tokio::time::sleep(RETENTION / 10).await;
        shared.entry("/unused").await.is_none() && shared.lock_of("/unused").await.is_none()
    })
    .await;
    assert!(shared.entry("/used").await.is_some());
    assert!(
        shared.entry("/fresh").await.is_some(),
        "it is not stale yet"
    );
    assert_eq!(get(long, "/fresh").await.run(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_purged_variant_never_comes_back() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let process = || {
        let builder = patient().retention(Duration::from_secs(1));
        Process::with(&shared, builder, &origin, |layer| {
            layer.key(Key::new().header("x-lang".parse().expect("a name")))
        })
    };
    let first = process();
    // A variant of a long key is stored as a digest, which a purge does not find.
    let path = format!("/{}", "p".repeat(170));
    let long = "de".repeat(20);
    let visit = async |process: &Process| {
        request(process.address, "GET", &path, &[("x-lang", &long)]).await
    };
    assert_eq!(visit(&first).await.run(), 1);
    first.site.purge(&path).await.expect("is done");
    // After this time, a purge is remembered only if an older version is still stored.
    for _ in 0..20 {
        first.run("/other").await;
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
    assert_ne!(visit(&process()).await.run(), 1, "it came back");
}

/// The pruning puts a purge of everything in the place of old invalidations.
#[tokio::test(start_paused = true)]
async fn page_from_before_old_invalidations_outlives_their_pruning() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let site = shared.open(patient().retention(Duration::from_secs(4)));
    let policy = Refresh::every(24 * LONG);
    let address = here(origin.router().layer(site.layer(&policy)));
    assert_eq!(get(address, "/p").await.run(), 1);
    for key in ["/old", "/older"] {
        site.purge(key).await.expect("is done");
    }
    for _ in 0..20 {
        tokio::time::sleep(LONG / 6).await;
        assert_eq!(get(address, "/p").await.run(), 1);
    }
    let other = here(origin.router().layer(shared.site().layer(&policy)));
    assert_eq!(get(other, "/p").await.run(), 1);
}

/// The entries are examined in steps of a hundred.
#[tokio::test(start_paused = true)]
async fn purge_is_not_forgotten_while_one_of_many_entries_is_older() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let builder = patient().retention(Duration::from_secs(30 * 24 * 3600));
    let process = Process::with(&shared, builder, &origin, |layer| layer);
    process.site.invalidate("/old").await.expect("is done");
    // This page comes first by its name, and it is the oldest one.
    assert_eq!(process.run("/0").await, 1);
    process.site.purge_tag("some").await.expect("is done");
    for page in 0..150 {
        process.run(&format!("/page-{page}")).await;
    }
    for _ in 0..48 {
        tokio::time::sleep(LONG / 2).await;
        process.run("/page-0").await;
    }
    let names = shared.invalidated().await;
    assert!(!names.contains(&"key:/old".to_owned()), "{names:?}");
    assert!(names.contains(&"purged_tag:some".to_owned()), "{names:?}");
}

/// A purge ends a cooldown, which another process may read in the middle of the purge.
#[tokio::test(start_paused = true)]
async fn cooldown_that_is_read_during_a_purge_ends_with_it() {
    let (shared, fails) = (Shared::new(), Arc::new(AtomicBool::new(true)));
    let app = |site: &Perennial| {
        let fails = Arc::clone(&fails);
        let page = route(async move || {
            if fails.load(SeqCst) {
                StatusCode::INTERNAL_SERVER_ERROR
            } else {
                StatusCode::OK
            }
        });
        let layer = site.layer(Refresh::every(LONG).cooldown(LONG));
        here(Router::new().route("/p", page.layer(layer)))
    };
    let other = shared.site();
    let there = app(&other);
    let hook: Hook = Arc::new(move |step, side| {
        Box::pin(async move {
            if (step, side) == ("purge", When::Before) {
                synced().await;
                assert_eq!(get(there, "/p").await.status, 503);
            }
        })
    });
    let store = Hooked {
        store: Box::new(shared.clone()),
        hook,
    };
    let site = patient().with_store(Box::new(store)).expect("opens");
    let here = app(&site);
    // The cooldowns of a page without a version get longer: 1 s, 2 s, 4 s, and so on. After these 100 s, the
    // page is in the middle of the seventh.
    for _ in 0..100 {
        assert_ne!(get(here, "/p").await.status, 200);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    fails.store(false, SeqCst);
    site.purge("/p").await.expect("is done");
    synced().await;
    assert_eq!(get(there, "/p").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn purged_page_is_not_served_by_a_process_that_slept_through_the_purge() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let builder = patient().retention(Duration::from_secs(4));
    let a = Process::with(&shared, builder, &origin, |layer| layer);
    let b = Process::new(&shared, &origin);
    assert_eq!([a.run("/p").await, b.run("/p").await], [1; 2]);
    a.site.invalidate("/old").await.expect("is done");
    a.site.purge("/p").await.expect("is done");
    // b does nothing, while the names are pruned.
    tokio::time::sleep(LONG).await;
    let mut names = Vec::new();
    until("it is pruned", async || {
        a.run("/q").await;
        names = shared.invalidated().await;
        !names.contains(&"key:/old".to_owned())
    })
    .await;
    assert_eq!(names, ["purged_prefix:"]);
    // Three visitors come at once. The first one starts a generator, and all three get its page.
    let begun = origin.begun();
    origin.hold();
    let crowd = Crowd::visit(3, &[b.address], "/p");
    until("it generates", async || origin.begun() == begun + 1).await;
    origin.let_go();
    let replies = crowd.rest().await;
    assert!(replies.iter().all(|reply| reply.run() == begun + 1));
}

/// Visitors who invent keys keep no page out that was stored before, and that another process purges.
#[tokio::test(start_paused = true)]
async fn purged_page_is_stored_again_while_visitors_invent_keys() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let layer = shared.site().layer(Refresh::every(24 * LONG)).max_keys(1);
    let app = here(origin.router().layer(layer));
    let run = async |path: &str| get(app, path).await.run();
    assert_eq!(run("/p").await, 1);
    // After this time the layer has forgotten the page's key. The page is still in memory, so it needs no
    // admission.
    for invented in 0..90 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let path = format!("/invented/{invented}");
        assert_ne!(run(&path).await, run(&path).await, "it is not stored");
    }
    shared.site().purge("/p").await.expect("is done");
    synced().await;
    let stored = run("/p").await;
    assert!(stored > 1);
    assert_eq!(run("/p").await, stored);
}

/// A deploy: the client leaves while the service is shutting down, and the process ends after that. `fails`:
/// the database fails meanwhile, as during a failover.
#[test]
fn change_whose_client_leaves_outlives_its_process() {
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime")
    };
    for fails in [false, true] {
        let database = perennial_testing::Database::new();
        runtime().block_on(async {
            let site = database.open(patient()).expect("opens");
            let list = async |generation: Generation| {
                generation.tag("list");
                Ok::<_, Infallible>("a list")
            };
            let content = site.content("list", Refresh::every(LONG), list).await;
            content.expect("is generated");
            let change = service_fn(|_: Request| pending::<Result<Response, Infallible>>());
            let mut change = site.invalidate_on_success(["list"]).layer(change);
            let request = Request::post("/").body(Body::empty()).expect("a request");
            let running = change.ready().await.expect("is ready").call(request);
            assert!(running.now_or_never().is_none(), "the client leaves");
            if fails {
                database.fail();
                let recovering = database.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    recovering.recover();
                });
            }
            site.shutdown().await;
        });
        runtime().block_on(async {
            let site = database.open(patient()).expect("opens");
            let page = site.entries(&EntryFilter::new()).await.expect("is listed");
            assert_eq!(page.entries[0].state, EntryState::Stale, "fails: {fails}");
        });
    }
}

/// As above, with a real server that shuts down gracefully. With `named`, only the response names the tag, so
/// the handler runs on.
#[test]
fn change_whose_client_leaves_a_server_that_shuts_down_is_stored() {
    use tokio::{io::AsyncWriteExt, net::TcpStream, sync::oneshot};

    const REQUEST: &[u8] = b"POST /change HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    for (round, named) in (0..20).flat_map(|round| [(round, false), (round, true)]) {
        let database = perennial_testing::Database::new();
        runtime().block_on(async {
            let site = database.open(patient()).expect("opens");
            let list = async |generation: Generation| {
                generation.tag("list");
                Ok::<_, Infallible>("a list")
            };
            let content = site.content("list", Refresh::every(LONG), list).await;
            content.expect("is generated");
            let begun = Arc::new(AtomicBool::new(false));
            let beginning = Arc::clone(&begun);
            let change = async move || {
                beginning.store(true, SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                Tags::from_iter(named.then_some("list"))
            };
            let layer = if named {
                site.invalidate_by_response_tags()
            } else {
                site.invalidate_on_success(["list"])
            };
            let app = Router::new().route("/change", post(change).layer(layer));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let listener = listener.expect("listens");
            let address = listener.local_addr().expect("has one");
            let (shut_down, shuts_down) = oneshot::channel::<()>();
            let serve = axum::serve(listener, app).with_graceful_shutdown(async {
                let _ = shuts_down.await;
            });
            let serve = tokio::spawn(serve.into_future());
            let mut client = TcpStream::connect(address).await.expect("connects");
            client.write_all(REQUEST).await.expect("is sent");
            until("it has begun", async || begun.load(SeqCst)).await;
            tokio::time::sleep(Duration::from_millis(round)).await;
            drop(client);
            let _ = shut_down.send(());
            serve.await.expect("no panic").expect("is served");
            site.shutdown().await;
        });
        runtime().block_on(async {
            let site = database.open(patient()).expect("opens");
            let page = site.entries(&EntryFilter::new()).await.expect("is listed");
            let state = page.entries[0].state;
            assert_eq!(state, EntryState::Stale, "{round}, named: {named}");
        });
    }
}
