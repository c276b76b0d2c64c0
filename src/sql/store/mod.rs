//! The store over SQL, written once for every database.

mod entries;
mod locks;

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::Pool;
use tokio::sync::Mutex;

use crate::{
    clock::{FOREVER, micros},
    error::{BoxError, Error, Unfit},
    name::{LockKind, LockName, bounded},
    sql::{
        dialect::Dialect,
        pool::{Connections, dialect_of},
        run::{Arg, Cells, Done, Driver, Statement, has_code, number},
        schema,
        statements::{Sides, entries as entry, invalidations, locks as lock},
    },
    store::{Edition, LeaseRow, LockRow, Probe, Pruned, Store, StoreFuture, Unused},
};
pub(super) use locks::lock_row;

/// The store in a database.
pub(super) struct SqlStore<DB: Driver> {
    connections: Connections<DB>,
    prefix: String,
    /// There when the tables are.
    dialect: OnceLock<&'static Dialect>,
    /// The last attempt to prepare them that failed, for those that came while it ran.
    failed: Mutex<Option<Error>>,
    /// The number of attempts that failed.
    failures: AtomicU64,
}

impl<DB: Driver> SqlStore<DB> {
    /// The store, whose tables are made or upgraded before its first step.
    pub(super) fn lazy(pool: Pool<DB>, prefix: &str) -> Self {
        Self {
            connections: Connections(pool),
            prefix: prefix.to_owned(),
            dialect: OnceLock::new(),
            failed: Mutex::new(None),
            failures: AtomicU64::new(0),
        }
    }

    /// Opens the store; makes or upgrades its tables.
    pub(super) async fn open(pool: Pool<DB>, prefix: &str) -> Result<Self, Error> {
        let store = Self::lazy(pool, prefix);
        store.dialect().await?;
        Ok(store)
    }

    /// What the server understands, when the tables are there. Where preparing them fails, all steps that have waited for that fail, and
    /// the next one tries again.
    async fn dialect(&self) -> Result<&'static Dialect, Error> {
        if let Some(dialect) = self.dialect.get() {
            return Ok(dialect);
        }
        let failures = self.failures.load(Relaxed);
        let mut failed = self.failed.lock().await;
        if let Some(dialect) = self.dialect.get() {
            return Ok(dialect);
        }
        if let Some(error) = &*failed
            && self.failures.load(Relaxed) != failures
        {
            return Err(error.clone());
        }
        let prepared: BoxFuture<'_, _> = Box::pin(self.prepare());
        match prepared.await {
            Ok(dialect) => Ok(self.dialect.get_or_init(|| dialect)),
            Err(error) => {
                *failed = Some(error.clone());
                self.failures.fetch_add(1, Relaxed);
                Err(error)
            }
        }
    }

    /// Makes or upgrades the tables.
    async fn prepare(&self) -> Result<&'static Dialect, Error> {
        let pool = &self.connections.0;
        let dialect = dialect_of(pool).await?;
        schema::prepare(pool, dialect, &self.prefix, dialect.schema).await?;
        Ok(dialect)
    }

    async fn statement(&self, sides: &Sides) -> Result<Statement, Error> {
        let dialect = self.dialect().await?;
        Ok(Statement::new(
            dialect,
            &self.prefix,
            sides.of(dialect.side),
        ))
    }

    async fn run(&self, sides: &Sides, arguments: &[Arg<'_>]) -> Result<Done<DB>, BoxError> {
        let statement = self.statement(sides).await?;
        let done = self.connections.run(&statement, arguments).await;
        done.map_err(|error| match has_code::<DB>(&error, DB::DIALECT.unfit) {
            true => BoxError::from(Unfit(error.into())),
            false => error.into(),
        })
    }

    /// Runs a statement whose first arguments are a kind and a name.
    async fn run_on(
        &self,
        sides: &Sides,
        name: &LockName,
        rest: &[Arg<'_>],
    ) -> Result<Done<DB>, BoxError> {
        let column = bounded(name.as_str());
        let arguments = [&[Arg::Text(name.kind().as_str()), Arg::Text(&column)], rest].concat();
        self.run(sides, &arguments).await
    }

    /// Runs a statement on what a lease holds.
    async fn run_under(
        &self,
        sides: &Sides,
        lease: &LeaseRow,
        rest: &[Arg<'_>],
    ) -> Result<Done<DB>, BoxError> {
        let arguments = [&[Arg::Text(&lease.owner), Arg::Int(lease.fence)], rest].concat();
        self.run_on(sides, &lease.name, &arguments).await
    }

    /// Removes, of the rows that come next, those that are to be; returns the row of `next`, with the last of them.
    async fn prune(
        &self,
        [next, remove]: [&Sides; 2],
        kind: LockKind,
        after: Option<&str>,
        rest: &[Arg<'_>],
    ) -> Result<Option<(String, DB::Row)>, BoxError> {
        // No name is empty, which some modes of MariaDB would take for none.
        let from = [
            Arg::Text(kind.as_str()),
            Arg::Text(after.unwrap_or("\u{1}")),
        ];
        let done = self.run(next, &from).await?;
        let row = done.rows.into_iter().next();
        let row = row.ok_or(sqlx::Error::RowNotFound)?;
        let Some(last) = row.text(0)? else {
            return Ok(None);
        };
        let arguments = [&from[..], &[Arg::Text(&last)], rest].concat();
        self.run(remove, &arguments).await?;
        Ok(Some((last, row)))
    }

    /// Names with their epochs, after one of them.
    async fn epochs(
        &self,
        sides: &Sides,
        after: Arg<'_>,
        most: usize,
    ) -> Result<Vec<(String, i64)>, BoxError> {
        let most = Arg::Int(i64::try_from(most).unwrap_or(i64::MAX));
        let done = self.run(sides, &[after, most]).await?;
        let names = done.rows.iter();
        names
            .map(|row| Ok((row.name(0)?, row.number(1)?)))
            .collect()
    }
}

impl<DB: Driver> Store for SqlStore<DB> {
    fn probe<'a>(&'a self, name: &'a LockName, known: i64) -> StoreFuture<'a, Probe> {
        Box::pin(self.probe_entry(name, known))
    }

    fn try_lock<'a>(
        &'a self,
        name: &'a LockName,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>> {
        Box::pin(self.try_once(name, owner, length, seen))
    }

    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let length = [Arg::Int(micros(length))];
            Ok(self.run_under(&lock::EXTEND, lease, &length).await?.changed > 0)
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let cooldown = [Arg::Int(micros(cooldown))];
            Ok(self
                .run_under(&lock::RELEASE, lease, &cooldown)
                .await?
                .changed
                > 0)
        })
    }

    fn publish<'a>(
        &'a self,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
    ) -> StoreFuture<'a, bool> {
        Box::pin(self.publish_entry(lease, edition))
    }

    fn renew<'a>(
        &'a self,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
        known: i64,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let known = [Arg::Int(known)];
            self.write_entry(&entry::RENEW, lease, edition, &known)
                .await
        })
    }

    fn remove<'a>(&'a self, lease: &'a LeaseRow) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.run_under(&entry::REMOVE, lease, &[]).await?.changed > 0) })
    }

    fn invalidate<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            let name = [Arg::Text(name)];
            let done = self.run(&invalidations::INVALIDATE, &name).await?;
            Ok(number(&done)?.ok_or("the database gave no epoch")?)
        })
    }

    fn invalidated(&self, since: i64, most: usize) -> StoreFuture<'_, Vec<(String, i64)>> {
        Box::pin(self.epochs(&invalidations::INVALIDATED, Arg::Int(since), most))
    }

    fn invalidated_for_long<'a>(
        &'a self,
        after: &'a str,
        most: usize,
    ) -> StoreFuture<'a, Vec<(String, i64)>> {
        let sides = &invalidations::INVALIDATED_FOR_LONG;
        Box::pin(self.epochs(sides, Arg::Text(after), most))
    }

    fn purge<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(self.purge_pages(key))
    }

    fn inspect<'a>(&'a self, name: &'a LockName) -> StoreFuture<'a, Option<LockRow>> {
        Box::pin(async move {
            let done = self.run_on(&lock::INSPECT, name, &[]).await?;
            Ok(done.rows.first().map(lock_row::<DB>).transpose()?.flatten())
        })
    }

    fn held(&self) -> StoreFuture<'_, Vec<LockRow>> {
        Box::pin(async move {
            let done = self.run(&lock::HELD, &[]).await?;
            // A lock of a kind that this release does not know is not listed.
            let rows = done.rows.iter().map(lock_row::<DB>);
            rows.filter_map(Result::transpose).collect()
        })
    }

    fn break_lock<'a>(&'a self, name: &'a LockName) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.break_stored(name.kind().as_str(), &bounded(name.as_str()))
                .await
        })
    }

    fn reclaim<'a>(&'a self, strays: &'a [&'a LeaseRow]) -> StoreFuture<'a, ()> {
        Box::pin(self.reclaim_strays(strays))
    }

    fn prune_entries<'a>(
        &'a self,
        kind: LockKind,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<Pruned>> {
        Box::pin(async move {
            let pruned = self.prune([&entry::NEXT, &entry::PRUNE], kind, after, &[]);
            let Some((last, row)) = pruned.await? else {
                return Ok(None);
            };
            let oldest = row.int(1)?.unwrap_or(i64::MAX);
            Ok(Some(Pruned { last, oldest }))
        })
    }

    fn prune_locks<'a>(
        &'a self,
        kind: LockKind,
        unused: Unused,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>> {
        Box::pin(async move {
            let unused = [unused.released, unused.expired];
            let unused = unused.map(|time| Arg::Int(micros(time.min(FOREVER))));
            let pruned = self.prune([&lock::NEXT, &lock::PRUNE], kind, after, &unused);
            Ok(pruned.await?.map(|(last, _)| last))
        })
    }

    fn forget_invalidated(
        &self,
        before: i64,
        purged: Duration,
        oldest: i64,
        after: Option<i64>,
    ) -> StoreFuture<'_, Option<i64>> {
        Box::pin(async move {
            let after = Arg::Int(after.unwrap_or(i64::MIN));
            let done = self.run(&invalidations::NEXT, &[after]).await?;
            let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let last = row.int(0)?;
            if let Some(last) = last {
                let purged = micros(purged.min(FOREVER));
                let arguments = [last, before, purged, oldest].map(Arg::Int);
                let arguments = [&[after], &arguments[..]].concat();
                self.run(&invalidations::FORGET, &arguments).await?;
            }
            Ok(last)
        })
    }
}
