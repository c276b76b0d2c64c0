//! An invalidation whose transaction is rolled back.

use std::sync::Arc;

use perennial::locks::LockName;
use perennial_store::{Epoch, Fence, Invalidate, Invalidated, LatestNames, NameList, Probe};
use perennial_testkit::{Db, store::ask, until};

use perennial_driver_tests::ALL;

contract_in_sql! {
    an_invalidation_that_is_rolled_back_is_seen_by_nobody
}

async fn an_invalidation_that_is_rolled_back_is_seen_by_nobody(db: Db) {
    let store = db.store().await;
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
    until("they have answered, or wait for the end", async || {
        asking.is_finished() || db.waits().await
    })
    .await;
    undone.rollback().await.expect("is undone");
    let expected = vec![("purged:/made".to_owned(), made)];
    let answers = asking.await.expect("no panic");
    assert_eq!(answers, (expected.clone(), expected, made));
}
