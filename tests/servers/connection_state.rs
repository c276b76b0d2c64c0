//! An application leaves the connections of its pool in any state: in a transaction that nobody
//! ends, in a failed one, without autocommit, as another role, with another schema. A call on such
//! a pool succeeds only when it is committed, in the tables that the site has opened.
//!
//! The [contract](crate::store) holds in each of these states, too.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use perennial::ErrorKind;
use perennial_jobs::{Once, OnceOutcome};
use sqlx::{Connection, Executor};
use tokio::task::JoinSet;

use perennial_testkit::{Db, all_of, cut_off, on_each_database, patient, with_pool};

on_each_database! {
    nothing_is_written_for_a_transaction_that_is_not_there
    job_that_uses_the_whole_pool_keeps_its_lease
    once_only_work_runs_once_beside_handlers_that_are_cancelled
}

async fn nothing_is_written_for_a_transaction_that_is_not_there(db: Db) {
    let site = db.site().await;
    let work = Once::new(&site.locks(), "work");
    with_pool!(db, pool => {
        let mut connection = pool.acquire().await.expect("is free");
        for _ in 0..2 {
            let error = work.mark_in(&mut *connection).await.expect_err("is no transaction");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("`pool.begin()`"), "{error}");
            let error = site.invalidate_in(&mut *connection, ["tag"]).await;
            let error = error.expect_err("is no transaction");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("`pool.begin()`"), "{error}");
            // The connection is as it was.
            let mut transaction = connection.begin().await.expect("begins");
            assert_eq!(work.mark_in(&mut transaction).await.expect("answers"), OnceOutcome::Ran(()));
            let pending = site.invalidate_in(&mut transaction, ["tag"]).await;
            drop(pending.expect("is written"));
            transaction.rollback().await.expect("is rolled back");
        }
    });
    assert_eq!(work.done().await.expect("answers"), None);
    assert_eq!(
        db.int("SELECT COUNT(*) FROM perennial_outbox").await,
        Some(0)
    );
}

/// A job under a lease takes all connections of the pool by which the lease is extended.
async fn job_that_uses_the_whole_pool_keeps_its_lease(db: Db) {
    let _made = db.site().await;
    with_pool!(db, pool => {
        let site = patient().with_pool(pool.clone()).await.expect("opens");
        let locks = site.locks().lease_duration(Duration::from_secs(5));
        let lease = locks.try_lock("import").await.expect("answers").expect("is free");
        let job = async {
            let held = all_of(&pool).await;
            tokio::time::sleep(Duration::from_secs(12)).await;
            drop(held);
        };
        lease.guard(job).await.expect("keeps its lease");
        lease.release().await.expect("is released");
    });
}

/// Handlers on the site's own pool begin transactions, and their visitors go away at any moment.
async fn once_only_work_runs_once_beside_handlers_that_are_cancelled(db: Db) {
    const ORDERS: usize = 40;
    let another = db.site().await;
    for connections in [1, 5] {
        let charges = AtomicUsize::new(0);
        with_pool!(db, other => {
            let pool = other.options().clone().max_connections(connections).connect_with((*other.connect_options()).clone());
            let pool = pool.await.expect("opens");
            let site = patient().with_pool(pool.clone()).await.expect("opens");
            let mut handlers = JoinSet::new();
            for n in 0..4 {
                let pool = pool.clone();
                handlers.spawn(async move {
                    for polls in (0..).map(|m| (m + n) % 6) {
                        // The handler is not cancelled while its connection is being opened: a server
                        // that has to open one connection after another for cancelled requests has none
                        // left for the others.
                        let mut connection = pool.acquire().await.expect("is free");
                        let handler = async {
                            let mut transaction = connection.begin().await.expect("begins");
                            transaction.execute("SELECT 1").await.expect("answers");
                        };
                        cut_off(polls, handler).await;
                        drop(connection);
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                });
            }
            for order in 0..ORDERS {
                let work = Once::new(&site.locks(), ["charge", &connections.to_string(), &order.to_string()]);
                let charge = async || charges.fetch_add(1, SeqCst);
                let first = work.clone().run(charge).await.expect("answers");
                assert!(matches!(first, OnceOutcome::Ran(_)), "{first:?}");
                // The reply is lost, and the client tries again, at another process of the site.
                let again = Once::new(&another.locks(), ["charge", &connections.to_string(), &order.to_string()]);
                let again = again.run(charge).await.expect("answers");
                assert!(matches!(again, OnceOutcome::AlreadyDone { .. }), "{connections} connections: {again:?}");
            }
            handlers.shutdown().await;
            site.shutdown().await;
        });
        assert_eq!(charges.into_inner(), ORDERS);
    }
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn sessions_without_autocommit_are_refused_with_a_remedy() {
    let Some(db) = Db::mysql_with(&["SET autocommit = 0"]).await else {
        return;
    };
    let pool = db.database().await;
    let error = perennial::Perennial::with_pool(pool).await;
    let error = error.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("Set `autocommit = 1`"),
        "{error}"
    );
}

/// The application's transaction may be in a tenant's schema, with tables of the same names.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn mark_in_a_tenants_transaction_is_in_the_sites_tables() {
    let Some(db) = perennial_testkit::connection_state::postgres(&[]).await else {
        return;
    };
    let site = db.site().await;
    let pool = sqlx::PgPool::connect(db.url()).await.expect("opens");
    let mut transaction = pool.begin().await.expect("begins");
    transaction
        .execute("SET LOCAL search_path = tenant")
        .await
        .expect("is set");
    let work = Once::new(&site.locks(), "work");
    assert_eq!(
        work.mark_in(&mut transaction).await.expect("answers"),
        OnceOutcome::Ran(())
    );
    let pending = site
        .invalidate_in(&mut transaction, ["tag"])
        .await
        .expect("is written");
    let path: String = sqlx::query_scalar("SHOW search_path")
        .fetch_one(&mut *transaction)
        .await
        .expect("is shown");
    assert_eq!(path, "tenant", "the transaction's own stays");
    transaction.commit().await.expect("is committed");
    pending.committed().await.expect("is applied");
    assert!(work.done().await.expect("answers").is_some());
    assert_eq!(
        db.int("SELECT COUNT(*) FROM tenant.perennial_lock").await,
        Some(0)
    );
    assert_eq!(
        db.int("SELECT COUNT(*) FROM perennial_invalidation WHERE name = 'tag:tag'")
            .await,
        Some(1)
    );
}
