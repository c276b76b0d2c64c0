//! What is done at most once.

use std::time::Duration;

use crate::{
    clock::FOREVER,
    error::Error,
    locks::{Lease, LockInfo, LockKind, LockName, Locks},
};

#[cfg(feature = "_sql")]
use crate::sql::connection::{Mark, Marked};

/// Something that is done at most once, by whichever process comes first; from [`Locks::once`].
///
/// What was done is remembered as a lock of the kind [`LockKind::Once`], which is released but can't be taken again.
#[derive(Clone, Debug)]
#[must_use = "nothing is done until it is run"]
pub struct Once {
    locks: Locks,
    name: LockName,
    keep: Duration,
    after: Option<LockName>,
}

/// As [`Once`], but tried again when it has failed; from [`Once::retry_if_failed`].
#[derive(Clone, Debug)]
#[must_use = "nothing is done until it is run"]
pub struct OnceRetried(Once);

/// What has come of something that is done at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was done now, with this result.
    Ran(T),
    /// It was done before.
    AlreadyDone {
        /// So long ago it was begun, by the database's clock.
        since: Duration,
    },
    /// Somebody else is at it.
    InProgress,
    /// What it comes [after](Once::after) has not been done, or that is forgotten.
    NotYet,
}

impl Once {
    pub(super) fn new(mut locks: Locks, name: LockName) -> Self {
        // That it can't be taken says that it is done.
        locks.hold.at_least = Duration::ZERO;
        Self {
            locks,
            name: LockName::of(LockKind::Once, name),
            keep: FOREVER,
            after: None,
        }
    }

    /// How long it is remembered that it was done. Default: for ever. After that it can be done again.
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = time.min(FOREVER);
        self
    }

    /// It is done only when another thing has been: a link of a chain, of which each goes out once and in its turn.
    ///
    /// (On MySQL and MariaDB with READ UNCOMMITTED, [`run`](Self::run) sees what a transaction has marked and may yet roll back; [`mark_in`](Self::mark_in) waits for it there.)
    pub fn after(mut self, name: impl Into<LockName>) -> Self {
        self.after = Some(LockName::of(LockKind::Once, name));
        self
    }

    /// It counts as done only when it has succeeded: until then it is tried again by whoever comes next, one at a time, under a lease.
    ///
    /// So it is done at least once: a process that crashes after it has done it, and before that is remembered, lets it be done again.
    pub fn retry_if_failed(self) -> OnceRetried {
        OnceRetried(self)
    }

    /// Remembers that it is done, and then does it, unless it was done before: at most once, whatever happens. What crashes or fails in the
    /// middle is not done again.
    ///
    /// # Errors
    ///
    /// The database fails: the work was not run, and is for the next caller to do. (If the database goes on failing for an hour, the work may be noted as done all the same;
    /// [`forget`](Self::forget) lets it be done.)
    ///
    /// # Cancel safety
    ///
    /// Dropped while the work runs, it counts as done. Dropped before, while that is being noted, it does not.
    pub async fn run<F, Fut>(self, work: F) -> Result<Outcome<Fut::Output>, Error>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        match self.begin().await? {
            Ok(lease) => {
                lease.release_after_or_revoke(self.keep).await?;
                Ok(Outcome::Ran(work().await))
            }
            Err(outcome) => Ok(outcome),
        }
    }

    /// Remembers that it is done, in a transaction of the application's own (on a connection that has none it is committed at once): that is so if it is committed, and never was if it is rolled back. `Ran`:
    /// what is to be done once can be done in the same transaction. It must be one in the site's own database, which has Perennial's tables.
    ///
    /// Of two transactions that come to it at once, one waits for the other until that is committed or rolled back, for half the statement limit: on SQLite those that write at all
    /// (begin them with `BEGIN IMMEDIATE` if they read before), on servers those with the same name, and on MySQL and MariaDB one that marks what this comes [after](Self::after). On PostgreSQL a transaction that is isolated more strictly than READ COMMITTED may fail with a
    /// serialisation error, as by any write; on MySQL and MariaDB some of several that have waited may fail with a deadlock when the one that they have waited for is rolled back. Such a transaction
    /// is to be made again.
    ///
    /// ```
    /// # #[cfg(feature = "postgres")]
    /// # async fn f(site: perennial::Perennial, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use perennial::Outcome;
    ///
    /// let mut transaction = pool.begin().await?;
    /// let follow_up = site.once(["mail", "42", "2"]).after(["mail", "42", "1"]);
    /// if follow_up.mark_in(&mut transaction).await? == Outcome::Ran(()) {
    ///     sqlx::query("INSERT INTO outbox (mail) VALUES (42)").execute(&mut *transaction).await?;
    /// }
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails, or another transaction has held the name for too long: roll back. Or the store is not one in an SQL database.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, or after a [timeout](crate::ErrorKind::Timeout), what it has done is not known: roll back, and on MySQL and MariaDB close the connection, whose
    /// `innodb_lock_wait_timeout` may be left shortened.
    #[cfg(feature = "_sql")]
    pub async fn mark_in(
        &self,
        transaction: impl Into<crate::sql::Connection<'_>>,
    ) -> Result<Outcome<()>, Error> {
        let store = self.locks.store();
        let mark = Mark {
            prefix: store.prefix()?,
            name: self.name.as_str(),
            keep: self.keep,
            after: self.after.as_ref().map(LockName::as_str),
            // So that the database gives up first, and the connection is not left with a statement.
            wait: store.limit() / 2,
        };
        let mut connection = transaction.into();
        match store.limited("mark", connection.mark(&mark)).await? {
            Marked::Now => Ok(Outcome::Ran(())),
            Marked::Refused(locks) => Ok(self.refused(locks.map(|row| row.map(LockInfo::from)))),
        }
    }

    /// How long ago it was begun, if it is done.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn done(&self) -> Result<Option<Duration>, Error> {
        Ok(done(self.locks.inspect(self.name.clone()).await?.as_ref()))
    }

    /// Lets it be done again. `false`: it was not done.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn forget(&self) -> Result<bool, Error> {
        self.locks.break_lock(self.name.clone()).await
    }

    /// The lease, if it is ours to do.
    async fn begin<T>(&self) -> Result<Result<Lease, Outcome<T>>, Error> {
        let after = match &self.after {
            Some(after) => self.locks.inspect(after.clone()).await?,
            None => None,
        };
        let may_be = self.after.is_none() || done(after.as_ref()).is_some();
        if may_be && let Some(lease) = self.locks.take(&self.name, "", None).await? {
            return Ok(Ok(lease));
        }
        let own = self.locks.inspect(self.name.clone()).await?;
        Ok(Err(self.refused([own, after])))
    }

    /// Why it is not ours to do, as its own lock stands, and that of what comes before.
    fn refused<T>(&self, [own, after]: [Option<LockInfo>; 2]) -> Outcome<T> {
        match done(own.as_ref()) {
            Some(since) => Outcome::AlreadyDone { since },
            None if self.after.is_some() && done(after.as_ref()).is_none() => Outcome::NotYet,
            None => Outcome::InProgress,
        }
    }
}

/// How long ago it was begun, if the lock says that it is done: by being free of a holder, and not to be taken.
fn done(lock: Option<&LockInfo>) -> Option<Duration> {
    lock.filter(|lock| lock.holder.is_none() && !lock.remaining.is_zero())
        .map(|lock| lock.age)
}

impl OnceRetried {
    /// Does it under a lease, unless it was done before, and remembers it if it succeeds.
    ///
    /// # Errors
    ///
    /// The database fails, or the [lease is lost](Error::is_lost) meanwhile: the work was cancelled, or has been done without that being
    /// remembered.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it runs, it counts as failed.
    pub async fn run<F, Fut, T, E>(self, work: F) -> Result<Outcome<Result<T, E>>, Error>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let Self(once) = self;
        let lease = match once.begin().await? {
            Ok(lease) => lease,
            Err(outcome) => return Ok(outcome),
        };
        let result = lease.guard(work()).await?;
        match &result {
            Ok(_) => lease.release_after(once.keep).await?,
            Err(_) => lease.release().await?,
        }
        Ok(Outcome::Ran(result))
    }
}

/// Whether a guarded UPDATE has changed its one row: whether this one, of all who try, was it.
///
/// The guard stands in the statement, and what it changes is what it asks for, as the second one then finds nothing: `UPDATE mail SET sent_by = ? WHERE id = ? AND sent_by IS NULL`.
/// (Reading first and writing then lets several win.) sqlx counts the rows that the WHERE has found, on MySQL too, where the server by
/// itself would count those that have got another value. So it is right for an UPDATE or a DELETE with its guard in the WHERE, and not for `INSERT … ON DUPLICATE KEY UPDATE`, which on MySQL
/// counts one row whether there was one or not.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn f(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// let guarded = "UPDATE mail SET sent_by = 'me' WHERE id = 42 AND sent_by IS NULL";
/// if perennial::changed_one(sqlx::query(guarded).execute(&pool).await?)? {
///     // This one sends it.
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`Invalid`](crate::ErrorKind::Invalid): it has changed several rows, so that it is no guard.
#[cfg(feature = "_sql")]
pub fn changed_one(result: impl Into<crate::sql::Changed>) -> Result<bool, Error> {
    match result.into().0 {
        rows @ 0..=1 => Ok(rows == 1),
        rows => Err(Error::invalid(format!(
            "a guarded UPDATE has changed {rows} rows: its WHERE is to find one row, by its key, and the guard"
        ))),
    }
}
