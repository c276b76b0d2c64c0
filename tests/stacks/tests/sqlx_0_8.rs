//! An application on sqlx 0.8: Perennial opens a small pool of its own, and the application's transaction
//! runs the statement that invalidates.

use axum::{Router, routing::get};
use sqlx_0_8::{self as sqlx, SqlitePool};
use stacks::{CHANGE, Folder, PRICE, ROW, TABLE, TAG, patient, policy, shows, visit};

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_a_transaction() {
    let folder = Folder::default();
    let pool = SqlitePool::connect(&folder.url()).await.expect("opens");
    for statement in [TABLE, ROW] {
        sqlx::query(statement)
            .execute(&pool)
            .await
            .expect("is done");
    }
    let site = patient().open(&folder.url()).await.expect("opens");
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

    let invalidation = site.invalidation_sql([TAG]).expect("a tag");
    let mut transaction = pool.begin().await.expect("begins");
    sqlx::query(CHANGE)
        .execute(&mut *transaction)
        .await
        .expect("is changed");
    let mut statement = sqlx::query(invalidation.sql());
    for value in invalidation.values() {
        statement = statement.bind(value);
    }
    statement
        .execute(&mut *transaction)
        .await
        .expect("is written");
    transaction.commit().await.expect("is committed");
    invalidation.committed().await.expect("is applied");
    shows(&app, "/price", "12").await;
}
