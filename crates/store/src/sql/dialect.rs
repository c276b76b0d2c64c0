//! The differences between the databases, apart from their [SQL](super::statements): how arguments are
//! written, and what their error codes mean.

use super::{run::Arg, statements::Dialect};
use crate::name::hex;

/// The rules of a kind of database. Each list has the error codes that mean what its name says.
pub struct DialectRules {
    /// The dialect of most servers of this kind.
    pub dialect: Dialect,
    /// Writes an argument into a statement, as a pooler in transaction mode requires. `None` means that
    /// arguments are bound.
    pub literal: Option<fn(Arg<'_>) -> String>,
    /// A connection is a socket, which may break. SQLite's is not.
    pub is_networked: bool,
    /// There are tables of the same names that are not Perennial's.
    pub not_our_table: &'static [&'static str],
    /// A table is not there.
    pub no_such_table: &'static [&'static str],
    /// Another process is making the tables at the same time.
    pub ddl_race: &'static [&'static str],
    /// Nothing was done, because another statement was faster.
    pub contention: &'static [&'static str],
    /// The connection is of no use any more, and is closed: the server is ending, is not the primary, or does
    /// not know the outcome.
    pub connection_lost: &'static [&'static str],
    /// Somebody has left the session in a state in which the statement was not done.
    pub unsuitable_session: &'static [&'static str],
    /// The text in the error by which a guard (see `guard.rs`) fails.
    pub guard_failure: &'static str,
    /// The content is too large, its text cannot be encoded, or a constraint or trigger forbids the
    /// row.
    pub rejected_value: &'static [&'static str],
    /// The database is read-only.
    pub read_only: &'static [&'static str],
    /// The role may not make tables.
    pub permission_denied: &'static [&'static str],
}

/// The text of the error by which a guard fails, where the guard chooses it. MariaDB shows no more than
/// 64 characters of it.
pub const IN_TRANSACTION: &str = "perennial: the connection was left in a transaction";
const _: () = assert!(IN_TRANSACTION.len() <= 64, "MariaDB cuts it");

/// The text of the error of a statement that needs a transaction of the application's, outside of one.
pub const NO_TRANSACTION: &str = "perennial: the connection is in no transaction";

/// An entry from further in the future than this, in microseconds, is stale: the database's clock
/// was set back.
pub const SET_BACK: i64 = 5_000_000;

#[cfg(feature = "sqlite")]
pub const SQLITE: DialectRules = DialectRules {
    dialect: Dialect::Sqlite,
    literal: None,
    is_networked: false,
    // SQLITE_ERROR: a table or a column that is there or is not.
    not_our_table: &["1"],
    no_such_table: &["1"],
    ddl_race: &[],
    contention: &[],
    connection_lost: &[],
    unsuitable_session: &[],
    guard_failure: "cannot start a transaction within a transaction",
    // SQLITE_TOOBIG, SQLITE_CONSTRAINT_CHECK, SQLITE_CONSTRAINT_TRIGGER
    rejected_value: &["18", "275", "1811"],
    // SQLITE_READONLY, and its variants for a file or a folder without the right to write
    read_only: &["8", "520", "1544"],
    permission_denied: &[],
};

/// Writes an argument with one meaning under every setting. Of a text, printable ASCII except `'`,
/// `\` and `$`, which marks arguments in templates, is written as it is, and every other character as
/// an escape. A database in SQL_ASCII
/// refuses the escapes of characters outside ASCII.
///
/// A literal has the collation of the column that it is compared with. (A text by `convert_from`
/// would have the collation "C", for which no index of another collation is used.)
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

#[cfg(feature = "postgres")]
pub const POSTGRES: DialectRules = DialectRules {
    dialect: Dialect::Postgres,
    literal: Some(literal),
    is_networked: true,
    // duplicate_table, undefined_column
    not_our_table: &["42P07", "42703"],
    // undefined_table
    no_such_table: &["42P01"],
    // unique_violation (in the catalogue), duplicate_table, duplicate_object (its type): IF NOT
    // EXISTS does not see uncommitted tables.
    ddl_race: &["23505", "42P07", "42710"],
    // lock_not_available, serialization_failure, deadlock_detected
    contention: &["55P03", "40001", "40P01"],
    // statement_completion_unknown, of a proxy; admin_shutdown, crash_shutdown,
    // cannot_connect_now, idle_session_timeout; protocol_violation: PgBouncer ends the connection, as
    // it reaches no server
    connection_lost: &["40003", "57P01", "57P02", "57P03", "57P05", "08P01"],
    // in_failed_sql_transaction; read_only_sql_transaction: somebody has set it, the primary has become a
    // standby, or the name leads to another server now
    unsuitable_session: &["25P02", "25006"],
    guard_failure: IN_TRANSACTION,
    // string_data_right_truncation, character_not_in_repertoire, untranslatable_character,
    // check_violation, program_limit_exceeded, raise_exception
    rejected_value: &["22001", "22021", "22P05", "23514", "54000", "P0001"],
    read_only: &["25006"],
    // insufficient_privilege
    permission_denied: &["42501"],
};

#[cfg(feature = "mysql")]
pub const MYSQL: DialectRules = DialectRules {
    dialect: Dialect::MySql,
    literal: None,
    is_networked: true,
    // ER_TABLE_EXISTS_ERROR, ER_BAD_FIELD_ERROR
    not_our_table: &["1050", "1054"],
    // ER_NO_SUCH_TABLE
    no_such_table: &["1146"],
    ddl_race: &[],
    // ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK (also a failed certification of Galera),
    // ER_LOCK_NOWAIT
    contention: &["1020", "1205", "1213", "3572"],
    // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED, ER_CLIENT_INTERACTION_TIMEOUT;
    // ER_OPTION_PREVENTS_STATEMENT (read_only), ER_READ_ONLY_MODE, ER_UNKNOWN_COM_ERROR (a node of
    // Galera without a quorum): another server is the primary now
    connection_lost: &["1053", "1927", "4031", "1290", "1836", "1047"],
    // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION; ER_TABLE_NOT_LOCKED_FOR_WRITE, ER_TABLE_NOT_LOCKED:
    // somebody has locked other tables
    unsuitable_session: &["1792", "1099", "1100"],
    guard_failure: IN_TRANSACTION,
    // ER_TOO_BIG_ROWSIZE, ER_NET_PACKET_TOO_LARGE, ER_TRUNCATED_WRONG_VALUE_FOR_FIELD,
    // ER_DATA_TOO_LONG, ER_SIGNAL_EXCEPTION, ER_CONSTRAINT_FAILED, ER_CHECK_CONSTRAINT_VIOLATED
    rejected_value: &["1118", "1153", "1366", "1406", "1644", "4025", "3819"],
    read_only: &["1290", "1836"],
    // ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR
    permission_denied: &["1044", "1142"],
};
