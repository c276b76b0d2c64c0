//! Content that is told to regrow, and that every process hears of it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    extract::Path,
    http::StatusCode,
    response::IntoResponse,
    routing::{any, get as route},
};
use perennial::{Builder, Key, Perennial, Refresh, RefreshAfter, Tags, layer::RefreshLayer};

use crate::{
    databases::Db,
    support::{Crowd, Folder, Gateway, HANG, Origin, every, get, patient, request, until},
};

on_each_database! {
    an_invalidated_key_and_its_variants_regrow_in_every_process
    prefixes_and_tags_regrow_in_every_process
    what_is_invalidated_while_it_is_made_is_stale_when_it_is_made
    what_is_purged_is_not_served_any_more
    a_long_variant_that_is_made_while_it_is_purged_is_not_published
    content_that_took_longer_than_its_interval_is_fresh_when_it_is_made
    a_purge_ends_a_cooldown_in_every_process
    a_process_that_was_idle_serves_nothing_that_was_invalidated_meanwhile_as_fresh
    content_is_invalidated_and_purged_by_its_key
    a_new_revision_makes_older_content_stale_once
    what_is_told_to_regenerate_does_so_without_a_visitor
    a_route_that_changes_something_invalidates_what_shows_it
    two_processes_hear_of_everything_under_load
    long_unused_entries_are_pruned_by_requests
    a_purged_variant_never_comes_back
}

const LONG: Duration = Duration::from_secs(3600);
/// The sync interval, and a busy machine.
pub(crate) const HEARD: Duration = Duration::from_secs(2);

/// A site with a memory of its own, which stands for a process.
pub(crate) struct Process {
    pub(crate) site: Perennial,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) async fn new(
        db: &Db,
        origin: &Origin,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        Self::with(db, patient(), origin, layered).await
    }

    pub(crate) async fn with(
        db: &Db,
        builder: Builder,
        origin: &Origin,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        let site = builder.build(db.database().await).await.expect("opens");
        let layer = layered(site.layer(every(LONG)));
        let address = crate::support::serve(origin.router().layer(layer)).await;
        Self { site, address }
    }

    /// The run whose version is served.
    pub(crate) async fn run(&self, path: &str) -> usize {
        get(self.address, path).await.run()
    }
}

/// Two processes that have the same version of each path.
pub(crate) async fn pair(
    db: &Db,
    origin: &Origin,
    paths: &[&str],
    layered: impl Fn(RefreshLayer) -> RefreshLayer,
) -> [Process; 2] {
    let processes = [
        Process::new(db, origin, &layered).await,
        Process::new(db, origin, &layered).await,
    ];
    for path in paths {
        let run = processes[0].run(path).await;
        assert_eq!(processes[1].run(path).await, run, "{path}");
    }
    processes
}

/// Waits until a process has noticed that its version is not the newest.
pub(crate) async fn hears(process: &Process, path: &str, old: usize) -> usize {
    let mut run = old;
    until("it is heard of", async || {
        run = process.run(path).await;
        run != old
    })
    .await;
    run
}

async fn an_invalidated_key_and_its_variants_regrow_in_every_process(db: Db) {
    let origin = Origin::default();
    let by_header =
        |layer: RefreshLayer| layer.key(Key::new().header("x-kind".parse().expect("a name")));
    let [a, b] = pair(&db, &origin, &["/p?x=1", "/p?x=2", "/pp"], by_header).await;
    let kind = async |process: &Process| {
        let kind = [("x-kind", "blue")];
        request(process.address, "GET", "/p?x=1", &kind).await.run()
    };
    let blue = kind(&a).await;
    assert_eq!(kind(&b).await, blue);
    let others = [a.run("/p?x=2").await, a.run("/pp").await];
    let (plain, runs) = (a.run("/p?x=1").await, origin.begun());

    a.site.invalidate("/p?x=1").await.expect("is done");
    // The one whose request regenerates waits for it, unless the regeneration before is still ending.
    let new_plain = hears(&a, "/p?x=1", plain).await;
    until("its variant regrows", async || kind(&a).await != blue).await;
    let new_blue = kind(&a).await;
    assert!(new_plain > runs && new_blue > runs);
    assert_eq!(hears(&b, "/p?x=1", plain).await, new_plain);
    assert_eq!(kind(&b).await, new_blue);
    for process in [&a, &b] {
        assert_eq!(
            [process.run("/p?x=2").await, process.run("/pp").await],
            others
        );
    }
    assert_eq!(origin.begun(), runs + 2, "each was made once for both");
}

async fn prefixes_and_tags_regrow_in_every_process(db: Db) {
    let sites = [db.site().await, db.site().await];
    let runs = Arc::new(AtomicUsize::new(0));
    let mut addresses = Vec::new();
    for site in &sites {
        let runs = Arc::clone(&runs);
        let page = move |Path(id): Path<u32>| async move {
            let run = runs.fetch_add(1, SeqCst) + 1;
            (
                Extension(Tags::new([format!("book-{id}")])),
                format!("run {run} of {id}"),
            )
        };
        let layer = || site.layer(Refresh::every(LONG)).tag("catalog");
        let app = Router::new()
            .route("/books/{id}", route(page.clone()).layer(layer()))
            .route(
                "/other/{id}",
                route(page).layer(site.layer(Refresh::every(LONG))),
            );
        addresses.push(crate::support::serve(app).await);
    }
    let paths = ["/books/1", "/books/2", "/other/1"];
    let all = async |address| {
        let mut all = Vec::new();
        for path in paths {
            all.push(get(address, path).await.run());
        }
        all
    };
    let [a, b] = [addresses[0], addresses[1]];
    let mut old = all(a).await;
    assert_eq!(all(b).await, old);
    for (what, hit) in [
        ("tag catalog", [true, true, false]),
        ("tag book-1", [true, false, true]),
        ("tag book-", [false, false, false]),
        ("prefix /books/", [true, true, false]),
        ("prefix /", [true, true, true]),
        ("prefix ", [true, true, true]),
    ] {
        match what.split_once(' ').expect("two words") {
            ("tag", tag) => sites[0].invalidate_tag(tag).await,
            (_, prefix) => sites[0].invalidate_prefix(prefix).await,
        }
        .expect("is done");
        let mut new = all(a).await;
        let changed = |new: &[usize]| -> Vec<_> {
            let pairs = new.iter().zip(&old);
            pairs.map(|(new, old)| new != old).collect()
        };
        // The regeneration before may still be ending.
        until(what, async || {
            new = all(a).await;
            changed(&new) == hit
        })
        .await;
        until(what, async || all(b).await == new).await;
        old = new;
    }
    assert_eq!(
        runs.load(SeqCst),
        3 + 2 + 2 + 2 + 3 + 3,
        "each once for both"
    );
}

async fn what_is_invalidated_while_it_is_made_is_stale_when_it_is_made(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &[], |layer| layer).await;
    for (round, invalidator) in [&a, &b].into_iter().enumerate() {
        let path = format!("/{round}");
        let before = origin.begun();
        origin.hold();
        let first = Crowd::visit(1, &[a.address], &path);
        until("a generates", async || origin.begun() == before + 1).await;
        invalidator.site.invalidate(&path).await.expect("is done");
        origin.let_go();
        assert_eq!(first.rest().await[0].run(), before + 1);
        assert_eq!(hears(&a, &path, before + 1).await, before + 2);
        assert_eq!(b.run(&path).await, before + 2);
        assert_eq!(origin.begun(), before + 2);
    }
}

async fn what_is_purged_is_not_served_any_more(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/p", "/q", "/later"], |layer| layer).await;
    let (q, later) = (a.run("/q").await, a.run("/later").await);
    a.site.purge("/p").await.expect("is done");
    assert_eq!(db.entry("/p").await, None, "is gone");
    assert!(db.entry("/q").await.is_some());
    // The other process, once it has heard of what was invalidated later, has heard of the purge.
    a.site.invalidate("/later").await.expect("is done");
    hears(&b, "/later", later).await;
    // Nobody gets the old one while a new one is made.
    origin.hold();
    let begun = origin.begun();
    let mut crowd = Crowd::visit(10, &[a.address, b.address], "/p");
    until("it is generated", async || origin.begun() == begun + 1).await;
    crowd.another(a.address, "/p");
    crowd.another(b.address, "/p");
    origin.let_go();
    let replies = crowd.rest().await;
    assert!(
        replies.iter().all(|reply| reply.run() == begun + 1),
        "{replies:?}"
    );
    assert_eq!([a.run("/q").await, b.run("/q").await], [q; 2]);

    // What is being made is not published, and is not what the next visitor gets.
    let begun = origin.begun();
    origin.hold();
    a.site.invalidate("/p").await.expect("is done");
    let mut crowd = Crowd::visit(1, &[a.address], "/p");
    until("a generates", async || {
        // The one before may still be ending.
        crowd.another(a.address, "/p");
        origin.begun() == begun + 1
    })
    .await;
    b.site.purge("/p").await.expect("is done");
    origin.let_go();
    crowd.rest().await;
    assert!(b.run("/p").await > begun + 1);
    hears(&a, "/p", begun + 1).await;
    let (_, stored) = db.entry("/p").await.expect("is there again");
    assert!(
        !stored.starts_with(&format!("run {} ", begun + 1)),
        "{stored}"
    );
}

async fn a_long_variant_that_is_made_while_it_is_purged_is_not_published(db: Db) {
    let origin = Origin::default();
    let keyed =
        |layer: RefreshLayer| layer.key(Key::new().header("x-lang".parse().expect("a name")));
    let process = Process::new(&db, &origin, keyed).await;
    let long = "de".repeat(200);
    let visit = async || request(process.address, "GET", "/p", &[("x-lang", &long)]).await;
    assert_eq!(visit().await.run(), 1);
    let stored = async || {
        let count = "SELECT count(*) FROM perennial_entry";
        db.int(count).await.expect("a number")
    };
    assert_eq!(stored().await, 1);
    process.site.invalidate("/p").await.expect("is done");
    origin.hold();
    let made = {
        let (address, long) = (process.address, long.clone());
        tokio::spawn(async move { request(address, "GET", "/p", &[("x-lang", &long)]).await })
    };
    until("it generates", async || origin.begun() == 2).await;
    process.site.purge("/p").await.expect("is done");
    assert_eq!(stored().await, 0);
    origin.let_go();
    made.await.expect("is answered");
    until("it has ended", async || origin.ended() >= 2).await;
    process.site.shutdown().await;
    assert_eq!(stored().await, 0, "it was published");
}

async fn a_purge_ends_a_cooldown_in_every_process(db: Db) {
    let origin = Origin::default();
    origin.status(500);
    let sites = [db.site().await, db.site().await];
    let mut addresses = Vec::new();
    for site in &sites {
        let layer = site.layer(Refresh::every(LONG).retry_after(LONG));
        addresses.push(crate::support::serve(origin.router().layer(layer)).await);
    }
    let status = async |process: usize| get(addresses[process], "/").await.status;
    assert_eq!([status(0).await, status(1).await], [500, 503]);
    origin.status(200);
    assert_eq!([status(0).await, status(1).await], [503, 503]);
    sites[0].purge("/").await.expect("is done");
    until("it is tried again", async || status(0).await == 200).await;
    until("the other hears of it", async || status(1).await == 200).await;
    assert_eq!(origin.begun(), 2);
}

/// Its age counts from the publish, in all processes, and not from when it was begun.
async fn content_that_took_longer_than_its_interval_is_fresh_when_it_is_made(db: Db) {
    let origin = Origin::default();
    let interval = Duration::from_secs(8);
    let app = async || {
        let layer = db.site().await.layer(Refresh::every(interval));
        crate::support::serve(origin.router().layer(layer)).await
    };
    let (maker, other) = (app().await, app().await);
    origin.hold();
    let crowd = Crowd::visit(1, &[maker], "/");
    until("it generates", async || origin.begun() == 1).await;
    tokio::time::sleep(interval * 5 / 4).await;
    origin.let_go();
    assert_eq!(crowd.rest().await[0].run(), 1);
    for address in [maker, other] {
        let reply = get(address, "/").await;
        let status = reply.headers["cache-status"].to_str().expect("text");
        assert!(
            status.starts_with("perennial; hit; ttl=") && !status.contains('-'),
            "{status}"
        );
        assert_eq!(reply.run(), 1);
    }
    assert_eq!(origin.begun(), 1);
}

async fn a_process_that_was_idle_serves_nothing_that_was_invalidated_meanwhile_as_fresh(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/p", "/q"], |layer| layer).await;
    for _ in 0..2 {
        a.site.invalidate("/p").await.expect("is done");
        // For longer than it relies on what it knows.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let begun = origin.begun();
        assert_eq!(b.run("/p").await, begun + 1);
        assert_eq!(a.run("/p").await, begun + 1);
        assert_eq!(a.run("/q").await, 2, "all else is as it was");
    }
}

async fn content_is_invalidated_and_purged_by_its_key(db: Db) {
    let sites = [db.site().await, db.site().await];
    let runs = Arc::new(AtomicUsize::new(0));
    const POLICY: Refresh = every(LONG);
    let content = async |site: &Perennial, key: &str| {
        let runs = Arc::clone(&runs);
        let run = || async move {
            let run = runs.fetch_add(1, SeqCst) + 1;
            Ok::<_, std::io::Error>(run.to_string())
        };
        let content = site.content(key, &POLICY, run).await.expect("is made");
        content.text().parse::<usize>().expect("a run")
    };
    for key in ["side/top", "side/new"] {
        let run = content(&sites[0], key).await;
        assert_eq!(content(&sites[1], key).await, run);
    }
    sites[0].invalidate("side/top").await.expect("is done");
    // Here at once, unless the regeneration before is still ending; then there.
    for site in &sites {
        until("it is heard of", async || {
            content(site, "side/top").await == 3
        })
        .await;
    }
    sites[1].invalidate_prefix("side/").await.expect("is done");
    until("it regrows", async || {
        content(&sites[1], "side/new").await == 4
    })
    .await;
    sites[1].purge("side/new").await.expect("is done");
    assert_eq!(content(&sites[1], "side/new").await, 5);
    assert!(
        !sites[0]
            .regenerate_now("side/top")
            .await
            .expect("is no error")
    );
    assert_eq!(runs.load(SeqCst), 5);
    let error = sites[0].invalidate_prefix(&"x".repeat(181)).await;
    assert!(
        error
            .expect_err("is too long")
            .to_string()
            .contains("180 bytes")
    );
}

async fn a_new_revision_makes_older_content_stale_once(db: Db) {
    let origin = Origin::default();
    let process = async |revision: &str| {
        let builder = patient().revision(revision);
        Process::with(&db, builder, &origin, |layer| layer).await
    };
    let old = process("1").await;
    let first = old.run("/p").await;
    assert_eq!(
        old.run("/p").await,
        first,
        "the first revision makes nothing stale that it has made"
    );
    // A process of the same revision is nothing new.
    assert_eq!(process("1").await.run("/p").await, first);

    // Served while it regrows, for those whose request does not regenerate it.
    origin.hold();
    let new = process("2").await;
    let mut crowd = Crowd::visit(3, &[new.address], "/p");
    for reply in crowd.first(2).await {
        assert_eq!(reply.run(), first);
    }
    origin.let_go();
    crowd.rest().await;
    assert_eq!(hears(&new, "/p", first).await, first + 1);
    assert_eq!(
        hears(&old, "/p", first).await,
        first + 1,
        "the old code's processes take it over"
    );
    assert_eq!(process("2").await.run("/p").await, first + 1);

    // Side by side they settle, whoever makes it first.
    for (invalidator, other) in [(&old, &new), (&new, &old)] {
        let before = origin.begun();
        invalidator.site.invalidate("/p").await.expect("is done");
        let start = Instant::now();
        while start.elapsed() < 2 * HEARD {
            invalidator.run("/p").await;
            other.run("/p").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let made = origin.begun() - before;
        assert!((1..=2).contains(&made), "{made} times: they fight");
    }
    let last = new.run("/p").await;
    assert_eq!(new.run("/p").await, last);
    // And what is there last was made by the new code.
    let newest = process("2").await;
    assert_eq!(newest.run("/p").await, last);
}

async fn what_is_told_to_regenerate_does_so_without_a_visitor(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/p"], |layer| layer).await;
    assert!(a.site.regenerate_now("/p").await.expect("is made"));
    assert_eq!(origin.begun(), 2);
    assert_eq!(a.run("/p").await, 2);
    assert_eq!(hears(&b, "/p", 1).await, 2);
    assert!(b.site.regenerate_now("/p").await.expect("is made"));
    assert_eq!(b.run("/p").await, 3);
    assert!(
        !a.site
            .regenerate_now("/unknown")
            .await
            .expect("is no error")
    );

    // One that began before is not enough.
    origin.hold();
    b.site.invalidate("/p").await.expect("is done");
    let mut crowd = Crowd::visit(1, &[b.address], "/p");
    until("b generates", async || {
        // The one before may still be ending.
        crowd.another(b.address, "/p");
        origin.begun() == 4
    })
    .await;
    let epoch = "SELECT max(epoch) FROM perennial_invalidation";
    let before = db.int(epoch).await;
    let told = tokio::spawn({
        let site = b.site.clone();
        async move { site.regenerate_now("/p").await }
    });
    until("it is invalidated", async || db.int(epoch).await > before).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!told.is_finished());
    origin.let_go();
    assert!(told.await.expect("no panic").expect("is made"));
    crowd.rest().await;
    assert_eq!((origin.begun(), b.run("/p").await), (5, 5));

    // Who asks for it is told that it failed; visitors have the old version.
    origin.status(500);
    let error = b.site.regenerate_now("/p").await.expect_err("has failed");
    assert!(
        error.is_generator() && error.to_string().contains("500"),
        "{error}"
    );
    assert_eq!(b.run("/p").await, 5);
}

async fn a_route_that_changes_something_invalidates_what_shows_it(db: Db) {
    let site = db.site().await;
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
            any(change).layer(site.invalidates(["list", "other"])),
        )
        .route(
            "/tagging",
            any(async || Extension(Tags::new(["list"]))).layer(site.invalidates(["nothing"])),
        );
    let address = crate::support::serve(app).await;
    let run = async || get(address, "/list").await.run();
    let mut current = run().await;
    for (method, status, changes) in [
        ("POST", 200, true),
        ("PUT", 204, true),
        ("DELETE", 303, true),
        ("PATCH", 201, true),
        ("POST", 400, false),
        ("POST", 409, false),
        ("POST", 500, false),
        ("GET", 200, false),
        ("HEAD", 200, false),
        ("OPTIONS", 200, false),
    ] {
        let reply = request(address, method, &format!("/change/{status}"), &[]).await;
        assert_eq!(reply.status, status);
        if changes {
            // The regeneration before may still be ending.
            until("it regrows", async || run().await != current).await;
        }
        assert_eq!(run().await != current, changes, "{method} {status}");
        current = run().await;
    }
    let reply = request(address, "POST", "/tagging", &[]).await;
    assert_eq!(reply.status, 200);
    until("it regrows", async || run().await != current).await;
    current = run().await;
    // What has come of it is not known.
    let gone = tokio::spawn(async move { request(address, "POST", "/change/0", &[]).await });
    until("it is at it", async || waits.load(SeqCst) == 1).await;
    gone.abort();
    until("it is invalidated all the same", async || {
        run().await > current
    })
    .await;
}

/// 10,000 stored pages, each with one of ten tags.
async fn fill(db: &Db) {
    let digits = crate::databases::four_digits();
    let (concat, bytes, headers) = match db.url().split(':').next().expect("a scheme") {
        "mysql" => (
            "concat('/page/', a.d, b.d, c.d, d.d)",
            "''",
            "concat('epoch=0&tag=t', d.d)",
        ),
        "postgres" => (
            "'/page/' || a.d || b.d || c.d || d.d",
            "''::bytea",
            "'epoch=0&tag=t' || d.d",
        ),
        _ => (
            "'/page/' || a.d || b.d || c.d || d.d",
            "x''",
            "'epoch=0&tag=t' || d.d",
        ),
    };
    let body = match db.url().starts_with("postgres") {
        true => "'run 0 of a page'::bytea",
        false => "'run 0 of a page'",
    };
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .expect("is later")
        .as_micros();
    let sql = format!(
        "INSERT INTO perennial_entry (entry_key, fence, generated_at, keep_until, notes, status, headers, body)
        SELECT {concat}, 1, {now}, {now} + 3600000000, {headers}, 200, {bytes}, {body}
        FROM {digits}"
    );
    assert_eq!(db.execute(&sql).await, 10_000);
}

const VISITORS: usize = 8;

/// A gateway in a process of its own and this one, both with all pages in memory and visitors.
async fn two_processes_hear_of_everything_under_load(db: Db) {
    let origin = Origin::default();
    let here = Process::new(&db, &origin, |layer| layer).await;
    fill(&db).await;
    let gateway = Gateway::start(origin.serve().await, db.url(), "--every 1h --in-background");
    let addresses = [gateway.address, here.address];
    let pages: Vec<_> = (0..10_000).map(|page| format!("/page/{page:04}")).collect();
    let known = Arc::new(AtomicUsize::new(0));
    let load = |from: usize| {
        let (pages, known) = (pages.clone(), Arc::clone(&known));
        tokio::spawn(async move {
            let mut client = Client::new(addresses);
            for page in pages.iter().skip(from).step_by(VISITORS) {
                for address in 0..2 {
                    assert_eq!(client.visit(address, page).await, (0, false), "{page}");
                }
            }
            known.fetch_add(1, SeqCst);
            for page in pages.iter().cycle().skip(from).step_by(7) {
                for address in 0..2 {
                    client.visit(address, page).await;
                }
            }
        })
    };
    let loads: Vec<_> = (0..VISITORS).map(load).collect();
    let mut client = Client::new(addresses);
    // Each visit has a limit; all of them together take as long as the machine takes.
    while known.load(SeqCst) < VISITORS {
        assert!(loads.iter().all(|load| !load.is_finished()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(origin.begun(), 0, "all of them are stored");

    let fresh = (0, false);
    for (what, page, other) in [
        ("key", "/page/0000", "/page/0001"),
        ("prefix", "/page/1234", "/page/1300"),
        ("tag", "/page/5557", "/page/5558"),
    ] {
        for address in 0..2 {
            assert_eq!(client.visit(address, page).await, fresh);
        }
        match what {
            "key" => here.site.invalidate(page).await,
            "prefix" => here.site.invalidate_prefix("/page/12").await,
            _ => here.site.invalidate_tag("t7").await,
        }
        .expect("is done");
        client.hears(page).await;
        for address in 0..2 {
            assert_eq!(client.visit(address, other).await, fresh);
        }
    }
    // A new revision's first process is a third one.
    let builder = patient().revision("2");
    let third = Process::with(&db, builder, &origin, |layer| layer).await;
    third.run("/").await;
    for page in ["/page/8888", "/page/9999"] {
        client.hears(page).await;
    }
    for load in loads {
        assert!(!load.is_finished(), "a visitor was not answered");
        load.abort();
    }
}

/// A visitor who keeps the connections.
struct Client {
    client: hyper_util::client::legacy::Client<
        hyper_util::client::legacy::connect::HttpConnector,
        http_body_util::Empty<bytes::Bytes>,
    >,
    addresses: [SocketAddr; 2],
}

impl Client {
    fn new(addresses: [SocketAddr; 2]) -> Self {
        let executor = hyper_util::rt::TokioExecutor::new();
        let client = hyper_util::client::legacy::Client::builder(executor).build_http();
        Self { client, addresses }
    }

    /// The run whose version is served, and whether it is known to be stale.
    async fn visit(&mut self, address: usize, path: &str) -> (usize, bool) {
        use http_body_util::BodyExt;

        let uri = format!("http://{}{path}", self.addresses[address]);
        let exchange = async {
            let reply = self.client.get(uri.parse().expect("a URI"));
            let (head, body) = reply.await.expect("an answer").into_parts();
            assert_eq!(head.status, 200, "{path}");
            let status = head.headers["cache-status"].to_str().expect("text");
            let body = body.collect().await.expect("a body").to_bytes();
            (status.contains("ttl=-"), body)
        };
        let (stale, body) = tokio::time::timeout(HANG, exchange)
            .await
            .expect("does not hang");
        let body = std::str::from_utf8(&body).expect("text");
        let run = body.split(' ').nth(1).and_then(|run| run.parse().ok());
        (run.unwrap_or_else(|| panic!("{path}: {body}")), stale)
    }

    /// Waits until each process knows that its version is stale, or has a new one.
    async fn hears(&mut self, path: &str) {
        for address in 0..2 {
            until(path, async || self.visit(address, path).await != (0, false)).await;
        }
    }
}

async fn long_unused_entries_are_pruned_by_requests(db: Db) {
    let origin = Origin::default();
    const RETENTION: Duration = Duration::from_secs(3);
    let builder = patient().retention(RETENTION);
    let site = builder.build(db.database().await).await.expect("opens");
    let app = |every| origin.router().layer(site.layer(Refresh::every(every)));
    let brief = crate::support::serve(app(Duration::from_millis(100))).await;
    let long = crate::support::serve(app(LONG)).await;
    get(brief, "/unused").await;
    get(long, "/fresh").await;
    let locks = async |path: &str| {
        let sql = format!("SELECT count(*) FROM perennial_lock WHERE name = 'refresh/{path}'");
        db.int(&sql).await
    };
    assert_eq!(
        [locks("/unused").await, locks("/fresh").await],
        [Some(1); 2]
    );
    tokio::time::sleep(4 * RETENTION / 3).await;
    assert!(
        db.entry("/unused").await.is_some(),
        "nothing is done without a request"
    );
    until("what is unused is gone", async || {
        get(brief, "/used").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        db.entry("/unused").await.is_none() && locks("/unused").await == Some(0)
    })
    .await;
    assert!(db.entry("/used").await.is_some());
    assert!(db.entry("/fresh").await.is_some(), "it is not stale yet");
    let runs = origin.begun();
    assert_eq!(get(long, "/fresh").await.run(), 2);
    assert_eq!(origin.begun(), runs);
}

async fn a_purged_variant_never_comes_back(db: Db) {
    let origin = Origin::default();
    let keyed =
        |layer: RefreshLayer| layer.key(Key::new().header("x-lang".parse().expect("a name")));
    let builder = || Perennial::builder().retention(Duration::from_secs(1));
    let process = Process::with(&db, builder(), &origin, keyed).await;
    // A variant of a key so long that the variant's own is stored as a digest, which a purge does not find.
    let path = format!("/{}", "p".repeat(170));
    let long = "de".repeat(20);
    let visit = async |process: &Process| {
        request(process.address, "GET", &path, &[("x-lang", &long)]).await
    };
    assert_eq!(visit(&process).await.run(), 1);
    until("it is stored", async || {
        db.int("SELECT count(*) FROM perennial_entry").await == Some(1)
    })
    .await;
    process.site.purge(&path).await.expect("is done");
    // Two hours pass.
    db.execute("UPDATE perennial_invalidation SET epoch = epoch - 7200000000")
        .await;
    let pruned = async || {
        db.int("SELECT fence FROM perennial_lock WHERE name = 'perennial/prune' AND owner IS NULL")
            .await
    };
    until("it is pruned", async || {
        process.run("/other").await;
        pruned().await.is_some()
    })
    .await;
    assert_eq!(
        db.int("SELECT count(*) FROM perennial_entry").await,
        Some(2)
    );
    let other = Process::with(&db, builder(), &origin, keyed).await;
    assert_ne!(visit(&other).await.run(), 1, "it came back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_says_when_its_response_is_stale() {
    const BRIEF: Duration = Duration::from_secs(4);
    let folder = crate::support::Folder::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let (site, runs) = (folder.site().await, Arc::clone(&runs));
        let page = move || async move {
            let run = runs.fetch_add(1, SeqCst) + 1;
            let after = if run == 1 { BRIEF } else { LONG };
            (Extension(RefreshAfter(after)), format!("run {run} of page"))
        };
        let app = Router::new().route("/", route(page).layer(site.layer(every(LONG))));
        addresses.push(crate::support::serve(app).await);
    }
    assert_eq!(get(addresses[0], "/").await.run(), 1);
    assert_eq!(get(addresses[1], "/").await.run(), 1);
    tokio::time::sleep(BRIEF).await;
    // The other process knows it as well, and the new version lasts as long as it says.
    until("it regrows", async || {
        get(addresses[1], "/").await.run() == 2
    })
    .await;
    tokio::time::sleep(BRIEF).await;
    let both = [
        get(addresses[0], "/").await.run(),
        get(addresses[1], "/").await.run(),
    ];
    assert_eq!(both, [2; 2]);
}

#[tokio::test]
async fn invalidation_that_means_nothing_in_memory_is_logged_at_debug() {
    let folder = Folder::new();
    let site = folder.site().await;
    let policy = Refresh::every(Duration::from_secs(3600));
    let generate = || async { Ok::<_, std::convert::Infallible>("x") };
    let content = site.content("side/bar", &policy, generate).await;
    content.expect("is made");
    let log = Arc::new(std::fs::File::create(folder.path().join("log")).expect("a file"));
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
    let subscriber = subscriber.with_ansi(false).with_writer(log).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    for known in ["side/bar", "side/baz"] {
        site.invalidate(known).await.expect("answers");
        site.invalidate_prefix(known).await.expect("answers");
    }
    site.invalidate_prefix("side/").await.expect("answers");
    site.invalidate_tag("lists").await.expect("answers");
    site.purge("side/baz").await.expect("answers");
    site.purge("side/bar").await.expect("answers");
    let log = std::fs::read_to_string(folder.path().join("log")).expect("text");
    let lines = log
        .lines()
        .filter(|line| line.contains("nothing in this process's memory"));
    let names: Vec<_> = lines
        .filter_map(|line| line.split("name=").nth(1))
        .collect();
    let misspelt = [
        r#""key:side/baz""#,
        r#""prefix:side/baz""#,
        r#""tag:lists""#,
        r#""purged:side/baz""#,
    ];
    assert_eq!(names, misspelt, "{log}");
}
