//! Pages: what is published under a lease comes back, is listed, counted, renewed and removed.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use perennial_store::{
    Count, Counted, Evict, Extend, Fence, Inspect, Latest, LeaseRow, List, LockKind, LockName,
    NewEntry, Probe, PruneEntries, PruneLocks, Publish, Purge, ROW_OVERHEAD, Release, Remove,
    Unused,
};

use crate::{
    ALL, LEASE, NONE, TestDatabase,
    store::{METADATA, ask, content, entry, lock, page, publish, renew, stored},
};

/// The size of an entry with this body: its headers and metadata take room, too.
fn size(body: &str) -> u64 {
    let headers = ["x-twice", "a", "x-twice", "\u{fc}: b"];
    let headers = headers.map(|text| text.chars().count());
    (headers.iter().sum::<usize>() + METADATA.len() + body.len()) as u64
}

pub async fn published_entry_comes_back_unchanged(db: impl TestDatabase) {
    let store = db.store().await;
    for key in ["/", "/ä?x=y", &"long".repeat(5000)] {
        let lease = lock(&*store, key, LEASE).await;
        let sent = match key {
            "/" => Response::new(Bytes::new()),
            _ => content("bytes \0 \u{fc}"),
        };
        assert!(publish(&*store, &lease, &sent).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let probe = ask(&*store, Probe::new(&lease.name, Fence::NONE)).await;
        let entry = probe.entry.expect("is stored");
        assert_eq!(entry.fence, lease.fence);
        assert!(entry.age >= Duration::from_millis(10) && entry.age < LEASE);
        assert_eq!(entry.content.status(), sent.status());
        assert_eq!(entry.content.headers(), sent.headers());
        assert_eq!(entry.content.body(), sent.body());
        assert_eq!(entry.metadata, METADATA);
        let known = ask(&*store, Probe::new(&lease.name, lease.fence)).await;
        assert!(known.entry.is_none(), "it is not newer than itself");
    }
}

pub async fn pages_are_listed_in_order_with_their_locks_and_history(db: impl TestDatabase) {
    let store = db.store().await;
    let list = async |from: &str, most| ask(&*store, List::new(from, most)).await.rows;
    assert_eq!(list("/", 10).await, []);
    let lines: Vec<_> = (0..30)
        .map(|n| format!("{n} {}\n", "x".repeat(100)))
        .collect();
    let mut known = Fence::NONE;
    let body = content("of a page");
    for (n, history) in lines.iter().enumerate() {
        let lease = lock(&*store, page("/b"), LEASE).await;
        let entry = NewEntry {
            history: history.clone(),
            renews: (n % 2 != 0).then_some(known),
            ..entry(&body)
        };
        assert!(ask(&*store, Publish::new(&lease, entry.clone())).await);
        // A repeated publish adds no second line.
        assert!(ask(&*store, Publish::new(&lease, entry.clone())).await);
        assert!(ask(&*store, Release::new(&lease, NONE)).await);
        known = lease.fence;
    }
    for key in ["/a", "/c", "/ä"] {
        let lease = lock(&*store, page(key), LEASE).await;
        assert!(publish(&*store, &lease, &content("")).await);
    }
    let all = list("\u{1}", 10).await;
    let names: Vec<_> = all.iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["/a", "/b", "/c", "/ä"]);
    assert_eq!(list("/b", 2).await.len(), 2);
    for (most, more) in [(2, true), (10, false)] {
        assert_eq!(ask(&*store, List::new("/b", most)).await.more, more);
    }
    let [a, b] = [&all[0], &all[1]];
    assert_eq!((a.status, &*a.metadata), (404, METADATA));
    assert_eq!([a.bytes, b.bytes], ["", "of a page"].map(size));
    assert_eq!((b.fence, b.lock.fence), (known, known));
    assert!(b.lock.owner.is_none() && b.lock.remaining.is_zero());
    assert!(a.lock.owner.is_some() && a.lock.remaining > NONE && a.lock.remaining <= LEASE);
    let kept: Vec<_> = b.history.split_inclusive('\n').take(20).collect();
    let latest: Vec<_> = lines.iter().rev().take(20).collect();
    assert_eq!(kept, latest);
    assert!(b.history.len() < 4000);
}

pub async fn pages_are_counted_and_the_latest_come_first(db: impl TestDatabase) {
    let store = db.store().await;
    let none = store.ask(Count {}).await.expect("answers");
    assert_eq!(none, Counted::default());
    for (name, interval) in [("/old", NONE), ("/new", LEASE)] {
        let lease = lock(&*store, page(name), LEASE).await;
        let entry = NewEntry {
            interval,
            ..entry(&content(name))
        };
        let publish = Publish::new(&lease, entry);
        assert!(store.ask(publish).await.expect("answers"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let counted = store.ask(Count {}).await.expect("answers");
    assert_eq!((counted.pages, counted.stale), (2, 1));
    assert_eq!(counted.bytes, 2 * size("/old"));
    for (limit, expected) in [(5, &["/new", "/old"][..]), (1, &["/new"])] {
        let latest = store.ask(Latest { limit }).await.expect("answers");
        let names: Vec<_> = latest.iter().map(|row| &*row.name).collect();
        assert_eq!(names, expected);
        assert!(latest[0].lock.owner.is_some() && latest[0].bytes == size("/new"));
    }
}

pub async fn pages_leave_in_their_order_but_for_those_being_regenerated(db: impl TestDatabase) {
    let store = db.store().await;
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    // The second value is the interval. The third one says whether the page is generated once more.
    for (name, interval, again) in [
        ("/held", NONE, false),
        ("/failing", NONE, true),
        ("/stale", NONE, false),
        ("/missing", NONE, true),
        ("/unused", NONE, true),
        ("/once", hours(30), false),
        ("/once-longer", hours(31), false),
        ("/visited", hours(2), true),
        ("/fresh", hours(30), true),
    ] {
        for run in 0..=i32::from(again) {
            let lease = lock(&*store, page(name), 24 * LEASE).await;
            let new = NewEntry {
                interval,
                lasting: run == 1 && name != "/missing",
                ..entry(&content(name))
            };
            assert!(ask(&*store, Publish::new(&lease, new)).await);
            if name != "/held" {
                ask(&*store, Release::new(&lease, NONE)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // `/visited` has just become stale, and may be regenerated at any moment.
    db.shift_clock(2 * 3600).await;
    // A visitor asked for `/failing`, and the regeneration has just failed.
    let failing = lock(&*store, page("/failing"), LEASE).await;
    let cooldown = Duration::from_millis(1);
    assert!(ask(&*store, Release::new(&failing, cooldown)).await);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let left = async || {
        let latest = ask(&*store, Latest { limit: ALL }).await;
        let mut left: Vec<_> = latest.into_iter().map(|row| row.name).collect();
        left.sort();
        left
    };
    let all = left().await;
    let mut gone = Vec::new();
    loop {
        let freed = ask(&*store, Evict { excess: 1 }).await;
        if freed == 0 {
            break;
        }
        let now = left().await;
        let before = all.iter().filter(|name| !gone.contains(*name));
        let went: Vec<_> = before.filter(|name| !now.contains(name)).cloned().collect();
        assert_eq!(went.len(), 1, "{went:?}");
        assert_eq!(freed, ROW_OVERHEAD + size(&went[0]));
        gone.extend(went);
    }
    let order = [
        "/stale",
        "/missing",
        "/unused",
        "/once",
        "/once-longer",
        "/visited",
        "/fresh",
    ];
    assert_eq!(gone, order);
    assert_eq!(left().await, ["/failing", "/held"]);
    let counted = ask(&*store, Count {}).await;
    let sizes = size("/held") + size("/failing");
    assert_eq!(counted.weight(), 2 * ROW_OVERHEAD + sizes);
}

pub async fn nothing_is_published_after_a_takeover(db: impl TestDatabase) {
    let store = db.store().await;
    let first = lock(&*store, "a", LEASE).await;
    assert!(publish(&*store, &first, &content("0")).await);
    ask(&*store, Release::new(&first, NONE)).await;
    let brief = Duration::from_millis(20);
    let late = lock(&*store, "a", brief).await;
    let expired = lock(&*store, "b", brief).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The lease has expired and was not taken over: no other process can have published.
    assert!(publish(&*store, &expired, &content("0")).await);
    let next = lock(&*store, "a", LEASE).await;
    // The next holder has not published yet: the entry's own fence would not refuse this publish.
    let forged = LeaseRow {
        fence: next.fence,
        ..late.clone()
    };
    for lease in [&late, &forged] {
        assert!(!publish(&*store, lease, &content("1")).await);
        assert!(!renew(&*store, lease, first.fence).await);
    }
    let before = stored(&*store, &late.name).await;
    assert_eq!(before, Some((first.fence, "0".into())));
    assert!(publish(&*store, &next, &content("2")).await);
    let after = stored(&*store, &late.name).await;
    assert_eq!(after, Some((next.fence, "2".into())));
}

pub async fn a_repeated_publish_succeeds_again(db: impl TestDatabase) {
    let store = db.store().await;
    let first = lock(&*store, "a", LEASE).await;
    for _ in 0..2 {
        assert!(publish(&*store, &first, &content("1")).await);
    }
    ask(&*store, Release::new(&first, NONE)).await;
    let second = lock(&*store, "a", LEASE).await;
    for _ in 0..2 {
        assert!(renew(&*store, &second, first.fence).await);
    }
    assert_eq!(
        stored(&*store, &"a".into()).await,
        Some((second.fence, "1".into()))
    );
}

pub async fn the_same_content_is_renewed_only_over_itself(db: impl TestDatabase) {
    let store = db.store().await;
    let first = lock(&*store, "a", LEASE).await;
    assert!(
        !renew(&*store, &first, Fence::NONE).await,
        "there is nothing to renew"
    );
    publish(&*store, &first, &content("1")).await;
    ask(&*store, Release::new(&first, NONE)).await;
    let second = lock(&*store, "a", LEASE).await;
    assert!(!renew(&*store, &second, Fence(first.fence.0 - 1)).await);
    assert_eq!(
        stored(&*store, &"a".into()).await,
        Some((first.fence, "1".into()))
    );
    assert!(renew(&*store, &second, first.fence).await);
    let longer = NewEntry {
        renews: Some(second.fence),
        metadata: format!("{METADATA}{:50}", ""),
        ..entry(&content("1"))
    };
    ask(&*store, Release::new(&second, NONE)).await;
    let third = lock(&*store, "a", LEASE).await;
    assert!(ask(&*store, Publish::new(&third, longer)).await);
    let counted = ask(&*store, Count {}).await;
    assert_eq!(counted.bytes, size("1") + 50);
}

pub async fn an_entry_is_removed_only_under_the_lease(db: impl TestDatabase) {
    let store = db.store().await;
    let late = lock(&*store, "a", LEASE).await;
    assert!(!ask(&*store, Remove::new(&late)).await, "there is none");
    assert!(publish(&*store, &late, &content("1")).await);
    ask(&*store, Release::new(&late, NONE)).await;
    let next = lock(&*store, "a", LEASE).await;
    assert!(!ask(&*store, Remove::new(&late)).await);
    assert_eq!(
        stored(&*store, &"a".into()).await,
        Some((late.fence, "1".into()))
    );
    assert!(ask(&*store, Remove::new(&next)).await);
    assert_eq!(stored(&*store, &"a".into()).await, None);
}

pub async fn purged_page_is_removed_and_its_running_generation_is_refused(db: impl TestDatabase) {
    let store = db.store().await;
    let long = format!("/{}", "x".repeat(300));
    let long_variant = format!("/a#&accept={}", "y".repeat(300));
    let keys = ["/a", "/a#&accept=x", "/a?b", "/ab", &long, &long_variant];
    let mut leases = Vec::new();
    for key in keys {
        let lease = lock(&*store, page(key), LEASE).await;
        assert!(publish(&*store, &lease, &content("1")).await);
        leases.push(lease);
    }
    // A lock that is created by the try.
    let new = lock(&*store, page("/a#new"), LEASE).await;
    for key in ["/a", &long, "/none"] {
        ask(&*store, Purge::new(key)).await;
    }
    assert!(!publish(&*store, &new, &content("1")).await);
    for (key, lease) in keys.iter().zip(&leases) {
        let purged = matches!(*key, "/a" | "/a#&accept=x") || key.len() > 180;
        let is_gone = stored(&*store, &lease.name).await.is_none();
        assert_eq!(is_gone, purged, "{key}");
        assert_eq!(ask(&*store, Extend::new(lease, LEASE)).await, !purged);
        assert_eq!(publish(&*store, lease, &content("1")).await, !purged);
        if purged {
            let next = lock(&*store, lease.name.clone(), LEASE).await;
            assert!(next.fence > lease.fence);
            assert!(publish(&*store, &next, &content("2")).await);
        }
    }
}

pub async fn only_entries_beyond_their_retention_are_pruned(db: impl TestDatabase) {
    let store = db.store().await;
    let body = content("1");
    let (short, hour) = (Duration::from_millis(300), Duration::from_secs(3600));
    let long = "x".repeat(300);
    // More rows than one step examines.
    let keys = (0..250).map(|n| format!("/{n}")).chain([long]);
    let names: Vec<_> = keys.map(|key| page(&key)).collect();
    let publish = async |name: &LockName, retention, releases| {
        let lease = lock(&*store, name.clone(), LEASE).await;
        let entry = NewEntry {
            retention,
            ..entry(&body)
        };
        let published = ask(&*store, Publish::new(&lease, entry.clone())).await;
        assert!(published);
        if releases {
            ask(&*store, Release::new(&lease, NONE)).await;
        }
    };
    for (n, name) in names.iter().enumerate() {
        let retention = if n % 2 == 0 { short } else { hour };
        publish(name, retention, n % 5 != 0).await;
    }
    let other = lock(&*store, "/0", LEASE).await;
    let released = ask(&*store, Release::new(&other, NONE)).await;
    assert!(released);
    tokio::time::sleep(2 * short).await;
    let all = async |locks: Option<Unused>| {
        let (mut next, mut steps) = (None, 0);
        loop {
            steps += 1;
            let after: Option<String> = next;
            let pruned = match locks {
                Some(unused) => {
                    store
                        .ask(PruneLocks::new(LockKind::Page, unused, after))
                        .await
                }
                None => {
                    let pruned = store.ask(PruneEntries::new(after)).await;
                    pruned.map(|pruned| pruned.map(|pruned| pruned.last))
                }
            };
            next = pruned.expect("answers");
            if next.is_none() {
                break assert!((3..=5).contains(&steps), "{steps}");
            }
        }
    };
    let locks = async || {
        let mut locks = Vec::new();
        for name in &names {
            locks.push(ask(&*store, Inspect::new(name)).await.is_some());
        }
        locks
    };
    all(None).await;
    let unused = |released, expired| {
        let alone = released;
        Some(Unused {
            released,
            expired,
            alone,
        })
    };
    all(unused(hour, short)).await;
    assert!(locks().await.into_iter().all(|is_there| is_there));
    all(unused(short, hour)).await;
    for (n, is_there) in locks().await.into_iter().enumerate() {
        assert_eq!(is_there, n % 5 == 0, "{n}: what is held");
    }
    for (n, name) in names.iter().enumerate() {
        assert_eq!(
            stored(&*store, name).await.is_some(),
            n % 2 == 1,
            "{name:?}"
        );
    }
    let other = ask(&*store, Inspect::new(&other.name)).await;
    assert!(other.is_some(), "is of another kind");
}
