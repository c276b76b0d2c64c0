//! Databases whose application leaves the connections of its pool in some state: in a transaction that
//! nobody ends, as another role, with another schema.

use crate::Db;

/// Returns a database and an application that runs these statements on each connection before it
/// gives the connection back.
pub async fn sqlite(leaves: &'static [&'static str]) -> Option<Db> {
    Some(Db::sqlite().await?.left_by(leaves))
}

/// Like [`sqlite`]. The schema `tenant` has tables with the same names.
#[cfg(feature = "postgres")]
pub async fn postgres(leaves: &'static [&'static str]) -> Option<Db> {
    let db = Db::postgres().await?;
    let ddl = perennial::Perennial::builder()
        .ddl(db.url())
        .expect("is known");
    db.execute(&format!(
        "CREATE SCHEMA tenant; SET search_path = tenant; {ddl} SET search_path = DEFAULT"
    ))
    .await;
    Some(db.left_by(leaves))
}

/// Leaves a connection read-only half of the time. If it always did, a connection that is used for
/// reading, which works on a read-only connection, would make all connections unfit for writers as
/// fast as they are replaced.
#[cfg(feature = "postgres")]
pub const READ_ONLY: &[&str] = &["SELECT set_config('default_transaction_read_only',
    CASE WHEN random() < 0.5 THEN 'on' ELSE 'off' END, false)"];

/// As [`sqlite`].
#[cfg(feature = "mysql")]
pub async fn mysql(leaves: &'static [&'static str]) -> Option<Db> {
    let db = Db::mysql().await?;
    db.execute("CREATE TABLE other (id INTEGER)").await;
    Some(db.left_by(leaves))
}

/// Like [`mysql`], but the store sends what it would send to a server of MySQL itself, where that
/// differs from MariaDB.
#[cfg(feature = "mysql")]
pub async fn mysql_itself(leaves: &'static [&'static str]) -> Option<Db> {
    Some(mysql(leaves).await?.taken_for_mysql())
}
