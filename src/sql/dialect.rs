//! The differences between the databases, apart from the [statements](super::statements).

use super::{
    session::Statements,
    statements::{Side, tables},
};
#[cfg(feature = "postgres")]
use crate::key::hex;

/// The SQL of a database.
pub(super) struct Dialect {
    pub(super) side: Side,
    /// The clock: never the process's clock, and never the beginning of the transaction.
    pub(super) now: &'static str,
    /// The quote around a name.
    pub(super) quote: char,
    /// The expression that reads and compares a key `{key}` as text.
    pub(super) text: &'static str,
    /// The beginning, for `{waits}`, of a statement that decides by what other nodes of a cluster have
    /// written: a node first waits for all commits of the others.
    pub(super) waits: &'static str,
    /// The clause, for `{share}`, with which a read keeps other transactions from changing the row
    /// until the statement is committed. MySQL's statements have clauses of their own.
    pub(super) share: &'static str,
    /// The codes of errors that mean that tables of the same names are not Perennial's.
    pub(super) foreign: &'static [&'static str],
    /// The SQL that follows the type of a column of names, for `{collate}`.
    pub(super) collate: &'static str,
    /// The form of arguments that are written into a statement; `None`: arguments are bound, to a
    /// `?` for each `$n`.
    pub(super) literals: Option<Literals>,
    /// The connection is a socket. A socket that broke, or whose statement was abandoned, is closed
    /// and not used again. SQLite's connection continues, and closing it would drop a database in
    /// memory.
    pub(super) socket: bool,
    /// The beginning of the transaction that makes the tables.
    pub(super) begin: &'static str,
    /// The first statements of that transaction: they make the table with the version of the
    /// tables. On PostgreSQL they also lock its row, so that no other process makes the tables at
    /// the same time.
    pub(super) schema_table: &'static [&'static str],
    /// The codes of errors from another process that makes the tables at the same time.
    pub(super) raced: &'static [&'static str],
    /// The statements that make the tables: the first element makes them, and each later element
    /// leads from a version of the tables to the next version. No element is edited after a
    /// release.
    pub(super) schema: &'static [&'static [&'static str]],
    /// Two statements around the mark of once-only work in a caller's transaction. The first limits
    /// the wait for other transactions (milliseconds -> nothing), and the second restores the limit
    /// from before (nothing -> nothing).
    pub(super) bounds: Option<[&'static str; 2]>,
    /// lock id, number of rows, values of filters -> nothing; sets `{claimed}` in the first rows of
    /// `{table}` by `{free}` (conditions and their ORDER BY); `{id}` is the key
    pub(super) claim: &'static str,
    /// Session locks, if the database has them.
    pub(super) session: Option<Statements>,
    /// The codes of errors after which nothing was done, as another statement was faster.
    pub(super) contended: &'static [&'static str],
    /// The codes of errors after which the connection is closed: the server ends, is not the
    /// primary, or does not know whether the statement was done.
    pub(super) gone: &'static [&'static str],
    /// The codes of errors with which a working server refuses content: the content is too large,
    /// or an administrator's constraint or trigger forbids the row.
    pub(super) unfit: &'static [&'static str],
    /// The codes of errors of a read-only database.
    pub(super) readonly: &'static [&'static str],
    /// The codes of errors of a role that may not make tables.
    pub(super) forbidden: &'static [&'static str],
}

/// The form of arguments that are written into a statement. A number needs no form. Such a
/// statement is one message and leaves nothing behind on the connection, as a pooler that shares
/// connections by the transaction requires. (sqlx prepares a statement in one exchange and runs the
/// statement in another; such a pooler may send the two to different servers.)
pub(super) struct Literals {
    pub(super) text: fn(&str) -> String,
    pub(super) bytes: fn(&[u8]) -> String,
}

/// If an entry was published further in the future than this, in microseconds, the database's clock
/// was set back: the entry's age is unknown, and the entry is stale. A smaller distance comes from
/// the clocks of a cluster's nodes, or from a step that corrects a clock.
pub(super) const SET_BACK: i64 = 5_000_000;

#[cfg(feature = "sqlite")]
pub(super) const SQLITE: Dialect = Dialect {
    side: Side::Sqlite,
    // `unixepoch('subsec')` is NULL before SQLite 3.42, and another program on the same file may
    // have an older SQLite.
    now: "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
    // Not in double quotes: SQLite reads an unknown column in double quotes as a text.
    quote: '`',
    text: "CAST({key} AS TEXT)",
    waits: "",
    share: "",
    // SQLITE_ERROR: a table or a column that is there or is not.
    foreign: &["1"],
    collate: "",
    literals: None,
    socket: false,
    // Not DEFERRED: a transaction that reads before it writes is refused at once (SQLITE_BUSY),
    // whatever the busy timeout is.
    begin: "BEGIN IMMEDIATE",
    schema_table: &[
        "CREATE TABLE IF NOT EXISTS {p}schema (id INTEGER PRIMARY KEY, version INTEGER NOT NULL)",
        "INSERT OR IGNORE INTO {p}schema (id, version) VALUES (1, 0)",
    ],
    raced: &[],
    schema: &[&[
        tables::LOCK.sqlite,
        tables::ENTRY.sqlite,
        tables::INVALIDATION.sqlite,
        tables::EPOCHS,
        tables::REQUEST.sqlite,
        tables::RETAIN_UNTIL,
    ]],
    // The pool's busy timeout.
    bounds: None,
    claim: "UPDATE {table} SET {claimed} WHERE {id} IN (SELECT {id} FROM {table} WHERE {free} LIMIT $2)",
    session: None,
    contended: &[],
    gone: &[],
    // SQLITE_TOOBIG, SQLITE_CONSTRAINT_CHECK, SQLITE_CONSTRAINT_TRIGGER
    unfit: &["18", "275", "1811"],
    // SQLITE_READONLY, and its variants for a file or a folder without the right to write
    readonly: &["8", "520", "1544"],
    forbidden: &[],
};

/// Writes a text with one meaning under every setting: printable ASCII except `'` and `\`, and an
/// escape for every other character. A database in SQL_ASCII refuses the escapes of characters
/// outside ASCII.
///
/// A literal has the collation of the column that it is compared with. (`convert_from(…)` has the
/// collation "C" of the type `name`, and no index of another collation would be used.)
#[cfg(feature = "postgres")]
fn escaped(text: &str) -> String {
    let mut literal = "E'".to_owned();
    for c in text.chars() {
        match c {
            ' '..='~' if c != '\'' && c != '\\' => literal.push(c),
            _ => literal.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    literal.push_str("'::text");
    literal
}

#[cfg(feature = "postgres")]
pub(super) const POSTGRES: Dialect = Dialect {
    side: Side::Postgres,
    // Not `now()`, which does not advance inside a transaction.
    now: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    quote: '"',
    text: "CAST({key} AS TEXT)",
    waits: "",
    share: " FOR SHARE",
    // duplicate_table, undefined_column
    foreign: &["42P07", "42703"],
    collate: " COLLATE \"C\"",
    literals: Some(Literals {
        text: escaped,
        bytes: |bytes| format!("decode('{}', 'hex')", hex(bytes)),
    }),
    socket: true,
    begin: "BEGIN",
    schema_table: &[
        "CREATE TABLE IF NOT EXISTS {p}schema (id BIGINT PRIMARY KEY, version BIGINT NOT NULL)",
        "INSERT INTO {p}schema (id, version) VALUES (1, 0) ON CONFLICT (id) DO NOTHING",
        "UPDATE {p}schema SET version = version WHERE id = 1",
    ],
    // unique_violation (in the catalogue), duplicate_table, duplicate_object (its type): IF NOT
    // EXISTS does not see uncommitted tables.
    raced: &["23505", "42P07", "42710"],
    schema: &[&[
        tables::LOCK.postgres,
        tables::ENTRY.postgres,
        tables::INVALIDATION.postgres,
        tables::EPOCHS,
        tables::REQUEST.postgres,
        tables::RETAIN_UNTIL,
    ]],
    bounds: Some([
        "SELECT set_config('perennial.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', $1 || 'ms', true)",
        // Outside a transaction the first statement's settings have ended with that statement.
        "SELECT set_config('lock_timeout', coalesce(nullif(current_setting('perennial.lock_timeout', true), ''), current_setting('lock_timeout')), true)",
    ]),
    // MATERIALIZED: chosen once, not anew for each row.
    claim: "WITH perennial_free AS MATERIALIZED (
            SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        UPDATE {table} t SET {claimed} FROM perennial_free f WHERE t.{id} = f.{id}",
    // On a connection that is not shared, `perennial.session` is empty or has this holder's value.
    // Another value shows that a pooler shares the connection.
    session: Some(Statements {
        acquire: "SELECT (CASE
            WHEN coalesce(current_setting('perennial.session', true), '') NOT IN ('', $3) THEN 2
            WHEN NOT pg_try_advisory_lock($1) THEN 0
            WHEN set_config('perennial.session', $3, false) = $3 THEN 1
            END)::bigint",
        // Since PostgreSQL 14.
        bound: "SELECT CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL
            THEN set_config('idle_session_timeout', '15s', false) END",
        holds: "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (classid::bigint << 32 | objid::bigint) = $1 AND objsubid = 1
            AND current_setting('perennial.session', true) = $3",
        release: "SELECT (CASE WHEN current_setting('perennial.session', true) = $3 AND pg_advisory_unlock($1)
            AND set_config('perennial.session', '', false) = '' THEN 1 ELSE 0 END)::bigint",
        missing: &[],
    }),
    // lock_not_available, serialization_failure, deadlock_detected
    contended: &["55P03", "40001", "40P01"],
    // statement_completion_unknown: CockroachDB's ambiguous result; admin_shutdown, crash_shutdown,
    // cannot_connect_now, idle_session_timeout; protocol_violation: PgBouncer ends the connection, as
    // it reaches no server; read_only_sql_transaction: the primary has become a standby, or the name
    // leads to another server now
    gone: &["40003", "57P01", "57P02", "57P03", "57P05", "08P01", "25006"],
    // string_data_right_truncation, character_not_in_repertoire, untranslatable_character,
    // check_violation, program_limit_exceeded, raise_exception
    unfit: &["22001", "22021", "22P05", "23514", "54000", "P0001"],
    readonly: &["25006"],
    // insufficient_privilege
    forbidden: &["42501"],
};

/// PostgreSQL's dialect for CockroachDB, which refuses to change a table twice in a statement, and
/// for YugabyteDB. On both, `set_config` has no effect on the statement that contains it, so their
/// statements do without.
#[cfg(feature = "postgres")]
pub(super) const POSTGRES_RELATIVE: Dialect = Dialect {
    side: Side::Relative,
    // CockroachDB's collations are by language.
    collate: "",
    // CockroachDB grants each advisory lock to every client.
    session: None,
    ..POSTGRES
};

#[cfg(feature = "mysql")]
pub(super) const MYSQL: Dialect = Dialect {
    side: Side::MySql,
    now: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    quote: '`',
    // The result is bytes: a text would be compared by a collation.
    text: "IF(CHARSET({key}) = 'binary', CAST({key} AS BINARY), CAST(CAST({key} AS CHAR CHARACTER SET utf8mb4) AS BINARY))",
    waits: "",
    share: "",
    // ER_TABLE_EXISTS_ERROR, ER_BAD_FIELD_ERROR
    foreign: &["1050", "1054"],
    collate: "",
    literals: None,
    socket: true,
    // Each statement that makes a table commits, so each of them tolerates others at the same time.
    // (BEGIN has another meaning in MariaDB's Oracle mode.)
    begin: "START TRANSACTION",
    schema_table: &[
        "CREATE TABLE IF NOT EXISTS {p}schema (id BIGINT PRIMARY KEY, version BIGINT NOT NULL) ENGINE = InnoDB",
        "INSERT IGNORE INTO {p}schema (id, version) VALUES (1, 0)",
    ],
    raced: &[],
    schema: &[&[
        tables::LOCK.mysql,
        tables::ENTRY.mysql,
        tables::INVALIDATION.mysql,
        tables::REQUEST.mysql,
        tables::MYSQL_COLUMNS[0],
        tables::MYSQL_COLUMNS[1],
        tables::MYSQL_COLUMNS[2],
        tables::MYSQL_COLUMNS[3],
    ]],
    // The insert id is the application's, too.
    bounds: Some([
        "SET @perennial_id = LAST_INSERT_ID(), @perennial_wait = @@innodb_lock_wait_timeout,
            innodb_lock_wait_timeout = GREATEST(1, $1 DIV 1000)",
        "SET innodb_lock_wait_timeout = @perennial_wait, @perennial_id = LAST_INSERT_ID(@perennial_id)",
    ]),
    claim: "UPDATE {table} t JOIN (
            SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
        ) c ON t.{id} = c.{id} SET {claimed}",
    session: Some(Statements {
        acquire: "SELECT IF(IS_USED_LOCK($2) = CONNECTION_ID(), 2, GET_LOCK($2, 0))",
        bound: "SET SESSION wait_timeout = 15",
        holds: "SELECT coalesce(IS_USED_LOCK($2) = CONNECTION_ID(), 0)",
        release: "SELECT coalesce(RELEASE_LOCK($2), 0)",
        // ER_NOT_SUPPORTED_YET
        missing: &["1235"],
    }),
    // ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK (also a failed certification of Galera),
    // ER_LOCK_NOWAIT; of TiDB: pessimistic and optimistic conflicts, and undone commits
    contended: &[
        "1020", "1205", "1213", "3572", "8002", "9007", "8022", "8028",
    ],
    // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED, ER_CLIENT_INTERACTION_TIMEOUT;
    // ER_OPTION_PREVENTS_STATEMENT (read_only), ER_READ_ONLY_MODE, ER_UNKNOWN_COM_ERROR (a node of
    // Galera without a quorum): another server is the primary now
    gone: &["1053", "1927", "4031", "1290", "1836", "1047"],
    // ER_TOO_BIG_ROWSIZE, ER_NET_PACKET_TOO_LARGE, ER_TRUNCATED_WRONG_VALUE_FOR_FIELD,
    // ER_DATA_TOO_LONG, ER_SIGNAL_EXCEPTION, ER_CONSTRAINT_FAILED, ER_CHECK_CONSTRAINT_VIOLATED
    unfit: &["1118", "1153", "1366", "1406", "1644", "4025", "3819"],
    readonly: &["1290", "1836"],
    // ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR
    forbidden: &["1044", "1142"],
};

/// MariaDB that may be a node of a Galera cluster. A build without Galera refuses the setting.
/// Galera compares the writes of two nodes, and not their reads.
#[cfg(feature = "mysql")]
pub(super) const MARIADB_GALERA: Dialect = Dialect {
    waits: "SET STATEMENT wsrep_sync_wait = 15 FOR ",
    ..MYSQL
};
