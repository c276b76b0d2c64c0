//! Tests invalidated names and their epochs: in which order epochs are given, and how names are
//! read, pruned and purged.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use perennial_store::{
    Backend, Epoch, Extend, Fence, Invalidate, Invalidated, LatestEpoch, LatestNames, LockKind,
    LockName, NameList, NewEntry, PeerLeaseState, Probe, PruneEntries, PruneInvalidations, Publish,
    Purge, PurgedUntil, Release, Remove,
};
use tokio::task::JoinSet;

use crate::{
    ALL, HANG, LEASE, NONE, TestDatabase,
    store::{ask, content, entry, invalidated, lock, page, publish, stored},
};

pub async fn epochs_grow_in_the_order_in_which_they_are_seen(db: impl TestDatabase) {
    let store = db.store().await;
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

    // Many processes invalidate at once. A reader that has seen an epoch has also seen all lower
    // ones.
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
            // The message tells the two causes apart: a writer that has not written, and a reader that
            // has missed something.
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

/// Prunes the invalidations. The store may need several steps for that.
async fn prune(store: &dyn Backend, age: Duration, oldest: Epoch) {
    let mut after = None;
    loop {
        after = ask(store, PruneInvalidations::new(Epoch(oldest.0), age, after)).await;
        if after.is_none() {
            return;
        }
    }
}

/// A reader that has read one page of the list asks next for the epochs after the last one that it has
/// seen, so it must not miss a name with that epoch.
pub async fn names_of_one_epoch_are_read_together(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn invalidations_are_read_in_pages_by_epoch_and_backwards_by_list(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn sync_returns_the_state_of_each_awaited_page(db: impl TestDatabase) {
    let store = db.store().await;
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

pub async fn a_purge_is_forgotten_only_when_no_entry_is_older(db: impl TestDatabase) {
    let store = db.store().await;
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
    // This entry is published after the purge, by a process that had not learned of the purge when
    // its generator began.
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

pub async fn purge_distinguishes_keys_with_a_common_beginning(db: impl TestDatabase) {
    let store = db.store().await;
    // In the collations of some languages `#` has little weight in the order, and `a` and `A` are
    // equal.
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
