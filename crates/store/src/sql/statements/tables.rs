//! The tables of a site, and the statements that make them.
//!
//! A table that exists already is accepted if it has all columns that the statements use. On MySQL, a
//! statement that makes a table commits implicitly, so other processes may be making the same tables
//! between two of our statements.

use super::PerDialect;

/// The beginning of the transaction that makes the tables.
pub const BEGIN: PerDialect = PerDialect {
    // DEFERRED would not do: if such a transaction reads before it writes, and another connection
    // has written in between, it is refused at once (SQLITE_BUSY), whatever the busy timeout is.
    sqlite: "BEGIN IMMEDIATE",
    // BEGIN has another meaning in MariaDB's Oracle mode.
    mysql: "START TRANSACTION",
    // The role's default may be read-only transactions.
    ..PerDialect::same("BEGIN READ WRITE")
};

/// Limits how long each statement of the transaction that makes the tables waits for locks. While it waits, all
/// readers and writers of the table would wait behind it. The transaction is tried again.
pub(crate) const WAIT: PerDialect = PerDialect {
    sqlite: "",
    postgres: "SET LOCAL lock_timeout = '1s'",
    mysql: "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1",
};

/// The first statements of the transaction that makes the tables. They make the table with the schema version.
pub(crate) const SCHEMA: [PerDialect; 4] = [
    PerDialect::same(
        "CREATE TABLE IF NOT EXISTS {p}schema (id BIGINT PRIMARY KEY, version BIGINT NOT NULL){engine}",
    ),
    PerDialect {
        mysql: "INSERT IGNORE INTO {p}schema (id, version) VALUES (1, 0)",
        ..PerDialect::same(
            "INSERT INTO {p}schema (id, version) VALUES (1, 0) ON CONFLICT (id) DO NOTHING",
        )
    },
    // On PostgreSQL, this locks the row until the transaction ends, so that no other process makes
    // the tables at the same time.
    PerDialect {
        postgres: "UPDATE {p}schema SET version = version WHERE id = 1",
        ..PerDialect::same("")
    },
    PerDialect {
        sqlite: "INSERT INTO {p}schema (id, version) VALUES (3, abs(random() % 4503599627370496)) ON CONFLICT (id) DO NOTHING",
        postgres: "INSERT INTO {p}schema (id, version) VALUES (3, (random() * 4503599627370496)::bigint) ON CONFLICT (id) DO NOTHING",
        mysql: "INSERT IGNORE INTO {p}schema (id, version) VALUES (3, FLOOR(RAND() * 4503599627370496))",
    },
];

/// -> a random number that tells these tables from those of other sites
pub(crate) const ID: &str = "SELECT version FROM {p}schema WHERE id = 3";

/// The tables' version: the number of steps that have made them.
pub(crate) const VERSION: &str = "SELECT version FROM {p}schema WHERE id = 1";

/// version
pub(crate) const NOTE: &str = "UPDATE {p}schema SET version = $1 WHERE id = 1";

/// The statements that make the tables: the first step makes them, and each later step leads from a
/// version of the tables to the next version. No step is edited after a release.
pub(crate) const STEPS: &[&[PerDialect]] = &[&[
    LOCK,
    PerDialect::same(
        "SELECT kind, name, owner, fence, acquired_at, expires_at, failures FROM {p}lock LIMIT 0",
    ),
    ENTRY,
    PerDialect::same(
        "SELECT name, fence, generated_at, stale_at, retain_until, regenerated, epoch, bytes, metadata, history, status, headers, {body} FROM {p}entry LIMIT 0",
    ),
    // These indexes serve the counts, the list of the latest pages and the choice of pages to evict, so that
    // none of them reads the pages themselves.
    index(
        "CREATE INDEX IF NOT EXISTS {p}entry_stale_at ON {p}entry (regenerated, stale_at, bytes)",
    ),
    index("CREATE INDEX IF NOT EXISTS {p}entry_generated_at ON {p}entry (generated_at)"),
    INVALIDATION,
    PerDialect::same("SELECT name, epoch, kind FROM {p}invalidation LIMIT 0"),
    index("CREATE INDEX IF NOT EXISTS {p}invalidation_epoch ON {p}invalidation (epoch)"),
    index("CREATE INDEX IF NOT EXISTS {p}invalidation_kind ON {p}invalidation (kind, epoch)"),
    OUTBOX,
    PerDialect::same("SELECT id, name FROM {p}outbox LIMIT 0"),
    REQUEST,
    PerDialect::same(
        "SELECT name, owner, fingerprint, begun_at, expires_at, retain_until, status, headers, {body} FROM {p}request LIMIT 0",
    ),
    index("CREATE INDEX IF NOT EXISTS {p}request_retain_until ON {p}request (retain_until)"),
    PROCESS,
    PerDialect::same("SELECT name, noted_at, figures FROM {p}process LIMIT 0"),
]];

/// -> the schema of the tables, quoted where SQL needs quotes
pub(crate) const PLACE: PerDialect = PerDialect {
    sqlite: "",
    postgres: "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('{p}lock')",
    mysql: "SELECT CONCAT('`', REPLACE(DATABASE(), '`', '``'), '`')",
};

/// -> name, size in bytes
pub(crate) const SIZES: PerDialect = PerDialect {
    sqlite: "SELECT 'database file', c.page_count * s.page_size FROM pragma_page_count c, pragma_page_size s",
    postgres: "SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class c WHERE c.oid IN (
            to_regclass('{p}entry'), to_regclass('{p}lock'), to_regclass('{p}invalidation'), to_regclass('{p}outbox'), to_regclass('{p}request'), to_regclass('{p}process')
        ) ORDER BY c.relname",
    mysql: "SELECT table_name, CAST(coalesce(data_length + index_length, 0) AS SIGNED) FROM information_schema.tables
        WHERE table_schema = database() AND table_name IN ('{p}entry', '{p}lock', '{p}invalidation', '{p}outbox', '{p}request', '{p}process')
        ORDER BY table_name",
};

/// Returns the statement that makes an index. MySQL makes the index with its table, as the statement
/// would fail if another process had run it.
const fn index(text: &'static str) -> PerDialect {
    PerDialect {
        mysql: "",
        ..PerDialect::same(text)
    }
}

pub(crate) const LOCK: PerDialect = PerDialect::same(
    "CREATE TABLE IF NOT EXISTS {p}lock (
        kind {name} NOT NULL,
        name {name} NOT NULL,
        owner {name},
        fence BIGINT NOT NULL,
        acquired_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL,
        failures BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (kind, name)
    ){sorted}{engine}",
);

pub(crate) const ENTRY: PerDialect = PerDialect::same(
    "CREATE TABLE IF NOT EXISTS {p}entry (
        name {name} NOT NULL,
        fence BIGINT NOT NULL,
        generated_at BIGINT NOT NULL,
        stale_at BIGINT NOT NULL,
        retain_until BIGINT NOT NULL,
        regenerated BIGINT NOT NULL DEFAULT 0,
        epoch BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        metadata {text} NOT NULL,
        history {history},
        status BIGINT NOT NULL,
        headers {bytes} NOT NULL,
        {body} {bytes} NOT NULL,
        PRIMARY KEY (name){indexes_of_entries}
    ){engine}",
);

pub(crate) const INVALIDATION: PerDialect = PerDialect::same(
    "CREATE TABLE IF NOT EXISTS {p}invalidation (
        name {name} NOT NULL PRIMARY KEY,
        epoch BIGINT NOT NULL,
        kind BIGINT GENERATED ALWAYS AS ({kind_of_name}) STORED{indexes_of_epochs}
    ){sorted}{engine}",
);

pub(crate) const OUTBOX: PerDialect = PerDialect::same(
    "CREATE TABLE IF NOT EXISTS {p}outbox (
        id {name} NOT NULL PRIMARY KEY,
        name {name} NOT NULL{short_texts}
    ){sorted}{engine}",
);

pub(crate) const REQUEST: PerDialect = PerDialect::same(
    "CREATE TABLE IF NOT EXISTS {p}request (
        name {name} NOT NULL PRIMARY KEY,
        owner {name} NOT NULL,
        fingerprint {name} NOT NULL,
        begun_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL,
        retain_until BIGINT NOT NULL,
        status BIGINT,
        headers {bytes},
        {body} {bytes}{index_of_retentions}
    ){engine}",
);

pub(crate) const PROCESS: PerDialect = PerDialect::same(
    "CREATE TABLE IF NOT EXISTS {p}process (
        name {name} NOT NULL PRIMARY KEY,
        noted_at BIGINT NOT NULL,
        figures {text} NOT NULL
    ){engine}",
);

/// Returns the SQL for a placeholder that is used only in these statements.
pub(crate) fn keyword(word: &str) -> Option<PerDialect> {
    let mysql = |mysql, others| PerDialect {
        mysql,
        ..PerDialect::same(others)
    };
    Some(match word {
        "name" => PerDialect {
            // The column is sorted by bytes, so that all names with a common beginning can be found through the
            // index.
            postgres: "TEXT COLLATE \"C\"",
            ..mysql("VARBINARY(255)", "TEXT")
        },
        "text" => mysql("MEDIUMBLOB", "TEXT"),
        "history" => mysql(
            "VARBINARY(4000) NOT NULL DEFAULT x''",
            "TEXT NOT NULL DEFAULT ''",
        ),
        "bytes" => PerDialect {
            postgres: "BYTEA",
            ..mysql("LONGBLOB", "BLOB")
        },
        "engine" => mysql(" ENGINE = InnoDB", ""),
        "sorted" => PerDialect {
            sqlite: " WITHOUT ROWID",
            ..PerDialect::same("")
        },
        // Any program may write rows here. A row with a longer string could never be given an epoch, and would
        // stay in the table forever.
        "short_texts" => PerDialect {
            sqlite: ",
        CHECK (typeof(id) = 'text' AND length(CAST(id AS BLOB)) <= 255 AND typeof(name) = 'text' AND length(CAST(name AS BLOB)) <= 255)",
            postgres: ",
        CHECK (octet_length(id) <= 255 AND octet_length(name) <= 255)",
            ..PerDialect::same("")
        },
        // See `NameList`. `*` has the counter.
        "kind_of_name" => PerDialect::same(
            "CASE WHEN name = '*' THEN 3 WHEN substr(name, 1, 9) = 'revision:' THEN 2 WHEN substr(name, 1, 6) = 'purged' THEN 1 ELSE 0 END",
        ),
        "indexes_of_epochs" => mysql(
            ",\n        KEY {p}invalidation_epoch (epoch),\n        KEY {p}invalidation_kind (kind, epoch)",
            "",
        ),
        "indexes_of_entries" => mysql(
            ",\n        KEY {p}entry_stale_at (regenerated, stale_at, bytes),\n        KEY {p}entry_generated_at (generated_at)",
            "",
        ),
        "index_of_retentions" => mysql(",\n        KEY {p}request_retain_until (retain_until)", ""),
        _ => return None,
    })
}
