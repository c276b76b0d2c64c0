//! What a site says of the latest commits, on real servers.

use perennial::{Perennial, sql::Durability};

#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::own_server::{OwnServer, ServerKind};
use crate::{databases::Db, log::Log};

async fn durability(url: &str) -> Durability {
    let site = Perennial::open(url).await.expect("opens");
    let database = site.database().expect("has one");
    database.durability().await.expect("answers")
}

#[tokio::test]
async fn a_site_says_at_its_start_where_commits_are() {
    let databases = [
        Db::sqlite().await,
        #[cfg(feature = "postgres")]
        Db::postgres().await,
        #[cfg(feature = "postgres")]
        Db::postgres_pooled().await,
        #[cfg(feature = "mysql")]
        Db::mysql().await,
        #[cfg(feature = "mysql")]
        Db::mysql_unusual().await,
    ];
    for db in databases.into_iter().flatten() {
        let log = Log::of_this_thread();
        let now = durability(db.url()).await;
        assert!(!now.read_only);
        let text = format!("durability=\"{now}\"");
        assert!(log.text().contains(&text), "{text} in {}", log.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_may_lose_commits_with_the_power() {
    let folder = crate::support::Folder::new();
    let site = durability(&folder.url()).await;
    assert_eq!(site.lost_after, ["a crash of the machine"]);
    let pool = sqlx::SqlitePool::connect_with(
        sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.file())
            .synchronous(sqlx::sqlite::SqliteSynchronous::Full),
    );
    let site = Perennial::with_pool(pool.await.expect("opens")).await;
    let database = site.expect("opens").database().expect("has one");
    let full = database.durability().await.expect("answers");
    assert_eq!(full.lost_after, [""; 0]);
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn postgres_tells_of_its_settings() {
    if Db::postgres().await.is_none() {
        return;
    }
    // With `fsync` off.
    let server = OwnServer::start(ServerKind::Postgres).await;
    let url = server.url();
    let lost = durability(&url).await.lost_after;
    assert_eq!(lost, ["a crash of the machine"]);
    Db::at(&url)
        .execute("ALTER DATABASE postgres SET synchronous_commit = off")
        .await;
    let lost = durability(&url).await.lost_after;
    assert_eq!(lost, ["a crash of the server", "a crash of the machine"]);
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn mariadb_tells_of_its_settings() {
    if Db::mysql().await.is_none() {
        return;
    }
    // With `innodb_flush_log_at_trx_commit` 2.
    let server = OwnServer::start(ServerKind::MariaDb).await;
    let url = server.url();
    let db = Db::at(&url);
    let lost = durability(&url).await.lost_after;
    assert_eq!(lost, ["a crash of the machine"]);
    db.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        .await;
    db.execute("SET GLOBAL read_only = 1").await;
    let now = durability(&url).await;
    assert_eq!(now.lost_after, [""; 0]);
    assert!(now.read_only);
}
