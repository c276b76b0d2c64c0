//! The store over SQL, written once for every database.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{Response, StatusCode};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Database, Decode, Either, Encode, Executor, IntoArguments, Pool,
    Row, SqlSafeStr, SqlStr, Type,
};

use crate::{
    clock::{duration, micros},
    sql::{
        dialect::{self, Dialect},
        name::bounded,
        wire,
    },
    store::{BoxError, Entry, LeaseRow, LockState, Probe, Store, StoreFuture},
};

/// A database that has a [`Dialect`].
pub(super) trait Driver: Database {
    const DIALECT: Dialect;

    /// How many rows were changed, and the insert id where the fence comes back as that.
    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>);
}

#[cfg(feature = "sqlite")]
impl Driver for sqlx::Sqlite {
    const DIALECT: Dialect = dialect::SQLITE;

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        (result.rows_affected(), None)
    }
}

#[cfg(feature = "postgres")]
impl Driver for sqlx::Postgres {
    const DIALECT: Dialect = dialect::POSTGRES;

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        (result.rows_affected(), None)
    }
}

#[cfg(feature = "mysql")]
impl Driver for sqlx::MySql {
    const DIALECT: Dialect = dialect::MYSQL;

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        let id = i64::try_from(result.last_insert_id()).ok();
        (result.rows_affected(), id.filter(|id| *id != 0))
    }
}

/// A statement of the dialect, ready to be run.
pub(super) struct Statement {
    sql: SqlStr,
    /// Which argument each placeholder stands for.
    order: Vec<usize>,
}

impl Statement {
    pub(super) fn new(dialect: &Dialect, prefix: &str, template: &str) -> Self {
        let template = template
            .replace("{now}", dialect.now)
            .replace("{p}", prefix);
        let (mut sql, mut order) = (String::new(), Vec::new());
        let mut parts = template.split('$');
        sql.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (number, rest) = part.split_at(1);
            let argument = number.parse::<usize>().expect("`$` and a digit") - 1;
            if dialect.numbered {
                sql.push('$');
                sql.push_str(number);
                order = (0..order.len().max(argument + 1)).collect();
            } else {
                sql.push('?');
                order.push(argument);
            }
            sql.push_str(rest);
        }
        // Nothing but our own templates and a prefix that `schema::check_prefix` has passed.
        let sql = AssertSqlSafe(Arc::<str>::from(sql)).into_sql_str();
        Self { sql, order }
    }

    pub(super) fn sql(&self) -> SqlStr {
        self.sql.clone()
    }
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
    changed: u64,
    id: Option<i64>,
}

/// The bounds under which sqlx runs a statement, in one place.
pub(super) async fn run<'c, DB, E>(
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
    let mut query = sqlx::query::<DB>(statement.sql.clone());
    for argument in &statement.order {
        query = match arguments[*argument] {
            Arg::Int(int) => query.bind(int),
            Arg::Text(text) => query.bind(text),
            Arg::Bytes(bytes) => query.bind(bytes),
        };
    }
    let mut done = Done {
        rows: Vec::new(),
        changed: 0,
        id: None,
    };
    // To its end, also for one row: a statement that is left before may not have been committed.
    let mut stream = executor.fetch_many(query);
    while let Some(item) = stream.try_next().await? {
        match item {
            Either::Left(result) => (done.changed, done.id) = DB::outcome(&result),
            Either::Right(row) => done.rows.push(row),
        }
    }
    Ok(done)
}

pub(super) struct SqlStore<DB: Driver> {
    pool: Pool<DB>,
    probe: Statement,
    try_lock: Statement,
    extend: Statement,
    release: Statement,
    publish: Statement,
    renew: Statement,
    remove: Statement,
    fence_of: Statement,
}

impl<DB> SqlStore<DB>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    for<'q> Vec<u8>: Decode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    /// The store on a database whose tables `schema::prepare` has seen to.
    pub(super) fn new(pool: Pool<DB>, prefix: &str) -> Self {
        let dialect = &DB::DIALECT;
        let statement = |template| Statement::new(dialect, prefix, template);
        Self {
            pool,
            probe: statement(dialect.probe),
            try_lock: statement(dialect.try_lock),
            extend: statement(dialect.extend),
            release: statement(dialect.release),
            publish: statement(dialect.publish),
            renew: statement(dialect.renew),
            remove: statement(dialect.remove),
            fence_of: statement(dialect.fence_of),
        }
    }

    async fn run(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        run(&self.pool, statement, arguments).await
    }

    /// The fence with which a statement answers, if it did anything.
    fn fence(done: &Done<DB>) -> Result<Option<i64>, sqlx::Error> {
        match done.rows.first() {
            Some(row) => row.try_get(0).map(Some),
            None => Ok(done.id),
        }
    }

    fn read_entry(row: &DB::Row) -> Result<Option<Entry>, BoxError> {
        let Some(fence) = row.try_get(3)? else {
            return Ok(None);
        };
        let mut content = Response::new(Bytes::from(row.try_get::<Vec<u8>, _>(7)?));
        *content.status_mut() = StatusCode::from_u16(u16::try_from(row.try_get::<i64, _>(5)?)?)?;
        *content.headers_mut() = wire::decode(&row.try_get::<Vec<u8>, _>(6)?)?;
        Ok(Some(Entry {
            fence,
            age: duration(row.try_get(4)?),
            content,
        }))
    }

    async fn update_lock(
        &self,
        statement: &Statement,
        lease: &LeaseRow,
        time: Duration,
    ) -> Result<bool, BoxError> {
        let name = bounded(&lease.name);
        let arguments = [
            Arg::Text(&name),
            Arg::Text(&lease.owner),
            Arg::Int(lease.fence),
            Arg::Int(micros(time)),
        ];
        Ok(self.run(statement, &arguments).await?.changed > 0)
    }

    async fn write_entry(
        &self,
        statement: &Statement,
        key: &str,
        lease: &LeaseRow,
        rest: &[Arg<'_>],
    ) -> Result<bool, BoxError> {
        let (key, name) = (bounded(key), bounded(&lease.name));
        let mut arguments = vec![
            Arg::Text(&key),
            Arg::Text(&name),
            Arg::Text(&lease.owner),
            Arg::Int(lease.fence),
        ];
        arguments.extend(rest);
        let done = self.run(statement, &arguments).await?;
        let mut fence = Self::fence(&done)?;
        if fence.is_none() {
            // Refused, or done by an earlier try whose answer was lost.
            fence = Self::fence(&self.run(&self.fence_of, &[Arg::Text(&key)]).await?)?;
        }
        Ok(fence == Some(lease.fence))
    }
}

impl<DB> Store for SqlStore<DB>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    for<'q> Vec<u8>: Decode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    fn probe<'a>(&'a self, key: &'a str, name: &'a str, known: i64) -> StoreFuture<'a, Probe> {
        Box::pin(async move {
            let (short_key, name) = (bounded(key), bounded(name));
            let arguments = [Arg::Text(&short_key), Arg::Text(&name), Arg::Int(known)];
            let done = self.run(&self.probe, &arguments).await?;
            let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let lock = LockState {
                fence: row.try_get(0)?,
                owned: row.try_get::<i64, _>(1)? != 0,
                remaining: duration(row.try_get(2)?),
            };
            let entry = Self::read_entry(row).unwrap_or_else(|error| {
                tracing::warn!(key, %error, "the stored entry cannot be read; it counts as none");
                None
            });
            Ok(Probe { entry, lock })
        })
    }

    fn try_lock<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>> {
        Box::pin(async move {
            let name = bounded(name);
            let arguments = [
                Arg::Text(&name),
                Arg::Text(owner),
                Arg::Int(micros(length)),
                Arg::Int(seen.unwrap_or(-1)),
            ];
            match self.run(&self.try_lock, &arguments).await {
                Ok(done) => Ok(Self::fence(&done)?),
                Err(error) if is_contended::<DB>(&error) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool> {
        Box::pin(self.update_lock(&self.extend, lease, length))
    }

    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool> {
        Box::pin(self.update_lock(&self.release, lease, cooldown))
    }

    fn publish<'a>(
        &'a self,
        key: &'a str,
        lease: &'a LeaseRow,
        content: &'a Response<Bytes>,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let headers = wire::encode(content.headers());
            let content = [
                Arg::Int(i64::from(content.status().as_u16())),
                Arg::Bytes(&headers),
                Arg::Bytes(content.body()),
            ];
            self.write_entry(&self.publish, key, lease, &content).await
        })
    }

    fn renew<'a>(&'a self, key: &'a str, lease: &'a LeaseRow, known: i64) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let known = [Arg::Int(known)];
            self.write_entry(&self.renew, key, lease, &known).await
        })
    }

    fn remove<'a>(&'a self, key: &'a str, lease: &'a LeaseRow) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let (key, name) = (bounded(key), bounded(&lease.name));
            let arguments = [
                Arg::Text(&key),
                Arg::Text(&name),
                Arg::Text(&lease.owner),
                Arg::Int(lease.fence),
            ];
            Ok(self.run(&self.remove, &arguments).await?.changed > 0)
        })
    }
}

/// Somebody else was faster.
fn is_contended<DB: Driver>(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| DB::DIALECT.contended.contains(&&*code))
}
