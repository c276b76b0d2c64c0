//! Work that is to be done at most once, or until it has succeeded: the lock under which it runs stays as the
//! mark that it was done. [`Once::mark_in`] writes that mark in the application's own transaction
//! (`once/mark.rs`).

mod mark;

use std::{sync::Arc, time::Duration};

use perennial_store::{
    Connection, Error, Fence, Lease, LockInfo, LockKind, LockName, Locks,
    clock::FOREVER,
    timing::{Backoff, within},
};

#[cfg(test)]
pub(crate) use mark::mark;
use mark::{Mark, Marked};

use crate::timing::HIDDEN_HOLDER;

/// Work that is done once, by whichever process comes first; from [`Once::new`].
#[derive(Clone, Debug)]
#[must_use = "nothing is done until it is run"]
pub struct Once {
    locks: Locks,
    name: LockName,
    retention: Duration,
    after: Option<LockName>,
}

/// The outcome of once-only work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnceOutcome<T> {
    /// The work has run in this call, with this result. From [`Once::mark_in`], it means that the caller has to
    /// do the work.
    Ran(T),
    /// The work was done before.
    #[non_exhaustive]
    AlreadyDone {
        /// The time since the work began, by the database's clock.
        since: Duration,
    },
    /// Another process is doing the work, or a transaction that [marks](Once::mark_in) it has not ended.
    InProgress,
    /// The [preceding](Once::after) work has not been done, or its mark was forgotten.
    NotYet,
}

impl Once {
    /// Returns the work with this name.
    ///
    /// ```
    /// # async fn send() {}
    /// # async fn f(locks: perennial_jobs::Locks, order: &str) -> Result<(), perennial_jobs::Error> {
    /// # use perennial_jobs::Once;
    /// Once::new(&locks, ["mail", order]).run(|| async { send().await }).await?;
    /// # Ok(()) }
    /// ```
    pub fn new(locks: &Locks, name: impl Into<LockName>) -> Self {
        Self {
            // A cooldown marks completed work, so a failed run must not leave one.
            locks: locks.clone().hold_at_least(Duration::ZERO),
            name: LockName::of(LockKind::Once, name),
            retention: FOREVER,
            after: None,
        }
    }

    /// Lets the work be done again after this time. Default: never.
    pub fn remember_for(mut self, time: Duration) -> Self {
        self.retention = time.min(FOREVER);
        self
    }

    /// Lets the work be done only after the work with this other name has been done.
    pub fn after(mut self, name: impl Into<LockName>) -> Self {
        self.after = Some(LockName::of(LockKind::Once, name));
        self
    }

    /// Runs the work if it was not done before: **at most once**. The work is marked as done before it runs, so work
    /// that fails or crashes is not tried again.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails, or if the lock was broken. The work has not run then. But the
    /// mark may have been written, so for a quarter of an hour the process tries to remove it. If it does not
    /// succeed, call [`forget`](Self::forget).
    ///
    /// # Cancel safety
    ///
    /// Work that is dropped while it runs counts as done.
    pub async fn run<F, Fut>(self, work: F) -> Result<OnceOutcome<Fut::Output>, Error>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        match self.begin().await? {
            Ok(lease) => {
                lease.release_after_or_break(self.retention).await?;
                Ok(OnceOutcome::Ran(work().await))
            }
            Err(outcome) => Ok(outcome),
        }
    }

    /// Runs the work if it was not done before, and marks it as done when it has succeeded: **at least once**. Until
    /// then, each call may run it again, one at a time. After a crash between the work and its mark, a later call
    /// does the work again.
    ///
    /// The work gets the [`Fence`](crate::Fence) of its lease. If each write stores the fence, and changes nothing
    /// where a greater one is stored, a process that was paused cannot overwrite what a later run has written.
    ///
    /// ```
    /// # async fn import(fence: perennial_jobs::Fence) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn f(locks: perennial_jobs::Locks, night: &str) -> Result<(), perennial_jobs::Error> {
    /// # use perennial_jobs::{Once, OnceOutcome};
    /// let once = Once::new(&locks, ["import", night]);
    /// match once.run_until_done(|fence| import(fence)).await? {
    ///     OnceOutcome::Ran(Ok(())) => println!("imported"),
    ///     OnceOutcome::Ran(Err(error)) => println!("tried again by the next call: {error}"),
    ///     other => println!("nothing to do: {other:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails, or the [lease is lost](crate::ErrorKind::Lost). The work's future is then dropped at
    /// its next `await`, and the work may have been done without a mark.
    ///
    /// # Cancel safety
    ///
    /// Work that is dropped while it runs counts as failed.
    pub async fn run_until_done<F, Fut, T, E>(
        self,
        work: F,
    ) -> Result<OnceOutcome<Result<T, E>>, Error>
    where
        F: FnOnce(Fence) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let lease = match self.begin().await? {
            Ok(lease) => lease,
            Err(outcome) => return Ok(outcome),
        };
        let result = lease.guard(work(lease.fence())).await?;
        match &result {
            Ok(_) => lease.release_after(self.retention).await?,
            Err(_) => lease.release().await?,
        }
        Ok(OnceOutcome::Ran(result))
    }

    /// Marks the work as done in the caller's transaction. After [`OnceOutcome::Ran`], the caller
    /// does the work in the same transaction.
    ///
    /// ```
    /// # #[cfg(feature = "postgres")]
    /// # async fn f(locks: perennial_jobs::Locks, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// # use perennial_jobs::{Once, OnceOutcome};
    /// let mut transaction = pool.begin().await?;
    /// if Once::new(&locks, ["mail", "42"]).mark_in(&mut transaction).await? == OnceOutcome::Ran(()) {
    ///     sqlx::query("INSERT INTO outbox (mail) VALUES (42)").execute(&mut *transaction).await?;
    /// }
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// While another transaction marks the same work, the call waits, for half the statement timeout at most.
    /// On MySQL and MariaDB it also waits while another transaction marks the [preceding](Self::after) work. On
    /// SQLite it waits for every transaction that writes. After a serialisation error or a deadlock, repeat the
    /// transaction.
    ///
    /// Transactions that mark different work do not wait for each other. There is one exception, on MySQL and
    /// MariaDB at their default isolation level, REPEATABLE READ: if the work comes [after](Self::after) other
    /// work that is not done, the transaction also locks neighbouring names until it ends. After
    /// [`NotYet`](OnceOutcome::NotYet), end the transaction soon, or use READ COMMITTED.
    ///
    /// # Errors
    ///
    /// The database fails, or another transaction has held the name for too long: roll back.
    /// [`Invalid`](crate::ErrorKind::Invalid): the connection is in no transaction, or the store is not in an
    /// SQL database. On MySQL, the driver has to know of the transaction. sqlx knows of those that were begun
    /// by `begin`.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, or if it ends with a [timeout](crate::ErrorKind::Timeout), roll the
    /// transaction back. On MySQL and MariaDB, close the connection as well.
    pub async fn mark_in(
        &self,
        transaction: impl Into<Connection<'_>>,
    ) -> Result<OnceOutcome<()>, Error> {
        let store = self.locks.store();
        let mark = Mark {
            tables: store.tables()?,
            name: self.name.as_str(),
            retention: self.retention,
            after: self.after.as_ref().map(LockName::as_str),
            // The database gives up first, so that no statement remains on the connection.
            wait: store.limit() / 2,
        };
        let mut connection = transaction.into();
        match within(store.limit(), mark::OPERATION, mark.write(&mut connection)).await?? {
            Marked::Now => Ok(OnceOutcome::Ran(())),
            Marked::Refused(locks) => Ok(self.refused(locks.map(|row| row.map(LockInfo::of)))),
        }
    }

    /// Returns the SQL with which a program marks the work as done in its own transaction, through any driver,
    /// on SQLite and PostgreSQL. If your driver is one that [`mark_in`](Self::mark_in) accepts, call that
    /// instead.
    ///
    /// If the statement returns a row, do the work in this transaction. If it returns none, the work is already
    /// done, another process has claimed it, or it has to wait for other work that is not done. While another
    /// transaction that has marked the same work is open, the statement waits for it, as long as the
    /// connection's own settings allow.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the database is MySQL or MariaDB, where a mark is more than one
    /// statement, or the store is not in an SQL database.
    pub fn mark_sql(&self) -> Result<MarkSql, Error> {
        let tables = self.locks.store().tables()?;
        let name = self.name.as_str();
        let after = self.after.as_ref().map(LockName::as_str);
        let (sql, values) = mark::text(tables, name, self.retention, after)?;
        Ok(MarkSql { sql, values })
    }

    /// Returns how long ago the work was begun, if it is done, and `None` if it is not.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn done(&self) -> Result<Option<Duration>, Error> {
        Ok(done(self.locks.inspect(self.name.clone()).await?.as_ref()))
    }

    /// Removes the mark, so that the work can be done again. If the work is running, its lock is taken away. Returns
    /// false if it was never begun.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn forget(&self) -> Result<bool, Error> {
        self.locks.break_lock(self.name.clone(), None).await
    }

    /// Takes the lease if the work is still to be done.
    async fn begin<T>(&self) -> Result<Result<Lease, OnceOutcome<T>>, Error> {
        let after = match &self.after {
            Some(after) => self.locks.inspect(after.clone()).await?,
            None => None,
        };
        let may_be = self.after.is_none() || done(after.as_ref()).is_some();
        let mut backoff = Backoff::for_locks().limit(HIDDEN_HOLDER);
        loop {
            if may_be && let Some(lease) = self.locks.take(&self.name, "", None).await? {
                return Ok(Ok(lease));
            }
            let own = self.locks.inspect(self.name.clone()).await?;
            // No lock seems to be held. Either a transaction that marks this work has not ended, or
            // another transaction has locked the row, as it may on MySQL when it locks neighbouring
            // rows.
            let is_free = own.as_ref().is_none_or(|lock| lock.remaining.is_zero());
            if !(may_be && is_free && backoff.pause().await) {
                return Ok(Err(self.refused([own, after])));
            }
        }
    }

    /// Returns the reason why the work does not run, from the states of its own lock and the
    /// preceding work's lock.
    fn refused<T>(&self, [own, after]: [Option<LockInfo>; 2]) -> OnceOutcome<T> {
        match done(own.as_ref()) {
            Some(since) => OnceOutcome::AlreadyDone { since },
            None if self.after.is_some() && done(after.as_ref()).is_none() => OnceOutcome::NotYet,
            None => OnceOutcome::InProgress,
        }
    }
}

/// A statement that marks work as done; from [`Once::mark_sql`].
#[derive(Clone, Debug)]
pub struct MarkSql {
    sql: Arc<str>,
    values: Vec<String>,
}

impl MarkSql {
    /// The statement, with the database's own placeholders: `?` on SQLite, and `$1`, `$2` on PostgreSQL.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The strings for the placeholders, in order.
    pub fn values(&self) -> &[String] {
        &self.values
    }
}

/// Returns the time since the work began if the work is marked as done: the lock has no holder, and
/// cannot be taken.
fn done(lock: Option<&LockInfo>) -> Option<Duration> {
    lock.filter(|lock| lock.cools_down()).map(|lock| lock.age)
}
