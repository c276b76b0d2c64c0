//! Statements: the one place that knows how sqlx runs them.

use std::{borrow::Cow, sync::Arc};

use futures_util::{TryStreamExt, future::BoxFuture, stream::BoxStream};
use sqlx::{
    AssertSqlSafe, Database, Either, Encode, Executor, IntoArguments, Row, SqlSafeStr, SqlStr,
    Type, error::DatabaseError,
};
use tracing::{Dispatch, instrument::WithSubscriber};

use crate::sql::dialect::{self, Arguments, Dialect};

/// A database that has a [`Dialect`]: all that is asked of sqlx, so that the rest is generic without a word of its bounds.
pub(super) trait Driver: Database<Row: Cells> {
    const DIALECT: &'static Dialect;

    /// Servers that speak this dialect, but not all of it, or more: a word of the answer to [`KIND`](Self::KIND), and what they understand.
    const RELATIVES: &'static [(&'static str, &'static Dialect)] = &[];

    /// The statement by whose answer relatives are known.
    const KIND: &'static str = "SELECT version()";

    /// How many rows were changed, and the insert id where the fence comes back as that.
    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>);

    /// Runs a statement on a connection.
    fn run<'a>(
        connection: &'a mut Self::Connection,
        statement: &'a Statement,
        arguments: &'a [Arg<'a>],
    ) -> Running<'a, Done<Self>>;

    /// Runs a statement without arguments that can't be prepared everywhere.
    fn execute<'a>(
        connection: &'a mut Self::Connection,
        statement: &'a Statement,
    ) -> Running<'a, ()>;

    /// The code by which the dialect knows an error.
    fn code(error: &dyn DatabaseError) -> Option<Cow<'_, str>> {
        error.code()
    }
}

/// A row, column by column, whatever the database calls their types.
pub(super) trait Cells {
    fn int(&self, column: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(&self, column: usize) -> Result<Option<String>, sqlx::Error>;
    fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;

    /// A number that is there.
    fn number(&self, column: usize) -> Result<i64, sqlx::Error> {
        self.int(column)?.ok_or(sqlx::Error::RowNotFound)
    }

    /// A text that is there.
    fn name(&self, column: usize) -> Result<String, sqlx::Error> {
        self.text(column)?.ok_or(sqlx::Error::RowNotFound)
    }
}

type Running<'a, T> = BoxFuture<'a, Result<T, sqlx::Error>>;

/// What is the same for all of sqlx's databases, but can't be said once for all without their bounds.
macro_rules! by_sqlx {
    () => {
        fn run<'a>(
            connection: &'a mut Self::Connection,
            statement: &'a Statement,
            arguments: &'a [Arg<'a>],
        ) -> Running<'a, Done<Self>> {
            Box::pin(run(connection, statement, arguments))
        }

        fn execute<'a>(
            connection: &'a mut Self::Connection,
            statement: &'a Statement,
        ) -> Running<'a, ()> {
            Box::pin(async move {
                let raw = sqlx::raw_sql(statement.sql());
                Executor::execute(connection, raw).await.map(drop)
            })
        }
    };
}

macro_rules! cells {
    ($row:ty) => {
        impl Cells for $row {
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
    };
}

#[cfg(feature = "sqlite")]
cells!(sqlx::sqlite::SqliteRow);
#[cfg(feature = "postgres")]
cells!(sqlx::postgres::PgRow);
#[cfg(feature = "mysql")]
cells!(sqlx::mysql::MySqlRow);

#[cfg(feature = "sqlite")]
impl Driver for sqlx::Sqlite {
    const DIALECT: &'static Dialect = &dialect::SQLITE;

    by_sqlx!();

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        (result.rows_affected(), None)
    }
}

#[cfg(feature = "postgres")]
impl Driver for sqlx::Postgres {
    const DIALECT: &'static Dialect = &dialect::POSTGRES;
    const RELATIVES: &'static [(&'static str, &'static Dialect)] = &[
        ("CockroachDB", &dialect::POSTGRES_RELATIVE),
        ("-YB-", &dialect::POSTGRES_RELATIVE),
    ];

    by_sqlx!();

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        (result.rows_affected(), None)
    }
}

#[cfg(feature = "mysql")]
impl Driver for sqlx::MySql {
    const DIALECT: &'static Dialect = &dialect::MYSQL;
    const RELATIVES: &'static [(&'static str, &'static Dialect)] =
        &[("wsrep_sync_wait", &dialect::MARIADB_GALERA)];
    const KIND: &'static str = "SHOW VARIABLES LIKE 'wsrep_sync_wait'";

    by_sqlx!();

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        let id = i64::try_from(result.last_insert_id()).ok();
        (result.rows_affected(), id.filter(|id| *id != 0))
    }

    fn code(error: &dyn DatabaseError) -> Option<Cow<'_, str>> {
        // What sqlx calls the code is the SQLSTATE, which says less.
        let error = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
        Some(error.number().to_string().into())
    }
}

/// A statement of the dialect, ready to be run.
pub(super) struct Statement {
    /// With `$n`, or with `?` where that is the placeholder.
    sql: SqlStr,
    arguments: &'static Arguments,
    /// Which argument each placeholder stands for.
    order: Vec<usize>,
}

impl Statement {
    pub(super) fn new(dialect: &'static Dialect, prefix: &str, template: &str) -> Self {
        let template = template
            .replace("{committed}", dialect.committed)
            .replace("{now}", dialect.now)
            .replace("{noted}", dialect.noted)
            .replace("{waits}", dialect.waits)
            .replace("{set_back}", &dialect::SET_BACK.to_string())
            .replace("{p}", prefix);
        let mut order = Vec::new();
        let sql = match dialect.arguments {
            Arguments::Ordered => substitute(&template, |argument| {
                order.push(argument);
                "?".to_owned()
            }),
            Arguments::Numbered => {
                let count = (1..).take_while(|n| template.contains(&format!("${n}")));
                order = (0..count.count()).collect();
                template
            }
            Arguments::Written { .. } => template,
        };
        Self {
            sql: trusted(sql),
            arguments: &dialect.arguments,
            order,
        }
    }

    pub(super) fn sql(&self) -> SqlStr {
        self.sql.clone()
    }

    /// The statement with its arguments in it, where that is how they reach the database.
    fn written(&self, arguments: &[Arg<'_>]) -> Option<SqlStr> {
        let Arguments::Written { text, bytes } = self.arguments else {
            return None;
        };
        let sql = substitute(self.sql.as_str(), |argument| match arguments[argument] {
            Arg::Int(value) => value.to_string(),
            Arg::Text(value) => text(value),
            Arg::Bytes(value) => bytes(value),
        });
        Some(trusted(sql))
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

/// Nothing but our own templates, names that `Claims` has passed and conditions that are part of the program, a prefix that `schema::check_prefix` has passed, numbers and literals of a dialect's making.
fn trusted(sql: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(sql)).into_sql_str()
}

#[derive(Clone, Copy)]
pub(super) enum Arg<'a> {
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// What a statement came to.
pub(super) struct Done<DB: Database> {
    pub(super) rows: Vec<DB::Row>,
    pub(super) changed: u64,
    pub(super) id: Option<i64>,
}

/// Runs a statement on a connection: the one place that knows how sqlx wants it.
async fn run<'c, DB, E>(
    executor: E,
    statement: &Statement,
    arguments: &[Arg<'_>],
) -> Result<Done<DB>, sqlx::Error>
where
    DB: Driver,
    E: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
{
    if let Some(sql) = statement.written(arguments) {
        // sqlx would log the whole of it where it is slow, with the content of a page in it.
        let stream = executor.fetch_many(sqlx::raw_sql(sql));
        return collect(stream).with_subscriber(Dispatch::none()).await;
    }
    let mut query = sqlx::query::<DB>(statement.sql());
    for argument in &statement.order {
        query = match arguments[*argument] {
            Arg::Int(int) => query.bind(int),
            Arg::Text(text) => query.bind(text),
            Arg::Bytes(bytes) => query.bind(bytes),
        };
    }
    collect(executor.fetch_many(query)).await
}

type Results<'a, DB> = BoxStream<
    'a,
    Result<Either<<DB as Database>::QueryResult, <DB as Database>::Row>, sqlx::Error>,
>;

async fn collect<DB: Driver>(mut stream: Results<'_, DB>) -> Result<Done<DB>, sqlx::Error> {
    let mut done = Done {
        rows: Vec::new(),
        changed: 0,
        id: None,
    };
    // To its end, also for one row: a statement that is left before may not have been committed.
    while let Some(item) = stream.try_next().await? {
        match item {
            Either::Left(result) => (done.changed, done.id) = DB::outcome(&result),
            Either::Right(row) => done.rows.push(row),
        }
    }
    Ok(done)
}

/// The number with which a statement answers, if it did anything.
pub(super) fn number<DB: Driver>(done: &Done<DB>) -> Result<Option<i64>, sqlx::Error> {
    match done.rows.first() {
        Some(row) => row.int(0),
        None => Ok(done.id.filter(|_| done.changed > 0)),
    }
}

/// Somebody else was faster, and nothing was done.
pub(super) fn is_contended<DB: Driver>(error: &sqlx::Error) -> bool {
    has_code::<DB>(error, DB::DIALECT.contended)
}

/// The connection is of no more use; whether the statement was done is not known.
pub(super) fn is_broken<DB: Driver>(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        error => has_code::<DB>(error, DB::DIALECT.gone),
    }
}

pub(super) fn has_code<DB: Driver>(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(DB::code);
    code.is_some_and(|code| codes.contains(&&*code))
}
