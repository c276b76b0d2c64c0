//! The store over SQL, written once for every database.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{TryStreamExt, stream::BoxStream};
use http::{Response, StatusCode};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Database, Decode, Either, Encode, Executor, IntoArguments, Pool,
    Row, SqlSafeStr, SqlStr, Type, error::DatabaseError, pool::PoolConnection,
};
use tokio::time::timeout;
use tracing::{Dispatch, instrument::WithSubscriber};

use crate::{
    clock::{duration, micros},
    error::Error,
    key::hex,
    name::bounded,
    sql::{
        dialect::{self, Arguments, Dialect},
        schema, wire,
    },
    store::{BoxError, Edition, Entry, LeaseRow, LockRow, LockState, Probe, Store, StoreFuture},
};

/// The pause after which a statement is not tried again.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// How long a connection may take to answer when it is given back.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// A database that has a [`Dialect`].
pub(super) trait Driver: Database {
    const DIALECT: &'static Dialect;

    /// Servers that speak this dialect, but not all of it: a word of what `SELECT version()` says there, and what they understand.
    const RELATIVES: &'static [(&'static str, &'static Dialect)] = &[];

    /// How many rows were changed, and the insert id where the fence comes back as that.
    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>);

    /// The code by which the dialect knows an error.
    fn code(error: &dyn DatabaseError) -> Option<Cow<'_, str>> {
        error.code()
    }
}

#[cfg(feature = "sqlite")]
impl Driver for sqlx::Sqlite {
    const DIALECT: &'static Dialect = &dialect::SQLITE;

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

    fn outcome(result: &Self::QueryResult) -> (u64, Option<i64>) {
        (result.rows_affected(), None)
    }
}

#[cfg(feature = "mysql")]
impl Driver for sqlx::MySql {
    const DIALECT: &'static Dialect = &dialect::MYSQL;

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
            .replace("{now}", dialect.now)
            .replace("{p}", prefix);
        let mut order = Vec::new();
        let sql = match dialect.arguments {
            Arguments::Ordered => substitute(&template, |argument| {
                order.push(argument);
                "?".to_owned()
            }),
            Arguments::Numbered => {
                let count = (1..10).take_while(|n| template.contains(&format!("${n}")));
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
            Arg::Text(value) => text.replace("{}", &hex(value.as_bytes())),
            Arg::Bytes(value) => bytes.replace("{}", &hex(value)),
        });
        Some(trusted(sql))
    }
}

/// Puts something in the place of each `$n`.
fn substitute(template: &str, mut argument: impl FnMut(usize) -> String) -> String {
    let mut parts = template.split('$');
    let mut sql = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_at(1);
        let number: usize = number.parse().expect("`$` and a digit");
        sql.push_str(&argument(number - 1));
        sql.push_str(rest);
    }
    sql
}

/// Nothing but our own templates, a prefix that `schema::check_prefix` has passed, numbers and hexadecimal digits.
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
    changed: u64,
    id: Option<i64>,
}

/// Runs a statement on a connection: the one place that knows how sqlx wants it.
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
struct Borrowed<DB: Driver>(Option<PoolConnection<DB>>);

impl<DB: Driver> Borrowed<DB> {
    fn give_back(mut self) {
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

/// The store in a database, its tables prepared.
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
    invalidate: Statement,
    invalidated: Statement,
    keys: Statement,
    break_lock: Statement,
    inspect: Statement,
    held: Statement,
    delete: Statement,
    next_entries: Statement,
    prune_entries: Statement,
    next_locks: Statement,
    prune_locks: Statement,
    forget: Statement,
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
    for<'q> String: Decode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    /// Opens the store; makes or upgrades its tables.
    pub(super) async fn open(pool: Pool<DB>, prefix: &str) -> Result<Self, Error> {
        let dialect = Self::dialect_of(&pool).await?;
        schema::prepare(&pool, prefix, dialect.schema).await?;
        let statement = |template| Statement::new(dialect, prefix, template);
        Ok(Self {
            pool,
            probe: statement(dialect.probe),
            try_lock: statement(dialect.try_lock),
            extend: statement(dialect.extend),
            release: statement(dialect.release),
            publish: statement(dialect.publish),
            renew: statement(dialect.renew),
            remove: statement(dialect.remove),
            fence_of: statement(dialect.fence_of),
            invalidate: statement(dialect.invalidate),
            invalidated: statement(dialect::INVALIDATED),
            keys: statement(dialect::KEYS),
            break_lock: statement(dialect::BREAK),
            inspect: statement(dialect::INSPECT),
            held: statement(dialect::HELD),
            delete: statement(dialect::DELETE),
            next_entries: statement(dialect::NEXT_ENTRIES),
            prune_entries: statement(dialect::PRUNE_ENTRIES),
            next_locks: statement(dialect::NEXT_LOCKS),
            prune_locks: statement(dialect::PRUNE_LOCKS),
            forget: statement(dialect::FORGET),
        })
    }

    /// What this server understands.
    async fn dialect_of(pool: &Pool<DB>) -> Result<&'static Dialect, Error> {
        if DB::RELATIVES.is_empty() {
            return Ok(DB::DIALECT);
        }
        let failed = |error| Error::database("cannot ask the server for its version", error);
        let version = Statement::new(DB::DIALECT, "", "SELECT version()");
        let done = run(pool, &version, &[]).await.map_err(failed)?;
        let row = done.rows.first().ok_or(sqlx::Error::RowNotFound);
        let version = row.and_then(|row| row.try_get::<String, _>(0));
        let version = version.map_err(failed)?;
        let mut relatives = DB::RELATIVES.iter();
        let relative = relatives.find(|(word, _)| version.contains(word));
        Ok(relative.map_or(DB::DIALECT, |(_, relative)| relative))
    }

    /// Runs a statement once.
    async fn once(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let mut borrowed = Borrowed(Some(self.pool.acquire().await?));
        let connection: &mut DB::Connection = borrowed.0.as_mut().expect("has just been put there");
        let done = run(connection, statement, arguments).await;
        if !matches!(&done, Err(error) if is_broken::<DB>(error)) {
            borrowed.give_back();
        }
        done
    }

    /// Runs a statement, which may be run twice: again if its connection was no more, or if it lost to another one.
    async fn run(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let again = |error: &_| is_broken::<DB>(error) || is_contended::<DB>(error);
        self.run_while(again, statement, arguments).await
    }

    async fn run_while(
        &self,
        again: impl Fn(&sqlx::Error) -> bool,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let mut pause = Duration::from_millis(1);
        loop {
            match self.once(statement, arguments).await {
                Err(error) if pause < LONGEST_PAUSE && again(&error) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                done => return done,
            }
        }
    }

    /// The fence with which a statement answers, if it did anything.
    fn fence(done: &Done<DB>) -> Result<Option<i64>, sqlx::Error> {
        match done.rows.first() {
            Some(row) => row.try_get(0).map(Some),
            None => Ok(done.id.filter(|_| done.changed > 0)),
        }
    }

    fn read_entry(row: &DB::Row) -> Result<Option<Entry>, BoxError> {
        let Some(fence) = row.try_get(4)? else {
            return Ok(None);
        };
        let mut content = Response::new(Bytes::from(row.try_get::<Vec<u8>, _>(8)?));
        *content.status_mut() = StatusCode::from_u16(u16::try_from(row.try_get::<i64, _>(6)?)?)?;
        *content.headers_mut() = wire::decode(&row.try_get::<Vec<u8>, _>(7)?)?;
        Ok(Some(Entry {
            fence,
            age: duration(row.try_get(5)?),
            content,
            notes: text::<DB>(row, 9)?,
        }))
    }

    fn lock_row(row: &DB::Row) -> Result<LockRow, BoxError> {
        Ok(LockRow {
            name: text::<DB>(row, 0)?,
            owner: row.try_get_unchecked(1)?,
            fence: row.try_get(2)?,
            age: duration(row.try_get(3)?),
            remaining: duration(row.try_get(4)?),
        })
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

    /// Removes, of the rows that come next, those that are to be; returns the last of them.
    async fn prune(
        &self,
        next: &Statement,
        remove: &Statement,
        after: Option<&str>,
        rest: &[Arg<'_>],
    ) -> Result<Option<String>, BoxError> {
        // No name is empty, which some modes of MariaDB would take for none.
        let after = Arg::Text(after.unwrap_or("\u{1}"));
        let done = self.run(next, &[after]).await?;
        let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let last: Option<String> = row.try_get_unchecked(0)?;
        if let Some(last) = &last {
            let mut arguments = vec![after, Arg::Text(last)];
            arguments.extend(rest);
            self.run(remove, &arguments).await?;
        }
        Ok(last)
    }

    async fn write_entry(
        &self,
        statement: &Statement,
        key: &str,
        lease: &LeaseRow,
        edition: &Edition<'_>,
        rest: &[Arg<'_>],
    ) -> Result<bool, BoxError> {
        let (key, name) = (bounded(key), bounded(&lease.name));
        let mut arguments = vec![
            Arg::Text(&key),
            Arg::Text(&name),
            Arg::Text(&lease.owner),
            Arg::Int(lease.fence),
            Arg::Text(edition.notes),
            Arg::Int(micros(edition.keep.min(FOREVER))),
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

/// Longer than anything is kept; what is added to it still fits a column.
const FOREVER: Duration = Duration::from_hours(24 * 365 * 1000);

impl<DB> Store for SqlStore<DB>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    for<'q> Vec<u8>: Decode<'q, DB> + Type<DB>,
    for<'q> String: Decode<'q, DB> + Type<DB>,
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
            Ok(Probe {
                entry,
                lock,
                epoch: row.try_get(3)?,
            })
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
            // Who loses does not try again.
            let tried = self.run_while(is_broken::<DB>, &self.try_lock, &arguments);
            match tried.await {
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
        edition: &'a Edition<'a>,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let content = edition.content;
            let headers = wire::encode(content.headers());
            let content = [
                Arg::Int(i64::from(content.status().as_u16())),
                Arg::Bytes(&headers),
                Arg::Bytes(content.body()),
            ];
            self.write_entry(&self.publish, key, lease, edition, &content)
                .await
        })
    }

    fn renew<'a>(
        &'a self,
        key: &'a str,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
        known: i64,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let known = [Arg::Int(known)];
            self.write_entry(&self.renew, key, lease, edition, &known)
                .await
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

    fn invalidate<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            let done = self.run(&self.invalidate, &[Arg::Text(name)]).await?;
            Ok(Self::fence(&done)?.ok_or("the database gave no epoch")?)
        })
    }

    fn invalidated(&self, since: i64) -> StoreFuture<'_, Vec<(String, i64)>> {
        Box::pin(async move {
            let done = self.run(&self.invalidated, &[Arg::Int(since)]).await?;
            let names = done.rows.iter().map(|row| {
                let name = text::<DB>(row, 0)?;
                Ok((name, row.try_get(1)?))
            });
            names.collect()
        })
    }

    fn purge<'a>(&'a self, key: &'a str, lock_prefix: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let variants = format!("{key}#");
            let done = self.run(&self.keys, &[Arg::Text(&variants)]).await?;
            let mut doomed = vec![(format!("{lock_prefix}{key}"), bounded(key).into_owned())];
            for row in &done.rows {
                let stored = text::<DB>(row, 0)?;
                doomed.push((format!("{lock_prefix}{stored}"), stored));
            }
            for (lock, stored) in &doomed {
                self.break_lock(lock).await?;
                self.run(&self.delete, &[Arg::Text(stored)]).await?;
            }
            Ok(())
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<LockRow>> {
        Box::pin(async move {
            let name = bounded(name);
            let done = self.run(&self.inspect, &[Arg::Text(&name)]).await?;
            done.rows.first().map(Self::lock_row).transpose()
        })
    }

    fn held(&self) -> StoreFuture<'_, Vec<LockRow>> {
        Box::pin(async move {
            let done = self.run(&self.held, &[]).await?;
            done.rows.iter().map(Self::lock_row).collect()
        })
    }

    fn break_lock<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let name = bounded(name);
            let done = self.run(&self.break_lock, &[Arg::Text(&name)]).await?;
            Ok(done.changed > 0)
        })
    }

    fn prune_entries<'a>(&'a self, after: Option<&'a str>) -> StoreFuture<'a, Option<String>> {
        Box::pin(self.prune(&self.next_entries, &self.prune_entries, after, &[]))
    }

    fn prune_locks<'a>(
        &'a self,
        prefix: &'a str,
        unused: Duration,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>> {
        Box::pin(async move {
            // Not the empty text, as above.
            let (text, length) = match prefix {
                "" => ("*", 0),
                prefix => (prefix, prefix.chars().count() as i64),
            };
            let unused = Arg::Int(micros(unused.min(FOREVER)));
            let rest = [Arg::Text(text), unused, Arg::Int(length)];
            self.prune(&self.next_locks, &self.prune_locks, after, &rest)
                .await
        })
    }

    fn forget_invalidated(&self, before: i64, purged: Duration) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let arguments = [Arg::Int(before), Arg::Int(micros(purged.min(FOREVER)))];
            self.run(&self.forget, &arguments).await?;
            Ok(())
        })
    }
}

/// A column that holds text, whatever the database calls its type.
fn text<DB: Driver>(row: &DB::Row, column: usize) -> Result<String, BoxError>
where
    for<'q> String: Decode<'q, DB>,
    usize: ColumnIndex<DB::Row>,
{
    Ok(row.try_get_unchecked(column)?)
}

/// Somebody else was faster, and nothing was done.
pub(super) fn is_contended<DB: Driver>(error: &sqlx::Error) -> bool {
    has_code::<DB>(error, DB::DIALECT.contended)
}

/// The connection is of no more use; whether the statement was done is not known.
fn is_broken<DB: Driver>(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        error => has_code::<DB>(error, DB::DIALECT.gone),
    }
}

pub(super) fn has_code<DB: Driver>(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(DB::code);
    code.is_some_and(|code| codes.contains(&&*code))
}
