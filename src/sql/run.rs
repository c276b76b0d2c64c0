//! How statements are run: the one place that knows how sqlx wants it, and what becomes of connections.

use std::{borrow::Cow, sync::Arc, time::Duration};

use futures_util::{TryStreamExt, future::BoxFuture, stream::BoxStream};
use sqlx::{
    AssertSqlSafe, Database, Either, Encode, Executor, IntoArguments, Pool, Row, SqlSafeStr,
    SqlStr, Type, error::DatabaseError, pool::PoolConnection,
};
use tokio::time::timeout;
use tracing::{Dispatch, instrument::WithSubscriber};

use crate::{
    error::{BoxError, Error},
    sql::dialect::{self, Arguments, Dialect},
    store::{self, StoreFuture},
    timing::Backoff,
};

/// The longest pause before a statement is tried again.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// How often a statement is tried: one that lost to another one, which wins in the end, and one whose connection is no more, as a server that
/// is away may stay so. That is for some two seconds, and for a fifth of one.
const TRIES: (u32, u32) = (20, 9);

/// How long a connection may take to answer when it is given back.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

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

/// A connection of the pool that is given back only when it is known to be in order: dropped before, it is closed.
pub(super) struct Borrowed<DB: Driver>(pub(super) Option<PoolConnection<DB>>);

impl<DB: Driver> Borrowed<DB> {
    pub(super) fn give_back(mut self) {
        if !DB::DIALECT.socket {
            drop(self.0.take());
            return;
        }
        // The pool asks each connection for a sign of life before it takes it back, and waits for the answer without a limit.
        if let Some(mut connection) = self.0.take() {
            tokio::spawn(timeout(SIGN_OF_LIFE, connection.return_to_pool()));
        }
    }
}

impl<DB: Driver> Drop for Borrowed<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take()
            && DB::DIALECT.socket
        {
            // The pool would first wait for what is still to come on it, which may be never.
            drop(connection.detach());
        }
    }
}

/// A pool, and how its connections are used.
#[derive(Clone)]
pub(super) struct Connections<DB: Driver>(pub(super) Pool<DB>);

impl<DB: Driver> Connections<DB> {
    /// Runs a statement once.
    async fn once(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        store::waits();
        let mut borrowed = Borrowed(Some(self.0.acquire().await?));
        let connection: &mut DB::Connection = borrowed.0.as_mut().expect("has just been put there");
        let sent = store::sends();
        let done = DB::run(connection, statement, arguments).await;
        if !matches!(&done, Err(error) if is_broken::<DB>(error)) {
            // What the database has refused is not done.
            if !matches!(&done, Err(error) if error.as_database_error().is_none()) {
                sent.answered();
            }
            borrowed.give_back();
        }
        done
    }

    /// Runs a statement, which may be run twice: again if its connection was no more, or if it lost to another one.
    pub(super) async fn run(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let again = |error: &_| is_broken::<DB>(error) || is_contended::<DB>(error);
        self.run_while(again, statement, arguments).await
    }

    pub(super) async fn run_while(
        &self,
        again: impl Fn(&sqlx::Error) -> bool,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let mut backoff = Backoff::new(Duration::from_millis(1), LONGEST_PAUSE);
        let (mut lost, mut broken) = TRIES;
        loop {
            let error = match self.once(statement, arguments).await {
                Err(error) if again(&error) => error,
                done => return done,
            };
            let left = if is_contended::<DB>(&error) {
                &mut lost
            } else {
                &mut broken
            };
            *left -= 1;
            if *left == 0 {
                return Err(error);
            }
            backoff.random_pause().await;
        }
    }
}

/// A database, whichever it is, for statements that are put together for a table of the application's own.
pub(super) trait Sql: Send + Sync {
    fn dialect(&self) -> &'static Dialect;

    /// Runs a statement, which may be run twice.
    fn run<'a>(&'a self, sql: &'a str, arguments: &'a [Arg<'a>]) -> StoreFuture<'a, Answer>;

    /// Runs a statement, again only if it is known that nothing has been done.
    fn run_once<'a>(&'a self, sql: &'a str, arguments: &'a [Arg<'a>]) -> StoreFuture<'a, Answer>;
}

/// What a statement came to: how many rows it has changed, or the text in the first column of those that it has found.
pub(super) struct Answer {
    pub(super) changed: u64,
    pub(super) texts: Vec<String>,
}

impl<DB: Driver> Sql for Connections<DB> {
    fn dialect(&self) -> &'static Dialect {
        DB::DIALECT
    }

    fn run<'a>(&'a self, sql: &'a str, arguments: &'a [Arg<'a>]) -> StoreFuture<'a, Answer> {
        Box::pin(async move {
            let statement = Statement::new(DB::DIALECT, "", sql);
            answer(&self.run(&statement, arguments).await?)
        })
    }

    fn run_once<'a>(&'a self, sql: &'a str, arguments: &'a [Arg<'a>]) -> StoreFuture<'a, Answer> {
        Box::pin(async move {
            let statement = Statement::new(DB::DIALECT, "", sql);
            let again = is_contended::<DB>;
            answer(&self.run_while(again, &statement, arguments).await?)
        })
    }
}

fn answer<DB: Driver>(done: &Done<DB>) -> Result<Answer, BoxError> {
    let texts = done.rows.iter().map(|row| row.name(0));
    Ok(Answer {
        changed: done.changed,
        texts: texts.collect::<Result<_, _>>()?,
    })
}

/// What a server understands.
pub(super) async fn dialect_of<DB: Driver>(pool: &Pool<DB>) -> Result<&'static Dialect, Error> {
    if DB::RELATIVES.is_empty() {
        return Ok(DB::DIALECT);
    }
    let failed = |error| Error::database("cannot ask the server for its version", error);
    let kind = Statement::new(DB::DIALECT, "", DB::KIND);
    let done = Connections(pool.clone()).run(&kind, &[]).await;
    relative(&done.map_err(failed)?).map_err(failed)
}

/// The same, of the server at the end of a connection.
pub(super) async fn dialect_on<DB: Driver>(
    connection: &mut DB::Connection,
) -> Result<&'static Dialect, sqlx::Error> {
    let kind = Statement::new(DB::DIALECT, "", DB::KIND);
    relative(&DB::run(connection, &kind, &[]).await?)
}

/// The dialect by which a server that has answered so is known.
fn relative<DB: Driver>(done: &Done<DB>) -> Result<&'static Dialect, sqlx::Error> {
    let Some(row) = done.rows.first() else {
        return Ok(DB::DIALECT);
    };
    let kind = row.name(0)?;
    let mut relatives = DB::RELATIVES.iter();
    let relative = relatives.find(|(word, _)| kind.contains(word));
    Ok(relative.map_or(DB::DIALECT, |(_, relative)| relative))
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
