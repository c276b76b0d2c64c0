//! Invalidations in a transaction of the application's own, on each database.

use std::time::Duration;

use perennial::{ErrorKind, Perennial};
use perennial_store::{Epoch, Invalidated, Number, Numbered};
use tokio::task::JoinSet;

use perennial_testkit::{
    Db, Origin, on_database, on_each_database, on_each_server, open_site, patient,
    peers::{HEARD, hears, pair},
    until, with_pool,
};

// In the mode of this server, an empty text is NULL.
#[cfg(feature = "mysql")]
on_database! {
    mysql_unusual = perennial_testkit::Db::mysql_unusual();
    process_without_requests_knows_a_committed_invalidation_before_its_next_answer
}
on_each_database! {
    invalidation_is_committed_or_rolled_back_with_its_transaction
    committed_invalidation_is_numbered_once
    author_knows_the_invalidation_that_another_process_has_applied
    process_without_requests_knows_a_committed_invalidation_before_its_next_answer
    transactions_that_commit_in_another_order_than_they_wrote_are_both_learned
    transaction_elsewhere_is_told_so
}

async fn waiting(db: &Db) -> Option<i64> {
    db.int("SELECT COUNT(*) FROM perennial_outbox").await
}

async fn invalidation_is_committed_or_rolled_back_with_its_transaction(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
    let run = a.run("/a").await;
    with_pool!(db, pool => {
            let mut transaction = pool.begin().await.expect("begins");
            let pending = a.site.invalidate_in(&mut transaction, ["list"]).await.expect("is written");
            transaction.rollback().await.expect("is rolled back");
            pending.committed().await.expect("is applied");
            assert_eq!(waiting(&db).await, Some(0));
            tokio::time::sleep(HEARD).await;
            assert_eq!([a.run("/a").await, b.run("/a").await], [run; 2]);

            // In the first round, the author's own process applies the invalidation at once. In the
            // second one, some process applies it in its next sync.
            let mut last = run;
            for at_once in [true, false] {
                let mut transaction = pool.begin().await.expect("begins");
                let pending = a.site.invalidate_in(&mut *transaction, ["list", "other"]).await;
                let pending = pending.expect("is written");
                transaction.commit().await.expect("is committed");
                if at_once {
                        pending.committed().await.expect("is applied");
                        assert_eq!(waiting(&db).await, Some(0));

    } else {
    drop(pending);
    }
                let heard = hears(&b, "/a", last).await;
                assert!(heard > last);
                last = hears(&a, "/a", last).await;
                until("they are applied", async || waiting(&db).await == Some(0)).await;
            }
            let mut transaction = pool.begin().await.expect("begins");
            let pending = a.site.purge_in(&mut transaction, ["list"]).await.expect("is written");
            transaction.commit().await.expect("is committed");
            pending.committed().await.expect("is applied");
            assert!(a.run("/a").await > last, "the purged page is not served");
        });
}

async fn committed_invalidation_is_numbered_once(db: Db) {
    let site = db.site().await;
    let store = db.store().await;
    with_pool!(db, pool => {
        let mut transaction = pool.begin().await.expect("begins");
        let tags: Vec<_> = (0..20).map(|n| format!("tag-{n}")).collect();
        let pending = site.invalidate_in(&mut transaction, &tags).await;
        drop(pending.expect("is written"));
        transaction.commit().await.expect("is committed");
    });
    let synced = store
        .ask(Invalidated::new("", Epoch::NONE, 1000, Vec::new()))
        .await;
    let synced = synced.expect("answers");
    assert_eq!((synced.committed.len(), synced.names.len()), (20, 0));
    let ids: Vec<_> = synced.committed.iter().map(|row| row.id.clone()).collect();
    let mut numbering = JoinSet::new();
    for _ in 0..4 {
        for ids in ids.chunks(7) {
            let (store, ids) = (store.clone(), ids.to_vec());
            numbering.spawn(async move { store.ask(Number::new(ids)).await.expect("answers") });
        }
    }
    let numbered = numbering.join_all().await.into_iter();
    let mut numbered: Vec<_> = numbered
        .flat_map(|numbered| numbered.rows)
        .map(|(row, epoch)| (row.name, epoch))
        .collect();
    numbered.sort();
    let synced = store
        .ask(Invalidated::new("", Epoch::NONE, 1000, Vec::new()))
        .await;
    let mut synced = synced.expect("answers");
    synced.names.sort();
    assert_eq!((synced.names.len(), synced.committed.len()), (20, 0));
    // Elsewhere, two processes that number a row at the same moment both give it an epoch.
    if db.url().starts_with("postgres") {
        assert_eq!(numbered, synced.names);
    }
    for latest in &synced.names {
        assert!(numbered.contains(latest), "{latest:?} is nobody's");
    }
    let unknown = store.ask(Number::new(vec!["unknown".to_owned()])).await;
    assert_eq!(unknown.expect("answers"), Numbered::default());
}

/// The sync of another process may be faster than the author.
async fn author_knows_the_invalidation_that_another_process_has_applied(db: Db) {
    let origin = Origin::default();
    let [a, _] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
    let store = db.store().await;
    let mut run = a.run("/a").await;
    with_pool!(db, pool => {
        for _ in 0..3 {
            let mut transaction = pool.begin().await.expect("begins");
            let pending = a.site.purge_in(&mut transaction, ["other", "list"]).await;
            let pending = pending.expect("is written");
            transaction.commit().await.expect("is committed");
            let synced = store.ask(Invalidated::new("", Epoch::NONE, 1000, Vec::new())).await;
            let committed = synced.expect("answers").committed;
            let ids = committed.into_iter().map(|row| row.id).collect();
            store.ask(Number::new(ids)).await.expect("answers");
            pending.committed().await.expect("is applied");
            let before = std::mem::replace(&mut run, a.run("/a").await);
            assert!(run > before, "the purged page is not served");
        }
    });
}

/// No author applies the invalidation: its process has died, or speaks SQL alone.
async fn process_without_requests_knows_a_committed_invalidation_before_its_next_answer(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
    let mut run = b.run("/a").await;
    with_pool!(db, pool => {
        for catches_up in [false, true] {
            // Longer than a sync interval.
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let mut transaction = pool.begin().await.expect("begins");
            let tags: Vec<_> = (0..150).map(|n| format!("tag-{n}")).chain(["list".into()]).collect();
            drop(a.site.invalidate_in(&mut transaction, &tags).await.expect("is written"));
            transaction.commit().await.expect("is committed");
            if catches_up {
                b.site.caught_up().await.expect("knows");
            }
            let before = std::mem::replace(&mut run, b.run("/a").await);
            assert!(run > before, "the invalidated page is not served as fresh");
        }
    });
}

/// A reader that remembered the greatest key or time of the rows would miss the first transaction.
async fn transactions_that_commit_in_another_order_than_they_wrote_are_both_learned(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/a"], |layer| {
        layer.tag("slow").tag("quick")
    })
    .await;
    if db.url().starts_with("sqlite") {
        // One transaction writes at a time.
        return;
    }
    let run = a.run("/a").await;
    with_pool!(db, pool => {
        let mut slow = pool.begin().await.expect("begins");
        drop(a.site.invalidate_in(&mut slow, ["slow"]).await.expect("is written"));
        let mut quick = pool.begin().await.expect("begins");
        drop(a.site.invalidate_in(&mut quick, ["quick"]).await.expect("is written"));
        quick.commit().await.expect("is committed");
        let after_quick = hears(&b, "/a", run).await;
        slow.commit().await.expect("is committed");
        assert!(hears(&b, "/a", after_quick).await > after_quick);
    });
}

async fn transaction_elsewhere_is_told_so(db: Db) {
    let elsewhere = sqlx::SqlitePool::connect("sqlite::memory:")
        .await
        .expect("opens");
    let mut transaction = elsewhere.begin().await.expect("begins");
    let site = db.site().await;
    let error = site.invalidate_in(&mut transaction, ["list"]).await;
    let error = error.expect_err("has no such table");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("needs the site's own database"),
        "{error}"
    );
    let memory = perennial_testing::Database::new();
    let memory = memory.open(Perennial::builder()).expect("opens");
    let error = memory.invalidate_in(&mut transaction, ["list"]).await;
    assert_eq!(error.expect_err("has no tables").kind(), ErrorKind::Invalid);
}

/// So that the author sees the change in each process.
#[tokio::test(flavor = "multi_thread")]
async fn author_of_a_transaction_gets_a_cookie() {
    let db = Db::sqlite().await.expect("is there");
    let site = open_site(patient().read_own_writes(), db.url())
        .await
        .expect("opens");
    let pool = sqlx::SqlitePool::connect(db.url()).await.expect("opens");
    let layer = site.invalidate_by_response_tags();
    let own = site.clone();
    let change = axum::routing::post(async move || {
        let mut transaction = pool.begin().await.expect("begins");
        let pending = own.invalidate_in(&mut transaction, ["list"]).await;
        transaction.commit().await.expect("is committed");
        pending
            .expect("is written")
            .committed()
            .await
            .expect("is applied");
    });
    let app = axum::Router::new().route("/change", change.layer(layer));
    let address = perennial_testkit::serve(app).await;
    let reply = perennial_testkit::request(address, "POST", "/change", &[]).await;
    assert_eq!(reply.status, 200);
    let cookie = reply.headers["set-cookie"].to_str().expect("is text");
    assert!(cookie.starts_with("perennial-epoch-"), "{cookie}");
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use perennial_testkit::{open_site, patient};

    on_each_server! {
        open_transaction_delays_no_other_invalidation_and_no_regeneration
        author_waits_for_a_process_that_is_applying_the_invalidation
    }

    async fn author_waits_for_a_process_that_is_applying_the_invalidation(db: Db) {
        let origin = Origin::default();
        let [a, _] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
        let run = a.run("/a").await;
        with_pool!(db, pool => {
            let mut transaction = pool.begin().await.expect("begins");
            let pending = a.site.purge_in(&mut transaction, ["list"]).await.expect("is written");
            transaction.commit().await.expect("is committed");
            // No request, and so no sync, comes in between.
            let mut applying = pool.begin().await.expect("begins");
            let locks = sqlx::query("SELECT id FROM perennial_outbox FOR UPDATE");
            let locked = locks.fetch_all(&mut *applying).await.expect("is locked");
            assert_eq!(locked.len(), 1);
            let gives_up = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                applying.rollback().await.expect("is rolled back");
            };
            let (_, ()) = tokio::join!(pending.committed(), gives_up);
            assert!(a.run("/a").await > run, "the purged page is not served");
        });
    }

    async fn open_transaction_delays_no_other_invalidation_and_no_regeneration(db: Db) {
        let origin = Origin::default();
        let [a, b] = pair(&db, &origin, &["/a"], |layer| layer.tag("list").tag("open")).await;
        let mut run = a.run("/a").await;
        let site = open_site(patient(), db.url()).await.expect("opens");
        with_pool!(db, pool => {
            let mut transaction = pool.begin().await.expect("begins");
            let pending = site.invalidate_in(&mut transaction, ["open"]).await.expect("is written");
            for _ in 0..3 {
                let begun = Instant::now();
                a.site.invalidate_tag("list").await.expect("is invalidated");
                let another = pool.begin().await;
                let mut another = another.expect("begins");
                let other = site.invalidate_in(&mut another, ["list"]).await.expect("is written");
                another.commit().await.expect("is committed");
                other.committed().await.expect("is applied");
                assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
                run = hears(&b, "/a", run).await;
            }
            transaction.commit().await.expect("is committed");
            pending.committed().await.expect("is applied");
            assert!(hears(&b, "/a", run).await > run);
        });
    }
}
