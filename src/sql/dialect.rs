//! What the databases do differently, apart from the [statements](super::statements).

use super::{
    session::Statements,
    statements::{Side, tables},
};
#[cfg(feature = "postgres")]
use crate::key::hex;

/// A database as Perennial speaks to it.
pub(super) struct Dialect {
    pub(super) side: Side,
    /// The clock. Never that of the process, and never that of a transaction's beginning.
    pub(super) now: &'static str,
    /// What encloses a name.
    pub(super) quote: char,
    /// A key `{key}` as it is read, and compared, as text.
    pub(super) text: &'static str,
    /// What a statement begins with that decides by a row that it only reads, for `{waits}`: on a node of a cluster, it first waits for all that other nodes
    /// have committed.
    pub(super) waits: &'static str,
    /// The bound of the epochs that are committed, for `{committed}`, where a statement may see others.
    pub(super) committed: &'static str,
    /// The codes of errors by which tables of the same names show that are not Perennial's.
    pub(super) foreign: &'static [&'static str],
    /// What follows the type of a name, for `{collate}`.
    pub(super) collate: &'static str,
    /// How arguments are written into a statement; `None`: they are bound, to a `?` for each `$n`.
    pub(super) literals: Option<Literals>,
    /// A connection is a socket: one whose statement was not waited for, or that broke, is closed and not used again. (SQLite's goes
    /// on by itself, and a database in memory would be gone with it.)
    pub(super) socket: bool,
    /// Begins the transaction in which the tables are made.
    pub(super) begin: &'static str,
    /// What it begins with: the table of the tables' version is there, with a row, which is changed so that no other process can be at
    /// it, where the database undoes what is not committed.
    pub(super) schema_table: &'static [&'static str],
    /// The codes of errors by which others who make the tables at the same time get in the way.
    pub(super) raced: &'static [&'static str],
    /// The tables: each element leads from the version that is its index to the next one. None is ever edited after a release.
    pub(super) schema: &'static [&'static [&'static str]],
    /// Milliseconds: what has to be said before a mark, so that it waits no longer for another transaction, and after it, so that everything is
    /// as it was.
    pub(super) bounds: Option<[&'static str; 2]>,
    /// The epoch in an entry's `notes`, for `{noted}`; NULL where the notes have none.
    pub(super) noted: &'static str,
    /// lock id, number of rows, values of filters -> nothing; claims rows of `{table}`, of those that are `{free}`, in that order, by setting what says that they are `{claimed}`
    pub(super) claim: &'static str,
    /// Locks that a connection holds, where there are any.
    pub(super) session: Option<Statements>,
    /// The codes of errors by which the database resolves a contention: somebody else was faster, and nothing was done.
    pub(super) contended: &'static [&'static str],
    /// The codes of errors by which a server says that it is ending, or that it is not the primary (any more): the connection is closed.
    pub(super) gone: &'static [&'static str],
    /// The codes of errors with which a server that works refuses content: it is too large, or a constraint or a trigger of the administrator's forbids it.
    pub(super) unfit: &'static [&'static str],
    /// The codes of errors that say that the database may only be read.
    pub(super) readonly: &'static [&'static str],
    /// The codes of errors that say that this role may not make tables.
    pub(super) forbidden: &'static [&'static str],
}

/// How arguments are written into a statement, a number as it is. So a statement is one message and leaves nothing behind, which is what a
/// pooler that gives out its connections by the transaction asks for. (sqlx prepares a statement in one exchange and runs it in another;
/// such a pooler may hand the two to different servers.)
pub(super) struct Literals {
    pub(super) text: fn(&str) -> String,
    pub(super) bytes: fn(&[u8]) -> String,
}

/// A lock that was acquired further in the future is from before the database's clock was set back, in microseconds. Less is the difference between the clocks of a cluster's
/// nodes, or a step by which a clock is kept right. Nothing depends on the exact time: [`REDATE`](super::statements::locks::REDATE) ends no lease early, and less would only cost a contended try a write. An entry that was published
/// there is stale, as its age is not known.
pub(super) const SET_BACK: i64 = 5_000_000;

#[cfg(feature = "sqlite")]
pub(super) const SQLITE: Dialect = Dialect {
    side: Side::Sqlite,
    // `unixepoch('subsec')` is NULL before SQLite 3.42, which another program on the same file may be.
    now: "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
    // Not in double quotes: what is no column would be taken for a text.
    quote: '`',
    text: "CAST({key} AS TEXT)",
    waits: "",
    committed: "",
    // SQLITE_ERROR: a table or a column that is there or is not.
    foreign: &["1"],
    collate: "",
    literals: None,
    socket: false,
    // Not DEFERRED: a transaction that reads before it writes is refused at once (SQLITE_BUSY), in spite of any busy timeout.
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
    ]],
    // The pool's busy timeout.
    bounds: None,
    noted: "CASE WHEN notes LIKE 'epoch=%' THEN CAST(substr(notes, 7) AS INTEGER) END",
    claim: "UPDATE {table} SET {claimed} WHERE {id} IN (SELECT {id} FROM {table} WHERE {free} LIMIT $2)",
    session: None,
    contended: &[],
    gone: &[],
    // SQLITE_TOOBIG, SQLITE_CONSTRAINT_CHECK, SQLITE_CONSTRAINT_TRIGGER
    unfit: &["18", "275", "1811"],
    // SQLITE_READONLY, and those of its kinds that a file or a folder without the right to write brings about
    readonly: &["8", "520", "1544"],
    forbidden: &[],
};

/// What means the same under every setting: ASCII without quotes, and the rest in escapes. (A database in SQL_ASCII refuses those.)
///
/// A literal has the collation of the column with which it is compared. (`convert_from(…)` has that of the type `name`, "C", with
/// which no index of another collation can be used.)
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
    // Not `now()`, which stands still inside a transaction.
    now: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    quote: '"',
    text: "CAST({key} AS TEXT)",
    waits: "",
    committed: "",
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
    // unique_violation (in the catalogue), duplicate_table, duplicate_object (its type): IF NOT EXISTS does not see what is not
    // committed.
    raced: &["23505", "42P07", "42710"],
    schema: &[&[
        tables::LOCK.postgres,
        tables::ENTRY.postgres,
        tables::INVALIDATION.postgres,
        tables::EPOCHS,
    ]],
    bounds: Some([
        "SELECT set_config('perennial.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', $1 || 'ms', true)",
        // Outside a transaction nothing of the former is left.
        "SELECT set_config('lock_timeout', coalesce(nullif(current_setting('perennial.lock_timeout', true), ''), current_setting('lock_timeout')), true)",
    ]),
    noted: "CAST(substring(notes FROM '^epoch=([0-9]+)') AS BIGINT)",
    // MATERIALIZED: chosen once, not anew for each row.
    claim: "WITH perennial_free AS MATERIALIZED (
            SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        UPDATE {table} t SET {claimed} FROM perennial_free f WHERE t.{id} = f.{id}",
    // What stands on a connection that nobody else is given is our own.
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
    // admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout; read_only_sql_transaction: a standby, which the primary has become, or a name that
    // leads to another server now
    gone: &["57P01", "57P02", "57P03", "57P05", "25006"],
    // string_data_right_truncation, character_not_in_repertoire, untranslatable_character, check_violation, program_limit_exceeded, raise_exception
    unfit: &["22001", "22021", "22P05", "23514", "54000", "P0001"],
    readonly: &["25006"],
    // insufficient_privilege
    forbidden: &["42501"],
};

/// PostgreSQL for its relatives, among them CockroachDB, which refuses to change a table twice in a statement, and YugabyteDB.
/// Settings for one statement have no effect there.
#[cfg(feature = "postgres")]
pub(super) const POSTGRES_RELATIVE: Dialect = Dialect {
    side: Side::Relative,
    // CockroachDB's collations are by language.
    collate: "",
    // CockroachDB's say yes to everybody.
    session: None,
    ..POSTGRES
};

#[cfg(feature = "mysql")]
pub(super) const MYSQL: Dialect = Dialect {
    side: Side::MySql,
    now: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    quote: '`',
    // Bytes in the end: as text they would be compared as some collation has it.
    text: "IF(CHARSET({key}) = 'binary', CAST({key} AS BINARY), CAST(CAST({key} AS CHAR CHARACTER SET utf8mb4) AS BINARY))",
    waits: "",
    // At READ UNCOMMITTED alone: the counter's row, locked, so that this waits for the invalidation that is under way. MariaDB before 11.1 and MySQL have
    // different names for the level.
    committed: "(SELECT IF(/*M! @@tx_isolation *//*!50720 @@transaction_isolation */ = 'READ-UNCOMMITTED', coalesce(max(epoch), 0), 9223372036854775807) AS latest
        FROM {p}invalidation WHERE name = '*' AND /*M! @@tx_isolation *//*!50720 @@transaction_isolation */ = 'READ-UNCOMMITTED' LOCK IN SHARE MODE)",
    // ER_TABLE_EXISTS_ERROR, ER_BAD_FIELD_ERROR
    foreign: &["1050", "1054"],
    collate: "",
    literals: None,
    socket: true,
    // Each statement that makes a table commits, so that they are such as several may do at once. (BEGIN is something else in
    // MariaDB's Oracle mode.)
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
        tables::MYSQL_COLUMNS[0],
        tables::MYSQL_COLUMNS[1],
        tables::MYSQL_COLUMNS[2],
    ]],
    // The insert id is the application's, too.
    bounds: Some([
        "SET @perennial_id = LAST_INSERT_ID(), @perennial_wait = @@innodb_lock_wait_timeout,
            innodb_lock_wait_timeout = GREATEST(1, $1 DIV 1000)",
        "SET innodb_lock_wait_timeout = @perennial_wait, @perennial_id = LAST_INSERT_ID(@perennial_id)",
    ]),
    noted: "CASE WHEN notes LIKE 'epoch=%' THEN CAST(SUBSTRING_INDEX(SUBSTR(notes, 7), '&', 1) AS SIGNED) END",
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
    // ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK, by which Galera also says that a certification failed, ER_LOCK_NOWAIT;
    // of TiDB: pessimistic and optimistic conflicts, and commits that were undone
    contended: &["1020", "1205", "1213", "3572", "8002", "9007", "8022", "8028"],
    // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED, ER_CLIENT_INTERACTION_TIMEOUT; ER_OPTION_PREVENTS_STATEMENT (read_only), ER_READ_ONLY_MODE,
    // ER_UNKNOWN_COM_ERROR, by which a node of Galera without a quorum answers: another server is the primary now
    gone: &["1053", "1927", "4031", "1290", "1836", "1047"],
    // ER_TOO_BIG_ROWSIZE, ER_NET_PACKET_TOO_LARGE, ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, ER_DATA_TOO_LONG, ER_SIGNAL_EXCEPTION,
    // ER_CONSTRAINT_FAILED, ER_CHECK_CONSTRAINT_VIOLATED
    unfit: &["1118", "1153", "1366", "1406", "1644", "4025", "3819"],
    readonly: &["1290", "1836"],
    // ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR
    forbidden: &["1044", "1142"],
};

/// MariaDB that may be a node of a Galera cluster: a build without Galera refuses the setting. Galera compares what was written on two nodes, and not what was read.
#[cfg(feature = "mysql")]
pub(super) const MARIADB_GALERA: Dialect = Dialect {
    waits: "SET STATEMENT wsrep_sync_wait = 15 FOR ",
    ..MYSQL
};
