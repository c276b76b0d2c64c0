//! What is done at most once.

use std::time::Duration;

use crate::{
    error::Error,
    lock::{Lease, LockInfo, LockName, Locks},
};

/// For ever.
const KEEP: Duration = Duration::from_hours(24 * 365 * 1000);

/// Something that is done at most once, by whichever process comes first; from [`Locks::once`].
///
/// What was done is remembered as a lock that is released but can't be taken again: `once/` and the name.
#[derive(Clone, Debug)]
#[must_use = "nothing is done until it is run"]
pub struct Once {
    locks: Locks,
    name: LockName,
    keep: Duration,
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
}

impl Once {
    pub(super) fn new(locks: Locks, name: &LockName) -> Self {
        Self {
            locks,
            name: LockName::from(format!("once/{}", name.as_str())),
            keep: KEEP,
        }
    }

    /// How long it is remembered that it was done. Default: for ever. After that it can be done again.
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = time.min(KEEP);
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
    /// The database fails: it was not run.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it runs, it counts as done.
    pub async fn run<F, Fut>(self, work: F) -> Result<Outcome<Fut::Output>, Error>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        match self.begin().await? {
            Ok(lease) => {
                lease.release_after(self.keep).await?;
                Ok(Outcome::Ran(work().await))
            }
            Err(outcome) => Ok(outcome),
        }
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
        if let Some(lease) = self.locks.try_lock(self.name.clone()).await? {
            return Ok(Ok(lease));
        }
        let info = self.locks.inspect(self.name.clone()).await?;
        Ok(Err(match info {
            Some(LockInfo {
                holder: None,
                age,
                remaining,
                ..
            }) if !remaining.is_zero() => Outcome::AlreadyDone { since: age },
            _ => Outcome::InProgress,
        }))
    }
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
