//! An application on Diesel, whose connections block: Perennial opens a small pool of its own, and the
//! application's transaction runs the statement that invalidates.

use axum::{Router, routing::get};
use diesel::{
    QueryableByName, RunQueryDsl, SqliteConnection,
    connection::SimpleConnection,
    r2d2::{ConnectionManager, Pool},
    sql_query,
    sql_types::{BigInt, Text},
};
use stacks::{
    CHANGE, Folder, PRICE, ROW, SILENT_CHANGE, TABLE, TAG, patient, policy, shows, triggers, visit,
};
use tokio::task::spawn_blocking;

#[derive(QueryableByName)]
struct Price {
    #[diesel(sql_type = BigInt)]
    price: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_a_transaction() {
    let folder = Folder::default();
    let file = folder.file().display().to_string();
    let pool = Pool::new(ConnectionManager::<SqliteConnection>::new(file)).expect("opens");
    let begin = format!("PRAGMA journal_mode = WAL; {TABLE}; {ROW}");
    let mut connection = pool.get().expect("connects");
    connection.batch_execute(&begin).expect("is done");
    let site = patient().open(&folder.url()).await.expect("opens");
    let own = pool.clone();
    let page = get(move || async move {
        let read = move || {
            let mut connection = own.get().expect("connects");
            let price: Price = sql_query(PRICE)
                .get_result(&mut connection)
                .expect("is there");
            price.price.to_string()
        };
        spawn_blocking(read).await.expect("no panic")
    });
    let app = Router::new().route("/price", page.layer(site.layer(policy()).tag(TAG)));
    assert_eq!(visit(&app, "/price").await, "10");

    let invalidation = site.invalidation_sql([TAG]).expect("a tag");
    let (sql, values) = (
        invalidation.sql().to_owned(),
        invalidation.values().to_vec(),
    );
    let change = move || {
        connection.batch_execute("PRAGMA busy_timeout = 30000")?;
        connection.immediate_transaction(|connection| {
            sql_query(CHANGE).execute(connection)?;
            let statement = sql_query(sql).into_boxed();
            let statement = values.into_iter().fold(statement, |statement, value| {
                statement.bind::<Text, _>(value)
            });
            statement.execute(connection)
        })
    };
    let changed = spawn_blocking(change).await.expect("no panic");
    assert_eq!(changed.expect("is committed"), 1);
    invalidation.committed().await.expect("is applied");
    shows(&app, "/price", "12").await;

    // As a migration does.
    let mut connection = pool.get().expect("connects");
    for sql in ["PRAGMA busy_timeout = 30000", &triggers(), SILENT_CHANGE] {
        connection.batch_execute(sql).expect("is done");
    }
    shows(&app, "/price", "13").await;
}
