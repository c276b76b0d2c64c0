//! The contract of [`Store`], for each store that the crate has.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use perennial::store::{LeaseRow, Store};
use tokio::task::JoinSet;

use crate::databases::Db;

const LEASE: Duration = Duration::from_secs(60);
const NONE: Duration = Duration::ZERO;

pub(crate) async fn open(db: &Db) -> Arc<dyn Store> {
    let store = db.database().await.store("perennial_").await;
    store.expect("prepares").into()
}

pub(crate) async fn lock(store: &dyn Store, name: &str, length: Duration) -> LeaseRow {
    let owner = uuid();
    let fence = store
        .try_lock(name, &owner, length, None)
        .await
        .expect("answers");
    LeaseRow {
        name: name.to_owned(),
        owner,
        fence: fence.expect("is free"),
    }
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

pub(crate) async fn stored(store: &dyn Store, key: &str) -> Option<(i64, Bytes)> {
    let probe = store.probe(key, "no-lock", 0).await.expect("answers");
    probe
        .entry
        .map(|entry| (entry.fence, entry.content.into_body()))
}

macro_rules! contract {
    ($($test:ident)*) => {
        on_each_database! { $($test)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_pooled = crate::databases::Db::postgres_pooled(); $($test)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_relative = crate::databases::Db::postgres_relative(); $($test)* }
        #[cfg(feature = "postgres")]
        on_database! { postgres_unusual = crate::databases::Db::postgres_unusual(); $($test)* }
        #[cfg(feature = "mysql")]
        on_database! { mysql_unusual = crate::databases::Db::mysql_unusual(); $($test)* }
    };
}

contract! {
    a_lock_is_taken_by_one_and_its_fences_only_grow
    whoever_was_not_told_asks_again_and_is_told
    a_cooldown_keeps_everybody_off
    a_lock_is_taken_only_while_its_fence_is_the_one_seen
    only_the_owner_extends_and_releases
    an_expired_lease_is_not_extended
    what_is_published_comes_back_as_it_was
    nothing_is_published_after_a_takeover
    a_repeated_publish_succeeds_again
    the_same_content_is_renewed_only_over_itself
    an_entry_is_removed_only_under_the_lease
}

async fn a_lock_is_taken_by_one_and_its_fences_only_grow(db: Db) {
    let store = open(&db).await;
    let mut last = 0;
    for _ in 0..100 {
        let mut tries = JoinSet::new();
        for _ in 0..8 {
            let store = Arc::clone(&store);
            tries.spawn(async move {
                let owner = uuid();
                let fence = store
                    .try_lock("a", &owner, LEASE, None)
                    .await
                    .expect("answers");
                fence.map(|fence| LeaseRow {
                    name: "a".into(),
                    owner,
                    fence,
                })
            });
        }
        let won: Vec<_> = tries.join_all().await.into_iter().flatten().collect();
        assert_eq!(won.len(), 1);
        assert!(won[0].fence > last);
        last = won[0].fence;
        let state = store.probe("k", "a", 0).await.expect("answers").lock;
        assert!(
            state.owned
                && state.fence == last
                && state.remaining > NONE
                && state.remaining <= LEASE
        );
        assert!(store.release(&won[0], NONE).await.expect("answers"));
        let state = store.probe("k", "a", 0).await.expect("answers").lock;
        assert!(!state.owned && state.fence == last && state.remaining == NONE);
    }
}

async fn whoever_was_not_told_asks_again_and_is_told(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", LEASE).await;
    for seen in [None, Some(0), Some(lease.fence)] {
        let again = store.try_lock("a", &lease.owner, LEASE, seen).await;
        assert_eq!(again.expect("answers"), Some(lease.fence), "{seen:?}");
    }
    assert!(store.extend(&lease, LEASE).await.expect("answers"));
    for _ in 0..2 {
        assert!(store.release(&lease, NONE).await.expect("answers"));
    }
    let other = lock(&*store, "a", LEASE).await;
    assert!(!store.release(&lease, NONE).await.expect("answers"));
    let again = store.try_lock("a", &lease.owner, LEASE, None).await;
    assert_eq!(again.expect("answers"), None);
    assert!(store.extend(&other, LEASE).await.expect("answers"));
}

async fn a_cooldown_keeps_everybody_off(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", LEASE).await;
    let cooldown = Duration::from_millis(500);
    assert!(store.release(&lease, cooldown).await.expect("answers"));
    let state = store.probe("k", "a", 0).await.expect("answers").lock;
    assert!(!state.owned && state.remaining > NONE && state.remaining <= cooldown);
    assert_eq!(
        store
            .try_lock("a", "me", LEASE, None)
            .await
            .expect("answers"),
        None
    );
    tokio::time::sleep(cooldown * 2).await;
    lock(&*store, "a", LEASE).await;
}

async fn a_lock_is_taken_only_while_its_fence_is_the_one_seen(db: Db) {
    let store = open(&db).await;
    let fence = store.try_lock("a", "me", LEASE, Some(1)).await;
    let fence = fence.expect("answers");
    assert!(fence.is_some(), "never held, so nobody can have published");
    let first = lock(&*store, "b", LEASE).await;
    store.release(&first, NONE).await.expect("answers");
    for seen in [0, first.fence - 1, first.fence + 1] {
        assert_eq!(
            store
                .try_lock("b", "me", LEASE, Some(seen))
                .await
                .expect("answers"),
            None
        );
    }
    assert!(
        store
            .try_lock("b", "me", LEASE, Some(first.fence))
            .await
            .expect("answers")
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
            fence: lease.fence + 1,
            ..lease.clone()
        },
        LeaseRow {
            name: "b".into(),
            ..lease.clone()
        },
    ];
    for other in &others {
        assert!(!store.extend(other, LEASE).await.expect("answers"));
        assert!(!store.release(other, NONE).await.expect("answers"));
    }
    assert!(store.extend(&lease, LEASE).await.expect("answers"));
    assert!(store.release(&lease, NONE).await.expect("answers"));
    assert!(
        !store.extend(&lease, LEASE).await.expect("answers"),
        "it was released"
    );
}

async fn an_expired_lease_is_not_extended(db: Db) {
    let store = open(&db).await;
    let lease = lock(&*store, "a", Duration::from_millis(20)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!store.extend(&lease, LEASE).await.expect("answers"));
    assert!(
        store.release(&lease, NONE).await.expect("answers"),
        "nobody has taken it since"
    );
}

async fn what_is_published_comes_back_as_it_was(db: Db) {
    let store = open(&db).await;
    for key in ["/", "/ä?x=y", &"long".repeat(5000)] {
        let lease = lock(&*store, key, LEASE).await;
        let sent = match key {
            "/" => Response::new(Bytes::new()),
            _ => content("bytes \0 \u{fc}"),
        };
        assert!(store.publish(key, &lease, &sent).await.expect("answers"));
        tokio::time::sleep(Duration::from_millis(20)).await;
        let entry = store
            .probe(key, key, 0)
            .await
            .expect("answers")
            .entry
            .expect("is stored");
        assert_eq!(entry.fence, lease.fence);
        assert!(entry.age >= Duration::from_millis(10) && entry.age < LEASE);
        assert_eq!(entry.content.status(), sent.status());
        assert_eq!(entry.content.headers(), sent.headers());
        assert_eq!(entry.content.body(), sent.body());
        let known = store.probe(key, key, lease.fence).await.expect("answers");
        assert!(known.entry.is_none(), "it is not newer than itself");
    }
}

async fn nothing_is_published_after_a_takeover(db: Db) {
    let store = open(&db).await;
    let late = lock(&*store, "a", Duration::from_millis(20)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Expired but not taken over: nobody else can have published.
    assert!(
        store
            .publish("k", &late, &content("0"))
            .await
            .expect("answers")
    );
    let next = lock(&*store, "a", LEASE).await;
    // The next one has not published yet: the entry's own fence would not refuse this.
    assert!(
        !store
            .publish("other", &late, &content("1"))
            .await
            .expect("answers")
    );
    assert!(
        !store
            .publish(
                "k",
                &LeaseRow {
                    fence: next.fence,
                    ..late.clone()
                },
                &content("1")
            )
            .await
            .expect("answers")
    );
    assert!(
        !store
            .renew(
                "k",
                &LeaseRow {
                    fence: next.fence,
                    ..late
                },
                next.fence - 1
            )
            .await
            .expect("answers")
    );
    assert!(
        store
            .publish("k", &next, &content("2"))
            .await
            .expect("answers")
    );
    assert_eq!(stored(&*store, "k").await, Some((next.fence, "2".into())));
    assert_eq!(stored(&*store, "other").await, None);
}

async fn a_repeated_publish_succeeds_again(db: Db) {
    let store = open(&db).await;
    let first = lock(&*store, "a", LEASE).await;
    for _ in 0..2 {
        assert!(
            store
                .publish("k", &first, &content("1"))
                .await
                .expect("answers")
        );
    }
    store.release(&first, NONE).await.expect("answers");
    let second = lock(&*store, "a", LEASE).await;
    for _ in 0..2 {
        assert!(
            store
                .renew("k", &second, first.fence)
                .await
                .expect("answers")
        );
    }
    assert_eq!(stored(&*store, "k").await, Some((second.fence, "1".into())));
}

async fn the_same_content_is_renewed_only_over_itself(db: Db) {
    let store = open(&db).await;
    let first = lock(&*store, "a", LEASE).await;
    assert!(
        !store.renew("k", &first, 0).await.expect("answers"),
        "there is nothing to renew"
    );
    store
        .publish("k", &first, &content("1"))
        .await
        .expect("answers");
    store.release(&first, NONE).await.expect("answers");
    let second = lock(&*store, "a", LEASE).await;
    assert!(
        !store
            .renew("k", &second, first.fence - 1)
            .await
            .expect("answers")
    );
    assert_eq!(stored(&*store, "k").await, Some((first.fence, "1".into())));
    assert!(
        store
            .renew("k", &second, first.fence)
            .await
            .expect("answers")
    );
}

async fn an_entry_is_removed_only_under_the_lease(db: Db) {
    let store = open(&db).await;
    let late = lock(&*store, "a", LEASE).await;
    assert!(
        !store.remove("k", &late).await.expect("answers"),
        "there is none"
    );
    assert!(
        store
            .publish("k", &late, &content("1"))
            .await
            .expect("answers")
    );
    store.release(&late, NONE).await.expect("answers");
    let next = lock(&*store, "a", LEASE).await;
    assert!(!store.remove("k", &late).await.expect("answers"));
    assert_eq!(stored(&*store, "k").await, Some((late.fence, "1".into())));
    assert!(store.remove("k", &next).await.expect("answers"));
    assert_eq!(stored(&*store, "k").await, None);
}
