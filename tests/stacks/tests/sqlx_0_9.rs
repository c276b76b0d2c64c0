//! An application on sqlx 0.9: Perennial uses its pool, and writes in its transaction.

use axum::{Router, routing::get};
use sqlx_0_9::{self as sqlx, SqlitePool};
use stacks::{CHANGE, Folder, PRICE, ROW, TABLE, TAG, patient, policy, shows, visit};

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_a_transaction() {
    let folder = Folder::default();
    let pool = SqlitePool::connect(&folder.url()).await.expect("opens");
    for statement in [TABLE, ROW] {
        let done = sqlx::query(statement).execute(&pool).await;
        done.expect("is done");
    }
    let site = patient().with_pool(pool.clone()).await.expect("opens");
    let own = pool.clone();
    let page = get(move || async move {
        let price: i64 = sqlx::query_scalar(PRICE)
            .fetch_one(&own)
            .await
            .expect("is there");
        price.to_string()
    });
    let app = Router::new().route("/price", page.layer(site.layer(policy()).tag(TAG)));
    assert_eq!(visit(&app, "/price").await, "10");

    let mut transaction = pool.begin().await.expect("begins");
    let changed = sqlx::query(CHANGE).execute(&mut *transaction).await;
    changed.expect("is changed");
    let invalidation = site.invalidate_in(&mut transaction, [TAG]).await;
    let invalidation = invalidation.expect("is written");
    transaction.commit().await.expect("is committed");
    invalidation.committed().await.expect("is applied");
    shows(&app, "/price", "12").await;
}
