//! The driver for the pools of sqlx 0.9: the only code that knows sqlx.

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::{TryStreamExt, stream::BoxStream};
use sqlx::{
    AssertSqlSafe, ColumnIndex, ConnectOptions, Connection as _, Database as SqlxDatabase, Decode,
    Either, Encode, Executor, IntoArguments, Pool, Row as _, SqlSafeStr, Transaction, Type,
    TypeInfo, ValueRef, error::DatabaseError, pool::PoolConnection,
};
use tracing::{Dispatch, instrument::WithSubscriber};

use super::{Connect, Connection, Database, statements::Dialect};
use crate::{
    driver::{
        Argument, Driver, DriverConnection, DriverError, DriverFuture, Engine, ErrorCode, GiveBack,
        Listener, PooledConnection, Row, Rows, Value,
    },
    error::Error,
};

/// The largest number of connections in Perennial's own pool.
const CONNECTIONS: u32 = 5;

/// Opens a small pool for this URL.
pub(super) async fn open(url: &str, dialect: Dialect, connect: Connect) -> Result<Database, Error> {
    Ok(match dialect {
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => sqlite::open(url, connect).await?.into(),
        #[cfg(feature = "postgres")]
        Dialect::Postgres => server::open::<sqlx::Postgres>(url, connect, &[])
            .await?
            .into(),
        #[cfg(feature = "mysql")]
        Dialect::MySql => server::open::<sqlx::MySql>(url, connect, &["SET autocommit = 1"])
            .await?
            .into(),
        _ => unreachable!("the database is built in"),
    })
}

/// An sqlx database, with everything for which sqlx has no common interface.
trait Kind: SqlxDatabase {
    const ENGINE: Engine;

    /// Returns the insert id, on MySQL.
    fn insert_id(result: &Self::QueryResult) -> Option<i64> {
        let _ = result;
        None
    }

    fn changed(result: &Self::QueryResult) -> u64;

    /// Returns the path of the database's file, if the database is a file.
    fn file(options: &<Self::Connection as sqlx::Connection>::Options) -> Option<&Path> {
        let _ = options;
        None
    }

    fn code(error: &dyn DatabaseError) -> Option<ErrorCode>;

    /// Returns how a value of this type has to be read, if it is not NULL.
    fn form(type_name: &str) -> Form;

    /// Listens to a channel of PostgreSQL's.
    fn listen(
        pool: &Pool<Self>,
        channel: String,
    ) -> Option<DriverFuture<'static, Box<dyn Listener>>> {
        let _ = (pool, channel);
        None
    }
}

/// The form in which a value is read.
enum Form {
    Int,
    Bytes,
    Text,
}

/// All bounds on sqlx's types, so that other code is generic without them.
trait SqlxKind: Kind {
    fn run<'a>(
        connection: &'a mut Self::Connection,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows>;
}

impl<DB> SqlxKind for DB
where
    DB: Kind<Arguments: IntoArguments<DB>>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    usize: ColumnIndex<DB::Row>,
    for<'q> i64: Encode<'q, DB> + Decode<'q, DB> + Type<DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    for<'q> String: Decode<'q, DB>,
    for<'q> Vec<u8>: Decode<'q, DB>,
{
    fn run<'a>(
        connection: &'a mut Self::Connection,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        // The text is Perennial's: see `Statement::new`.
        let sql = AssertSqlSafe(sql).into_sql_str();
        if arguments.is_empty() {
            let done = collect::<DB>(connection.fetch_many(sqlx::raw_sql(sql)));
            return match DB::ENGINE {
                // sqlx would log the whole text of a slow statement, and with it a page's content.
                Engine::Postgres => Box::pin(done.with_subscriber(Dispatch::none())),
                _ => Box::pin(done),
            };
        }
        let mut query = sqlx::query::<DB>(sql);
        for argument in arguments {
            query = match *argument {
                Argument::Int(int) => query.bind(int),
                Argument::Text(text) => query.bind(text),
                Argument::Bytes(bytes) => query.bind(bytes),
            };
        }
        Box::pin(collect::<DB>(connection.fetch_many(query)))
    }
}

type Results<'a, DB> = BoxStream<
    'a,
    Result<Either<<DB as SqlxDatabase>::QueryResult, <DB as SqlxDatabase>::Row>, sqlx::Error>,
>;

async fn collect<DB>(mut stream: Results<'_, DB>) -> Result<Rows, DriverError>
where
    DB: Kind,
    usize: ColumnIndex<DB::Row>,
    for<'q> i64: Decode<'q, DB>,
    for<'q> String: Decode<'q, DB>,
    for<'q> Vec<u8>: Decode<'q, DB>,
{
    let mut done = Rows::default();
    let mut rows = Vec::new();
    // The stream is read to its end: a statement that is abandoned earlier may not have been
    // committed.
    while let Some(item) = stream.try_next().await.map_err(driver_error::<DB>)? {
        match item {
            Either::Left(result) => {
                done = Rows {
                    rows: std::mem::take(&mut rows),
                    changed: DB::changed(&result),
                    insert_id: DB::insert_id(&result),
                };
            }
            Either::Right(row) => {
                let values = (0..row.len()).map(|column| value::<DB>(&row, column));
                let values = values.collect::<Result<_, _>>();
                rows.push(Row::new(values.map_err(driver_error::<DB>)?));
            }
        }
    }
    Ok(done)
}

fn value<DB>(row: &DB::Row, column: usize) -> Result<Value, sqlx::Error>
where
    DB: Kind,
    usize: ColumnIndex<DB::Row>,
    for<'q> i64: Decode<'q, DB>,
    for<'q> String: Decode<'q, DB>,
    for<'q> Vec<u8>: Decode<'q, DB>,
{
    let form = {
        let raw = row.try_get_raw(column)?;
        if raw.is_null() {
            return Ok(Value::Null);
        }
        DB::form(raw.type_info().name())
    };
    let bytes = || -> Result<Value, sqlx::Error> {
        let bytes: Vec<u8> = row.try_get_unchecked(column)?;
        Ok(Value::Bytes(bytes.into()))
    };
    match form {
        Form::Int => row.try_get_unchecked(column).map(Value::Int),
        Form::Bytes => bytes(),
        // What is no UTF-8 stays bytes.
        Form::Text => row
            .try_get_unchecked(column)
            .map(Value::Text)
            .or_else(|_| bytes()),
    }
}

/// Returns what an error of sqlx's means.
fn driver_error<DB: Kind>(error: sqlx::Error) -> DriverError {
    use sqlx::Error::{Io, PoolClosed, PoolTimedOut, Protocol, Tls, WorkerCrashed};
    match &error {
        sqlx::Error::Database(refusal) => match DB::code(&**refusal) {
            Some(code) => {
                let message = refusal.message().to_owned();
                DriverError::refused(code, message, error)
            }
            None => DriverError::other(error),
        },
        Io(_) | Protocol(_) => DriverError::broken(error),
        PoolTimedOut => DriverError::late(error),
        PoolClosed | Tls(_) | WorkerCrashed => DriverError::unreachable(error),
        _ => DriverError::other(error),
    }
}

#[cfg(feature = "sqlite")]
impl Kind for sqlx::Sqlite {
    const ENGINE: Engine = Engine::Sqlite;

    fn changed(result: &Self::QueryResult) -> u64 {
        result.rows_affected()
    }

    fn file(options: &sqlx::sqlite::SqliteConnectOptions) -> Option<&Path> {
        let path = options.get_filename();
        let name = path.to_string_lossy();
        // sqlx uses such names for an in-memory database.
        let is_file = !name.is_empty() && !name.contains(":memory:") && !name.starts_with("file:");
        is_file.then_some(path)
    }

    fn code(error: &dyn DatabaseError) -> Option<ErrorCode> {
        error.code()?.parse().ok().map(ErrorCode::Sqlite)
    }

    fn form(type_name: &str) -> Form {
        match type_name {
            "TEXT" => Form::Text,
            "BLOB" => Form::Bytes,
            _ => Form::Int,
        }
    }
}

#[cfg(feature = "postgres")]
impl Kind for sqlx::Postgres {
    const ENGINE: Engine = Engine::Postgres;

    fn changed(result: &Self::QueryResult) -> u64 {
        result.rows_affected()
    }

    fn code(error: &dyn DatabaseError) -> Option<ErrorCode> {
        let code = error.code()?;
        code.as_bytes().try_into().ok().map(ErrorCode::SqlState)
    }

    fn form(type_name: &str) -> Form {
        match type_name {
            "INT2" | "INT4" | "INT8" => Form::Int,
            "BYTEA" => Form::Bytes,
            _ => Form::Text,
        }
    }

    fn listen(
        pool: &Pool<Self>,
        channel: String,
    ) -> Option<DriverFuture<'static, Box<dyn Listener>>> {
        let pool = pool.clone();
        Some(Box::pin(async move {
            let listener = sqlx::postgres::PgListener::connect_with(&pool).await;
            let mut listener = listener.map_err(driver_error::<Self>)?;
            let listens = listener.listen(&channel).await;
            listens.map_err(driver_error::<Self>)?;
            Ok(Box::new(SqlxListener(listener)) as Box<dyn Listener>)
        }))
    }
}

#[cfg(feature = "postgres")]
struct SqlxListener(sqlx::postgres::PgListener);

#[cfg(feature = "postgres")]
impl Listener for SqlxListener {
    fn next(&mut self) -> DriverFuture<'_, ()> {
        Box::pin(async {
            let next = self.0.try_recv().await;
            match next.map_err(driver_error::<sqlx::Postgres>)? {
                Some(_) => Ok(()),
                None => Err(DriverError::broken("the connection that listens was lost")),
            }
        })
    }
}

#[cfg(feature = "mysql")]
impl Kind for sqlx::MySql {
    const ENGINE: Engine = Engine::MySql;

    fn changed(result: &Self::QueryResult) -> u64 {
        result.rows_affected()
    }

    fn insert_id(result: &Self::QueryResult) -> Option<i64> {
        let id = i64::try_from(result.last_insert_id()).ok();
        id.filter(|id| *id != 0)
    }

    fn code(error: &dyn DatabaseError) -> Option<ErrorCode> {
        // sqlx's `code` is the SQLSTATE, which is less specific.
        let error = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
        Some(ErrorCode::MySql(error.number()))
    }

    fn form(type_name: &str) -> Form {
        if type_name.contains("INT") {
            Form::Int
        } else if type_name.ends_with("BLOB") || type_name.ends_with("BINARY") {
            Form::Bytes
        } else {
            Form::Text
        }
    }
}

/// A pool of sqlx's, as a driver.
struct SqlxPool<DB: SqlxDatabase> {
    pool: Pool<DB>,
    file: Option<PathBuf>,
}

impl<DB: SqlxKind> SqlxPool<DB> {
    fn new(pool: Pool<DB>) -> Self {
        let file = DB::file(&pool.connect_options()).map(Path::to_owned);
        Self { pool, file }
    }
}

impl<DB: SqlxDatabase> fmt::Debug for SqlxPool<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

impl<DB: SqlxKind> Driver for SqlxPool<DB> {
    fn engine(&self) -> Engine {
        DB::ENGINE
    }

    fn acquire(&self) -> DriverFuture<'_, Box<dyn PooledConnection>> {
        Box::pin(async {
            let connection = self.pool.acquire().await;
            let connection = connection.map_err(driver_error::<DB>)?;
            Ok(Box::new(OfPool::<DB>(Some(connection))) as Box<dyn PooledConnection>)
        })
    }

    fn connect(&self) -> Option<DriverFuture<'_, Box<dyn PooledConnection>>> {
        // A database in memory exists only in its connections. A new connection would see another database.
        if DB::ENGINE == Engine::Sqlite && self.file.is_none() {
            return None;
        }
        Some(Box::pin(async {
            let connection = self.pool.connect_options().connect().await;
            let connection = connection.map_err(driver_error::<DB>)?;
            Ok(Box::new(Single::<DB>(connection)) as Box<dyn PooledConnection>)
        }))
    }

    fn max_connections(&self) -> usize {
        self.pool.options().get_max_connections() as usize
    }

    fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    fn listen(&self, channel: String) -> Option<DriverFuture<'_, Box<dyn Listener>>> {
        DB::listen(&self.pool, channel)
    }
}

/// A connection of a pool. It is `None` after it was given back.
struct OfPool<DB: SqlxDatabase>(Option<PoolConnection<DB>>);

impl<DB: SqlxKind> DriverConnection for OfPool<DB> {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        let connection = self.0.as_mut().expect("is not given back");
        DB::run(connection, sql, arguments)
    }
}

impl<DB: SqlxKind> PooledConnection for OfPool<DB> {
    fn give_back(mut self: Box<Self>) -> GiveBack {
        let connection = self.0.take();
        match DB::ENGINE {
            // The connection's thread carries out one call at a time, so whatever the connection does next
            // follows after the drop.
            Engine::Sqlite => {
                drop(connection);
                Box::pin(std::future::ready(()))
            }
            _ => Box::pin(async {
                if let Some(mut connection) = connection {
                    connection.return_to_pool().await;
                }
            }),
        }
    }

    fn detach(mut self: Box<Self>) -> Box<dyn DriverConnection> {
        let connection = self.0.take().expect("is not given back");
        Box::new(Single::<DB>(connection.detach()))
    }
}

impl<DB: SqlxDatabase> Drop for OfPool<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

/// A connection that belongs to no pool.
struct Single<DB: SqlxDatabase>(DB::Connection);

impl<DB: SqlxKind> DriverConnection for Single<DB> {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        DB::run(&mut self.0, sql, arguments)
    }
}

impl<DB: SqlxKind> PooledConnection for Single<DB> {
    fn give_back(self: Box<Self>) -> GiveBack {
        drop(self);
        Box::pin(std::future::ready(()))
    }

    fn detach(self: Box<Self>) -> Box<dyn DriverConnection> {
        self
    }
}

/// A connection of the application's own.
struct Applications<'c, DB: SqlxDatabase>(&'c mut DB::Connection);

impl<DB: SqlxKind> DriverConnection for Applications<'_, DB> {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        DB::run(self.0, sql, arguments)
    }

    fn is_in_transaction(&self) -> Option<bool> {
        Some(self.0.is_in_transaction())
    }
}

macro_rules! from_sqlx {
    ($feature:literal, $database:ty, $pool:ty, $connection:ty) => {
        #[cfg(feature = $feature)]
        impl From<$pool> for Database {
            fn from(pool: $pool) -> Self {
                Self::with_driver(SqlxPool::new(pool))
            }
        }

        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut $connection> for Connection<'c> {
            fn from(connection: &'c mut $connection) -> Self {
                Self::new(
                    <$database as Kind>::ENGINE,
                    Applications::<$database>(connection),
                )
            }
        }

        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut Transaction<'_, $database>> for Connection<'c> {
            fn from(transaction: &'c mut Transaction<'_, $database>) -> Self {
                Self::from(&mut **transaction)
            }
        }
    };
}

from_sqlx!(
    "sqlite",
    sqlx::Sqlite,
    sqlx::SqlitePool,
    sqlx::SqliteConnection
);
from_sqlx!("postgres", sqlx::Postgres, sqlx::PgPool, sqlx::PgConnection);
from_sqlx!("mysql", sqlx::MySql, sqlx::MySqlPool, sqlx::MySqlConnection);
