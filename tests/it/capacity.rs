//! The capacity of the store, in two processes.

use std::time::Duration;

use axum::{Extension, Router, routing::get};
use perennial::{Perennial, Refresh, Tags};
use perennial_testing::{Database, advance};

use crate::support;

/// The number of pages for which the store has room.
const ROOM: u64 = 10;

/// A page takes 10,000 bytes, 2 KiB, and some hundred bytes of headers and metadata.
const CAPACITY: u64 = ROOM * 12_500;

fn process(database: &Database, capacity: Option<u64>) -> (Perennial, Router) {
    let builder = Perennial::builder();
    let builder = match capacity {
        Some(capacity) => builder.store_capacity(capacity),
        None => builder,
    };
    let site = database.open(builder).expect("opens");
    let policy = Refresh::every(Duration::from_hours(100));
    let page = get(async || vec![b'x'; 10_000]).layer(site.layer(policy));
    (site, Router::new().route("/{n}", page))
}

/// A long path, whose name in the database is another one.
fn path(n: u64) -> String {
    format!("/{n}-{}", "x".repeat(200))
}

async fn visit(app: &Router, n: u64) {
    assert_eq!(support::get(app, &path(n)).await.status, 200);
}

async fn stored(site: &Perennial) -> Vec<u64> {
    let entries = site.latest(1000).await.expect("answers");
    let number = |key: &str| key[1..].split('-').next()?.parse().ok();
    let mut stored: Vec<_> = entries
        .iter()
        .filter_map(|entry| number(&entry.key))
        .collect();
    stored.sort_unstable();
    stored
}

#[tokio::test(start_paused = true)]
async fn pages_that_no_process_has_read_for_longest_leave_a_full_store() {
    let database = Database::new();
    let capacity = Some(CAPACITY);
    let [(site, one), (_, other)] = [(); 2].map(|()| process(&database, capacity));
    for n in 0..ROOM {
        visit(&one, n).await;
        visit(&other, n).await;
    }
    // For some hours each process reads a page of its own.
    for _ in 0..200 {
        advance(Duration::from_secs(90)).await;
        visit(&one, 0).await;
        visit(&other, 1).await;
    }
    assert_eq!(stored(&site).await, Vec::from_iter(0..ROOM));
    for n in ROOM..2 * ROOM - 2 {
        visit(&one, n).await;
    }
    for _ in 0..4 {
        advance(Duration::from_secs(61)).await;
        visit(&other, 1).await;
    }
    let expected: Vec<_> = [0, 1].into_iter().chain(ROOM..2 * ROOM - 2).collect();
    assert_eq!(stored(&site).await, expected);
    // A page that has left is generated again.
    visit(&process(&database, capacity).1, 5).await;
    assert_eq!(database.generations(&path(5)), 2);
}

/// A crawler fills the store anew each two or three minutes.
#[tokio::test(start_paused = true)]
async fn page_that_is_read_all_the_time_stays_while_others_come_and_go() {
    let database = Database::new();
    let capacity = Some(CAPACITY);
    let [(site, one), (_, other)] = [(); 2].map(|()| process(&database, capacity));
    for n in 0..200 {
        visit(&one, 0).await;
        visit(&other, 100 + n).await;
        advance(Duration::from_secs(15)).await;
    }
    let stored = stored(&site).await;
    assert!(stored.contains(&0) && stored.len() < 16, "{stored:?}");
    assert_eq!(database.generations(&path(0)), 1);
}

/// What was read while there was room does not count as read when the store fills up.
#[tokio::test(start_paused = true)]
async fn page_that_was_read_long_before_leaves_the_store_first() {
    let database = Database::new();
    let (site, app) = process(&database, Some(CAPACITY));
    for n in 0..7 {
        visit(&app, n).await;
    }
    for _ in 0..200 {
        advance(Duration::from_secs(90)).await;
        visit(&app, 0).await;
    }
    for n in 10..15 {
        visit(&app, n).await;
    }
    for _ in 0..4 {
        advance(Duration::from_secs(61)).await;
        visit(&app, 0).await;
    }
    let stored = stored(&site).await;
    assert_eq!(stored.len() as u64, ROOM);
    for n in [0].into_iter().chain(10..15) {
        assert!(stored.contains(&n), "{stored:?}");
    }
}

/// A visitor chooses the length of a key, up to 4 KiB, and the application the headers and tags.
#[tokio::test(start_paused = true)]
async fn long_keys_headers_and_tags_take_room() {
    const CAPACITY: usize = 1 << 20;
    for (kind, size) in [("key", 4_000), ("header", 30_000), ("tags", 30_000)] {
        let builder = Perennial::builder().store_capacity(CAPACITY as u64);
        let site = Database::new().open(builder).expect("opens");
        let size_of = move |it: &str| if kind == it { size } else { 1 };
        let page = get(async move || {
            let header = "x".repeat(size_of("header"));
            let tags = size_of("tags").div_ceil(100);
            let tags = Tags::new((0..tags).map(|n| format!("{n:0100}")));
            ([("x-long", header)], Extension(tags), "x")
        });
        let page = page.layer(site.layer(Refresh::every(Duration::from_hours(100))));
        let app = Router::new().route("/{n}", page);
        let room = CAPACITY / (size + 2048);
        for n in 0..2 * room {
            let path = format!("/{n}-{}", "x".repeat(size_of("key")));
            assert_eq!(support::get(&app, &path).await.status, 200);
        }
        for _ in 0..4 {
            advance(Duration::from_secs(61)).await;
            support::get(&app, "/1").await;
        }
        let stored = site.latest(1000).await.expect("answers").len();
        assert!((room * 8 / 10..=room).contains(&stored), "{kind}: {stored}");
    }
}
