//! Locks that live as long as a database session. They are for work that must not overlap even if its process
//! is paused: a lease would expire meanwhile, but this lock ends only with the connection. The statements are
//! in `session/sql.rs`.

mod sql;

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use perennial_store::{
    Database, Error, ErrorKind, IntoDatabase, LockName, name::hex, timing::Backoff,
};

use sql::{SessionLockName, acquire};

/// A lock that is released as soon as its database connection ends. It uses PostgreSQL's advisory locks, or
/// `GET_LOCK` of MySQL and MariaDB. Use it for long work, if the process connects to the server directly.
///
/// The lock takes a connection out of the pool, and runs one statement on it every two seconds. If the machine
/// or the network dies, the server closes the connection after 15 s (before PostgreSQL 14, only when TCP times
/// out). Dropping the lock closes its connection. Differences from a [`Lease`](crate::Lease):
///
/// - **No fence.** A holder that has lost the connection can write until [`lost`](Self::lost)
///   resolves.
/// - **No poolers** in transaction mode: the pooler's own connection to the server would keep the lock.
/// - **No Galera or SQLite**: there, taking the lock is an error. The nodes of a Galera cluster would not share
///   it.
/// - **Names** apply to one database on PostgreSQL, and to the whole server on MySQL and MariaDB. PostgreSQL
///   compares only 64 bits of their digests.
///
/// ```
/// # async fn import() {}
/// # async fn f(pool: perennial_jobs::Database) -> Result<(), perennial_jobs::Error> {
/// # use perennial_jobs::SessionLock;
/// if let Some(lock) = SessionLock::try_lock(pool, "import").await? {
///     lock.guard(import()).await?;
///     lock.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is given up when this is dropped"]
pub struct SessionLock {
    name: LockName,
    /// True after a request for the release; closed when the task has ended.
    released: watch::Sender<bool>,
    /// The task that holds the connection. Returns true if the connection held the lock until the
    /// release.
    task: AbortOnDropHandle<bool>,
}

impl SessionLock {
    /// Takes the lock if it is free, and returns `None` if another connection holds it. `pool` is the
    /// application's own, or the one from `Perennial::database`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if a database of this kind has no such locks. Errors of the
    /// database have other kinds.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is held.
    pub async fn try_lock(
        pool: impl IntoDatabase,
        name: impl Into<LockName>,
    ) -> Result<Option<Self>, Error> {
        match Self::lock(pool, name, Duration::ZERO).await {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.kind() == ErrorKind::Taken => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock. If it is held, waits for it for up to `wait`.
    ///
    /// # Errors
    ///
    /// The errors of [`try_lock`](Self::try_lock), and [taken](crate::ErrorKind::Taken): the lock was not free in
    /// time.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is held.
    pub async fn lock(
        pool: impl IntoDatabase,
        name: impl Into<LockName>,
        wait: Duration,
    ) -> Result<Self, Error> {
        let name = name.into();
        let mut backoff = Backoff::for_locks().limit(wait);
        let digest = Sha256::digest(name.as_str());
        let (first, _) = digest.split_first_chunk().expect("has 32 bytes");
        let named = SessionLockName {
            // PostgreSQL reads the text of `i64::MIN` as a `numeric` and not as a `bigint`, because it parses the
            // digits without the sign.
            number: i64::from_be_bytes(*first).max(-i64::MAX),
            name: hex(&digest),
            holder: uuid::Uuid::new_v4().simple().to_string(),
            lock_name: name.clone(),
        };
        let pool: Database = pool.into();
        let (released, release) = watch::channel(false);
        loop {
            if let Some(holding) = acquire(&pool, &named, &release).await? {
                return Ok(Self {
                    name,
                    released,
                    task: AbortOnDropHandle::new(tokio::spawn(holding.in_current_span())),
                });
            }
            if !backoff.pause().await {
                return Err(Error::taken(name.as_str(), wait, ""));
            }
        }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Resolves within a few seconds after the connection has ended or its server has become unreachable.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; can be awaited any number of times.
    pub async fn lost(&self) {
        self.released.closed().await;
    }

    /// Runs a future for as long as the lock is held: when it is [lost](Self::lost), the future is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [Lost](crate::ErrorKind::Lost).
    pub async fn guard<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.lost() => Err(Error::lost(self.name())),
        }
    }

    /// Releases the lock. It is free when the call returns `Ok`.
    ///
    /// # Errors
    ///
    /// [Lost](crate::ErrorKind::Lost): the connection no longer held the lock, or the server did not
    /// confirm the release.
    ///
    /// # Cancel safety
    ///
    /// The lock is also released if the future is dropped.
    pub async fn release(self) -> Result<(), Error> {
        self.released.send_replace(true);
        match self.task.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Error::lost(self.name.as_str())),
        }
    }
}
