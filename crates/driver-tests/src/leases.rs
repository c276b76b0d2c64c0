//! Locks and their leases: who takes one, extends it, frees it, and sees it.

use std::{sync::Arc, time::Duration};

use perennial_store::{
    BreakLock, Extend, Fence, Held, Inspect, LeaseRow, LockKind, LockName, Probe, Purge, Release,
    Revoke, TryLock,
};
use tokio::task::JoinSet;

use crate::{
    LEASE, NONE, TestDatabase,
    store::{ask, content, lock, publish, uuid},
};

pub async fn a_lock_is_taken_by_one_and_its_fences_only_grow(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn owner_without_an_answer_gets_its_fence_again(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn lock_is_revoked_from_its_owner_alone(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn releases_with_a_cooldown_are_counted(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn a_lock_is_taken_only_while_its_fence_is_the_one_seen(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn only_the_owner_extends_and_releases(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn an_expired_lease_is_not_extended(db: impl TestDatabase) {
    let store = db.store().await;
    let lease = lock(&*store, "a", Duration::from_millis(20)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!ask(&*store, Extend::new(&lease, LEASE)).await);
    assert!(
        ask(&*store, Release::new(&lease, NONE)).await,
        "nobody has taken it since"
    );
}

pub async fn equal_names_of_different_kinds_are_different_locks(db: impl TestDatabase) {
    let store = db.store().await;
    let kinds = [
        LockKind::Housekeeping,
        LockKind::Lock,
        LockKind::Once,
        LockKind::Page,
    ];
    for name in ["/a", &"long".repeat(100)] {
        let mut leases = Vec::new();
        for kind in kinds {
            // The lock of the previous kind is still held here. If two kinds shared a lock, this
            // would fail.
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
        // A row that marks work as done, and has no owner, is not listed. A lock of another kind
        // without an owner is.
        let held = ask(&*store, Held {}).await;
        assert!(held.iter().map(|row| row.kind).eq([LockKind::Housekeeping]));
        assert!(ask(&*store, BreakLock::new(&leases[0].name, None)).await);
    }
}

pub async fn a_lock_is_inspected_listed_and_broken(db: impl TestDatabase) {
    let store = db.store().await;
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
