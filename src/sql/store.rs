//! The store over SQL, written once for every database.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Database as SqlxDatabase, Decode, Encode, Executor, IntoArguments,
    Pool, Row, SqlStr, Type, query::Query,
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
pub(super) trait Driver: SqlxDatabase {
    const DIALECT: Dialect;
    fn rows_affected(result: &Self::QueryResult) -> u64;
}

#[cfg(feature = "sqlite")]
impl Driver for sqlx::Sqlite {
    const DIALECT: Dialect = dialect::SQLITE;

    fn rows_affected(result: &Self::QueryResult) -> u64 {
        result.rows_affected()
    }
}

pub(super) struct SqlStore<DB: Driver> {
    pool: Pool<DB>,
    statements: Statements,
}

struct Statements {
    probe: SqlStr,
    try_lock: SqlStr,
    extend: SqlStr,
    release: SqlStr,
    publish: SqlStr,
    renew: SqlStr,
    remove: SqlStr,
    fence_of: SqlStr,
}

/// The template with the prefix and the clock in it.
pub(super) fn fill(dialect: &Dialect, prefix: &str, template: &str) -> SqlStr {
    let sql = template
        .replace("{now}", dialect.now)
        .replace("{p}", prefix);
    // Nothing but our own templates and a prefix that `schema::check_prefix` has passed.
    sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(std::sync::Arc::<str>::from(sql)))
}

impl<DB: Driver> SqlStore<DB>
where
    for<'c> &'c Pool<DB>: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> Vec<u8>: Decode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    /// The store on a database whose tables `schema::prepare` has seen to.
    pub(super) fn new(pool: Pool<DB>, prefix: &str) -> Self {
        let dialect = &DB::DIALECT;
        let sql = |template| fill(dialect, prefix, template);
        Self {
            statements: Statements {
                probe: sql(dialect.probe),
                try_lock: sql(dialect.try_lock),
                extend: sql(dialect.extend),
                release: sql(dialect.release),
                publish: sql(dialect.publish),
                renew: sql(dialect.renew),
                remove: sql(dialect.remove),
                fence_of: sql(dialect.fence_of),
            },
            pool,
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

    fn update_lock<'a>(
        &'a self,
        sql: &SqlStr,
        lease: &LeaseRow,
        time: Duration,
    ) -> StoreFuture<'a, bool> {
        let query = query(sql)
            .bind(&*bounded(&lease.name))
            .bind(&*lease.owner)
            .bind(lease.fence)
            .bind(micros(time));
        Box::pin(async move { Ok(DB::rows_affected(&query.execute(&self.pool).await?) > 0) })
    }

    fn write_entry<'a>(
        &'a self,
        query: Query<'a, DB, DB::Arguments>,
        key: &'a str,
        lease: &'a LeaseRow,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            if DB::rows_affected(&query.execute(&self.pool).await?) > 0 {
                return Ok(true);
            }
            // Refused, or done by an earlier try whose answer was lost.
            let fence = self::query(&self.statements.fence_of)
                .bind(&*bounded(key))
                .fetch_optional(&self.pool)
                .await?
                .map(|row| row.try_get::<i64, _>(0))
                .transpose()?;
            Ok(fence == Some(lease.fence))
        })
    }
}

fn query<DB: SqlxDatabase>(sql: &SqlStr) -> Query<'static, DB, DB::Arguments> {
    sqlx::query(sql.clone())
}

impl<DB: Driver> Store for SqlStore<DB>
where
    for<'c> &'c Pool<DB>: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    for<'q> Vec<u8>: Decode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    fn probe<'a>(&'a self, key: &'a str, name: &'a str, known: i64) -> StoreFuture<'a, Probe> {
        Box::pin(async move {
            let row = query(&self.statements.probe)
                .bind(&*bounded(key))
                .bind(&*bounded(name))
                .bind(known)
                .fetch_one(&self.pool)
                .await?;
            let lock = LockState {
                fence: row.try_get(0)?,
                owned: row.try_get::<i64, _>(1)? != 0,
                remaining: duration(row.try_get(2)?),
            };
            let entry = Self::read_entry(&row).unwrap_or_else(|error| {
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
            // All rows, though there is one at most: a statement that is left before its end may not have been committed.
            let rows = query(&self.statements.try_lock)
                .bind(&*bounded(name))
                .bind(owner)
                .bind(micros(length))
                .bind(seen.unwrap_or(-1))
                .fetch_all(&self.pool)
                .await?;
            Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
        })
    }

    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool> {
        self.update_lock(&self.statements.extend, lease, length)
    }

    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool> {
        self.update_lock(&self.statements.release, lease, cooldown)
    }

    fn publish<'a>(
        &'a self,
        key: &'a str,
        lease: &'a LeaseRow,
        content: &'a Response<Bytes>,
    ) -> StoreFuture<'a, bool> {
        let query = query(&self.statements.publish)
            .bind(&*bounded(key))
            .bind(&*bounded(&lease.name))
            .bind(&*lease.owner)
            .bind(lease.fence)
            .bind(i64::from(content.status().as_u16()))
            .bind(&*wire::encode(content.headers()))
            .bind(&content.body()[..]);
        self.write_entry(query, key, lease)
    }

    fn renew<'a>(&'a self, key: &'a str, lease: &'a LeaseRow, known: i64) -> StoreFuture<'a, bool> {
        let query = query(&self.statements.renew)
            .bind(&*bounded(key))
            .bind(&*bounded(&lease.name))
            .bind(&*lease.owner)
            .bind(lease.fence)
            .bind(known);
        self.write_entry(query, key, lease)
    }

    fn remove<'a>(&'a self, key: &'a str, lease: &'a LeaseRow) -> StoreFuture<'a, bool> {
        let query = query(&self.statements.remove)
            .bind(&*bounded(key))
            .bind(&*bounded(&lease.name))
            .bind(&*lease.owner)
            .bind(lease.fence);
        Box::pin(async move { Ok(DB::rows_affected(&query.execute(&self.pool).await?) > 0) })
    }
}
