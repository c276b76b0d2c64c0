//! An application on SeaORM 1, which has sqlx 0.8: Perennial opens a small pool of its own, and the
//! application's transaction runs the statement that invalidates.

use axum::{Router, routing::get};
use sea_orm_1::{
    ConnectionTrait, Database, DatabaseBackend::Sqlite, Statement, TransactionTrait, Value,
};
use stacks::{
    CHANGE, Folder, PRICE, ROW, SILENT_CHANGE, TABLE, TAG, patient, policy, shows, triggers, visit,
};

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_a_transaction() {
    let folder = Folder::default();
    let db = Database::connect(folder.url()).await.expect("opens");
    for statement in [TABLE, ROW] {
        db.execute_unprepared(statement).await.expect("is done");
    }
    let site = patient().open(&folder.url()).await.expect("opens");
    let own = db.clone();
    let page = get(move || async move {
        let row = own.query_one(Statement::from_string(Sqlite, PRICE)).await;
        let row = row.expect("reads").expect("is there");
        row.try_get::<i64>("", "price")
            .expect("a number")
            .to_string()
    });
    let app = Router::new().route("/price", page.layer(site.layer(policy()).tag(TAG)));
    assert_eq!(visit(&app, "/price").await, "10");

    let invalidation = site.invalidation_sql([TAG]).expect("a tag");
    let transaction = db.begin().await.expect("begins");
    transaction
        .execute_unprepared(CHANGE)
        .await
        .expect("is changed");
    let values = invalidation.values().iter().map(Value::from);
    let statement = Statement::from_sql_and_values(Sqlite, invalidation.sql(), values);
    transaction.execute(statement).await.expect("is written");
    transaction.commit().await.expect("is committed");
    invalidation.committed().await.expect("is applied");
    shows(&app, "/price", "12").await;

    // As a migration does.
    for sql in [&triggers(), SILENT_CHANGE] {
        db.execute_unprepared(sql).await.expect("is done");
    }
    shows(&app, "/price", "13").await;
}
