//! The store over SQL, written once for every database.

use std::{
    collections::BTreeSet,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Response, StatusCode};
use sqlx::Pool;
use tokio::sync::Mutex;

use crate::{
    clock::{FOREVER, duration, micros},
    error::{BoxError, Error, Unfit},
    name::bounded,
    sql::{
        dialect,
        pool::{Connections, dialect_of},
        run::{Arg, Cells, Driver, Statement, has_code, is_broken, is_contended, number},
        schema, wire,
    },
    store::{
        BATCH, Edition, Entry, LeaseRow, LockRow, LockState, Probe, Pruned, Store, StoreFuture,
        waits,
    },
    timing::UNKNOWN_OUTCOME,
};

/// How long a statement may still run on the server after its connection broke, by and large.
const SETTLING: Duration = Duration::from_millis(250);

/// The store in a database.
pub(super) struct SqlStore<DB: Driver> {
    connections: Connections<DB>,
    prefix: String,
    /// There when the tables are.
    statements: OnceLock<Statements>,
    /// The last attempt to prepare them that failed, for those that came while it ran.
    failed: Mutex<Option<Error>>,
    /// The number of attempts that failed.
    failures: AtomicU64,
}

struct Statements {
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
    invalidated_for_long: Statement,
    keys: Statement,
    locks: Statement,
    break_lock: Statement,
    inspect: Statement,
    redate: Statement,
    named: Statement,
    held: Statement,
    delete: Statement,
    next_entries: Statement,
    prune_entries: Statement,
    next_locks: Statement,
    prune_locks: Statement,
    next_names: Statement,
    forget: Statement,
}

impl<DB: Driver> SqlStore<DB> {
    /// The store, whose tables are made or upgraded before its first step.
    pub(super) fn lazy(pool: Pool<DB>, prefix: &str) -> Self {
        Self {
            connections: Connections(pool),
            prefix: prefix.to_owned(),
            statements: OnceLock::new(),
            failed: Mutex::new(None),
            failures: AtomicU64::new(0),
        }
    }

    /// Opens the store; makes or upgrades its tables.
    pub(super) async fn open(pool: Pool<DB>, prefix: &str) -> Result<Self, Error> {
        let store = Self::lazy(pool, prefix);
        store.statements().await?;
        Ok(store)
    }

    /// The statements, when the tables are there. Where preparing them fails, all steps that have waited for that fail, and the next one tries again.
    async fn statements(&self) -> Result<&Statements, Error> {
        if let Some(statements) = self.statements.get() {
            return Ok(statements);
        }
        let failures = self.failures.load(Relaxed);
        let mut failed = self.failed.lock().await;
        if let Some(statements) = self.statements.get() {
            return Ok(statements);
        }
        if let Some(error) = &*failed
            && self.failures.load(Relaxed) != failures
        {
            return Err(error.clone());
        }
        let prepared: BoxFuture<'_, _> = Box::pin(self.prepare());
        match prepared.await {
            Ok(statements) => Ok(self.statements.get_or_init(|| statements)),
            Err(error) => {
                *failed = Some(error.clone());
                self.failures.fetch_add(1, Relaxed);
                Err(error)
            }
        }
    }

    /// Makes or upgrades the tables.
    async fn prepare(&self) -> Result<Statements, Error> {
        let pool = &self.connections.0;
        let dialect = dialect_of(pool).await?;
        schema::prepare(pool, &self.prefix, dialect.schema).await?;
        let statement = |template| Statement::new(dialect, &self.prefix, template);
        Ok(Statements {
            probe: statement(dialect.probe),
            try_lock: statement(dialect.try_lock),
            extend: statement(dialect.extend),
            release: statement(dialect.release),
            publish: statement(dialect.publish),
            renew: statement(dialect.renew),
            remove: statement(dialect.remove),
            fence_of: statement(dialect.fence_of),
            invalidate: statement(dialect.invalidate),
            invalidated: statement(dialect.invalidated),
            invalidated_for_long: statement(dialect.invalidated_for_long),
            keys: statement(dialect.keys),
            locks: statement(dialect.locks),
            break_lock: statement(dialect::BREAK),
            inspect: statement(dialect::INSPECT),
            redate: statement(dialect::REDATE),
            named: statement(&dialect::named(BATCH)),
            held: statement(dialect::HELD),
            delete: statement(dialect::DELETE),
            next_entries: statement(dialect::NEXT_ENTRIES),
            prune_entries: statement(dialect::PRUNE_ENTRIES),
            next_locks: statement(dialect::NEXT_LOCKS),
            prune_locks: statement(dialect::PRUNE_LOCKS),
            next_names: statement(dialect::NEXT_NAMES),
            forget: statement(dialect::FORGET),
        })
    }

    fn read_entry(row: &DB::Row) -> Result<Option<Entry>, BoxError> {
        let Some(fence) = row.int(4)? else {
            return Ok(None);
        };
        let mut content = Response::new(Bytes::from(row.bytes(8)?.unwrap_or_default()));
        *content.status_mut() = StatusCode::from_u16(u16::try_from(row.number(6)?)?)?;
        *content.headers_mut() = wire::decode(&row.bytes(7)?.unwrap_or_default())?;
        let age = row.number(5)?;
        Ok(Some(Entry {
            fence,
            age: duration(age),
            undated: age < -dialect::SET_BACK,
            content,
            notes: row.name(9)?,
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
        Ok(self.connections.run(statement, &arguments).await?.changed > 0)
    }

    /// Removes, of the rows that come next, those that are to be; returns the row of `next`, with the last of them.
    async fn prune(
        &self,
        next: &Statement,
        remove: &Statement,
        after: Option<&str>,
        rest: &[Arg<'_>],
    ) -> Result<Option<(String, DB::Row)>, BoxError> {
        // No name is empty, which some modes of MariaDB would take for none.
        let after = Arg::Text(after.unwrap_or("\u{1}"));
        let done = self.connections.run(next, &[after]).await?;
        let row = done.rows.into_iter().next();
        let row = row.ok_or(sqlx::Error::RowNotFound)?;
        let Some(last) = row.text(0)? else {
            return Ok(None);
        };
        let mut arguments = vec![after, Arg::Text(&last)];
        arguments.extend(rest);
        self.connections.run(remove, &arguments).await?;
        Ok(Some((last, row)))
    }

    /// The stored names of the variants of `key`, which begin with it and a `#`.
    async fn variants(&self, statement: &Statement, key: &str) -> Result<Vec<String>, BoxError> {
        // A name with a NUL is stored as a digest (and a `NUL` is in no text of PostgreSQL's).
        if key.contains('\0') {
            return Ok(Vec::new());
        }
        let [first, behind] = [format!("{key}#"), format!("{key}$")];
        let range = [Arg::Text(&first), Arg::Text(&behind)];
        let done = self.connections.run(statement, &range).await?;
        let names = done.rows.iter().map(|row| row.name(0));
        Ok(names.collect::<Result<_, _>>()?)
    }

    /// Names with their epochs, after one of them.
    async fn epochs(
        &self,
        statement: &Statement,
        after: Arg<'_>,
        most: usize,
    ) -> Result<Vec<(String, i64)>, BoxError> {
        let most = Arg::Int(i64::try_from(most).unwrap_or(i64::MAX));
        let done = self.connections.run(statement, &[after, most]).await?;
        let names = done.rows.iter();
        names
            .map(|row| Ok((row.name(0)?, row.number(1)?)))
            .collect()
    }

    /// Takes a lock from whoever has it now; a second run of the statement finds another fence, and takes nothing from the next one.
    async fn break_stored(&self, name: &str) -> Result<bool, BoxError> {
        let name = Arg::Text(name);
        let found = self
            .connections
            .run(&self.statements().await?.inspect, &[name])
            .await?;
        let Some(row) = found.rows.first() else {
            return Ok(false);
        };
        let fence = Arg::Int(row.number(2)?);
        self.connections
            .run(&self.statements().await?.break_lock, &[name, fence])
            .await?;
        Ok(true)
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
        let done = self.connections.run(statement, &arguments).await;
        let done = done.map_err(|error| match has_code::<DB>(&error, DB::DIALECT.unfit) {
            true => BoxError::from(Unfit(error.into())),
            false => error.into(),
        })?;
        let mut fence = number(&done)?;
        if fence.is_none() {
            // Refused, or done by an earlier try whose answer was lost.
            let key = [Arg::Text(&key)];
            fence = number(
                &self
                    .connections
                    .run(&self.statements().await?.fence_of, &key)
                    .await?,
            )?;
        }
        Ok(fence == Some(lease.fence))
    }
}

impl<DB: Driver> Store for SqlStore<DB> {
    fn probe<'a>(&'a self, key: &'a str, name: &'a str, known: i64) -> StoreFuture<'a, Probe> {
        Box::pin(async move {
            let (short_key, name) = (bounded(key), bounded(name));
            let arguments = [Arg::Text(&short_key), Arg::Text(&name), Arg::Int(known)];
            let done = self
                .connections
                .run(&self.statements().await?.probe, &arguments)
                .await?;
            let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let (mut remaining, age) = (row.number(2)?, row.int(10)?.unwrap_or_default());
            if age < -dialect::SET_BACK && remaining > 0 {
                // Whoever waits for the lock does not try it before.
                self.connections
                    .run(&self.statements().await?.redate, &[Arg::Text(&name)])
                    .await?;
                remaining += age;
            }
            let lock = LockState {
                fence: row.number(0)?,
                owned: row.number(1)? != 0,
                remaining: duration(remaining),
            };
            let entry = Self::read_entry(row);
            let unreadable = entry.is_err();
            let entry = entry.unwrap_or_else(|error| {
                tracing::warn!(key, %error, "the stored entry cannot be read");
                None
            });
            Ok(Probe {
                entry,
                unreadable,
                lock,
                epoch: row.number(3)?,
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
            // Also while the tables are being made.
            waits();
            let name = bounded(name);
            let arguments = [
                Arg::Text(&name),
                Arg::Text(owner),
                Arg::Int(micros(length)),
                Arg::Int(seen.unwrap_or(-1)),
            ];
            let broke = AtomicBool::new(false);
            // Who loses does not try again.
            let again = |error: &_| {
                let is_broken = is_broken::<DB>(error);
                broke.fetch_or(is_broken, Relaxed);
                is_broken
            };
            for settles in [true, false] {
                let tried = self.connections.run_while(
                    again,
                    &self.statements().await?.try_lock,
                    &arguments,
                );
                match tried.await {
                    Ok(done) => {
                        if let Some(fence) = number(&done)? {
                            return Ok(Some(fence));
                        }
                    }
                    Err(error) if is_contended::<DB>(&error) => {}
                    Err(error) => return Err(error.into()),
                }
                if !settles || !broke.load(Relaxed) {
                    break;
                }
                // The one whose connection broke may be taking it yet, which only its owner is told.
                tokio::time::sleep(SETTLING).await;
            }
            Ok(None)
        })
    }

    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let statement = &self.statements().await?.extend;
            self.update_lock(statement, lease, length).await
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let statement = &self.statements().await?.release;
            self.update_lock(statement, lease, cooldown).await
        })
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
            self.write_entry(
                &self.statements().await?.publish,
                key,
                lease,
                edition,
                &content,
            )
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
            self.write_entry(&self.statements().await?.renew, key, lease, edition, &known)
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
            Ok(self
                .connections
                .run(&self.statements().await?.remove, &arguments)
                .await?
                .changed
                > 0)
        })
    }

    fn invalidate<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            let done = self
                .connections
                .run(&self.statements().await?.invalidate, &[Arg::Text(name)])
                .await?;
            Ok(number(&done)?.ok_or("the database gave no epoch")?)
        })
    }

    fn invalidated(&self, since: i64, most: usize) -> StoreFuture<'_, Vec<(String, i64)>> {
        Box::pin(async move {
            let statement = &self.statements().await?.invalidated;
            self.epochs(statement, Arg::Int(since), most).await
        })
    }

    fn invalidated_for_long<'a>(
        &'a self,
        after: &'a str,
        most: usize,
    ) -> StoreFuture<'a, Vec<(String, i64)>> {
        Box::pin(async move {
            let statement = &self.statements().await?.invalidated_for_long;
            self.epochs(statement, Arg::Text(after), most).await
        })
    }

    fn purge<'a>(&'a self, key: &'a str, lock_prefix: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            // Also of variants that are being made for the first time.
            let lock = format!("{lock_prefix}{key}");
            let mut locks = BTreeSet::from_iter(
                self.variants(&self.statements().await?.locks, &lock)
                    .await?,
            );
            let mut keys = self.variants(&self.statements().await?.keys, key).await?;
            keys.push(bounded(key).into_owned());
            let lock_of = |key: &String| bounded(&format!("{lock_prefix}{key}")).into_owned();
            locks.extend(keys.iter().map(lock_of));
            for lock in &locks {
                self.break_stored(lock).await?;
            }
            for key in &keys {
                self.connections
                    .run(&self.statements().await?.delete, &[Arg::Text(key)])
                    .await?;
            }
            Ok(())
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<LockRow>> {
        Box::pin(async move {
            let name = bounded(name);
            let done = self
                .connections
                .run(&self.statements().await?.inspect, &[Arg::Text(&name)])
                .await?;
            done.rows.first().map(lock_row::<DB>).transpose()
        })
    }

    fn held(&self) -> StoreFuture<'_, Vec<LockRow>> {
        Box::pin(async move {
            let done = self
                .connections
                .run(&self.statements().await?.held, &[])
                .await?;
            done.rows.iter().map(lock_row::<DB>).collect()
        })
    }

    fn break_lock<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move { self.break_stored(&bounded(name)).await })
    }

    fn reclaim<'a>(&'a self, strays: &'a [&'a LeaseRow]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let statements = self.statements().await?;
            for strays in strays.chunks(BATCH) {
                let names: Vec<_> = strays.iter().map(|stray| bounded(&stray.name)).collect();
                let Some(last) = names.last() else { break };
                // The statement has a fixed number of arguments, so that it is prepared once.
                let arguments = names.iter().chain(std::iter::repeat(last));
                let arguments: Vec<_> = arguments.map(|name| Arg::Text(name)).take(BATCH).collect();
                let found = self.connections.run(&statements.named, &arguments).await?;
                for row in &found.rows {
                    let (name, owner, fence) = (row.name(0)?, row.text(1)?, row.number(2)?);
                    let strays = strays.iter().zip(&names);
                    let mut strays = strays.filter(|(_, of)| **of == name);
                    let is_stray = strays.any(|(stray, _)| {
                        owner.as_ref() == Some(&stray.owner) || stray.fence == fence
                    });
                    if is_stray {
                        let arguments = [Arg::Text(&name), Arg::Int(fence)];
                        self.connections
                            .run(&statements.break_lock, &arguments)
                            .await?;
                    }
                }
            }
            Ok(())
        })
    }

    fn prune_entries<'a>(&'a self, after: Option<&'a str>) -> StoreFuture<'a, Option<Pruned>> {
        Box::pin(async move {
            let all = self.statements().await?;
            let pruned = self.prune(&all.next_entries, &all.prune_entries, after, &[]);
            let Some((last, row)) = pruned.await? else {
                return Ok(None);
            };
            let oldest = row.int(1)?.unwrap_or(i64::MAX);
            Ok(Some(Pruned { last, oldest }))
        })
    }

    fn prune_locks<'a>(
        &'a self,
        unused: Duration,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>> {
        Box::pin(async move {
            let unused = unused.min(FOREVER);
            let unused = [unused, unused.max(UNKNOWN_OUTCOME)].map(|time| Arg::Int(micros(time)));
            let all = self.statements().await?;
            let pruned = self.prune(&all.next_locks, &all.prune_locks, after, &unused);
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
            let statements = self.statements().await?;
            let after = Arg::Int(after.unwrap_or(i64::MIN));
            let done = self
                .connections
                .run(&statements.next_names, &[after])
                .await?;
            let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let last = row.int(0)?;
            if let Some(last) = last {
                let purged = micros(purged.min(FOREVER));
                let numbers = [before, purged, oldest].map(Arg::Int);
                let mut arguments = vec![after, Arg::Int(last)];
                arguments.extend(numbers);
                self.connections.run(&statements.forget, &arguments).await?;
            }
            Ok(last)
        })
    }
}

/// A row of `dialect::INSPECT`.
pub(super) fn lock_row<DB: Driver>(row: &DB::Row) -> Result<LockRow, BoxError> {
    Ok(LockRow {
        name: row.name(0)?,
        owner: row.text(1)?,
        fence: row.number(2)?,
        age: duration(row.number(3)?),
        remaining: duration(row.number(4)?),
    })
}
