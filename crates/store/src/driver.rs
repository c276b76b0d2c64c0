//! The boundary between Perennial and the driver of a database: a statement and its arguments go in, rows
//! come out.
//!
//! Perennial uses the pools of sqlx 0.9 by itself. Another driver is a type that implements [`Driver`], in a
//! crate of its own: [perennial-rusqlite](https://docs.rs/perennial-rusqlite) and
//! [perennial-tokio-postgres](https://docs.rs/perennial-tokio-postgres) are two, and models for a third. A site
//! takes a driver in `Perennial::with_pool`, because a [`Database`](crate::Database) can be made [from](From)
//! every driver:
//!
//! ```ignore
//! impl From<MyPool> for perennial::sql::Database {
//!     fn from(pool: MyPool) -> Self {
//!         Self::with_driver(pool)
//!     }
//! }
//! ```
//!
//! Where Perennial writes in one of the application's transactions, it takes the driver's connection. Wrap it
//! with [`Connection::new`](crate::Connection::new), or let the driver's crate offer a conversion from its own
//! type:
//!
//! ```ignore
//! impl<'c> From<MyTransaction<'c>> for perennial::sql::Connection<'c> {
//!     fn from(transaction: MyTransaction<'c>) -> Self {
//!         Self::new(Engine::Postgres, transaction) // a DriverConnection
//!     }
//! }
//! ```
//!
//! A driver, and an application that uses one, switch off Perennial's own database features, so that neither
//! sqlx nor a second SQLite is built:
//!
//! ```toml
//! perennial = { version = "0.1", default-features = false } # an application adds features = ["axum"]
//! ```
//!
//! A driver decides nothing. The dialect, the statements, repetitions, time limits, and what an error code
//! means are Perennial's. A driver has to keep these rules:
//!
//! | rule | why |
//! |---|---|
//! | [`run`](DriverConnection::run) ends only after the server has answered the last statement of the text, with its rows, or has refused one; a value of an unexpected type does not end it earlier | a statement that is abandoned earlier may not have been committed |
//! | a connection that is dropped is closed, and does not go back to its pool; with most pools, that means taking it out of the pool in `Drop` | it may be in a transaction, or hold a lock |
//! | [`give_back`](PooledConnection::give_back) waits for the answer to a call that was dropped | the next user of the connection would read that answer |
//! | an error has the code that the database sent, and says whether the connection broke | Perennial repeats statements that lost against a concurrent one, and those that a broken connection may have lost |
//! | neither the driver nor the library below it repeats or logs anything, if that can be switched off for a call or a pool | a statement might be executed twice, and its text may contain a page |
//!
//! A driver does not have to care about a transaction that is still open on a connection which goes back to the
//! pool. Perennial guards each of its statements against the state in which somebody may have left the
//! connection.
//!
//! What Perennial does with an error that is not the statement's own fault:
//!
//! | error | then |
//! |---|---|
//! | [`refused`](DriverError::refused), with a code that means that a concurrent statement came first | the statement is repeated for up to two seconds |
//! | [`broken`](DriverError::broken), or a code that means that the server is shutting down | if the statement may run twice, it is repeated for a fifth of a second, on another connection |
//! | [`late`](DriverError::late), [`unreachable`](DriverError::unreachable) | the statement has failed, and the site goes on from memory. A site that is being opened repeats the statement if it was `late` |
//! | [`other`](DriverError::other) | the statement has failed |
//!
//! `perennial-driver-tests` runs the contract of the store against a driver.

use std::{error::Error as StdError, fmt, path::Path, pin::Pin, sync::Arc};

use bytes::Bytes;

/// What an error is made from.
type BoxError = Box<dyn StdError + Send + Sync>;

/// The future of a call to a driver.
pub type DriverFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DriverError>> + Send + 'a>>;

/// The future by which a connection goes back to its pool.
pub type GiveBack = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The kind of a database, which determines the SQL and the error codes. Perennial finds out by itself which
/// server it talks to: MySQL or MariaDB, a single server or a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// SQLite, since 3.35.
    Sqlite,
    /// PostgreSQL, through its simple query protocol: see [`run`](DriverConnection::run).
    Postgres,
    /// MySQL or MariaDB.
    MySql,
}

/// A pool of connections to one database.
pub trait Driver: fmt::Debug + Send + Sync + 'static {
    /// Returns the kind of the database.
    fn engine(&self) -> Engine;

    /// Takes a connection from the pool. If all are in use, waits as long as the pool's own settings
    /// say. Perennial may drop the call earlier, because it has a time limit of its own.
    ///
    /// # Errors
    ///
    /// [`DriverError::late`] if the pool gave no connection in time, even if it has tried to connect meanwhile;
    /// [`DriverError::unreachable`] if the pool is closed; [`DriverError::broken`] if the server could not be
    /// reached; and [`DriverError::refused`] if the server has answered with a code.
    fn acquire(&self) -> DriverFuture<'_, Box<dyn PooledConnection>>;

    /// Opens a connection that is not one of the pool's, for a statement that must not wait until the
    /// application gives one back: the extension of a lease under which the application works. Perennial
    /// opens no more of these than the pool has connections.
    ///
    /// The application may prepare each connection of its pool, for example select a schema. The driver need not
    /// do so with this one, because Perennial makes the settings that its statements need.
    ///
    /// The default, `None`, means that the driver opens no such connections. Such a statement then waits for the pool
    /// like any other.
    fn connect(&self) -> Option<DriverFuture<'_, Box<dyn PooledConnection>>> {
        None
    }

    /// Returns the maximum number of connections in the pool.
    fn max_connections(&self) -> usize;

    /// Returns the path of the file of an SQLite database. `None`, the default, means that the database is in
    /// memory, or on a server.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// Listens to a PostgreSQL channel on a connection that does nothing else; it may be one of the pool's. The
    /// name of the channel needs no quotes. When the future is ready, the server is listening. `None`, the
    /// default, means that the driver cannot listen, and `Builder::listen` is refused.
    fn listen(&self, channel: String) -> Option<DriverFuture<'_, Box<dyn Listener>>> {
        let _ = channel;
        None
    }
}

/// A connection on which a statement can run. Either it comes from a pool, or it belongs to the application,
/// which has begun a transaction on it in which Perennial writes.
pub trait DriverConnection: Send {
    /// Runs SQL, and returns the rows and the counts of its last statement.
    ///
    /// - **SQLite**: the text may have several statements, separated by `;`. Each `?` stands for the next
    ///   argument.
    /// - **PostgreSQL**: the text goes to the server in one message of the simple query protocol, and may have
    ///   several statements. `arguments` is empty, because the text contains all values as literals. Each value
    ///   of a row is a [`PostgresText`](Value::PostgresText), as the server sends it, or `Null`.
    /// - **MySQL and MariaDB**: with arguments, the text is one statement, to be prepared; each `?` stands for
    ///   the next argument. Without arguments it may have several statements and goes in one message, not
    ///   prepared.
    ///
    /// The SQL is a shared string, so that a driver with a thread of its own does not have to copy it. The same
    /// SQL is used again and again, so it is worthwhile to keep a prepared statement.
    ///
    /// # Cancellation
    ///
    /// The future may be dropped at any moment. Before any other statement runs on the connection, it is then
    /// either given back or dropped.
    ///
    /// # Errors
    ///
    /// The database refused a statement, or the connection broke.
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows>;

    /// Returns true if the connection is in a transaction. Perennial asks this only on MySQL (not on MariaDB),
    /// because in MySQL there is no SQL to find this out. `None`, the default, means that the driver does not
    /// know. An invalidation in the application's transaction is then refused.
    fn is_in_transaction(&self) -> Option<bool> {
        None
    }
}

impl<C: DriverConnection + ?Sized> DriverConnection for &mut C {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        (**self).run(sql, arguments)
    }

    fn is_in_transaction(&self) -> Option<bool> {
        (**self).is_in_transaction()
    }
}

/// A connection of a pool. Dropping it closes it.
pub trait PooledConnection: DriverConnection {
    /// Gives the connection back to its pool, but only after the server has answered what was sent before. A
    /// connection that does not belong to the pool is closed.
    ///
    /// When the future is ready, the connection belongs to the pool again. The pool may still check it before
    /// it gives it out. The caller drops the future when its time is up, which closes the connection.
    fn give_back(self: Box<Self>) -> GiveBack;

    /// Takes the connection out of the pool, which may open another one in its place.
    fn detach(self: Box<Self>) -> Box<dyn DriverConnection>;
}

/// Notifications of PostgreSQL, on a connection of its own.
pub trait Listener: Send {
    /// Waits for the next notification. If the call is dropped, no notification is lost. Some libraries
    /// reconnect by themselves, and silently lose the notifications that were sent meanwhile. A driver
    /// has to switch this behaviour off.
    ///
    /// # Errors
    ///
    /// The connection is lost. The caller then listens again.
    fn next(&mut self) -> DriverFuture<'_, ()>;
}

/// An argument of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument<'a> {
    /// A 64-bit integer.
    Int(i64),
    /// A text.
    Text(&'a str),
    /// Bytes: a `BLOB`.
    Bytes(&'a [u8]),
}

/// What the SQL returned: the rows of its last statement, or how many rows that statement has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The rows.
    pub rows: Vec<Row>,
    /// The number of rows that were inserted, updated or deleted. It is ignored if the statement returns rows.
    pub changed: u64,
    /// The insert id of MySQL and MariaDB. `None` on other databases, and if it is 0.
    pub insert_id: Option<i64>,
}

/// The values of a row, in the order of its columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(Vec<Value>);

impl Row {
    /// Returns a row of these values.
    pub fn new(values: Vec<Value>) -> Self {
        Self(values)
    }

    /// Returns the integer of a column, or `None` if it is NULL.
    ///
    /// # Errors
    ///
    /// The row has no such column, or the value is not a 64-bit integer.
    pub fn int(&self, column: usize) -> Result<Option<i64>, DriverError> {
        let int = match self.value(column)? {
            Value::Null => return Ok(None),
            Value::Int(int) => Some(*int),
            Value::Text(text) | Value::PostgresText(text) => text.parse().ok(),
            Value::Bytes(bytes) => std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| text.parse().ok()),
        };
        int.map_or_else(
            || Err(unreadable(column, "an integer")),
            |int| Ok(Some(int)),
        )
    }

    /// Returns the text of a column, or `None` if it is NULL.
    ///
    /// # Errors
    ///
    /// The row has no such column, or the value is not UTF-8 text.
    pub fn text(&self, column: usize) -> Result<Option<String>, DriverError> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Int(int) => Ok(Some(int.to_string())),
            Value::Text(text) | Value::PostgresText(text) => Ok(Some(text.clone())),
            Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(unreadable(column, "a text in UTF-8")),
            },
        }
    }

    /// Returns the bytes of a column, or `None` if it is NULL. For a text column, these are its UTF-8 bytes;
    /// a [`PostgresText`](Value::PostgresText) has to be in PostgreSQL's hexadecimal form of `bytea`.
    ///
    /// # Errors
    ///
    /// The row has no such column, or its type is neither bytes nor text.
    pub fn bytes(&self, column: usize) -> Result<Option<Bytes>, DriverError> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Int(_) => Err(unreadable(column, "bytes")),
            Value::Text(text) => Ok(Some(text.clone().into())),
            Value::Bytes(bytes) => Ok(Some(bytes.clone())),
            Value::PostgresText(text) => match text.strip_prefix("\\x").and_then(from_hex) {
                Some(bytes) => Ok(Some(bytes.into())),
                None => Err(unreadable(column, "bytes in hexadecimal digits")),
            },
        }
    }

    fn value(&self, column: usize) -> Result<&Value, DriverError> {
        let value = self.0.get(column);
        value.ok_or_else(|| unreadable(column, "a value"))
    }
}

fn unreadable(column: usize, expected: &str) -> DriverError {
    DriverError::other(format!("column {column} of the answer is not {expected}"))
}

/// Returns the bytes that pairs of hexadecimal digits stand for.
fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? * 16 + digit(*low)?).ok();
    pairs.iter().map(byte).collect()
}

/// A value of a row. Which of these a column has is the driver's choice: an integer may arrive as text, and
/// text as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// NULL.
    Null,
    /// An integer of 64 bits.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes, or a string that is not UTF-8.
    Bytes(Bytes),
    /// The textual form in which the simple protocol of PostgreSQL returns a value of any type. For bytes, that
    /// is `\x` followed by hexadecimal digits.
    PostgresText(String),
}

/// The code of an error, as the database has sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The extended result code of SQLite.
    Sqlite(i32),
    /// The five characters of PostgreSQL's SQLSTATE.
    SqlState([u8; 5]),
    /// The error number of MySQL or MariaDB, which says more than their SQLSTATE.
    MySql(u16),
}

impl ErrorCode {
    /// Returns the SQLSTATE that consists of these five characters.
    ///
    /// # Panics
    ///
    /// Panics if there are more characters, or fewer.
    pub const fn sql_state(code: &str) -> Self {
        let Some((code, [])) = code.as_bytes().split_first_chunk() else {
            panic!("an SQLSTATE has five characters")
        };
        Self::SqlState(*code)
    }
}

/// An error of a driver.
#[derive(Debug)]
pub struct DriverError {
    kind: Kind,
    source: BoxError,
}

#[derive(Debug)]
enum Kind {
    Refused { code: ErrorCode, message: String },
    Broken,
    Late,
    Unreachable,
    Other,
}

impl DriverError {
    /// The database has answered with this code and message: it has refused the statement or the connection, or
    /// is ending the connection. Perennial interprets the code.
    pub fn refused(
        code: ErrorCode,
        message: impl Into<String>,
        source: impl Into<BoxError>,
    ) -> Self {
        let message = message.into();
        Self::new(Kind::Refused { code, message }, source)
    }

    /// The connection broke without an answer. The statement may or may not have been executed.
    pub fn broken(source: impl Into<BoxError>) -> Self {
        Self::new(Kind::Broken, source)
    }

    /// The pool gave no connection in time. Nothing was done.
    pub fn late(source: impl Into<BoxError>) -> Self {
        Self::new(Kind::Late, source)
    }

    /// There is no connection: the pool is closed, or the database accepts none. Nothing was executed.
    pub fn unreachable(source: impl Into<BoxError>) -> Self {
        Self::new(Kind::Unreachable, source)
    }

    /// The answer cannot be used: a value has the wrong type, or the driver is set up wrongly.
    pub fn other(source: impl Into<BoxError>) -> Self {
        Self::new(Kind::Other, source)
    }

    fn new(kind: Kind, source: impl Into<BoxError>) -> Self {
        Self {
            kind,
            source: source.into(),
        }
    }

    /// Returns the code, if the database has refused the statement.
    pub fn code(&self) -> Option<ErrorCode> {
        match self.kind {
            Kind::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

#[doc(hidden)]
impl DriverError {
    /// Returns the database's message, if the database has refused the statement. Otherwise the text is empty.
    pub fn message(&self) -> &str {
        match &self.kind {
            Kind::Refused { message, .. } => message,
            _ => "",
        }
    }

    pub fn is_broken_connection(&self) -> bool {
        matches!(self.kind, Kind::Broken)
    }

    /// The pool gave no connection in time.
    pub fn is_late(&self) -> bool {
        matches!(self.kind, Kind::Late)
    }

    /// Returns true if the database's server cannot be reached, closes the connection or does not answer in time, or
    /// if an SQLite file cannot be opened.
    pub fn is_unreachable(&self) -> bool {
        match &self.kind {
            Kind::Broken | Kind::Late | Kind::Unreachable => true,
            Kind::Refused { code, .. } => match code {
                // SQLITE_CANTOPEN and its variants
                ErrorCode::Sqlite(code) => code & 0xff == 14,
                // A connection exception, a shutdown or a start, too many connections
                ErrorCode::SqlState(code) => {
                    code.starts_with(b"08") || code.starts_with(b"57P") || code == b"53300"
                }
                // ER_CON_COUNT_ERROR, ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED, ER_CLIENT_INTERACTION_TIMEOUT
                ErrorCode::MySql(number) => [1040, 1053, 1927, 4031].contains(number),
            },
            Kind::Other => false,
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl StdError for DriverError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_in_each_form_in_which_a_driver_may_return_them() {
        let row = Row::new(vec![
            Value::Int(-7),
            Value::Text("-7".to_owned()),
            Value::Bytes(Bytes::from("-7")),
            Value::PostgresText("-7".to_owned()),
        ]);
        for column in 0..4 {
            assert_eq!(row.int(column).expect("an integer"), Some(-7));
            assert_eq!(row.text(column).expect("a text").as_deref(), Some("-7"));
        }
        let row = Row::new(vec![
            Value::PostgresText("\\x00fF".to_owned()),
            Value::Bytes(Bytes::from(vec![0, 255])),
        ]);
        for column in 0..2 {
            assert_eq!(
                row.bytes(column).expect("bytes"),
                Some(Bytes::from(vec![0, 255]))
            );
        }
        let null = Row::new(vec![Value::Null]);
        assert_eq!(null.int(0).expect("NULL"), None);
        assert_eq!(null.text(0).expect("NULL"), None);
        assert_eq!(null.bytes(0).expect("NULL"), None);
    }

    #[test]
    fn value_of_another_type_is_an_error_that_names_its_column() {
        let text = |text: &str| Value::PostgresText(text.to_owned());
        let row = Row::new(vec![
            Value::Bytes(Bytes::from(vec![255])),
            text("\\x0"),
            text("\\x0g"),
        ]);
        for error in [
            row.int(0).expect_err("no integer"),
            row.text(0).expect_err("no UTF-8"),
            row.bytes(1).expect_err("no pair"),
            row.bytes(2).expect_err("no digit"),
            row.int(3).expect_err("no column"),
        ] {
            assert!(error.to_string().starts_with("column "), "{error}");
        }
    }
}
