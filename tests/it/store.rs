//! The contract of [`Store`], for each store that the crate has.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use perennial::locks::{LockKind, LockName};
use perennial_store::{
    Backend, Begin, Begun, BreakLock, Count, Counted, Epoch, Evict, Extend, Fence, Finish, Forget,
    Held, Inspect, Invalidate, Invalidated, Latest, LatestEpoch, LatestNames, LeaseRow, List,
    NameList, NewEntry, Operation, PeerLeaseState, Probe, PruneEntries, PruneInvalidations,
    PruneLocks, PruneRequests, Publish, Purge, PurgedUntil, ROW_OVERHEAD, Release, Remove,
    RequestProgress, Revoke, TryLock, Unused,
};
use tokio::task::JoinSet;

use crate::{
    databases::Db,
    support::{HANG, page},
};

const LEASE: Duration = Duration::from_secs(3600);
const NONE: Duration = Duration::ZERO;
const ALL: usize = usize::MAX;

pub(crate) async fn open(db: &Db) -> Arc<dyn Backend> {
    if let Some(database) = db.memory() {
        return Arc::new(database.clone());
    }
    let store = db.database().await.store("perennial_").await;
    store.expect("prepares").into()
}

/// Makes a call that the store answers.
pub(crate) async fn ask<O: Operation>(store: &dyn Backend, operation: O) -> O::Answer {
    store.ask(operation).await.expect("answers")
}

pub(crate) async fn lock(
    store: &dyn Backend,
    name: impl Into<LockName>,
    length: Duration,
) -> LeaseRow {
    let (name, owner) = (name.into(), uuid());
    let fence = store.ask(TryLock::new(&name, &owner, length, None)).await;
    let fence = fence.expect("answers").fence.expect("is free");
    LeaseRow { name, owner, fence }
}

/// An owner that no other acquisition has.
pub(crate) fn uuid() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("owner-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst))
}

pub(crate) fn content(body: &str) -> Response<Bytes> {
    let mut content = Response::new(Bytes::from(body.to_owned()));
    *content.status_mut() = StatusCode::NOT_FOUND;
    let headers = content.headers_mut();
    headers.append("x-twice", HeaderValue::from_static("a"));
    headers.append(
        "x-twice",
        HeaderValue::from_bytes(b"\xfc: b").expect("a value"),
    );
    content
}

const METADATA: &str = r#"{"tags":["a &b"]}"#;

/// The size of an entry with this body: its headers and metadata take room, too.
fn size(body: &str) -> u64 {
    let headers = ["x-twice", "a", "x-twice", "\u{fc}: b"];
    let headers = headers.map(|text| text.chars().count());
    (headers.iter().sum::<usize>() + METADATA.len() + body.len()) as u64
}

/// Returns an entry with this content, for an hour.
pub(crate) fn entry(content: &Response<Bytes>) -> NewEntry {
    NewEntry {
        content: content.clone(),
        renews: None,
        epoch: Epoch(7),
        interval: Duration::from_secs(60),
        metadata: METADATA.to_owned(),
        history: "1 a line\n".to_owned(),
        retention: Duration::from_secs(3600),
        lasting: true,
    }
}

pub(crate) async fn publish(
    store: &dyn Backend,
    lease: &LeaseRow,
    content: &Response<Bytes>,
) -> bool {
    ask(store, Publish::new(lease, entry(content))).await
}

async fn renew(store: &dyn Backend, lease: &LeaseRow, known: i64) -> bool {
    let content = content("is not sent");
    let entry = NewEntry {
        renews: Some(Fence(known)),
        ..entry(&content)
    };
    ask(store, Publish::new(lease, entry)).await
}

pub(crate) async fn stored(store: &dyn Backend, name: &LockName) -> Option<(Fence, Bytes)> {
    let entry = ask(store, Probe::new(name, Fence::NONE)).await.entry;
    entry.map(|entry| (entry.fence, entry.content.into_body()))
}

/// Returns the first `most` names invalidated after `since`.
async fn invalidated(store: &dyn Backend, since: Epoch, most: usize) -> Vec<(String, Epoch)> {
    let synced = ask(store, Invalidated::new("", since, most, Vec::new())).await;
    synced.names
}

macro_rules! contract {
    ($($test:ident)*; in SQL: $($sql:ident)*) => {
        on_each_database! { $($test)* $($sql)* }
        on_database! { memory = crate::databases::Db::in_memory(); $($test)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_pooled = crate::databases::Db::postgres_pooled(); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_unusual = crate::databases::Db::postgres_unusual(); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_unusual = crate::databases::Db::mysql_unusual(); $($test)* $($sql)* }
        on_database! { sqlite_in_a_transaction = crate::left_behind::sqlite(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_in_a_transaction = crate::left_behind::postgres(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_aborted = crate::left_behind::postgres(&["ROLLBACK", "BEGIN", "SELECT 1 / 0"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_of_a_tenant = crate::left_behind::postgres(&["SET search_path = tenant"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_with_another_role = crate::left_behind::postgres(&["SET ROLE pg_monitor"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_read_only = crate::left_behind::postgres(crate::left_behind::READ_ONLY); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_in_a_transaction = crate::left_behind::mysql(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_itself_in_a_transaction = crate::left_behind::mysql_itself(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_itself_without_autocommit = crate::left_behind::mysql_itself(&["ROLLBACK", "SET autocommit = 0"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_itself_of_a_tenant = crate::left_behind::mysql_itself(&["USE mysql"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_without_autocommit = crate::left_behind::mysql(&["ROLLBACK", "SET autocommit = 0"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_read_only = crate::left_behind::mysql(&["SET SESSION TRANSACTION READ ONLY"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_with_locked_tables = crate::left_behind::mysql(&["LOCK TABLES other READ"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_of_a_tenant = crate::left_behind::mysql(&["USE mysql"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_uncommitted = crate::left_behind::mysql(&["SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"]); $($test)* $($sql)* }
    };
}

contract! {
    a_lock_is_taken_by_one_and_its_fences_only_grow
    owner_without_an_answer_gets_its_fence_again
    lock_is_revoked_from_its_owner_alone
    releases_with_a_cooldown_are_counted
    a_lock_is_taken_only_while_its_fence_is_the_one_seen
    only_the_owner_extends_and_releases
    an_expired_lease_is_not_extended
    published_entry_comes_back_unchanged
    nothing_is_published_after_a_takeover
    a_repeated_publish_succeeds_again
    the_same_content_is_renewed_only_over_itself
    an_entry_is_removed_only_under_the_lease
    epochs_grow_in_the_order_in_which_they_are_seen
    invalidations_are_read_in_pages_by_epoch_and_backwards_by_list
    names_of_one_epoch_are_read_together
    sync_returns_the_state_of_each_awaited_page
    purged_page_is_removed_and_its_running_generation_is_refused
    only_entries_beyond_their_retention_are_pruned
    a_purge_is_forgotten_only_when_no_entry_is_older
    purge_distinguishes_keys_with_a_common_beginning
    pages_are_listed_in_order_with_their_locks_and_history
    pages_are_counted_and_the_latest_come_first
    pages_leave_in_their_order_but_for_those_being_regenerated
    equal_names_of_different_kinds_are_different_locks
    request_is_begun_by_one_owner
    request_is_taken_over_only_after_its_time
    first_response_of_the_owner_stays
    request_that_has_not_finished_is_forgotten_by_its_owner
    requests_are_pruned_in_batches
    requests_have_any_name_and_any_response
    a_lock_is_inspected_listed_and_broken
    a_cooldown_does_not_end_when_the_clock_is_set_back
    a_holder_whose_clock_is_right_keeps_its_lock
    entry_from_before_the_clock_was_set_back_has_no_age;
    in SQL:
        an_invalidation_that_is_rolled_back_is_seen_by_nobody
}

async fn a_lock_is_taken_by_one_and_its_fences_only_grow(db: Db) {
    let store = open(&db).await;
    let mut last = 0;
    for _ in 0..25 {
        let mut tries = JoinSet::new();
        for _ in 0..8 {
            let store = Arc::clone(&store);
            tries.spawn(async move {
                let owner = uuid();
                let tried = ask(&*store, TryLock::new("a", &owner, LEASE, None)).await;
                tried.fence.map(|fence| LeaseRow {
                    name: "a".into(),
                    owner,
                    fence,
                })
            });
        }
        let won: Vec<_> = tries.join_all().await.into_iter().flatten().collect();
        assert_eq!(won.len(), 1);
        assert!(won[0].fence > Fence(last));
        last = won[0].fence.0;
        let state = ask(&*store, Probe::new("a", Fence::NONE)).await.lock;
        assert!(
            state.owned
                && state.fence == Fence(last)
                && state.remaining > NONE
                && state.remaining <= LEASE
        );
        assert!(ask(&*store, Release::new(&won[0], NONE)).await);
        let state = ask(&*store, Probe::new("a", Fence::NONE)).await.lock;
        assert!(!state.owned && state.fence == Fence(last) && state.remaining == NONE);
    }
}

async fn owner_without_an_answer_gets_its_fence_again(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", LEASE).await;
    for seen in [None, Some(Fence::NONE), Some(lease.fence)] {
        let again = ask(&*store, TryLock::new("a", &lease.owner, LEASE, seen)).await;
        assert_eq!(again.fence, Some(lease.fence), "{seen:?}");
    }
    assert!(ask(&*store, Extend::new(&lease, LEASE)).await);
    for _ in 0..2 {
        assert!(ask(&*store, Release::new(&lease, NONE)).await);
    }
    let other = lock(&*store, "a", LEASE).await;
    assert!(!ask(&*store, Release::new(&lease, NONE)).await);
    let again = ask(&*store, TryLock::new("a", &lease.owner, LEASE, None)).await;
    assert_eq!(again.fence, None);
    assert!(ask(&*store, Extend::new(&other, LEASE)).await);
}

async fn lock_is_revoked_from_its_owner_alone(db: Db) {
    let store = open(&db).await;
    let revoke = async |owner: &str| {
        ask(&*store, Revoke::new("a", owner)).await;
        ask(&*store, Inspect::new("a")).await
    };
    assert_eq!(revoke("me").await, None, "a revocation creates no lock");
    let lease = lock(&*store, "a", LEASE).await;
    let row = revoke("me").await.expect("has a row");
    assert_eq!(
        (row.owner.as_deref(), row.fence),
        (Some(&*lease.owner), lease.fence)
    );
    for _ in 0..2 {
        let row = revoke(&lease.owner).await.expect("has a row");
        assert_eq!((row.owner, row.remaining), (None, NONE));
        assert_eq!(row.fence, lease.fence.next(), "once");
    }
    // A late release has no effect.
    let cooldown = Release::new(&lease, LEASE);
    assert!(!ask(&*store, cooldown).await);
    let next = lock(&*store, "a", LEASE).await;
    let cooldown = Release::new(&next, LEASE);
    assert!(ask(&*store, cooldown).await);
    let row = revoke(&next.owner).await.expect("has a row");
    assert_eq!(row.fence, next.fence);
    assert!(row.remaining > NONE, "a cooldown has no owner");
}

async fn releases_with_a_cooldown_are_counted(db: Db) {
    let store = open(&db).await;
    let failures = async || {
        let probe = ask(&*store, Probe::new("a", Fence::NONE)).await;
        probe.lock.failures
    };
    let short = Duration::from_millis(1);
    for expected in 1..=3 {
        let lease = lock(&*store, "a", LEASE).await;
        assert_eq!(failures().await, expected - 1);
        // The first answer may be lost.
        for _ in 0..2 {
            assert!(ask(&*store, Release::new(&lease, short)).await);
            assert_eq!(failures().await, expected);
        }
        tokio::time::sleep(5 * short).await;
    }
    let lease = lock(&*store, "a", LEASE).await;
    assert!(ask(&*store, Release::new(&lease, NONE)).await);
    assert_eq!(failures().await, 0);
}

async fn a_lock_is_taken_only_while_its_fence_is_the_one_seen(db: Db) {
    let store = open(&db).await;
    let fence = store
        .ask(TryLock::new("a", "me", LEASE, Some(Fence(1))))
        .await;
    let fence = fence.expect("answers").fence;
    assert!(fence.is_some(), "never held, so nobody can have published");
    let first = lock(&*store, "b", LEASE).await;
    ask(&*store, Release::new(&first, NONE)).await;
    for seen in [0, first.fence.0 - 1, first.fence.0 + 1].map(Fence) {
        assert_eq!(
            ask(&*store, TryLock::new("b", "me", LEASE, Some(seen)))
                .await
                .fence,
            None
        );
    }
    assert!(
        ask(&*store, TryLock::new("b", "me", LEASE, Some(first.fence)))
            .await
            .fence
            .is_some()
    );
}

async fn only_the_owner_extends_and_releases(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", LEASE).await;
    let others = [
        LeaseRow {
            owner: "somebody".into(),
            ..lease.clone()
        },
        LeaseRow {
            fence: lease.fence.next(),
            ..lease.clone()
        },
        LeaseRow {
            name: "b".into(),
            ..lease.clone()
        },
    ];
    for other in &others {
        assert!(!ask(&*store, Extend::new(other, LEASE)).await);
        assert!(!ask(&*store, Release::new(other, NONE)).await);
    }
    assert!(ask(&*store, Extend::new(&lease, LEASE)).await);
    assert!(ask(&*store, Release::new(&lease, NONE)).await);
    assert!(
        !ask(&*store, Extend::new(&lease, LEASE)).await,
        "it was released"
    );
}

async fn an_expired_lease_is_not_extended(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", Duration::from_millis(20)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!ask(&*store, Extend::new(&lease, LEASE)).await);
    assert!(
        ask(&*store, Release::new(&lease, NONE)).await,
        "nobody has taken it since"
    );
}

async fn published_entry_comes_back_unchanged(db: Db) {
    let store = open(&db).await;
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

async fn pages_are_listed_in_order_with_their_locks_and_history(db: Db) {
    let store = open(&db).await;
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

async fn pages_are_counted_and_the_latest_come_first(db: Db) {
    let store = open(&db).await;
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

async fn pages_leave_in_their_order_but_for_those_being_regenerated(db: Db) {
    let store = open(&db).await;
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    // The interval, and whether the page is generated a second time, for good.
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
    // `/visited` is stale since now, and may be regenerated at any moment.
    shift_clock(&db, 2 * 3600).await;
    // Somebody asks for it, and its regeneration has just failed.
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

async fn nothing_is_published_after_a_takeover(db: Db) {
    let store = open(&db).await;
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
        assert!(!renew(&*store, lease, first.fence.0).await);
    }
    let before = stored(&*store, &late.name).await;
    assert_eq!(before, Some((first.fence, "0".into())));
    assert!(publish(&*store, &next, &content("2")).await);
    let after = stored(&*store, &late.name).await;
    assert_eq!(after, Some((next.fence, "2".into())));
}

async fn a_repeated_publish_succeeds_again(db: Db) {
    let store = open(&db).await;
    let first = lock(&*store, "a", LEASE).await;
    for _ in 0..2 {
        assert!(publish(&*store, &first, &content("1")).await);
    }
    ask(&*store, Release::new(&first, NONE)).await;
    let second = lock(&*store, "a", LEASE).await;
    for _ in 0..2 {
        assert!(renew(&*store, &second, first.fence.0).await);
    }
    assert_eq!(
        stored(&*store, &"a".into()).await,
        Some((second.fence, "1".into()))
    );
}

async fn the_same_content_is_renewed_only_over_itself(db: Db) {
    let store = open(&db).await;
    let first = lock(&*store, "a", LEASE).await;
    assert!(
        !renew(&*store, &first, Fence::NONE.0).await,
        "there is nothing to renew"
    );
    publish(&*store, &first, &content("1")).await;
    ask(&*store, Release::new(&first, NONE)).await;
    let second = lock(&*store, "a", LEASE).await;
    assert!(!renew(&*store, &second, Fence(first.fence.0 - 1).0).await);
    assert_eq!(
        stored(&*store, &"a".into()).await,
        Some((first.fence, "1".into()))
    );
    assert!(renew(&*store, &second, first.fence.0).await);
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

async fn an_entry_is_removed_only_under_the_lease(db: Db) {
    let store = open(&db).await;
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

async fn epochs_grow_in_the_order_in_which_they_are_seen(db: Db) {
    let store = open(&db).await;
    assert_eq!(
        ask(&*store, Probe::new("a", Fence::NONE)).await.epoch,
        Epoch::NONE
    );
    assert_eq!(invalidated(&*store, Epoch::NONE, ALL).await, []);
    let long = "x".repeat(255);
    let names = ["key:/a", "key:/A", "key:/a ", "tag:\u{e4}'\\$1%", &long];
    let mut last = 0;
    for name in names.into_iter().chain(names) {
        let epoch = ask(&*store, Invalidate::new(vec![name.to_owned()])).await;
        assert!(epoch > Epoch(last), "{epoch} after {last}");
        last = epoch.0;
        let probe = ask(&*store, Probe::new("a", Fence::NONE)).await;
        assert_eq!(probe.epoch, epoch);
    }
    let mut all = invalidated(&*store, Epoch::NONE, ALL).await;
    all.sort_by_key(|(_, epoch)| *epoch);
    let kept: Vec<_> = all.iter().map(|(name, _)| &**name).collect();
    assert_eq!(kept, names, "each once, by its latest");
    assert_eq!(invalidated(&*store, Epoch(last), ALL).await, []);

    // Many processes invalidate at once. A concurrent reader misses no epoch below one that the
    // reader has seen.
    const WRITERS: usize = 8;
    const EACH: usize = 25;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let mut epochs = Vec::new();
            for n in 0..EACH {
                let name = format!("key:/{writer}/{n}");
                epochs.push((
                    name.clone(),
                    ask(&*store, Invalidate::new(vec![name.clone()])).await,
                ));
            }
            epochs
        });
    }
    let (mut seen, mut since, start) = (Vec::new(), last, Instant::now());
    while seen.len() < WRITERS * EACH {
        for (name, epoch) in invalidated(&*store, Epoch(since), ALL).await {
            last = last.max(epoch.0);
            assert!(epoch > Epoch(since));
            seen.push((name, epoch));
        }
        since = last;
        if start.elapsed() > HANG {
            // A writer that has not written is another defect than a reader that has missed something.
            let everything = invalidated(store.as_ref(), Epoch::NONE, ALL).await.len();
            panic!(
                "{} were seen, and {everything} names are stored",
                seen.len()
            );
        }
    }
    let mut made: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    made.sort();
    seen.sort();
    assert_eq!(seen, made);
    let distinct: std::collections::HashSet<_> = made.iter().map(|(_, epoch)| epoch).collect();
    assert_eq!(distinct.len(), made.len());

    let first = ask(&*store, Invalidate::new(vec!["revision:1".to_owned()])).await;
    ask(&*store, Invalidate::new(vec!["revision:1".to_owned()])).await;
    ask(&*store, Invalidate::new(vec!["purged:/p".to_owned()])).await;
    let all = invalidated(&*store, Epoch::NONE, ALL).await;
    assert!(
        all.contains(&("revision:1".to_owned(), first)),
        "it keeps the first"
    );
    let hour = Duration::from_secs(3600);
    prune(&*store, hour, Epoch::MAX).await;
    let left = invalidated(&*store, Epoch::NONE, ALL).await;
    assert_eq!(left, all, "none is old enough");
    tokio::time::sleep(Duration::from_millis(50)).await;
    let soon = Duration::from_millis(10);
    let latest = all.last().expect("is there").1;
    for _ in 0..2 {
        prune(&*store, soon, Epoch::MAX).await;
        let mut left = invalidated(&*store, Epoch::NONE, ALL).await;
        left.sort();
        let everything = ("purged_prefix:".to_owned(), latest);
        assert_eq!(left, [everything, ("revision:1".to_owned(), first)]);
        assert_eq!(ask(&*store, PurgedUntil {}).await, latest);
    }
}

async fn an_invalidation_that_is_rolled_back_is_seen_by_nobody(db: Db) {
    let store = open(&db).await;
    let made = ask(&*store, Invalidate::new(vec!["purged:/made".to_owned()])).await;
    // The server's statements, without the commit.
    let mut undone = db.uncommitted(&db.raise_epochs(3_600_000_000)).await;
    let epoch = made.0 + 3_600_000_000;
    let name = format!(
        "INSERT INTO perennial_invalidation (name, epoch) VALUES ('purged:/undone', {epoch})"
    );
    let name = sqlx::query(sqlx::AssertSqlSafe(name)).execute(&mut *undone);
    name.await.expect("is done");

    let asking = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            let name = LockName::from("a");
            let answers = tokio::join!(
                store.ask(Invalidated::new("", Epoch::NONE, ALL, Vec::new())),
                store.ask(LatestNames::new(NameList::Purged, Epoch::MAX, ALL)),
                store.ask(Probe::new(&name, Fence::NONE)),
            );
            (
                answers.0.expect("answers").names,
                answers.1.expect("answers"),
                answers.2.expect("answers").epoch,
            )
        }
    });
    crate::support::until("they have answered, or wait for the end", async || {
        asking.is_finished() || db.waits().await
    })
    .await;
    undone.rollback().await.expect("is undone");
    let expected = vec![("purged:/made".to_owned(), made)];
    let answers = asking.await.expect("no panic");
    assert_eq!(answers, (expected.clone(), expected, made));
}

/// Prunes the invalidations in as many steps as the store takes.
async fn prune(store: &dyn Backend, age: Duration, oldest: Epoch) {
    let mut after = None;
    loop {
        after = ask(store, PruneInvalidations::new(Epoch(oldest.0), age, after)).await;
        if after.is_none() {
            return;
        }
    }
}

/// The reader of the next page asks for later epochs alone.
async fn names_of_one_epoch_are_read_together(db: Db) {
    let store = open(&db).await;
    let mut made = Vec::new();
    for names in [&["tag:a"][..], &["tag:b", "tag:c", "tag:d"], &["tag:e"]] {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let epoch = ask(&*store, Invalidate::new(names.clone())).await;
        made.extend(names.into_iter().map(|name| (name, epoch)));
    }
    for most in 1..6 {
        let mut read = Vec::new();
        loop {
            let since = read.last().map_or(Epoch::NONE, |(_, epoch)| *epoch);
            let page = invalidated(&*store, since, most).await;
            let is_last = page.len() <= most;
            read.extend(page);
            if is_last {
                break;
            }
        }
        read.sort();
        assert_eq!(read, made, "{most}");

        let (mut read, mut before) = (Vec::new(), Epoch::MAX);
        loop {
            let page = ask(
                &*store,
                LatestNames::new(NameList::Stale, Epoch(before.0), most),
            )
            .await;
            let is_last = page.len() <= most;
            before = Epoch(
                page.iter()
                    .map(|(_, epoch)| *epoch)
                    .min()
                    .unwrap_or(Epoch::NONE)
                    .0,
            );
            read.extend(page);
            if is_last {
                break;
            }
        }
        read.sort();
        assert_eq!(read, made, "{most}, backwards");
    }
    assert_eq!(invalidated(&*store, Epoch::NONE, 0).await, []);
}

async fn invalidations_are_read_in_pages_by_epoch_and_backwards_by_list(db: Db) {
    let store = open(&db).await;
    let names = [
        "tag:z",
        "purged:/b",
        "key:/a",
        "revision:2",
        "prefix:",
        "prefix:/x",
        "purged:/a",
        "tag:a",
        "revision:1",
        "purged:/A",
        "tag:~",
    ];
    let mut made = Vec::new();
    for name in names {
        let epoch = ask(&*store, Invalidate::new(vec![name.to_owned()])).await;
        made.push((name.to_owned(), epoch));
    }
    let mut read = Vec::new();
    loop {
        let since = read.last().map_or(Epoch::NONE, |(_, epoch)| *epoch);
        let page = invalidated(&*store, since, 4).await;
        assert!(page.len() <= 5);
        if page.is_empty() {
            break;
        }
        read.extend(page);
    }
    assert_eq!(read, made, "in the order of epochs, each once");

    assert_eq!(ask(&*store, LatestEpoch {}).await, made[names.len() - 1].1);
    assert_eq!(ask(&*store, PurgedUntil {}).await, Epoch::NONE);
    for (list, begin) in [
        (NameList::Purged, "purged"),
        (NameList::Revisions, "revision:"),
        (NameList::Stale, ""),
    ] {
        let mut read = Vec::new();
        let mut before = i64::MAX;
        loop {
            let page = ask(&*store, LatestNames::new(list, Epoch(before), 1)).await;
            assert!(page.len() <= 2);
            let Some(oldest) = page.iter().map(|(_, epoch)| *epoch).min() else {
                break;
            };
            before = oldest.0;
            read.extend(page);
        }
        read.sort();
        let is_of_others = |name: &str| name.starts_with("purged") || name.starts_with("revision:");
        let mut expected = made.clone();
        expected.retain(|(name, _)| match begin {
            "" => !is_of_others(name),
            begin => name.starts_with(begin),
        });
        expected.sort();
        assert_eq!(read, expected, "{list:?}, each once");
    }
}

async fn sync_returns_the_state_of_each_awaited_page(db: Db) {
    let store = open(&db).await;
    let long = format!("/{}", "l".repeat(400));
    lock(&*store, LockName::of(LockKind::Page, "/held"), LEASE).await;
    let published = lock(&*store, LockName::of(LockKind::Page, &*long), LEASE).await;
    assert!(publish(&*store, &published, &content("new")).await);
    let cooling = lock(&*store, LockName::of(LockKind::Page, "/cooling"), LEASE).await;
    let done = ask(&*store, Release::new(&cooling, LEASE)).await;
    assert!(done);
    // A lock of another kind has the same name.
    lock(&*store, "/job", LEASE).await;
    let mut keys = ["/held", &*long, "/cooling", "/job", "/none", "/none"].map(str::to_owned);
    let epoch = ask(&*store, Invalidate::new(vec!["key:/a".to_owned()])).await;
    let since = Epoch(epoch.0 - 1);
    for _ in 0..2 {
        let sync = Invalidated::new("", since, ALL, keys.to_vec());
        let synced = ask(&*store, sync).await;
        assert_eq!(synced.names, [("key:/a".to_owned(), epoch)]);
        for (key, page) in keys.iter().zip(&synced.peer_leases) {
            let (fence, is_held) = match key.as_str() {
                "/held" => (Fence::NONE, true),
                key if key == long => (published.fence, true),
                _ => (Fence::NONE, false),
            };
            let is_as_long = page.remaining > NONE && page.remaining <= LEASE;
            assert_eq!((page.fence, is_as_long), (fence, is_held), "{key}");
            assert!(is_held || page.remaining.is_zero(), "{key}");
        }
        assert_eq!(synced.peer_leases.len(), keys.len());
        keys.reverse();
    }
    // More keys than one statement asks for.
    let mut many: Vec<_> = (0..1234).map(|number| format!("/{number}")).collect();
    many[1200] = "/held".to_owned();
    let sync = Invalidated::new("", since, 0, many);
    let synced = ask(&*store, sync).await;
    assert_eq!((synced.names.len(), synced.peer_leases.len()), (0, 1234));
    let held = synced
        .peer_leases
        .iter()
        .position(|page| !page.remaining.is_zero());
    assert_eq!(held, Some(1200));
    assert!(ask(&*store, Release::new(&published, NONE)).await);
    let sync = Invalidated::new("", since, ALL, vec![long]);
    let synced = ask(&*store, sync).await;
    let released = [PeerLeaseState {
        fence: published.fence,
        remaining: NONE,
    }];
    assert_eq!(synced.peer_leases, released);
}

async fn purged_page_is_removed_and_its_running_generation_is_refused(db: Db) {
    let store = open(&db).await;
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

async fn only_entries_beyond_their_retention_are_pruned(db: Db) {
    let store = open(&db).await;
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

/// Returns the smallest epoch of a page.
async fn oldest(store: &dyn Backend) -> Epoch {
    let (mut next, mut oldest) = (None, Epoch::MAX);
    loop {
        let after: Option<String> = next;
        let pruned = store.ask(PruneEntries::new(after.clone())).await;
        let Some(pruned) = pruned.expect("answers") else {
            return oldest;
        };
        oldest = oldest.min(pruned.oldest);
        next = Some(pruned.last);
    }
}

async fn a_purge_is_forgotten_only_when_no_entry_is_older(db: Db) {
    let store = open(&db).await;
    let before = ask(&*store, Invalidate::new(vec!["key:/other".to_owned()])).await;
    let purged = ask(&*store, Invalidate::new(vec!["purged:/p".to_owned()])).await;
    let body = content("1");
    let entry = async |key: &str, epoch: Epoch| {
        let lease = lock(&*store, page(key), LEASE).await;
        let entry = NewEntry {
            epoch,
            ..entry(&body)
        };
        let published = ask(&*store, Publish::new(&lease, entry.clone())).await;
        assert!(published);
        lease
    };
    // Published after the purge, by a process that had not learned of the purge when its generator
    // began.
    let old = entry("/p#late", before).await;
    entry("/new", purged).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let is_remembered = async |oldest| {
        prune(&*store, Duration::from_millis(10), oldest).await;
        let left = invalidated(&*store, Epoch::NONE, ALL).await;
        left.iter().any(|(name, _)| name == "purged:/p")
    };
    let known = oldest(&*store).await;
    assert_eq!(known, before);
    assert!(
        is_remembered(known).await,
        "the entry would be served again"
    );
    assert!(ask(&*store, Remove::new(&old)).await);
    let known = oldest(&*store).await;
    assert_eq!(known, purged);
    assert!(!is_remembered(known).await);
    let left = invalidated(&*store, Epoch::NONE, ALL).await;
    let everything = ("purged_prefix:".to_owned(), purged);
    assert_eq!(left, [everything], "it stands for both");
}

async fn purge_distinguishes_keys_with_a_common_beginning(db: Db) {
    let store = open(&db).await;
    // In the order of some languages `#` counts for little, and `a` and `A` for the same.
    let (of, others) = (
        [
            "/b",
            "/b#",
            "/b#\u{1}",
            "/b#A",
            "/b#a",
            "/b#\u{e4}",
            "/b#\u{1f600}",
        ],
        ["/B#a", "/b\"a", "/b$", "/b-#a", "/ba#", "/b%#x"],
    );
    let all = of.iter().chain(&others);
    for key in all.clone() {
        let lease = lock(&*store, page(key), LEASE).await;
        publish(&*store, &lease, &content("1")).await;
        ask(&*store, Release::new(&lease, NONE)).await;
    }
    ask(&*store, Purge::new("/b")).await;
    for key in all {
        let purged = of.contains(key);
        let is_gone = stored(&*store, &page(key)).await.is_none();
        assert_eq!(is_gone, purged, "{key}");
    }
    // PostgreSQL has no text with a NUL.
    let key = "/nul\0l";
    let lease = lock(&*store, page(key), LEASE).await;
    assert!(publish(&*store, &lease, &content("1")).await);
    ask(&*store, Purge::new(key)).await;
    assert!(stored(&*store, &page(key)).await.is_none());
    assert!(!ask(&*store, Extend::new(&lease, LEASE)).await);
}

async fn equal_names_of_different_kinds_are_different_locks(db: Db) {
    let store = open(&db).await;
    let kinds = [
        LockKind::Housekeeping,
        LockKind::Lock,
        LockKind::Once,
        LockKind::Page,
    ];
    for name in ["/a", &"long".repeat(100)] {
        let mut leases = Vec::new();
        for kind in kinds {
            // Fails if the kinds had one lock together: the lock of the kind before is still held.
            let lease = lock(&*store, LockName::of(kind, name), LEASE).await;
            leases.push(lease);
        }
        let held = ask(&*store, Held {}).await;
        let held: Vec<_> = held.iter().map(|row| row.kind).collect();
        assert_eq!(held, kinds);
        // A change of one kind leaves the other kinds unchanged.
        ask(&*store, Purge::new(name)).await;
        let revoke = Revoke::new(&leases[1].name, &leases[1].owner);
        ask(&*store, revoke).await;
        for (lease, kind) in leases.iter().zip(kinds) {
            let is_lost = matches!(kind, LockKind::Lock | LockKind::Page);
            let extended = ask(&*store, Extend::new(lease, LEASE)).await;
            assert_eq!(extended, !is_lost, "{kind:?}");
            if !is_lost {
                assert!(ask(&*store, Release::new(lease, LEASE)).await);
            }
        }
        // A mark has no owner, and is not listed.
        let held = ask(&*store, Held {}).await;
        assert!(held.iter().map(|row| row.kind).eq([LockKind::Housekeeping]));
        assert!(ask(&*store, BreakLock::new(&leases[0].name, None)).await);
    }
}

async fn a_lock_is_inspected_listed_and_broken(db: Db) {
    let store = open(&db).await;
    let long = "x".repeat(1000);
    for text in ["a", "\u{e4} '$1", &long] {
        let name = &LockName::from(text);
        assert_eq!(ask(&*store, Inspect::new(name)).await, None);
        assert!(!ask(&*store, BreakLock::new(name, None)).await);
        let lease = lock(&*store, text, LEASE).await;
        let row = ask(&*store, Inspect::new(name)).await.expect("is there");
        assert_eq!(row.owner.as_ref(), Some(&lease.owner));
        assert!(row.fence == lease.fence && row.age < LEASE);
        assert!(row.remaining > NONE && row.remaining <= LEASE);
        assert_eq!(row.name == text, text.len() < 180);
        let held = ask(&*store, Held {}).await;
        assert_eq!(held.len(), 1);
        assert_eq!((&held[0].name, held[0].fence), (&row.name, row.fence));

        let fence = ask(&*store, Inspect::new(name))
            .await
            .map_or(Fence::NONE, |row| row.fence);
        let other = ask(&*store, BreakLock::new(name, Some(Fence(fence.0 - 1)))).await;
        assert!(!other, "another holder's");
        let seen = ask(&*store, BreakLock::new(name, Some(fence))).await;
        assert!(seen);
        assert!(!ask(&*store, Extend::new(&lease, LEASE)).await);
        assert!(!publish(&*store, &lease, &content("late")).await);
        let row = ask(&*store, Inspect::new(name)).await.expect("is there");
        assert!(row.owner.is_none() && row.fence > lease.fence && row.remaining == NONE);
        assert_eq!(ask(&*store, Held {}).await, []);
        assert!(!ask(&*store, Release::new(&lease, LEASE)).await);
        let next = lock(&*store, text, LEASE).await;
        assert!(next.fence > row.fence);
        assert!(ask(&*store, Release::new(&next, NONE)).await);
    }
}

#[cfg(feature = "mysql")]
on_database! {
    mysql_frozen = crate::databases::Db::mysql_with(&["SET timestamp = 1900000000.5"]);
    one_of_several_tries_in_a_microsecond_gets_the_lock
}

#[cfg(feature = "mysql")]
async fn one_of_several_tries_in_a_microsecond_gets_the_lock(db: Db) {
    let store = open(&db).await;
    let mut last = Fence::NONE;
    for _ in 0..3 {
        let lease = lock(&*store, "a", LEASE).await;
        assert!(lease.fence > last);
        last = lease.fence;
        for seen in [None, Some(last), Some(Fence(last.0 - 1))] {
            let other = ask(&*store, TryLock::new("a", uuid(), LEASE, seen)).await;
            assert_eq!(other.fence, None);
            let again = ask(&*store, TryLock::new("a", &lease.owner, LEASE, seen)).await;
            assert_eq!(again.fence, Some(last));
        }
        assert!(publish(&*store, &lease, &content("1")).await);
        assert!(ask(&*store, Release::new(&lease, NONE)).await);
    }
}

#[cfg(feature = "postgres")]
on_database! {
    reads_postgres = crate::databases::Db::postgres();
    no_statement_reads_all_rows_of_postgres
}
#[cfg(feature = "mysql")]
on_database! {
    reads_mysql = crate::databases::Db::mysql();
    no_statement_reads_all_rows_of_mysql
}

#[cfg(feature = "postgres")]
async fn no_statement_reads_all_rows_of_postgres(db: Db) {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(db.url()).await.expect("opens");
    request_among_many_rows(&db, pool.clone().into()).await;
    // A session's counters are visible after its end.
    pool.close().await;
    let count = async |what| {
        let sql = format!("SELECT sum({what})::bigint FROM pg_stat_user_tables");
        db.int(&sql).await.expect("a number")
    };
    crate::support::until("what was read is counted", async || {
        count("idx_scan").await >= 20
    })
    .await;
    let read = count("seq_tup_read + idx_tup_fetch").await;
    assert!(read < ROWS, "{read} rows were read");
}

#[cfg(feature = "mysql")]
async fn no_statement_reads_all_rows_of_mysql(db: Db) {
    // A session has counters of its own.
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(1);
    let pool = pool.connect(db.url()).await.expect("opens");
    request_among_many_rows(&db, pool.clone().into()).await;
    let counters = "SHOW SESSION STATUS WHERE Variable_name IN ('Handler_read_key', 'Handler_read_next', 'Handler_read_rnd_next')";
    let counted: Vec<(String, String)> = sqlx::query_as(counters)
        .fetch_all(&pool)
        .await
        .expect("reads");
    let counted: Vec<i64> = counted
        .iter()
        .map(|(_, count)| count.parse().expect("a number"))
        .collect();
    let [by_key, next, any] = counted[..] else {
        panic!("{counted:?}")
    };
    assert!(by_key >= 20, "what was read is counted");
    assert!(next + any < ROWS, "{} rows were read", next + any);
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
const ROWS: i64 = 10_000;

/// The statements of requests and locks, over this number of rows in each table.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn request_among_many_rows(db: &Db, database: perennial::sql::Database) {
    let store = database.store("perennial_").await.expect("prepares");
    let digits = crate::databases::four_digits();
    for (columns, values) in [
        (
            "lock (kind, name, fence, acquired_at, expires_at)",
            "1, 1, 1",
        ),
        ("invalidation (name, epoch)", "1"),
        (
            "entry (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, status, headers, body)",
            "1, 1, 1, 4102444800000000, 0, 0, '', 200, '', ''",
        ),
    ] {
        let kind = if columns.contains("kind") {
            "'page', "
        } else {
            ""
        };
        let sql = format!(
            "INSERT INTO perennial_{columns} SELECT {kind}concat('/page/', a.d, b.d, c.d, d.d), {values}
            FROM {digits}"
        );
        assert_eq!(db.execute(&sql).await, ROWS.cast_unsigned());
    }
    let content = content("of a page");
    for key in ["/page/0815", "/page/4711", "/another"] {
        let name = &page(key);
        assert!(ask(&*store, Evict { excess: 1 }).await > 0);
        ask(&*store, LatestNames::new(NameList::Purged, Epoch::MAX, 10)).await;
        ask(&*store, PurgedUntil {}).await;
        let taken = lock(&*store, name.clone(), LEASE).await;
        assert!(ask(&*store, Extend::new(&taken, LEASE)).await);
        assert!(publish(&*store, &taken, &content).await);
        let (fence, _) = stored(&*store, name).await.expect("is there");
        assert!(ask(&*store, Release::new(&taken, NONE)).await);
        let taken = lock(&*store, name.clone(), LEASE).await;
        assert!(renew(&*store, &taken, fence.0).await);
        let epoch = ask(&*store, Invalidate::new(vec![key.to_owned()])).await;
        let since = invalidated(&*store, Epoch(epoch.0 - 1), ALL).await;
        assert!(since.iter().any(|(name, _)| name == key));
        assert!(ask(&*store, Remove::new(&taken)).await);
        assert!(ask(&*store, Inspect::new(name)).await.is_some());
        let revoke = Revoke::new(&taken.name, &taken.owner);
        ask(&*store, revoke).await;
        assert!(ask(&*store, BreakLock::new(name, None)).await);
        ask(&*store, Purge::new(key)).await;
    }
}

/// Sets the clock of a database in memory forward, or back for negative `seconds`. In an SQL
/// database, changes the rows as a changed clock would.
async fn shift_clock(db: &Db, seconds: i64) {
    if let Some(database) = db.memory() {
        let by = Duration::from_secs(seconds.unsigned_abs());
        match seconds {
            0.. => database.set_clock_forward(by),
            _ => database.set_clock_back(by),
        }
        return;
    }
    let by = seconds * 1_000_000;
    for table in [
        format!(
            "perennial_lock SET acquired_at = acquired_at - ({by}),
            expires_at = CASE WHEN expires_at = 0 THEN 0 ELSE expires_at - ({by}) END"
        ),
        format!(
            "perennial_entry SET generated_at = generated_at - ({by}), stale_at = stale_at - ({by}), retain_until = retain_until - ({by})"
        ),
        format!(
            "perennial_request SET begun_at = begun_at - ({by}), expires_at = expires_at - ({by}),
            retain_until = retain_until - ({by})"
        ),
    ] {
        db.execute(&format!("UPDATE {table}")).await;
    }
}

async fn entry_from_before_the_clock_was_set_back_has_no_age(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, page("/p"), LEASE).await;
    assert!(publish(&*store, &lease, &content("1")).await);
    let entry = async || {
        let probe = ask(&*store, Probe::new(page("/p"), Fence::NONE)).await;
        probe.entry.expect("is there")
    };
    // The largest difference between clocks.
    shift_clock(&db, -2).await;
    let ahead = entry().await;
    assert!(!ahead.age_unknown && ahead.age < LEASE, "{ahead:?}");
    shift_clock(&db, -3600).await;
    assert!(entry().await.age_unknown);
    shift_clock(&db, 2 * 3600).await;
    let dated = entry().await;
    assert!(!dated.age_unknown && dated.age >= LEASE - HANG, "{dated:?}");
}

async fn a_cooldown_does_not_end_when_the_clock_is_set_back(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", LEASE).await;
    assert!(ask(&*store, Release::new(&lease, LEASE)).await);
    for seconds in [30, 3600, 400 * 24 * 3600] {
        shift_clock(&db, -seconds).await;
        for seen in [None, Some(lease.fence)] {
            let tried = ask(&*store, TryLock::new("a", uuid(), LEASE, seen)).await;
            assert_eq!(tried.fence, None, "{seconds} s");
        }
        let probe = ask(&*store, Probe::new("a", Fence::NONE)).await;
        assert!(!probe.lock.owned && probe.lock.remaining > NONE);
    }
}

async fn a_holder_whose_clock_is_right_keeps_its_lock(db: Db) {
    let store = open(&db).await;
    let held = lock(&*store, "a", LEASE).await;
    for seconds in [0, 4, 3600] {
        // Each node of a cluster has a clock of its own.
        shift_clock(&db, -seconds).await;
        for seen in [None, Some(held.fence)] {
            let tried = ask(&*store, TryLock::new("a", uuid(), LEASE, seen)).await;
            assert_eq!(tried.fence, None);
            let probe = ask(&*store, Probe::new("a", Fence::NONE)).await;
            assert!(probe.lock.owned && probe.lock.remaining > LEASE / 2);
        }
        let again = ask(&*store, TryLock::new("a", &held.owner, LEASE, None)).await;
        assert_eq!(again.fence, Some(held.fence));
    }
    assert!(publish(&*store, &held, &content("1")).await);
    assert!(ask(&*store, Extend::new(&held, LEASE)).await);
    assert!(ask(&*store, Release::new(&held, NONE)).await);
}

const HOUR: Duration = Duration::from_secs(3600);

fn begin(name: &str, owner: &str) -> Begin {
    Begin::new(name, owner, "print", HOUR, 24 * HOUR, None)
}

/// Returns the state of a request, in a word or by the body of its response.
async fn begun(store: &dyn Backend, begin: Begin) -> String {
    let fingerprint_sent = begin.fingerprint.clone();
    match ask(store, begin).await {
        Begun::Own => "own".to_owned(),
        Begun::Other { fingerprint, .. } if fingerprint != fingerprint_sent => fingerprint,
        Begun::Other { progress, .. } => match progress {
            RequestProgress::Running => "running".to_owned(),
            RequestProgress::Unknown => "unknown".to_owned(),
            RequestProgress::Done(None) => "not stored".to_owned(),
            RequestProgress::Done(Some(response)) => {
                let body = response.into_body();
                std::str::from_utf8(&body).expect("text").to_owned()
            }
        },
    }
}

async fn finish(store: &dyn Backend, name: &str, owner: &str, body: Option<&str>) -> bool {
    let finish = Finish::new(name, owner, body.map(content), 24 * HOUR);
    ask(store, finish).await
}

async fn forgotten(store: &dyn Backend, name: &str, owner: Option<&str>) -> bool {
    let forget = Forget::new(name, owner.map(str::to_owned));
    ask(store, forget).await
}

async fn request_is_begun_by_one_owner(db: Db) {
    let store = open(&db).await;
    for round in 0..5 {
        let mut owners = JoinSet::new();
        for owner in 0..16 {
            let (store, name) = (store.clone(), format!("r{round}"));
            owners.spawn(async move { begun(&*store, begin(&name, &format!("o{owner}"))).await });
        }
        let replies = owners.join_all().await;
        let own = replies.iter().filter(|reply| *reply == "own");
        assert_eq!(own.count(), 1, "{replies:?}");
        let running = replies.iter().filter(|reply| *reply == "running");
        assert_eq!(running.count(), 15, "{replies:?}");
    }
    let other = Begin::new("r0", "late", "another print", HOUR, HOUR, None);
    assert_eq!(begun(&*store, other).await, "print");
}

async fn request_is_taken_over_only_after_its_time(db: Db) {
    let store = open(&db).await;
    let again = |owner: &str, fingerprint: &str, hours| {
        Begin::new("r", owner, fingerprint, HOUR, 96 * HOUR, Some(hours * HOUR))
    };
    assert_eq!(begun(&*store, again("a", "print", 3)).await, "own");
    shift_clock(&db, 2 * 3600).await;
    assert_eq!(begun(&*store, begin("r", "b")).await, "unknown");
    assert_eq!(begun(&*store, again("b", "print", 3)).await, "unknown");
    assert_eq!(begun(&*store, again("b", "other", 1)).await, "print");
    assert_eq!(begun(&*store, again("b", "print", 1)).await, "own");
    assert!(!finish(&*store, "r", "a", Some("late")).await);
    assert_eq!(begun(&*store, again("c", "print", 1)).await, "running");
    assert!(finish(&*store, "r", "b", Some("paid")).await);
    shift_clock(&db, 12 * 3600).await;
    assert_eq!(begun(&*store, again("c", "print", 1)).await, "paid");
    // The response's retention ends, and the key is new.
    shift_clock(&db, 13 * 3600).await;
    assert_eq!(begun(&*store, begin("r", "c")).await, "own");
    assert!(finish(&*store, "r", "c", Some("paid again")).await);
    assert_eq!(begun(&*store, begin("r", "d")).await, "paid again");
}

async fn first_response_of_the_owner_stays(db: Db) {
    let store = open(&db).await;
    assert!(
        !finish(&*store, "r", "a", Some("none")).await,
        "nobody has begun it"
    );
    for _ in 0..2 {
        assert_eq!(begun(&*store, begin("r", "a")).await, "own");
    }
    assert!(!finish(&*store, "r", "b", Some("not mine")).await);
    assert!(finish(&*store, "r", "a", Some("paid")).await);
    for later in [None, Some("other")] {
        assert!(finish(&*store, "r", "a", later).await, "as before");
        assert!(!finish(&*store, "r", "b", later).await);
    }
    for owner in ["a", "b"] {
        assert_eq!(begun(&*store, begin("r", owner)).await, "paid");
    }
    assert_eq!(begun(&*store, begin("s", "a")).await, "own");
    assert!(finish(&*store, "s", "a", None).await);
    assert!(finish(&*store, "s", "a", Some("late")).await);
    assert_eq!(begun(&*store, begin("s", "b")).await, "not stored");
}

async fn request_that_has_not_finished_is_forgotten_by_its_owner(db: Db) {
    let store = open(&db).await;
    for operator in [false, true] {
        let owner = (!operator).then_some("a");
        assert!(!forgotten(&*store, "r", owner).await);
        assert_eq!(begun(&*store, begin("r", "a")).await, "own");
        assert!(!forgotten(&*store, "r", Some("b")).await);
        assert!(forgotten(&*store, "r", owner).await);
        assert_eq!(
            begun(&*store, begin("r", "b")).await,
            "own",
            "the key is new"
        );
        assert!(finish(&*store, "r", "b", None).await);
        assert!(!forgotten(&*store, "r", Some("b")).await, "it is done");
        assert!(!forgotten(&*store, "r", None).await, "it is done");
        shift_clock(&db, 25 * 3600).await;
        assert_eq!(begun(&*store, begin("r", "c")).await, "own");
        assert!(forgotten(&*store, "r", None).await);
    }
}

async fn requests_are_pruned_in_batches(db: Db) {
    let store = open(&db).await;
    for n in 0..10 {
        let name = format!("r{n}");
        assert_eq!(begun(&*store, begin(&name, "a")).await, "own");
        let retention = if n < 7 { HOUR } else { 9 * HOUR };
        let finish = Finish::new(&name, "a", None, retention);
        assert!(ask(&*store, finish).await);
    }
    assert_eq!(begun(&*store, begin("unfinished", "a")).await, "own");
    shift_clock(&db, 2 * 3600).await;
    // The row of a request that has begun again is not over.
    assert_eq!(begun(&*store, begin("r0", "b")).await, "own");
    for expected in [4, 2, 0] {
        let pruned = ask(&*store, PruneRequests::new(4)).await;
        assert_eq!(pruned, expected);
    }
    for (name, expected) in [("r0", "running"), ("r1", "own"), ("r7", "not stored")] {
        assert_eq!(begun(&*store, begin(name, "c")).await, expected, "{name}");
    }
    assert_eq!(begun(&*store, begin("unfinished", "b")).await, "unknown");
}

async fn requests_have_any_name_and_any_response(db: Db) {
    let store = open(&db).await;
    let long = "x".repeat(10_000);
    let body = Bytes::from(vec![0xff_u8; 300_000]);
    for name in ["", "a'$1\\ ?", "\u{e4}\0", &long, "A", "a", "a "] {
        assert_eq!(
            begun(&*store, begin(name, "o'$2\\")).await,
            "own",
            "{name:?}"
        );
        let response = content("").map(|_| body.clone());
        let finish = Finish::new(name, "o'$2\\", Some(response.clone()), HOUR);
        assert!(ask(&*store, finish).await);
        let Begun::Other {
            progress: RequestProgress::Done(Some(stored)),
            ..
        } = ask(&*store, begin(name, "b")).await
        else {
            panic!("{name:?} is not stored");
        };
        assert_eq!(stored.status(), response.status());
        assert_eq!(stored.headers(), response.headers());
        assert_eq!(stored.body(), response.body());
    }
    let empty = Response::new(Bytes::new());
    assert_eq!(begun(&*store, begin("empty", "a")).await, "own");
    let finish = Finish::new("empty", "a", Some(empty), HOUR);
    assert!(ask(&*store, finish).await);
    assert_eq!(begun(&*store, begin("empty", "b")).await, "");
    // Longer than any deadline.
    let forever = Begin::new(
        "ever",
        "a",
        "print",
        Duration::MAX,
        Duration::MAX,
        Some(Duration::MAX),
    );
    for owner in ["a", "b"] {
        let mut forever = forever.clone();
        forever.owner = owner.to_owned();
        let expected = if owner == "a" { "own" } else { "running" };
        assert_eq!(begun(&*store, forever).await, expected);
    }
}
