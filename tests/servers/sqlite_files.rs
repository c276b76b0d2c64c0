//! SQLite's files, which somebody deletes, replaces or empties while a site has them open.

use std::time::Duration;

use perennial::{ErrorKind, Perennial, locks::LockKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

use perennial_testkit::{Db, Folder, log::Log, on_each_database, patient, until};

on_each_database! {
    tables_that_vanish_are_made_again
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn lease_is_lost_with_the_file_that_it_is_in() {
    for what in ["deleted", "replaced", "log deleted"] {
        let folder = Folder::new();
        let site = patient().open(&folder.url()).await.expect("opens");
        let locks = site.locks().lease_duration(Duration::from_secs(3));
        let lease = locks
            .try_lock("job")
            .await
            .expect("answers")
            .expect("is free");
        let file = folder.url().trim_start_matches("sqlite://").to_owned();
        match what {
            "deleted" => std::fs::remove_file(&file).expect("is there"),
            "replaced" => {
                std::fs::write(format!("{file}.new"), "").expect("is written");
                std::fs::rename(format!("{file}.new"), &file).expect("is moved");
            }
            _ => std::fs::remove_file(format!("{file}-wal")).expect("is there"),
        }
        let lost = tokio::time::timeout(Duration::from_secs(60), lease.lost());
        lost.await.expect("is noticed");
        let error = locks
            .try_lock("another")
            .await
            .expect_err("nobody else sees it");
        assert_eq!(error.kind(), ErrorKind::Database);
        let text = format!("{error:#}");
        assert!(text.contains("was deleted or replaced"), "{what}: {text}");
        assert!(site.invalidate_tag("a").await.is_err(), "{what}");
    }
}

/// A database in development is reset while the site runs.
async fn tables_that_vanish_are_made_again(db: Db) {
    let site = db.site().await;
    // Only some of the tables are dropped. The row with the version of the tables remains.
    for table in ["request", "outbox"] {
        db.execute(&format!("DROP TABLE perennial_{table}")).await;
    }
    let opened = db.site().await;
    let page = async || Ok::<_, String>("a page");
    let policy = perennial::Refresh::every(perennial::DAY);
    let content = opened.content("page", &policy, page).await;
    assert_eq!(content.expect("is made").text(), "a page");
    for table in ["request", "outbox"] {
        let count = format!("SELECT COUNT(*) FROM perennial_{table}");
        assert_eq!(db.int(&count).await, Some(0), "{table}");
    }
    let lease = site
        .locks()
        .lease_duration(Duration::from_secs(2))
        .try_lock("job")
        .await;
    let lease = lease.expect("answers").expect("is free");
    for table in [
        "schema",
        "lock",
        "entry",
        "invalidation",
        "outbox",
        "request",
    ] {
        db.execute(&format!("DROP TABLE perennial_{table}")).await;
    }
    lease.lost().await;
    let again = site
        .locks()
        .try_lock("another")
        .await
        .expect("the tables are back");
    assert!(again.is_some());
    site.invalidate_tag("a").await.expect("is stored");
    let listed = site.locks().list().await.expect("answers");
    let named = |name: &str| {
        listed
            .iter()
            .any(|lock| lock.kind == LockKind::Lock && lock.name == name)
    };
    assert!(named("another") && !named("job"), "{listed:?}");
}

#[tokio::test]
async fn pool_that_lacks_settings_is_told_which() {
    let folder = Folder::new();
    let options: SqliteConnectOptions = folder.url().parse().expect("a URL");
    let options = options.create_if_missing(true);
    for (mode, timeout, said) in [
        (
            SqliteJournalMode::Delete,
            5,
            ["`.journal_mode(SqliteJournalMode::Wal)`"].as_slice(),
        ),
        (
            SqliteJournalMode::Wal,
            0,
            &["`.busy_timeout(Duration::from_secs(2))`"],
        ),
        (SqliteJournalMode::Wal, 5, &[]),
    ] {
        let options = options
            .clone()
            .journal_mode(mode)
            .busy_timeout(Duration::from_secs(timeout));
        let pool = SqlitePoolOptions::new()
            .connect_with(options)
            .await
            .expect("opens");
        let log = Log::of_this_thread();
        let site = Perennial::with_pool(pool.clone()).await.expect("opens");
        let text = log.text();
        for advice in [
            "`.journal_mode(SqliteJournalMode::Wal)`",
            "`.busy_timeout(Duration::from_secs(2))`",
        ] {
            assert_eq!(text.contains(advice), said.contains(&advice), "{text}");
        }
        site.shutdown().await;
        drop(site);
        pool.close().await;
        // Between two journal modes, no other connection may have the file open.
        until("it is closed", async || pool.is_closed()).await;
    }
}

/// Its texts are compared by their bytes, which in UTF-16 are in another order.
#[tokio::test(flavor = "multi_thread")]
async fn database_in_utf_16_is_refused() {
    let folder = Folder::new();
    let options: SqliteConnectOptions = folder.url().parse().expect("a URL");
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect_with(options.create_if_missing(true)).await;
    let pool = pool.expect("opens");
    for statement in ["PRAGMA encoding = 'UTF-16le'", "CREATE TABLE own (id INT)"] {
        sqlx::raw_sql(statement)
            .execute(&pool)
            .await
            .expect("is done");
    }
    drop(pool);
    let error = Perennial::open(&folder.url())
        .await
        .expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("UTF-16le"), "{error}");
}
