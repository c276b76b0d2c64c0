//! Arguments at their limits, for the calls of the store on each database.

use bytes::Bytes;
use http::Response;
use perennial::locks::{LockKind, LockName};
use perennial_store::{
    BreakLock, Epoch, Extend, Fence, Inspect, Invalidate, Invalidated, List, NewEntry, Probe,
    Publish, Purge, Release, Remove, TryLock,
};
use std::time::Duration;

use perennial_testkit::{
    Db, on_database, on_each_database,
    store::{ask, content, entry, lock, publish, stored, uuid},
};

const LEASE: Duration = Duration::from_secs(60);

/// The longest time that a caller can ask for, in years.
const FOREVER: Duration = Duration::from_hours(1000 * 365 * 24);

on_each_database! {
    name_of_any_length_is_one_row
    body_of_any_size_comes_back
    times_without_an_end_fit_a_column
    rows_of_the_years_1_and_9999_are_read
}
on_database! {
    memory = perennial_testkit::Db::in_memory();
    name_of_any_length_is_one_row
    body_of_any_size_comes_back
    times_without_an_end_fit_a_column
}
#[cfg(feature = "mysql")]
on_database! {
    packets = perennial_testkit::Db::mysql();
    body_above_the_servers_packet_is_an_error_that_says_so
}

async fn name_of_any_length_is_one_row(db: Db) {
    let store = db.store().await;
    let lengths = [0, 1, 127, 128, 180, 181, 255, 4000];
    let names = lengths.map(|length| "n".repeat(length));
    let unusual = [
        "\0",
        "a\0b",
        "\u{1f600}",
        "'\"`\\%_$1?",
        "a",
        " a ",
        "a ",
        "A",
        "\u{e4}",
        "\u{301}",
        "$1 ? {p} {now}",
        "'; DROP TABLE perennial_lock; --",
    ]
    .map(str::to_owned);
    for name in names.iter().chain(&unusual) {
        let page = LockName::of(LockKind::Page, name.as_str());
        let lease = lock(&*store, page.clone(), LEASE).await;
        let other = TryLock::new(&page, uuid(), LEASE, None);
        assert_eq!(ask(&*store, other).await.fence, None, "{name:?}");
        assert!(publish(&*store, &lease, &content(name)).await, "{name:?}");
        let probed = ask(&*store, Probe::new(&page, Fence::NONE)).await;
        assert_eq!(probed.lock.fence, lease.fence, "{name:?}");
        let read = probed.entry.expect("is stored").content.into_body();
        assert_eq!(read, name.as_bytes());
        let inspected = ask(&*store, Inspect::new(&page)).await;
        assert_eq!(inspected.map(|row| row.fence), Some(lease.fence));
        assert!(ask(&*store, Extend::new(&lease, LEASE)).await);
        let released = ask(&*store, Release::new(&lease, Duration::ZERO)).await;
        assert!(released, "{name:?}");
    }
    let count = names.len() + unusual.len();
    let listed = ask(&*store, List::new("\u{1}", 100)).await.rows;
    assert_eq!(listed.len(), count, "each name is a row of its own");
    for name in names.iter().chain(&unusual) {
        let page = LockName::of(LockKind::Page, name.as_str());
        let lease = lock(&*store, page.clone(), LEASE).await;
        match name.len() {
            1 => assert!(ask(&*store, Remove::new(&lease)).await),
            _ => ask(&*store, Purge::new(name)).await,
        }
        assert_eq!(stored(&*store, &page).await, None, "{name:?}");
        let broken = ask(&*store, BreakLock::new(&page, None)).await;
        assert!(broken, "{name:?}");
    }
    // A short name, and the longest one that an invalidation can have. Callers replace the end of
    // longer names with a digest.
    for name in ["t".to_owned(), "t".repeat(255)] {
        let epoch = ask(&*store, Invalidate::new(vec![name.to_string()])).await;
        let read = ask(
            &*store,
            Invalidated::new("", Epoch(epoch.0 - 1), 10, Vec::new()),
        )
        .await;
        assert_eq!(read.names, [(name, epoch)]);
    }
}

async fn body_of_any_size_comes_back(db: Db) {
    let store = db.store().await;
    let lease = lock(&*store, LockName::of(LockKind::Page, "/"), LEASE).await;
    let mut lease = lease;
    // The default of `Builder::max_body` is 8 MiB.
    for size in [0, 1, 8 << 20] {
        let body: Vec<_> = (0..size).map(|n: usize| (n % 251) as u8).collect();
        let content = Response::new(Bytes::from(body.clone()));
        assert!(publish(&*store, &lease, &content).await);
        let (_, read) = stored(&*store, &lease.name).await.expect("is stored");
        assert!(read == body, "{size}");
        let row = ask(&*store, List::new("/", 1)).await.rows.remove(0);
        assert_eq!(row.bytes, entry(&content).size());
        let released = ask(&*store, Release::new(&lease, Duration::ZERO)).await;
        assert!(released);
        lease = lock(&*store, lease.name, LEASE).await;
    }
}

async fn times_without_an_end_fit_a_column(db: Db) {
    let store = db.store().await;
    let lease = lock(&*store, LockName::of(LockKind::Page, "/"), FOREVER).await;
    let content = content("1");
    let endless = NewEntry {
        interval: Duration::MAX,
        retention: Duration::MAX,
        epoch: Epoch::MAX,
        ..entry(&content)
    };
    let published = ask(&*store, Publish::new(&lease, endless)).await;
    assert!(published);
    let row = ask(&*store, List::new("/", 1)).await.rows.remove(0);
    assert!(
        row.interval >= FOREVER && row.epoch == Epoch::MAX,
        "{row:?}"
    );
    assert!(ask(&*store, Extend::new(&lease, FOREVER)).await);
    let released = ask(&*store, Release::new(&lease, FOREVER)).await;
    assert!(released);
    let probed = ask(&*store, Probe::new(&lease.name, Fence::NONE)).await;
    assert!(probed.lock.remaining > FOREVER / 2 && probed.entry.is_some());
}

async fn rows_of_the_years_1_and_9999_are_read(db: Db) {
    let store = db.store().await;
    let lease = lock(&*store, LockName::of(LockKind::Page, "/"), LEASE).await;
    assert!(publish(&*store, &lease, &content("1")).await);
    for (micros, is_ahead) in [
        (-62_135_596_800_000_000_i64, false),
        (253_402_300_799_000_000, true),
    ] {
        for change in [
            format!(
                "entry SET generated_at = {micros}, stale_at = {micros}, retain_until = {micros}"
            ),
            format!("lock SET acquired_at = {micros}, expires_at = {micros}"),
        ] {
            db.execute(&format!("UPDATE perennial_{change}")).await;
        }
        let probed = ask(&*store, Probe::new(&lease.name, Fence::NONE)).await;
        let entry = probed.entry.expect("is stored");
        assert_eq!((entry.generated, entry.age_unknown), (micros, is_ahead));
        assert_eq!(entry.age.is_zero(), is_ahead);
        assert_eq!(probed.lock.remaining.is_zero(), !is_ahead);
        let row = ask(&*store, List::new("/", 1)).await.rows.remove(0);
        assert_eq!((row.age_unknown, row.interval), (is_ahead, Duration::ZERO));
        let visited = db.site().await.entry("/").await.expect("answers");
        assert!(visited.is_some());
    }
}

/// The connection is lost, too, and the next call has a new one.
#[cfg(feature = "mysql")]
async fn body_above_the_servers_packet_is_an_error_that_says_so(db: Db) {
    let store = db.store().await;
    let lease = lock(&*store, LockName::of(LockKind::Page, "/"), LEASE).await;
    let most = db
        .int("SELECT @@max_allowed_packet")
        .await
        .expect("a number");
    let body = vec![b'x'; usize::try_from(most).expect("fits")];
    let content = Response::new(Bytes::from(body));
    let error = store.ask(Publish::new(&lease, entry(&content))).await;
    let text = error.expect_err("is refused").to_string();
    assert!(text.contains("max_allowed_packet"), "{text}");
    let content = perennial_testkit::store::content("1");
    assert!(publish(&*store, &lease, &content).await);
}
