//! Batches of rows, claimed by workers.

use std::time::Duration;

use perennial::ErrorKind;
use perennial_jobs::Claims;

use perennial_testkit::{Db, is_database, on_database, on_each_database, until, with_pool};

on_each_database! {
    rows_are_claimed_in_order_read_completed_and_released
    uncompleted_rows_are_available_after_the_claim_expires
    an_overtaken_worker_completes_nothing
    values_are_bound_and_names_are_checked
    rows_without_an_expiry_stay_claimed
    keys_can_be_texts_and_names_any_that_are_quoted
    keys_that_cannot_be_read_and_columns_that_hold_too_little_are_an_error_and_strand_nothing
    whatever_is_cancelled_claims_nothing
    column_that_is_too_short_fails_before_the_work
    first_claim_after_idle_connections_were_closed_succeeds
    row_is_completed_with_the_transaction_of_its_effect_or_not_at_all
}

on_database! {
    sqlite_in_a_transaction = perennial_testkit::connection_state::sqlite(&["ROLLBACK", "BEGIN"]);
    rows_are_claimed_in_order_read_completed_and_released
    an_overtaken_worker_completes_nothing
}
#[cfg(feature = "postgres")]
on_database! {
    postgres_in_a_transaction = perennial_testkit::connection_state::postgres(&["ROLLBACK", "BEGIN"]);
    rows_are_claimed_in_order_read_completed_and_released
    an_overtaken_worker_completes_nothing
}
#[cfg(feature = "postgres")]
on_database! {
    postgres_of_a_tenant = perennial_testkit::connection_state::postgres(&["SET search_path = tenant"]);
    rows_are_claimed_in_order_read_completed_and_released
    an_overtaken_worker_completes_nothing
}
#[cfg(feature = "mysql")]
on_database! {
    mysql_in_a_transaction = perennial_testkit::connection_state::mysql(&["ROLLBACK", "BEGIN"]);
    rows_are_claimed_in_order_read_completed_and_released
    an_overtaken_worker_completes_nothing
}
#[cfg(feature = "mysql")]
on_database! {
    mysql_of_a_tenant = perennial_testkit::connection_state::mysql(&["USE mysql"]);
    rows_are_claimed_in_order_read_completed_and_released
    an_overtaken_worker_completes_nothing
}

const LONG: Duration = Duration::from_secs(600);

/// A table with this number of jobs.
async fn jobs(db: &Db, rows: usize) -> Claims {
    let database = db.database().await;
    let table =
        "CREATE TABLE job (id BIGINT PRIMARY KEY, state VARCHAR(20), priority BIGINT NOT NULL,
        urgent BOOLEAN NOT NULL, done_at BIGINT, lock_id VARCHAR(36), locked_until BIGINT)";
    db.execute(table).await;
    db.execute("CREATE INDEX job_lock_id ON job (lock_id)")
        .await;
    let rows: Vec<_> = (0..rows)
        .map(|id| {
            let (state, urgent) = (["ready", "it''s $1 ? late"][id % 2], id % 3 == 0);
            format!("({id}, '{state}', {}, {urgent}, NULL, NULL, NULL)", id / 4)
        })
        .collect();
    db.execute(&format!("INSERT INTO job VALUES {}", rows.join(", ")))
        .await;
    Claims::with_pool(database, "job").order("id")
}

fn numbers(ids: &[String]) -> Vec<usize> {
    ids.iter().map(|id| id.parse().expect("a number")).collect()
}

async fn rows_are_claimed_in_order_read_completed_and_released(db: Db) {
    let jobs = jobs(&db, 20).await.expires("locked_until", LONG);
    let mut first = jobs.claim(5).await.expect("answers");
    assert_eq!(numbers(first.ids()), [0, 1, 2, 3, 4]);
    assert!(
        first
            .remaining()
            .is_some_and(|left| left > LONG / 2 && left <= LONG)
    );
    let read = format!(
        "SELECT COUNT(*) FROM job WHERE lock_id = '{}'",
        first.lock_id()
    );
    assert_eq!(db.int(&read).await, Some(5));
    let second = jobs.claim(5).await.expect("answers");
    assert_eq!(numbers(second.ids()), [5, 6, 7, 8, 9]);

    assert!(first.complete_by_row("1").await.expect("answers"));
    assert!(
        first.complete_by_row("1").await.expect("answers"),
        "may be done again"
    );
    assert!(
        !first.complete_by_row("7").await.expect("answers"),
        "another worker has the row"
    );
    assert!(!first.complete_by_row("1 OR 1=1").await.expect("answers"));
    first.release_by_row("2").await.expect("answers");
    first.release_by_row("1").await.expect("answers");
    assert_eq!(first.extend().await.expect("answers"), 3);
    assert_eq!(db.int(&read).await, Some(3));
    assert_eq!(first.complete().await.expect("answers"), 4);
    first.release().await.expect("answers");
    second.release().await.expect("answers");
    let rest = jobs.claim(100).await.expect("answers");
    let left: Vec<_> = [2].into_iter().chain(5..20).collect();
    assert_eq!(numbers(rest.ids()), left);
    assert!(jobs.claim(1).await.expect("answers").ids().is_empty());
    assert!(jobs.claim(0).await.expect("answers").ids().is_empty());
}

async fn uncompleted_rows_are_available_after_the_claim_expires(db: Db) {
    let jobs = jobs(&db, 4).await.expires("locked_until", LONG);
    let expire = "UPDATE job SET locked_until = 1 WHERE locked_until IS NOT NULL";
    let mut lost = jobs.claim(3).await.expect("answers");
    assert!(lost.complete_by_row("0").await.expect("answers"));
    assert_eq!(numbers(jobs.claim(9).await.expect("answers").ids()), [3]);
    db.execute(expire).await;
    assert_eq!(lost.extend().await.expect("answers"), 2);
    // The extended claim still holds its rows, and the other claim's row is available again.
    assert_eq!(numbers(jobs.claim(9).await.expect("answers").ids()), [3]);
    db.execute(expire).await;
    let all = jobs.claim(9).await.expect("answers");
    assert_eq!(numbers(all.ids()), [1, 2, 3]);
}

async fn an_overtaken_worker_completes_nothing(db: Db) {
    let jobs = jobs(&db, 2).await.expires("locked_until", LONG);
    let mut slow = jobs.claim(2).await.expect("answers");
    db.execute("UPDATE job SET locked_until = 1").await;
    let quick = jobs.claim(2).await.expect("answers");
    assert_eq!(quick.ids(), slow.ids());
    assert!(!slow.complete_by_row("0").await.expect("answers"));
    assert_eq!(slow.complete().await.expect("answers"), 0);
    assert_eq!(slow.extend().await.expect("answers"), 0);
    slow.release().await.expect("answers");
    assert_eq!(quick.complete().await.expect("answers"), 2);
}

async fn row_is_completed_with_the_transaction_of_its_effect_or_not_at_all(db: Db) {
    let jobs = jobs(&db, 4).await.expires("locked_until", LONG);
    let claim = jobs.claim(3).await.expect("answers");
    db.execute("CREATE TABLE effect (job BIGINT NOT NULL)")
        .await;
    let effects = async || db.int("SELECT COUNT(*) FROM effect").await;
    let completed = "SELECT COUNT(*) FROM job WHERE lock_id LIKE '-%' AND locked_until IS NULL";
    with_pool!(db, pool => {
        // (committed, the row is the claim's, effects so far)
        for (committed, is_ours, so_far) in [(false, true, 0), (true, true, 1), (true, false, 1)] {
            let mut transaction = pool.begin().await.expect("begins");
            let effect = "INSERT INTO effect VALUES (0)";
            sqlx::query(effect).execute(&mut *transaction).await.expect("is written");
            let ours = claim.complete_by_row_in("0", &mut transaction).await.expect("answers");
            assert_eq!(ours, is_ours, "a row that is completed is completed once");
            if committed && ours {
                transaction.commit().await.expect("is committed");
            } else {
                transaction.rollback().await.expect("is rolled back");
            }
            assert_eq!(effects().await, Some(so_far));
            assert_eq!(db.int(completed).await, Some(so_far));
        }

        db.execute("UPDATE job SET locked_until = 1 WHERE id = 1").await;
        let other = jobs.claim(1).await.expect("answers");
        assert_eq!(other.ids(), ["1"]);
        let mut transaction = pool.begin().await.expect("begins");
        assert!(!claim.complete_by_row_in("1", &mut transaction).await.expect("answers"));
        assert_eq!(claim.complete_in(&mut *transaction).await.expect("answers"), 1);
        transaction.commit().await.expect("is committed");
        assert_eq!(other.complete().await.expect("answers"), 1);

        let mut outside = pool.acquire().await.expect("connects");
        let error = other.complete_in(&mut *outside).await.expect_err("is no transaction");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:#}");
        assert!(error.to_string().contains("pool.begin()"), "{error}");
    });
    // What was completed is no longer available; the rest is.
    assert_eq!(numbers(jobs.claim(9).await.expect("answers").ids()), [3]);
}

async fn values_are_bound_and_names_are_checked(db: Db) {
    let jobs = jobs(&db, 20).await.expires("locked_until", LONG);
    let late = jobs
        .clone()
        .filter("state", "it's $1 ? late")
        .filter("urgent", true);
    let late = late.filter_null("done_at").filter("priority", 2);
    assert_eq!(numbers(late.claim(99).await.expect("answers").ids()), [9]);
    let hostile = jobs.clone().filter("state", "' OR 1=1 --");
    assert!(hostile.claim(9).await.expect("answers").ids().is_empty());
    let important = jobs.clone().filter_sql("priority + 0 >= 3");
    let important = important.claim(99).await.expect("answers");
    assert_eq!(numbers(important.ids()), (12..20).collect::<Vec<_>>());
    important.release().await.expect("answers");
    let claims = Claims::with_pool(db.database().await, "job").order_descending("priority");
    let last = claims.order("id").claim(2).await.expect("answers");
    assert_eq!(numbers(last.ids()), [16, 17]);

    let on = async |table: &str| Claims::with_pool(db.database().await, table);
    for claims in [
        on("job; DROP TABLE job").await,
        on("job\"").await,
        on("").await,
        on("a.b.c").await,
        on("1job").await,
        jobs.clone().id("id`"),
        jobs.clone().lock("lock id"),
        jobs.clone().order("id, 1"),
        jobs.clone().filter("state = 'x' OR state", "y"),
        jobs.clone().filter_null("ä"),
        jobs.clone().filter_sql("id = $1"),
        jobs.clone().expires("{now}", LONG),
    ] {
        let error = claims.claim(1).await.expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("write"), "{error}");
    }
    for missing in [
        on("no_such_table").await,
        jobs.clone().id("no_such"),
        jobs.clone().lock("no_such"),
        jobs.clone().order("no_such"),
        jobs.clone().filter("no_such", "x"),
        jobs.clone().filter_null("no_such"),
        jobs.clone().expires("no_such", LONG),
    ] {
        let error = missing.claim(1).await.expect_err("is missing");
        assert!(is_database(&error), "{error}");
        let table = error.to_string().contains("\"job\"");
        assert!(
            table || error.to_string().contains("no_such_table"),
            "{error}"
        );
    }
}

async fn rows_without_an_expiry_stay_claimed(db: Db) {
    let jobs = jobs(&db, 4).await;
    let mut claim = jobs.claim(3).await.expect("answers");
    assert_eq!(claim.remaining(), None);
    assert_eq!(claim.extend().await.expect("answers"), 3);
    assert!(claim.complete_by_row("0").await.expect("answers"));
    claim.release_by_row("1").await.expect("answers");
    claim.release().await.expect("answers");
    let rest = jobs.claim(9).await.expect("answers");
    assert_eq!(numbers(rest.ids()), [1, 2, 3]);
    drop(rest);
    assert!(jobs.claim(9).await.expect("answers").ids().is_empty());
}

async fn keys_can_be_texts_and_names_any_that_are_quoted(db: Db) {
    let database = db.database().await;
    let quote = if db.url().starts_with("postgres") {
        '"'
    } else {
        '`'
    };
    let quoted = |name| format!("{quote}{name}{quote}");
    let (table, order, group) = (quoted("Order"), quoted("Key"), quoted("group"));
    db.execute(&format!(
        "CREATE TABLE {table} ({order} VARCHAR(40) PRIMARY KEY, {group} VARCHAR(40))"
    ))
    .await;
    db.execute(&format!(
        "INSERT INTO {table} VALUES ('b''ä', NULL), ('a', NULL)"
    ))
    .await;
    let claims = Claims::with_pool(database, "Order")
        .id("Key")
        .lock("group")
        .order("Key");
    let claim = claims.claim(9).await.expect("answers");
    assert_eq!(claim.ids(), ["a", "b'ä"]);
    assert!(claim.complete_by_row("b'ä").await.expect("answers"));
    claim.release().await.expect("answers");
    assert_eq!(claims.claim(9).await.expect("answers").ids(), ["a"]);
}

async fn keys_that_cannot_be_read_and_columns_that_hold_too_little_are_an_error_and_strand_nothing(
    db: Db,
) {
    let kind = db.url().split(':').next().expect("a scheme").to_owned();
    let database = db.database().await;
    if kind != "postgres" {
        let binary = if kind == "mysql" { "BINARY(2)" } else { "BLOB" };
        db.execute(&format!(
            "CREATE TABLE raw (id {binary} PRIMARY KEY, lock_id VARCHAR(36))"
        ))
        .await;
        db.execute("INSERT INTO raw VALUES (x'ff00', NULL), (x'ff01', NULL)")
            .await;
        let error = Claims::with_pool(database.clone(), "raw").claim(1).await;
        assert!(is_database(&error.expect_err("can't be read")));
        until("it is released", async || {
            db.int("SELECT COUNT(*) FROM raw WHERE lock_id IS NULL")
                .await
                == Some(2)
        })
        .await;
    }
    #[cfg(feature = "mysql")]
    if kind == "mysql" {
        // Compared as bytes, whatever the collation.
        let text = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
        db.execute(&format!(
            "CREATE TABLE letter (id {text} PRIMARY KEY, lock_id VARCHAR(36))"
        ))
        .await;
        db.execute("INSERT INTO letter VALUES ('a', NULL), ('A', NULL), ('ä', NULL)")
            .await;
        let claim = Claims::with_pool(database.clone(), "letter")
            .order("id")
            .claim(9)
            .await
            .expect("answers");
        assert_eq!(claim.ids(), ["A", "a", "ä"]);
        assert!(claim.complete_by_row("a").await.expect("answers"));
        let left = format!(
            "SELECT COUNT(*) FROM letter WHERE lock_id = '{}'",
            claim.lock_id()
        );
        assert_eq!(db.int(&left).await, Some(2));

        let pool = sqlx::mysql::MySqlPoolOptions::new().after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::Executor::execute(&mut *connection, "SET sql_mode = ''")
                    .await
                    .map(drop)
            })
        });
        let lax = pool.connect(db.url()).await.expect("opens");
        for columns in [
            "lock_id VARCHAR(20), locked_until BIGINT",
            "lock_id VARCHAR(36), locked_until INT",
        ] {
            db.execute(&format!(
                "CREATE TABLE small (id BIGINT PRIMARY KEY, {columns})"
            ))
            .await;
            db.execute("INSERT INTO small VALUES (1, NULL, NULL)").await;
            let small = Claims::with_pool(lax.clone(), "small").expires("locked_until", LONG);
            let error = small.claim(1).await.expect_err("is cut off");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("32"), "{error}");
            db.execute("DROP TABLE small").await;
        }
    }
}

async fn whatever_is_cancelled_claims_nothing(db: Db) {
    let jobs = jobs(&db, 10).await;
    for micros in (0..3000).step_by(150) {
        let cut_off = Duration::from_micros(micros);
        let claimed = tokio::time::timeout(cut_off, jobs.claim(10)).await;
        if let Ok(claimed) = claimed {
            claimed.expect("answers").release().await.expect("answers");
        }
    }
    until("all are free", async || {
        let all = jobs.claim(10).await.expect("answers");
        all.release().await.expect("answers");
        all.ids().len() == 10
    })
    .await;
}

async fn column_that_is_too_short_fails_before_the_work(db: Db) {
    let database = db.database().await;
    // SQLite's columns have no length.
    let is_sqlite = db.url().starts_with("sqlite");
    for length in [31, 32, 33] {
        let table = format!("job_{length}");
        let column = format!("lock_id VARCHAR({length}), locked_until BIGINT");
        db.execute(&format!(
            "CREATE TABLE {table} (id BIGINT PRIMARY KEY, {column})"
        ))
        .await;
        db.execute(&format!("INSERT INTO {table} VALUES (1, NULL, NULL)"))
            .await;
        let claims = Claims::with_pool(database.clone(), &*table).expires("locked_until", LONG);
        let claim = match claims.claim(5).await {
            Ok(claim) => claim,
            Err(error) => {
                assert_eq!((length, is_sqlite), (31, false), "{error:#}");
                continue;
            }
        };
        assert!(length > 31 || is_sqlite);
        assert_eq!(claim.ids(), ["1"]);
        assert_eq!(claim.complete().await.expect("fits"), 1);
        assert_eq!(claim.complete().await.expect("is repeated"), 1);
        assert!(claims.claim(5).await.expect("answers").ids().is_empty());
    }
}

async fn first_claim_after_idle_connections_were_closed_succeeds(db: Db) {
    let jobs = jobs(&db, 10).await.expires("locked_until", LONG);
    assert_eq!(jobs.claim(1).await.expect("answers").ids().len(), 1);
    let end = match db.url().split(':').next() {
        Some("postgres") => {
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND query NOT LIKE '%perennial_other%'"
        }
        Some("mysql") => {
            "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() LIMIT 1"
        }
        _ => return,
    };
    // The pool's connection is idle.
    until("it is closed", async || {
        let found = db.int(end).await.unwrap_or(0);
        if db.url().starts_with("mysql") && found > 0 {
            db.execute(&format!("KILL {found}")).await;
        }
        found > 0
    })
    .await;
    assert_eq!(jobs.claim(2).await.expect("is tried again").ids().len(), 2);
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn columns_of_any_type_are_filtered_by_a_value() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    db.execute(
        "CREATE TYPE state AS ENUM ('ready', 'gone'); CREATE DOMAIN place AS text CHECK (value <> '');
        CREATE TABLE job (id BIGINT PRIMARY KEY, state state, tenant uuid, place place, body text, lock_id VARCHAR(32));
        INSERT INTO job VALUES (1, 'ready', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'here', 'x', NULL),
            (2, 'gone', 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'there', 'y', NULL)",
    )
    .await;
    let database = db.database().await;
    for (column, value) in [
        ("state", "ready"),
        ("tenant", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
        ("place", "here"),
        ("body", "x"),
    ] {
        let claims = Claims::with_pool(database.clone(), "job").filter(column, value);
        let claim = claims.claim(5).await.expect("is a value of the type");
        assert_eq!(claim.ids(), ["1"], "{column}");
        assert_eq!(claim.release().await.expect("answers"), 1);
    }
    let claims = Claims::with_pool(database, "job").filter("state", "no such state");
    let error = claims.claim(5).await.expect_err("is no value of the type");
    assert!(format!("{error:#}").contains("no such state"), "{error:#}");
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn safe_updates_do_not_refuse_claims() {
    let Some(db) = Db::mysql_with(&["SET sql_safe_updates = 1"]).await else {
        return;
    };
    db.execute("CREATE TABLE job (id BIGINT PRIMARY KEY, lock_id VARCHAR(32))")
        .await;
    db.execute("INSERT INTO job VALUES (1, NULL), (2, NULL)")
        .await;
    let claims = Claims::with_pool(db.database().await, "job");
    let claim = claims.claim(5).await.expect("is done");
    assert_eq!(claim.ids().len(), 2);
    assert!(claim.complete_by_row("1").await.expect("is done"));
    assert!(claim.release_by_row("2").await.expect("is done"));
}
