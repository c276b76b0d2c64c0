//! A lock that a database connection holds.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::{
    error::Error,
    key::hex,
    locks::{LockName, attempt::pauses},
    sql::{
        IntoDatabase,
        session::{Named, Session},
    },
    timing::SESSION_CHECK,
};

/// A lock that a connection to the database holds, and that is free as soon as that connection is no more: PostgreSQL's advisory locks, MySQL's
/// and MariaDB's `GET_LOCK`.
///
/// It needs no table and no lease: when a process dies its lock is free at once, and whoever lives holds it for as long as it likes, without a statement but a sign of life
/// each two seconds. (When its machine or the network dies, the server closes the connection after 15 s without one; PostgreSQL before 14 only when TCP gives up.) For that it takes a connection of
/// its own, beside those of the pool.
///
/// It is for long work on a server that can be reached directly. What a [`Lease`](crate::Lease) has and this has not:
///
/// - **A fence.** Whoever loses the connection without noticing can write after the next one has begun. [`lost`](Self::lost) tells within some seconds.
/// - **Poolers** that give out connections by the transaction (PgBouncer, Pgpool) can't be used: the lock would be held by a connection that others are given,
///   too. Where a connection shows by another such lock on it that it is shared, this is an error; the first one can't know, and when its client goes, the pooler's connection keeps the lock.
/// - **Galera** has no such locks, and says so. Other replicas don't know of them either: a lock is one server's, and gone with it.
/// - **SQLite, CockroachDB and YugabyteDB** have none: it is an error, which says to use a lease.
/// - **Names** are numbers of 64 bits on PostgreSQL, the first of their SHA-256. Two names that come to the same number, which is no more likely than to guess it, would exclude
///   one another; never does one let two in.
///
/// The locks of one database are apart from those of another on PostgreSQL, and not on MySQL and MariaDB, where they are the server's. They are not those of
/// [`Locks`](crate::Locks), though the names be the same.
///
/// ```
/// # async fn import() {}
/// # async fn f(pool: perennial::sql::Database) -> Result<(), perennial::Error> {
/// use perennial::SessionLock;
///
/// if let Some(lock) = SessionLock::try_lock(pool, "import").await? {
///     lock.guard(import()).await?;
///     lock.release().await?;
/// }
/// # Ok(()) }
/// ```
///
/// Dropping it closes the connection, and so gives the lock up, a moment after. So does the end of the runtime.
#[derive(Debug)]
#[must_use = "the lock is given up when this is dropped"]
pub struct SessionLock {
    name: LockName,
    /// Set when the lock is to be given up, and closed when the keeper has ended.
    released: watch::Sender<bool>,
    /// Holds the connection. Returns whether the lock was held until it was given up.
    keeper: AbortOnDropHandle<bool>,
}

impl SessionLock {
    /// Takes the lock if it is free; `None`: somebody holds it.
    ///
    /// `pool` is the application's own pool or a site's [database](crate::Perennial::database). Each statement has the
    /// [limit](crate::sql::Database::statement_limit) of that database: 5 s for a pool.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the database has no such locks. Or it can't be reached, or doesn't answer within its [limit](crate::sql::Database::statement_limit).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it holds nothing.
    pub async fn try_lock(
        pool: impl IntoDatabase,
        name: impl Into<LockName>,
    ) -> Result<Option<Self>, Error> {
        match Self::lock(pool, name, Duration::ZERO).await {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.is_taken() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock, and waits for it so long if somebody holds it.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Self::try_lock), and [taken](Error::is_taken): it was not free in time. (Who holds it is not known.)
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn lock(
        pool: impl IntoDatabase,
        name: impl Into<LockName>,
        wait: Duration,
    ) -> Result<Self, Error> {
        let name = name.into();
        let mut backoff = pauses().limit(wait);
        let digest = Sha256::digest(name.as_str());
        let (first, _) = digest.split_first_chunk().expect("has 32 bytes");
        let named = Named {
            // The least number could not be written in a statement.
            number: i64::from_be_bytes(*first).max(-i64::MAX),
            name: hex(&digest),
            holder: uuid::Uuid::new_v4().simple().to_string(),
        };
        let pool = pool.into_database();
        loop {
            if let Some(session) = pool.acquire(&named).await? {
                return Ok(Self::keep(name, named, session));
            }
            if !backoff.pause().await {
                return Err(Error::taken(name.as_str(), wait, ""));
            }
        }
    }

    fn keep(name: LockName, named: Named, mut session: Box<dyn Session>) -> Self {
        let (released, mut release) = watch::channel(false);
        let lock = name.clone();
        let keeper = async move {
            while timeout(SESSION_CHECK, release.wait_for(|released| *released))
                .await
                .is_err()
            {
                let held = session.holds(&named).await;
                if !matches!(held, Ok(true)) {
                    tracing::warn!(
                        name = lock.as_str(),
                        error = ?held.err(),
                        "a lock is lost: its connection doesn't hold it any more"
                    );
                    return false;
                }
            }
            session.release(&named).await.unwrap_or(false)
        };
        Self {
            name,
            released,
            keeper: AbortOnDropHandle::new(tokio::spawn(keeper.in_current_span())),
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Resolves when the lock is no longer held: the connection is no more, or can't be reached. It takes some seconds to notice. Never, while it is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; can be awaited any number of times.
    pub async fn lost(&self) {
        self.released.closed().await;
    }

    /// Runs a future for as long as the lock is held: when it is [lost](Self::lost), the future is dropped.
    ///
    /// # Errors
    ///
    /// [Lost](Error::is_lost).
    pub async fn guard<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.lost() => Err(Error::lost(self.name())),
        }
    }

    /// Gives the lock up: it is free when this returns.
    ///
    /// # Errors
    ///
    /// [Lost](Error::is_lost): it was not held any more.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, the lock is given up all the same.
    pub async fn release(self) -> Result<(), Error> {
        self.released.send_replace(true);
        match self.keeper.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Error::lost(self.name.as_str())),
        }
    }
}
