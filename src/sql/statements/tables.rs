//! The tables.

use super::Sides;

/// Reads all columns, and so fails on a foreign table: on MySQL, `IF NOT EXISTS` accepts any table
/// of that name.
#[cfg(feature = "mysql")]
pub(in crate::sql) const MYSQL_COLUMNS: [&str; 4] = [
    "SELECT kind, name, owner, fence, acquired_at, expires_at, failures FROM {p}lock LIMIT 0",
    "SELECT name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, history, status, headers, `body` FROM {p}entry LIMIT 0",
    "SELECT name, epoch FROM {p}invalidation LIMIT 0",
    "SELECT name, owner, fingerprint, begun_at, expires_at, retain_until, status, headers, `body` FROM {p}request LIMIT 0",
];

// Names are compared as bytes, as most collations of MySQL treat some different names as equal. On
// PostgreSQL, `{collate}` makes an index by bytes, which finds all names with a common beginning.
// On MySQL, a statement that makes a table commits, so other processes may run the statement at the
// same time.
pub(in crate::sql) const LOCK: Sides = Sides {
    sqlite: "CREATE TABLE {p}lock (
            kind TEXT NOT NULL,
            name TEXT NOT NULL,
            owner TEXT,
            fence INTEGER NOT NULL,
            acquired_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            failures INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (kind, name)
        ) WITHOUT ROWID",
    postgres: "CREATE TABLE {p}lock (
            kind TEXT{collate} NOT NULL,
            name TEXT{collate} NOT NULL,
            owner TEXT,
            fence BIGINT NOT NULL,
            acquired_at BIGINT NOT NULL,
            expires_at BIGINT NOT NULL,
            failures BIGINT NOT NULL DEFAULT 0,
            PRIMARY KEY (kind, name)
        )",
    relative: None,
    mysql: "CREATE TABLE IF NOT EXISTS {p}lock (
            kind VARBINARY(20) NOT NULL,
            name VARBINARY(255) NOT NULL,
            owner VARBINARY(255),
            fence BIGINT NOT NULL,
            acquired_at BIGINT NOT NULL,
            expires_at BIGINT NOT NULL,
            failures BIGINT NOT NULL DEFAULT 0,
            PRIMARY KEY (kind, name)
        ) ENGINE = InnoDB",
};

pub(in crate::sql) const ENTRY: Sides = Sides {
    sqlite: "CREATE TABLE {p}entry (
            name TEXT NOT NULL,
            fence INTEGER NOT NULL,
            generated_at INTEGER NOT NULL,
            stale_at INTEGER NOT NULL,
            retain_until INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            metadata TEXT NOT NULL,
            history TEXT NOT NULL DEFAULT '',
            status INTEGER NOT NULL,
            headers BLOB NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (name)
        )",
    postgres: "CREATE TABLE {p}entry (
            name TEXT{collate} NOT NULL,
            fence BIGINT NOT NULL,
            generated_at BIGINT NOT NULL,
            stale_at BIGINT NOT NULL,
            retain_until BIGINT NOT NULL,
            epoch BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            metadata TEXT NOT NULL,
            history TEXT NOT NULL DEFAULT '',
            status BIGINT NOT NULL,
            headers BYTEA NOT NULL,
            body BYTEA NOT NULL,
            PRIMARY KEY (name)
        )",
    relative: None,
    // A word of MariaDB's Oracle mode is quoted.
    mysql: "CREATE TABLE IF NOT EXISTS {p}entry (
            name VARBINARY(255) NOT NULL,
            fence BIGINT NOT NULL,
            generated_at BIGINT NOT NULL,
            stale_at BIGINT NOT NULL,
            retain_until BIGINT NOT NULL,
            epoch BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            metadata MEDIUMBLOB NOT NULL,
            history VARBINARY(4000) NOT NULL DEFAULT x'',
            status BIGINT NOT NULL,
            headers MEDIUMBLOB NOT NULL,
            `body` LONGBLOB NOT NULL,
            PRIMARY KEY (name)
        ) ENGINE = InnoDB",
};

pub(in crate::sql) const INVALIDATION: Sides = Sides {
    sqlite: "CREATE TABLE {p}invalidation (
            name TEXT NOT NULL PRIMARY KEY,
            epoch INTEGER NOT NULL
        ) WITHOUT ROWID",
    postgres: "CREATE TABLE {p}invalidation (
            name TEXT{collate} NOT NULL PRIMARY KEY,
            epoch BIGINT NOT NULL
        )",
    relative: None,
    mysql: "CREATE TABLE IF NOT EXISTS {p}invalidation (
            name VARBINARY(255) NOT NULL PRIMARY KEY,
            epoch BIGINT NOT NULL,
            KEY {p}invalidation_epoch (epoch)
        ) ENGINE = InnoDB",
};

/// MySQL makes this index with its table.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::sql) const EPOCHS: &str =
    "CREATE INDEX {p}invalidation_epoch ON {p}invalidation (epoch)";

pub(in crate::sql) const REQUEST: Sides = Sides {
    sqlite: "CREATE TABLE {p}request (
            name TEXT NOT NULL PRIMARY KEY,
            owner TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            begun_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            retain_until INTEGER NOT NULL,
            status INTEGER,
            headers BLOB,
            body BLOB
        )",
    postgres: "CREATE TABLE {p}request (
            name TEXT{collate} NOT NULL PRIMARY KEY,
            owner TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            begun_at BIGINT NOT NULL,
            expires_at BIGINT NOT NULL,
            retain_until BIGINT NOT NULL,
            status BIGINT,
            headers BYTEA,
            body BYTEA
        )",
    relative: None,
    mysql: "CREATE TABLE IF NOT EXISTS {p}request (
            name VARBINARY(255) NOT NULL PRIMARY KEY,
            owner VARBINARY(255) NOT NULL,
            fingerprint VARBINARY(255) NOT NULL,
            begun_at BIGINT NOT NULL,
            expires_at BIGINT NOT NULL,
            retain_until BIGINT NOT NULL,
            status BIGINT,
            headers MEDIUMBLOB,
            `body` LONGBLOB,
            KEY {p}request_retain_until (retain_until)
        ) ENGINE = InnoDB",
};

/// Finds the requests to prune. MySQL makes this index with its table.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::sql) const RETAIN_UNTIL: &str =
    "CREATE INDEX {p}request_retain_until ON {p}request (retain_until)";
