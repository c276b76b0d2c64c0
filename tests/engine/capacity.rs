//! The capacity of the store, in two processes.

use std::time::Duration;

use axum::{Extension, Router, http::StatusCode, routing::get};
use perennial::{Perennial, Refresh, Tags};
use perennial_testing::{Database, advance};

/// The number of pages for which the store has room.
const ROOM: u64 = 10;

/// A page takes 10,000 bytes, 2 KiB, and some hundred bytes of headers and metadata.
const CAPACITY: u64 = ROOM * 12_500;

fn process(database: &Database, capacity: Option<u64>, interval: Duration) -> (Perennial, Router) {
    let builder = Perennial::builder();
    let builder = match capacity {
        Some(capacity) => builder.store_capacity(capacity),
        None => builder,
    };
    let site = database.open(builder).expect("opens");
    let policy = Refresh::every(interval);
    let page = get(async || vec![b'x'; 10_000]).layer(site.layer(&policy));
    (site, Router::new().route("/{n}", page))
}

/// A long path, whose name in the database is another one.
fn path(n: u64) -> String {
    format!("/{n}-{}", "x".repeat(200))
}

async fn visit(app: &Router, n: u64) {
    assert_eq!(perennial_testkit::get(app, &path(n)).await.status, 200);
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

/// Pages with an interval of an hour, visited each five minutes, and others that nobody asks for again.
#[tokio::test(start_paused = true)]
async fn pages_that_have_been_stale_for_longest_leave_a_full_store() {
    let database = Database::new();
    let [(site, one), (_, other)] =
        [(); 2].map(|()| process(&database, Some(CAPACITY), Duration::from_hours(1)));
    for n in 0..ROOM {
        visit(&one, n).await;
    }
    for _ in 0..50 {
        advance(Duration::from_mins(5)).await;
        visit(&one, 0).await;
        visit(&other, 1).await;
    }
    assert_eq!(stored(&site).await, Vec::from_iter(0..ROOM));
    for n in ROOM..2 * ROOM - 2 {
        visit(&one, n).await;
    }
    advance(Duration::from_secs(61)).await;
    visit(&other, 1).await;
    advance(Duration::from_secs(61)).await;
    let expected: Vec<_> = [0, 1].into_iter().chain(ROOM..2 * ROOM - 2).collect();
    assert_eq!(stored(&site).await, expected);
    // A page that was evicted is generated again.
    let (_, third) = process(&database, Some(CAPACITY), Duration::from_hours(1));
    visit(&third, 5).await;
    assert_eq!(database.generations(&path(5)), 2);
}

/// Its interval lasts for thirty days, in which it is generated once.
#[tokio::test(start_paused = true)]
async fn visited_page_with_a_long_interval_stays_beside_a_crawler() {
    let database = Database::new();
    let month = Duration::from_hours(30 * 24);
    let (site, long) = process(&database, Some(CAPACITY), month);
    let (_, crawled) = process(&database, Some(CAPACITY), Duration::from_mins(5));
    visit(&long, 0).await;
    for n in 0..300 {
        visit(&long, 0).await;
        visit(&crawled, 100 + n).await;
        advance(Duration::from_secs(15)).await;
    }
    let stored = stored(&site).await;
    assert!(stored.contains(&0) && stored.len() < 16, "{stored:?}");
    assert_eq!(database.generations(&path(0)), 1);
}

/// A visitor invents keys, and the store is full.
#[tokio::test(start_paused = true)]
async fn invented_keys_push_out_no_page_in_use() {
    const IN_USE: u64 = 8;
    let database = Database::new();
    let (site, app) = process(&database, Some(CAPACITY), Duration::from_hours(1));
    let visit_all = async || {
        for n in 0..IN_USE {
            visit(&app, n).await;
        }
    };
    // For six hours, each two minutes.
    for _ in 0..180 {
        visit_all().await;
        advance(Duration::from_mins(2)).await;
    }
    for n in 100..100 + 20 * ROOM {
        visit(&app, n).await;
    }
    let before: u64 = (0..IN_USE).map(|n| database.generations(&path(n))).sum();
    for _ in 0..3 {
        visit_all().await;
        advance(Duration::from_secs(61)).await;
    }
    let left = stored(&site).await;
    for n in 0..IN_USE {
        assert!(left.contains(&n), "{n}: {left:?}");
    }
    let after: u64 = (0..IN_USE).map(|n| database.generations(&path(n))).sum();
    assert!(
        after - before <= IN_USE,
        "each once, when its interval is over"
    );
}

/// A page that says that there is nothing goes before others, however often it is generated.
#[tokio::test(start_paused = true)]
async fn negative_answers_leave_first() {
    let database = Database::new();
    let (site, app) = process(&database, Some(CAPACITY), Duration::from_hours(1));
    let missing = {
        let missing = get(async || (StatusCode::NOT_FOUND, vec![b'x'; 10_000]));
        let layer = site.layer(Refresh::every(Duration::from_hours(1)));
        Router::new().route("/missing-{n}", missing.layer(layer))
    };
    for _ in 0..5 {
        for n in 0..ROOM / 2 {
            perennial_testkit::get(&missing, &format!("/missing-{n}")).await;
            visit(&app, n).await;
        }
        advance(Duration::from_mins(5)).await;
    }
    for n in 100..100 + ROOM / 2 {
        visit(&app, n).await;
    }
    for _ in 0..2 {
        advance(Duration::from_secs(61)).await;
        visit(&app, 0).await;
    }
    let expected: Vec<_> = (0..ROOM / 2).chain(100..100 + ROOM / 2).collect();
    assert_eq!(stored(&site).await, expected);
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
            let tags = size_of("tags").div_ceil(150);
            let tags = (0..tags).map(|n| format!("{n:0150}")).collect::<Tags>();
            ([("x-long", header)], Extension(tags), "x")
        });
        let page = page.layer(site.layer(Refresh::every(Duration::from_hours(100))));
        let app = Router::new().route("/{n}", page);
        let room = CAPACITY / (size + 2048);
        for n in 0..2 * room {
            let path = format!("/{n}-{}", "x".repeat(size_of("key")));
            assert_eq!(perennial_testkit::get(&app, &path).await.status, 200);
        }
        for _ in 0..4 {
            advance(Duration::from_secs(61)).await;
            perennial_testkit::get(&app, "/1").await;
        }
        let stored = site.latest(1000).await.expect("answers").len();
        assert!((room * 8 / 10..=room).contains(&stored), "{kind}: {stored}");
    }
}
