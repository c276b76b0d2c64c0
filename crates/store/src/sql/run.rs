//! Statements, and the one place that runs them through sqlx.
//!
//! [`Driver`] has all bounds on sqlx's types, so that the rest of the store is generic without them. A row is
//! read column by column ([`Cells`]), whatever the database calls the types.

use std::{borrow::Cow, path::Path, sync::Arc};

use futures_util::{TryStreamExt, future::BoxFuture, stream::BoxStream};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Connection, Database, Decode, Either, Encode, Executor,
    IntoArguments, Row, SqlSafeStr, SqlStr, Type, error::DatabaseError,
};
use tracing::{Dispatch, instrument::WithSubscriber};

#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteConnectOptions;

#[cfg(feature = "mysql")]
use crate::sql::guard::setting;
use crate::{
    fence::{Epoch, Fence},
    sql::{
        dialect::{self, DialectRules},
        guard::Settings,
        statements::Dialect,
    },
};

/// A supported database: the part that is not in its [`DialectRules`].
pub trait Supported: Database {
    const RULES: &'static DialectRules;

    /// The queries of what differs between servers and sessions. Each row of their results has the
    /// name of a setting and its value.
    const SETTINGS: &'static [&'static str] = &[];

    /// Returns the dialect of a server with these settings.
    fn dialect(settings: &Settings) -> Dialect {
        let _ = settings;
        Self::RULES.dialect
    }

    /// Returns the number of changed rows, and the insert id on databases that return the fence as
    /// insert id.
    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>);

    /// Returns the path of the database's file, if it is one.
    fn file(options: &<Self::Connection as Connection>::Options) -> Option<&Path> {
        let _ = options;
        None
    }

    /// Returns the code of an error, as in the dialect's lists.
    fn code(error: &dyn DatabaseError) -> Option<Cow<'_, str>> {
        error.code()
    }
}

/// All bounds on sqlx's types, so that other code is generic without them.
pub trait Driver: Supported<Row: Cells> {
    /// Runs a statement on a connection.
    fn run<'a>(
        connection: &'a mut Self::Connection,
        statement: &'a Statement,
        arguments: &'a [Arg<'a>],
    ) -> StatementFuture<'a, StatementResult<Self>>;
}

type StatementFuture<'a, T> = BoxFuture<'a, Result<T, sqlx::Error>>;

impl<DB> Driver for DB
where
    DB: Supported<Row: Cells, Arguments: IntoArguments<DB>>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
{
    fn run<'a>(
        connection: &'a mut Self::Connection,
        statement: &'a Statement,
        arguments: &'a [Arg<'a>],
    ) -> StatementFuture<'a, StatementResult<Self>> {
        if let Some(literal) = DB::RULES.literal {
            let literal = |argument: usize| literal(arguments[argument]);
            let sql = trusted(substitute(statement.sql.as_str(), literal));
            // sqlx would log a slow statement whole, with a page's content.
            let done = collect(connection.fetch_many(sqlx::raw_sql(sql)));
            return Box::pin(done.with_subscriber(Dispatch::none()));
        }
        if arguments.is_empty() {
            // Not every server can prepare a statement that makes a table.
            return Box::pin(collect(
                connection.fetch_many(sqlx::raw_sql(statement.sql())),
            ));
        }
        let mut query = sqlx::query::<DB>(statement.sql());
        for argument in &statement.order {
            query = match arguments[*argument] {
                Arg::Int(int) => query.bind(int),
                Arg::Text(text) | Arg::Untyped(text) => query.bind(text),
                Arg::Bytes(bytes) => query.bind(bytes),
            };
        }
        Box::pin(collect(connection.fetch_many(query)))
    }
}

/// A row, column by column, whatever the database calls their types.
pub trait Cells {
    fn int(&self, column: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(&self, column: usize) -> Result<Option<String>, sqlx::Error>;
    fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;

    /// Returns a number that is not NULL.
    fn number(&self, column: usize) -> Result<i64, sqlx::Error> {
        self.int(column)?.ok_or(sqlx::Error::RowNotFound)
    }

    fn fence(&self, column: usize) -> Result<Fence, sqlx::Error> {
        self.number(column).map(Fence)
    }

    fn epoch(&self, column: usize) -> Result<Epoch, sqlx::Error> {
        self.number(column).map(Epoch)
    }

    /// Returns a text that is not NULL.
    fn name(&self, column: usize) -> Result<String, sqlx::Error> {
        self.text(column)?.ok_or(sqlx::Error::RowNotFound)
    }
}

impl<R> Cells for R
where
    R: Row,
    usize: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database>,
    for<'r> String: Decode<'r, R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database>,
{
    fn int(&self, column: usize) -> Result<Option<i64>, sqlx::Error> {
        self.try_get_unchecked(column)
    }

    fn text(&self, column: usize) -> Result<Option<String>, sqlx::Error> {
        self.try_get_unchecked(column)
    }

    fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
        self.try_get_unchecked(column)
    }
}

#[cfg(feature = "sqlite")]
impl Supported for sqlx::Sqlite {
    const RULES: &'static DialectRules = &dialect::SQLITE;

    fn file(options: &SqliteConnectOptions) -> Option<&Path> {
        let path = options.get_filename();
        let name = path.to_string_lossy();
        // A database in memory has a name of these.
        let is_file = !name.is_empty() && !name.contains(":memory:") && !name.starts_with("file:");
        is_file.then_some(path)
    }

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        (result.rows_affected(), None)
    }
}

#[cfg(feature = "postgres")]
impl Supported for sqlx::Postgres {
    const RULES: &'static DialectRules = &dialect::POSTGRES;
    const SETTINGS: &'static [&'static str] = &[
        "SELECT 'version', version() UNION ALL SELECT name, current_setting(name)
        FROM (VALUES ('search_path'), ('role')) n (name)",
    ];

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        (result.rows_affected(), None)
    }
}

#[cfg(feature = "mysql")]
impl Supported for sqlx::MySql {
    const RULES: &'static DialectRules = &dialect::MYSQL;
    // The isolation level has another name on MariaDB before 11.1.
    const SETTINGS: &'static [&'static str] = &[
        "SHOW VARIABLES WHERE Variable_name IN ('version', 'wsrep_sync_wait', 'transaction_isolation', 'tx_isolation', 'autocommit')",
        "SELECT 'database', DATABASE()",
    ];

    fn dialect(settings: &Settings) -> Dialect {
        let version = setting(settings, "version").unwrap_or_default();
        match (
            version.contains("MariaDB"),
            setting(settings, "wsrep_sync_wait"),
        ) {
            (_, Some(_)) => Dialect::Galera,
            (true, None) => Dialect::MariaDb,
            (false, None) => Dialect::MySql,
        }
    }

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        let id = i64::try_from(result.last_insert_id()).ok();
        (result.rows_affected(), id.filter(|id| *id != 0))
    }

    fn code(error: &dyn DatabaseError) -> Option<Cow<'_, str>> {
        // sqlx's `code` is the SQLSTATE, which is less specific.
        let error = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
        Some(error.number().to_string().into())
    }
}

#[derive(Clone, Debug)]
pub struct Statement {
    /// The text, with `$n` if arguments are written into it, or else with `?`.
    sql: SqlStr,
    /// The argument for each `?`.
    order: Vec<usize>,
}

impl Statement {
    pub fn new(dialect: Dialect, prefix: &str, template: &str) -> Self {
        let sql = dialect.render(template, prefix);
        let mut order = Vec::new();
        let sql = match dialect {
            Dialect::Postgres => sql,
            _ => substitute(&sql, |argument| {
                order.push(argument);
                "?".to_owned()
            }),
        };
        Self {
            sql: trusted(sql),
            order,
        }
    }

    pub fn sql(&self) -> SqlStr {
        self.sql.clone()
    }

    /// Returns the statement with another text, which has the same places for arguments.
    pub fn with_text(&self, text: impl FnOnce(&str) -> String) -> Self {
        Self {
            sql: trusted(text(self.sql.as_str())),
            order: self.order.clone(),
        }
    }
}

/// Puts something in the place of each `$n`.
fn substitute(template: &str, mut argument: impl FnMut(usize) -> String) -> String {
    let mut parts = template.split('$');
    let mut sql = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit());
        let (number, rest) = part.split_at(digits.unwrap_or(part.len()));
        let number: usize = number.parse().expect("`$` and a number");
        sql.push_str(&argument(number - 1));
        sql.push_str(rest);
    }
    sql
}

/// Trusts a text that consists of Perennial's templates, names that perennial-jobs has checked, the
/// `&'static str` of `Claims::filter_sql`, a prefix that `schema::check_prefix` has checked,
/// numbers, a dialect's literals, and the quoted name of the database.
fn trusted(sql: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(sql)).into_sql_str()
}

#[derive(Clone, Copy)]
pub enum Arg<'a> {
    Int(i64),
    Text(&'a str),
    /// A text of the type that it is compared with.
    Untyped(&'a str),
    Bytes(&'a [u8]),
}

/// The result of a text, which is that of its last statement.
pub struct StatementResult<DB: Database> {
    pub rows: Vec<DB::Row>,
    pub changed: u64,
    pub id: Option<i64>,
}

type Results<'a, DB> = BoxStream<
    'a,
    Result<Either<<DB as Database>::QueryResult, <DB as Database>::Row>, sqlx::Error>,
>;

async fn collect<DB: Driver>(
    mut stream: Results<'_, DB>,
) -> Result<StatementResult<DB>, sqlx::Error> {
    let mut done = StatementResult {
        rows: Vec::new(),
        changed: 0,
        id: None,
    };
    let mut rows = Vec::new();
    // The stream is read to its end: a statement that is abandoned earlier may not have been
    // committed.
    while let Some(item) = stream.try_next().await? {
        match item {
            Either::Left(result) => {
                (done.changed, done.id) = DB::outcome(&result);
                done.rows = std::mem::take(&mut rows);
            }
            Either::Right(row) => rows.push(row),
        }
    }
    Ok(done)
}

/// Returns the number in the first row or, without rows, the insert id of a changed row. `None` means that it
/// was NULL, or that the statement did nothing.
pub fn number<DB: Driver>(done: &StatementResult<DB>) -> Result<Option<i64>, sqlx::Error> {
    match done.rows.first() {
        Some(row) => row.int(0),
        None => Ok(done.id.filter(|_| done.changed > 0)),
    }
}

/// Returns true if another statement was faster and this one did nothing.
pub fn is_contended<DB: Driver>(error: &sqlx::Error) -> bool {
    has_code::<DB>(error, DB::RULES.contention)
}

/// Returns true if the connection is broken, and the statement may have been done or not.
pub fn is_broken<DB: Driver>(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        error => has_code::<DB>(error, DB::RULES.connection_lost),
    }
}

pub fn has_code<DB: Driver>(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(DB::code);
    code.is_some_and(|code| codes.contains(&&*code))
}
