//! The differences between the databases, apart from their [SQL](super::statements): how arguments are
//! written, and what their error codes mean.

use super::{
    guard::{Settings, setting},
    run::Arg,
    statements::Dialect,
};
use crate::{
    driver::{Engine, ErrorCode},
    name::hex,
};

use ErrorCode::{MySql, Sqlite};

/// Returns a PostgreSQL error code, for the lists below.
const fn sql_state(code: &str) -> ErrorCode {
    ErrorCode::sql_state(code)
}

impl Engine {
    pub(crate) fn rules(self) -> &'static DialectRules {
        match self {
            Self::Sqlite => &SQLITE,
            Self::Postgres => &POSTGRES,
            Self::MySql => &MYSQL,
        }
    }

    /// Returns the kind of database that has this code.
    pub(crate) fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Sqlite(_) => Self::Sqlite,
            ErrorCode::SqlState(_) => Self::Postgres,
            ErrorCode::MySql(_) => Self::MySql,
        }
    }

    /// Returns the dialect that most servers of this kind use.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Sqlite => Dialect::Sqlite,
            Self::Postgres => Dialect::Postgres,
            Self::MySql => Dialect::MySql,
        }
    }

    /// Returns the dialect of a server with these settings.
    pub(super) fn dialect_of(self, settings: &Settings) -> Dialect {
        let version = setting(settings, "version").unwrap_or_default();
        match self {
            Self::MySql if setting(settings, "wsrep_sync_wait").is_some() => Dialect::Galera,
            Self::MySql if version.contains("MariaDB") => Dialect::MariaDb,
            _ => self.dialect(),
        }
    }
}

/// The rules of a kind of database. Each list of error codes has the codes with the meaning that the list's
/// name says.
pub struct DialectRules {
    /// The queries that read the settings in which servers and sessions differ. Each row of a result has the
    /// name of a setting and its value.
    pub settings: &'static [&'static str],
    /// Writes an argument into a statement, as a pooler in transaction mode requires. `None` means that
    /// arguments are bound.
    pub literal: Option<fn(Arg<'_>) -> String>,
    /// True if a connection is a socket, which may break. A connection to SQLite is not one.
    pub is_networked: bool,
    /// The error codes that mean that the database has tables which have Perennial's names, but are not
    /// Perennial's.
    pub not_our_table: &'static [ErrorCode],
    /// A table is not there.
    pub no_such_table: &'static [ErrorCode],
    /// The error codes that mean that another process is making the tables at the same time.
    pub ddl_race: &'static [ErrorCode],
    /// The error codes that mean that nothing was done, because a concurrent statement came first.
    pub contention: &'static [ErrorCode],
    /// The error codes that mean that the connection can no longer be used, and is closed: the server is
    /// shutting down, is not the primary, or does not know the outcome.
    pub connection_lost: &'static [ErrorCode],
    /// The error codes that mean that somebody has left the session in a state in which the statement cannot be
    /// executed.
    pub unsuitable_session: &'static [ErrorCode],
    /// The text in the error with which a guard (see `guard.rs`) fails.
    pub guard_failure: &'static str,
    /// The error codes that mean that the content is too large, that its text cannot be encoded, or that a
    /// constraint or trigger forbids the row.
    pub rejected_value: &'static [ErrorCode],
    /// The database is read-only.
    pub read_only: &'static [ErrorCode],
    /// The role may not make tables.
    pub permission_denied: &'static [ErrorCode],
}

/// The text of the error with which a guard fails, if it can choose the text. MariaDB shows only the first 64
/// characters of it.
pub const IN_TRANSACTION: &str = "perennial: the connection was left in a transaction";
const _: () = assert!(IN_TRANSACTION.len() <= 64, "MariaDB cuts it");

/// The error text of a statement that was run outside of a transaction, although it has to be part of one of
/// the application's transactions.
pub const NO_TRANSACTION: &str = "perennial: the connection is in no transaction";

/// An entry that is dated further in the future than this, in microseconds, counts as stale: the database's
/// clock was set back.
pub const SET_BACK: i64 = 5_000_000;

const SQLITE: DialectRules = DialectRules {
    settings: &[],
    literal: None,
    is_networked: false,
    // SQLITE_ERROR, which SQLite reports for a missing table or column, and for one that exists already.
    not_our_table: &[Sqlite(1)],
    no_such_table: &[Sqlite(1)],
    ddl_race: &[],
    contention: &[],
    connection_lost: &[],
    unsuitable_session: &[],
    guard_failure: "cannot start a transaction within a transaction",
    // SQLITE_TOOBIG, SQLITE_CONSTRAINT_CHECK, SQLITE_CONSTRAINT_TRIGGER
    rejected_value: &[Sqlite(18), Sqlite(275), Sqlite(1811)],
    // SQLITE_READONLY, and its variants for a file or folder without write permission
    read_only: &[Sqlite(8), Sqlite(520), Sqlite(1544)],
    permission_denied: &[],
};

/// Writes an argument as a literal that means the same under every setting of the session. In a string,
/// printable ASCII is written as it is. Three characters are exceptions: `'`, `\`, and `$`, which marks
/// arguments in templates. These and all other characters are written as escapes. A database in SQL_ASCII
/// refuses the escapes of characters outside ASCII.
///
/// A literal has the collation of the column that it is compared with. (A string produced by `convert_from`
/// would have the collation "C", so an index with another collation would not be used.)
pub fn literal(argument: Arg<'_>) -> String {
    let (text, cast) = match argument {
        Arg::Int(value) => return value.to_string(),
        Arg::Bytes(bytes) => return format!("decode('{}', 'hex')", hex(bytes)),
        Arg::Text(text) => (text, "'::text"),
        Arg::Untyped(text) => (text, "'"),
    };
    let mut literal = "E'".to_owned();
    for c in text.chars() {
        match c {
            ' '..='~' if !matches!(c, '\'' | '\\' | '$') => literal.push(c),
            _ => literal.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    literal.push_str(cast);
    literal
}

const POSTGRES: DialectRules = DialectRules {
    settings: &[
        "SELECT 'version', version() UNION ALL SELECT name, current_setting(name)
        FROM (VALUES ('search_path'), ('role')) n (name)",
    ],
    literal: Some(literal),
    is_networked: true,
    // duplicate_table, undefined_column
    not_our_table: &[sql_state("42P07"), sql_state("42703")],
    // undefined_table
    no_such_table: &[sql_state("42P01")],
    // unique_violation (in the catalogue), duplicate_table, duplicate_object (the table's row type): IF NOT
    // EXISTS does not see uncommitted tables.
    ddl_race: &[sql_state("23505"), sql_state("42P07"), sql_state("42710")],
    // lock_not_available, serialization_failure, deadlock_detected
    contention: &[sql_state("55P03"), sql_state("40001"), sql_state("40P01")],
    // statement_completion_unknown, from a proxy; admin_shutdown, crash_shutdown, cannot_connect_now,
    // idle_session_timeout; protocol_violation: PgBouncer ends the connection, because it cannot reach a server
    connection_lost: &[
        sql_state("40003"),
        sql_state("57P01"),
        sql_state("57P02"),
        sql_state("57P03"),
        sql_state("57P05"),
        sql_state("08P01"),
    ],
    // in_failed_sql_transaction; read_only_sql_transaction: somebody has made the session read-only, the
    // primary has become a standby, or the name leads to another server now
    unsuitable_session: &[sql_state("25P02"), sql_state("25006")],
    guard_failure: IN_TRANSACTION,
    // string_data_right_truncation, character_not_in_repertoire, untranslatable_character,
    // check_violation, program_limit_exceeded, raise_exception
    rejected_value: &[
        sql_state("22001"),
        sql_state("22021"),
        sql_state("22P05"),
        sql_state("23514"),
        sql_state("54000"),
        sql_state("P0001"),
    ],
    read_only: &[sql_state("25006")],
    // insufficient_privilege
    permission_denied: &[sql_state("42501")],
};

const MYSQL: DialectRules = DialectRules {
    // The isolation level has another name on MariaDB before 11.1.
    settings: &[
        "SHOW VARIABLES WHERE Variable_name IN ('version', 'wsrep_sync_wait', 'transaction_isolation', 'tx_isolation', 'autocommit')",
        "SELECT 'database', DATABASE()",
    ],
    literal: None,
    is_networked: true,
    // ER_TABLE_EXISTS_ERROR, ER_BAD_FIELD_ERROR
    not_our_table: &[MySql(1050), MySql(1054)],
    // ER_NO_SUCH_TABLE
    no_such_table: &[MySql(1146)],
    ddl_race: &[],
    // ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK (also a failed Galera certification), ER_LOCK_NOWAIT
    contention: &[MySql(1020), MySql(1205), MySql(1213), MySql(3572)],
    // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED, ER_CLIENT_INTERACTION_TIMEOUT; ER_OPTION_PREVENTS_STATEMENT
    // (read_only), ER_READ_ONLY_MODE, ER_UNKNOWN_COM_ERROR (a Galera node without a quorum): another server is
    // the primary now
    connection_lost: &[
        MySql(1053),
        MySql(1927),
        MySql(4031),
        MySql(1290),
        MySql(1836),
        MySql(1047),
    ],
    // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION; ER_TABLE_NOT_LOCKED_FOR_WRITE, ER_TABLE_NOT_LOCKED:
    // the session has locked tables, and not these ones, or only for reading
    unsuitable_session: &[MySql(1792), MySql(1099), MySql(1100)],
    guard_failure: IN_TRANSACTION,
    // ER_TOO_BIG_ROWSIZE, ER_NET_PACKET_TOO_LARGE, ER_TRUNCATED_WRONG_VALUE_FOR_FIELD,
    // ER_DATA_TOO_LONG, ER_SIGNAL_EXCEPTION, ER_CONSTRAINT_FAILED, ER_CHECK_CONSTRAINT_VIOLATED
    rejected_value: &[
        MySql(1118),
        MySql(1153),
        MySql(1366),
        MySql(1406),
        MySql(1644),
        MySql(4025),
        MySql(3819),
    ],
    read_only: &[MySql(1290), MySql(1836)],
    // ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR
    permission_denied: &[MySql(1044), MySql(1142)],
};
