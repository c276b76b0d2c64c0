//! A call that is dropped at any moment leaves the connection of a pool as it was.

use std::time::Duration;

use perennial::Perennial;

use perennial_testkit::{Db, cut_off, on_database, on_each_server};

on_database! { sqlite = perennial_testkit::Db::sqlite();
    dropped_calls_leave_no_transaction_on_the_connections_of_an_application
}

/// sqlx stops a text of several statements when nobody waits for it any more. What the application writes
/// next would be rolled back later, and a `begin()` would fail.
async fn dropped_calls_leave_no_transaction_on_the_connections_of_an_application(db: Db) {
    // Makes the file.
    drop(db.site().await);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(2);
    let pool = pool.connect(db.url()).await.expect("opens");
    let site = Perennial::with_pool(pool.clone()).await.expect("opens");
    sqlx::raw_sql("CREATE TABLE written (id INTEGER PRIMARY KEY)")
        .execute(&pool)
        .await
        .expect("is made");
    for round in 0_u32..2000 {
        let locks = site.locks();
        let ask = locks.inspect("some lock");
        // The rounds cut the call off at different times, from just after its start until after its
        // end.
        let ended = cut_off(round as usize % 8, ask).await;
        if ended.is_none() {
            // The server goes on with the statement that was cut off, for a time that differs in
            // each round.
            std::thread::sleep(Duration::from_micros(u64::from(round % 40) * 5));
        }
        if round % 20 == 0 {
            let mut transaction = pool.begin().await.expect("begins");
            sqlx::raw_sql("INSERT INTO written DEFAULT VALUES")
                .execute(&mut *transaction)
                .await
                .expect("is written");
            transaction.commit().await.expect("is committed");
        }
    }
    let other = sqlx::SqlitePool::connect(db.url()).await.expect("opens");
    let written: i64 = sqlx::query_scalar("SELECT count(*) FROM written")
        .fetch_one(&other)
        .await
        .expect("answers");
    assert_eq!(written, 100);
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use perennial_jobs::SessionLock;
    use tokio::time::timeout;

    use super::*;
    use perennial_testkit::{pool_of, until};

    on_each_server! {
        dropped_calls_hold_no_session_lock
        failed_making_of_the_tables_leaves_the_sessions_of_an_application_as_they_were
    }

    async fn dropped_calls_hold_no_session_lock(db: Db) {
        let pool = pool_of(db.url(), 3).await;
        let name = |round: u64| format!("{round} of {}", db.url());
        let mut held = Vec::new();
        for round in 0..200 {
            let lock = SessionLock::try_lock(pool.clone(), name(round));
            if let Ok(lock) = timeout(Duration::from_micros(round % 50 * 40), lock).await {
                held.push(lock.expect("answers").expect("is free"));
            }
        }
        drop(held);
        let other = pool_of(db.url(), 3).await;
        for round in 0..200 {
            until("it is free", async || {
                let lock = SessionLock::try_lock(other.clone(), name(round)).await;
                match lock.expect("answers") {
                    Some(lock) => lock.release().await.is_ok(),
                    None => false,
                }
            })
            .await;
            // The lock can be taken again on the pool whose calls were dropped, so none of these calls
            // holds it any more.
            let lock = SessionLock::try_lock(pool.clone(), name(round)).await;
            let lock = lock.expect("answers").expect("is free");
            lock.release().await.expect("is held");
        }
    }

    /// The making of the tables limits its waits for locks, on MySQL by settings of the session.
    async fn failed_making_of_the_tables_leaves_the_sessions_of_an_application_as_they_were(
        db: Db,
    ) {
        // Tables that are not Perennial's.
        db.execute("CREATE TABLE perennial_schema (id BIGINT PRIMARY KEY, colour BIGINT)")
            .await;
        let settings = "SELECT CONCAT_WS(' ', @@lock_wait_timeout, @@innodb_lock_wait_timeout)";
        let settings = if db.url().starts_with("postgres") {
            "SELECT current_setting('lock_timeout')"
        } else {
            settings
        };
        macro_rules! on_one_connection {
            ($options:ty) => {{
                let pool = <$options>::new().max_connections(1);
                let pool = pool.connect(db.url()).await.expect("opens");
                let ask = async || -> String {
                    let row = sqlx::query_scalar(settings).fetch_one(&pool).await;
                    row.expect("answers")
                };
                let before = ask().await;
                for _ in 0..3 {
                    let opened = Perennial::with_pool(pool.clone()).await;
                    opened.expect_err("the tables are others");
                    assert_eq!(ask().await, before);
                }
            }};
        }
        match db.url().split(':').next().unwrap_or_default() {
            #[cfg(feature = "postgres")]
            "postgres" => on_one_connection!(sqlx::postgres::PgPoolOptions),
            #[cfg(feature = "mysql")]
            "mysql" => on_one_connection!(sqlx::mysql::MySqlPoolOptions),
            other => unreachable!("{other}"),
        }
    }
}
