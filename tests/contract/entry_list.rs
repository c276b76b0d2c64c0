//! The list of what is stored: keys, states, filters, pages and the history, on each database.

use std::{convert::Infallible, time::Duration};

use axum::{Router, http::StatusCode, routing::get};
use perennial::{
    DAY, Perennial, Refresh,
    entries::{EntryFilter, EntryState},
    event::Reason,
};
use perennial_testing::{self, advance};

use perennial_testkit::{Db, HANG, on_each_database, until};

on_each_database! {
    each_stored_page_is_listed_with_its_origin
    row_that_cannot_be_read_stops_no_list_and_no_purge
    name_that_cannot_be_read_stops_no_pruning_and_no_eviction
}

const MINUTE: Duration = Duration::from_secs(60);

async fn keys(site: &Perennial, filter: EntryFilter) -> Vec<String> {
    let page = site.entries(&filter).await.expect("is listed");
    page.entries.into_iter().map(|entry| entry.key).collect()
}

async fn each_stored_page_is_listed_with_its_origin(db: Db) {
    let builder = Perennial::builder().revision("7");
    let site = builder.with_pool(db.database().await).await.expect("opens");
    let books = site
        .layer(Refresh::every(DAY).stale_while_revalidate(DAY))
        .name("books");
    let app = Router::new()
        .route(
            "/books/{id}",
            get(async || "a book").layer(books.tag("catalog")),
        )
        .route(
            "/about",
            get(async || "about").layer(site.layer(Refresh::every(HANG))),
        );
    let long = format!("/books/{}", "ä<script>".repeat(60));
    let address = perennial_testkit::serve(app).await;
    for path in ["/books/1", "/books/2?q=1", "/about"] {
        assert_eq!(perennial_testkit::get(address, path).await.status, 200);
    }
    let encoded = long
        .replace('ä', "%C3%A4")
        .replace('<', "%3C")
        .replace('>', "%3E");
    assert_eq!(perennial_testkit::get(address, &encoded).await.status, 200);

    assert_eq!(
        keys(&site, EntryFilter::new()).await,
        ["/about", &encoded, "/books/1", "/books/2?q=1"]
    );
    assert_eq!(
        keys(&site, EntryFilter::new().prefix("/books/1")).await,
        ["/books/1"]
    );
    assert_eq!(
        keys(&site, EntryFilter::new().prefix(&encoded[..300])).await,
        [&*encoded]
    );
    assert_eq!(keys(&site, EntryFilter::new().prefix("/c")).await, [""; 0]);
    // A name with a NUL is stored as its beginning and a digest.
    let content = async || Ok::<_, Infallible>("x");
    let part = site.content("a\0bc", Refresh::every(HANG), content).await;
    part.expect("is stored");
    let named = keys(&site, EntryFilter::new().prefix("a\0b")).await;
    assert_eq!(named, ["a\0bc"]);
    site.purge("a\0bc").await.expect("is purged");
    assert_eq!(
        keys(&site, EntryFilter::new().tag("catalog")).await.len(),
        3
    );

    // A lease is released after the publish, and the visitor does not wait for that.
    let entry = async || site.entry("/books/1").await.expect("answers");
    until("its lease is released", async || {
        entry().await.is_some_and(|entry| entry.holder.is_none())
    })
    .await;
    let entry = entry().await.expect("is stored");
    assert_eq!(
        (entry.state, entry.status),
        (EntryState::Fresh, Some(StatusCode::OK))
    );
    assert_eq!((&*entry.layer, entry.interval), ("books", DAY));
    // The body of six bytes, two headers, and the metadata.
    assert!((100..500).contains(&entry.bytes), "{}", entry.bytes);
    assert_eq!(
        (entry.tags, entry.revision.as_deref()),
        (vec!["catalog".to_owned()], Some("7"))
    );
    assert!(entry.age < HANG && entry.next_regeneration > DAY - HANG);
    assert!(entry.memory_bytes.is_some_and(|bytes| bytes > entry.bytes));
    let [generation] = &entry.history[..] else {
        panic!("{:?}", entry.history)
    };
    assert_eq!(
        (generation.fence, generation.reason),
        (entry.fence, Reason::Miss)
    );
    assert_eq!((generation.bytes, generation.changed), (6, true));
    assert!(
        generation
            .process
            .ends_with(&format!(":{}", std::process::id()))
    );
    assert!(generation.began.elapsed().unwrap_or_default() < HANG);

    let response = site.stored_response("/books/1").await.expect("answers");
    assert_eq!(response.expect("is stored").body(), "a book");
    assert!(site.entry("/books").await.expect("answers").is_none());
    assert!(
        site.stored_response("/books")
            .await
            .expect("answers")
            .is_none()
    );

    // A second process, without the revision and without the page in memory.
    site.invalidate_tag("catalog").await.expect("is stored");
    let other = db.site().await;
    let stale = EntryFilter::new().state(EntryState::Stale);
    assert_eq!(
        keys(&other, stale).await,
        [&encoded, "/books/1", "/books/2?q=1"]
    );
    let entry = other
        .entry("/books/1")
        .await
        .expect("answers")
        .expect("is stored");
    assert_eq!(
        (entry.memory_bytes, entry.next_regeneration),
        (None, Duration::ZERO)
    );
}

#[tokio::test(start_paused = true)]
async fn state_of_an_entry_follows_its_age_and_its_failures() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let fails = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let failing = fails.clone();
    let page = async move || {
        if failing.load(std::sync::atomic::Ordering::SeqCst) {
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        } else {
            Ok("page")
        }
    };
    let policy = Refresh::every(MINUTE)
        .stale_while_revalidate(MINUTE)
        .cooldown(MINUTE / 2);
    let private = async || ([("cache-control", "private")], "mine");
    let app = Router::new()
        .route("/a", get(page).layer(site.layer(&policy)))
        .route("/mine", get(private).layer(site.layer(&policy)));
    let visit = async |path: &str| perennial_testkit::get(&app, path).await.status;
    let state = async |key: &str| {
        let entry = site.entry(key).await.expect("answers").expect("is known");
        (entry.state, entry.next_regeneration.as_secs())
    };
    assert_eq!(visit("/a").await, 200);
    advance(Duration::from_secs(10)).await;
    assert_eq!(state("/a").await, (EntryState::Fresh, 50));
    assert_eq!(visit("/a").await, 200, "again");
    advance(MINUTE).await;
    assert_eq!(state("/a").await, (EntryState::Stale, 0));
    fails.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(visit("/a").await, 200, "the old version");
    assert_eq!(state("/a").await, (EntryState::Cooldown, 30));
    advance(MINUTE).await;
    assert_eq!(state("/a").await, (EntryState::Expired, 0));
    fails.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(visit("/a").await, 200);
    let entry = site.entry("/a").await.expect("answers").expect("is stored");
    let history: Vec<_> = entry
        .history
        .iter()
        .map(|it| (it.reason, it.changed))
        .collect();
    assert_eq!(history, [(Reason::Expired, false), (Reason::Miss, true)]);

    assert_eq!(visit("/mine").await, 200);
    assert_eq!(state("/mine").await.0, EntryState::HitForPass);
    let filter = EntryFilter::new().state(EntryState::HitForPass);
    assert_eq!(keys(&site, filter).await, ["/mine"]);
    site.purge("/a").await.expect("is purged");
    assert!(site.entry("/a").await.expect("answers").is_none());
}

#[tokio::test(start_paused = true)]
async fn long_list_comes_in_pages() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let policy = Refresh::every(DAY);
    for n in 0..450 {
        let key = format!("part/{n:03}");
        let content = site.content(&key, &policy, async || Ok::<_, Infallible>("part"));
        content.await.expect("is generated");
    }
    let (mut filter, mut found, mut calls) =
        (EntryFilter::new().prefix("part/").limit(70), Vec::new(), 0);
    loop {
        let page = site.entries(&filter).await.expect("is listed");
        assert!(page.entries.len() <= 70);
        found.extend(page.entries.into_iter().map(|entry| entry.key));
        calls += 1;
        let Some(next) = page.next else { break };
        filter = filter.start_at(&next);
    }
    let all: Vec<_> = (0..450).map(|n| format!("part/{n:03}")).collect();
    assert_eq!((found, calls), (all, 7));
    let none = EntryFilter::new().prefix("part/").tag("nowhere");
    let page = site.entries(&none).await.expect("is listed");
    assert!(page.entries.is_empty() && page.next.is_none());
}

async fn row_that_cannot_be_read_stops_no_list_and_no_purge(db: Db) {
    let site = db.site().await;
    let policy = Refresh::every(DAY);
    for key in ["a/1", "a/2", "a/3", "a/4", "b/1"] {
        let content = async || Ok::<_, Infallible>("x");
        let stored = site.content(key, &policy, content).await;
        stored.expect("is stored");
    }
    until("they are stored", async || {
        db.int("SELECT COUNT(*) FROM perennial_entry").await == Some(5)
    })
    .await;
    // Such values may have been written by a program in another language, or by a faulty disk.
    for (key, change) in [
        ("a/1", "status = 70000"),
        ("a/2", "bytes = -1"),
        ("a/3", "metadata = 'no JSON'"),
    ] {
        let broken = format!("UPDATE perennial_entry SET {change} WHERE name = '{key}'");
        assert_eq!(db.execute(&broken).await, 1, "{key}");
    }
    break_name(&db, "a/4").await;
    assert_eq!(
        keys(&site, EntryFilter::new()).await,
        ["a/1", "a/2", "a/3", "b/1"]
    );
    assert_eq!(keys(&site, EntryFilter::new().limit(1)).await, ["a/1"]);
    let last = EntryFilter::new().start_at("a/4");
    assert_eq!(keys(&site, last).await, ["b/1"]);
    // A new process loads what it can read.
    let other = db.site().await;
    let content = other.content("b/1", policy, async || Ok::<_, Infallible>("y"));
    assert_eq!(content.await.expect("is stored").text(), "x");
    other.purge_prefix("a/").await.expect("is purged");
    assert_eq!(keys(&site, EntryFilter::new()).await, ["b/1"]);
}

/// Gives a stored page a name that is no text. PostgreSQL stores none, and loses the page.
async fn break_name(db: &Db, name: &str) {
    let broken = match db.url().split(':').next() {
        Some("postgres") => format!("DELETE FROM perennial_entry WHERE name = '{name}'"),
        Some("mysql") => {
            format!("UPDATE perennial_entry SET name = CONCAT(name, x'ff') WHERE name = '{name}'")
        }
        _ => format!(
            "UPDATE perennial_entry SET name = CAST(CAST(name AS BLOB) || x'ff' AS TEXT) WHERE name = '{name}'"
        ),
    };
    assert_eq!(db.execute(&broken).await, 1);
}

/// It is the last one, and the one that was read the longest time ago.
async fn name_that_cannot_be_read_stops_no_pruning_and_no_eviction(db: Db) {
    let store = db.store().await;
    for is_pruned in [true, false] {
        for key in ["/z", "/a"] {
            let name = perennial_store::LockName::of(perennial_store::LockKind::Page, key);
            let lease = perennial_testkit::store::lock(&*store, name, DAY).await;
            let entry = perennial_store::NewEntry {
                retention: Duration::ZERO,
                ..perennial_testkit::store::entry(&perennial_testkit::store::content(key))
            };
            let publish = perennial_store::Publish::new(&lease, entry);
            assert!(store.ask(publish).await.expect("answers"));
            let released = perennial_store::Release::new(&lease, Duration::ZERO);
            store.ask(released).await.expect("answers");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        break_name(&db, "/z").await;
        if is_pruned {
            let mut after = None;
            loop {
                let step = perennial_store::PruneEntries { after };
                match store.ask(step).await.expect("goes on") {
                    Some(pruned) => after = Some(pruned.last),
                    None => break,
                }
            }
        } else {
            let evict = perennial_store::Evict { excess: u64::MAX };
            assert!(store.ask(evict).await.expect("goes on") > 0);
        }
        let left = db.int("SELECT COUNT(*) FROM perennial_entry WHERE name = '/a'");
        assert_eq!(left.await, Some(0), "pruned: {is_pruned}");
        db.execute("DELETE FROM perennial_entry").await;
    }
}
