//! The lock: a row in the database, held for as long as its lease is extended.

use std::{fmt, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::{
    error::Error,
    refresh::{DEFAULT_LEASE, bounded_lease},
    store::{Guarded, LeaseRow},
};

/// Non-blocking locks by name, shared by all processes on the database.
///
/// One lease at a time on a name, while leases are honoured: time is the database's, and a holder that is paused for longer
/// than its lease may overlap with the next one, which its smaller [`fence`](Lease::fence) gives away. Names are bytes: `a`, `A` and
/// `a ` are three. Those that begin with `refresh/` or `perennial/` are Perennial's own.
///
/// ```
/// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
/// if let Some(lease) = site.locks().try_lock("sync/bookmarks/customer-42").await? {
///     // Nobody else is here.
///     lease.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    store: Guarded,
    lease: Duration,
}

impl Locks {
    pub(crate) fn new(store: Guarded) -> Self {
        Self {
            store,
            lease: DEFAULT_LEASE,
        }
    }

    /// How long a holder that has fallen silent keeps the lock. Default: 15 s; taken into 10 ms to a year.
    #[must_use = "returns the locks with this lease"]
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = bounded_lease(length);
        self
    }

    /// Takes the lock if it is free; `None` if somebody holds it. Never waits for the holder.
    ///
    /// # Errors
    ///
    /// The database fails or does not answer within the statement limit.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it may have taken the lock, which is then free again after the lease.
    pub async fn try_lock(&self, name: impl Into<String>) -> Result<Option<Lease>, Error> {
        self.attempt(name.into(), None).await
    }

    /// As [`try_lock`](Self::try_lock), but only while the lock's fence is still `seen`.
    pub(crate) async fn try_lock_seen(
        &self,
        name: String,
        seen: i64,
    ) -> Result<Option<Lease>, Error> {
        self.attempt(name, Some(seen)).await
    }

    async fn attempt(&self, name: String, seen: Option<i64>) -> Result<Option<Lease>, Error> {
        let owner = uuid::Uuid::new_v4().simple().to_string();
        // The lease counts from before the attempt: its answer may be late.
        let attempt = Instant::now();
        let fence = self
            .store
            .call("try_lock", |store| {
                store.try_lock(&name, &owner, self.lease, seen)
            })
            .await?;
        Ok(fence.map(|fence| {
            let row = LeaseRow { name, owner, fence };
            Lease::keep(self.store.clone(), row, self.lease, attempt)
        }))
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// A lock that is held, extended in the background at a third of its length until it is released, dropped or [lost](Self::lost).
///
/// Dropping it releases the lock in a task of its own, not before drop returns; where no runtime is left to do so, the
/// lock is free after the lease. [`release`](Self::release) tells when it is done.
#[must_use = "the lock is released when the lease is dropped"]
pub struct Lease {
    store: Guarded,
    row: LeaseRow,
    length: Duration,
    /// Until when the lease is known to hold.
    valid: watch::Sender<Valid>,
    keeper: AbortOnDropHandle<()>,
    released: bool,
}

/// What is known of a lease, in this process's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Valid {
    Until(Instant),
    Lost,
}

impl Lease {
    fn keep(store: Guarded, row: LeaseRow, length: Duration, attempt: Instant) -> Self {
        let valid = watch::Sender::new(Valid::Until(attempt + length));
        let keeper = keep_extending(store.clone(), row.clone(), length, valid.clone());
        Self {
            store,
            row,
            length,
            valid,
            keeper: AbortOnDropHandle::new(tokio::spawn(keeper.in_current_span())),
            released: false,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.row.name
    }

    /// The fencing token: greater than that of every earlier lease on this name.
    ///
    /// Whoever is written to under the lock can refuse a holder that has been overtaken, by the greatest fence it has seen.
    pub fn fence(&self) -> i64 {
        self.row.fence
    }

    pub(crate) fn row(&self) -> &LeaseRow {
        &self.row
    }

    /// Lets the lease run for its whole length again from now. Rarely needed, as it is extended by itself.
    ///
    /// # Errors
    ///
    /// [Lost](Error::is_lost), or the database fails: then it stands as it was.
    pub async fn extend(&self) -> Result<(), Error> {
        extend(&self.store, &self.row, self.length, &self.valid).await
    }

    /// Gives the lock up, at once for the next one to take.
    ///
    /// # Errors
    ///
    /// [Lost](Error::is_lost): somebody has taken it over. Or the database fails: it is free after the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, the lock is released as when the lease is dropped.
    pub async fn release(self) -> Result<(), Error> {
        self.release_after(Duration::ZERO).await
    }

    /// Gives the lock up, but nobody may take it before `cooldown`.
    pub(crate) async fn release_after(mut self, cooldown: Duration) -> Result<(), Error> {
        // From now on it may be lost without that being worth a word.
        self.keeper.abort();
        let released = self
            .store
            .call("release", |store| store.release(&self.row, cooldown))
            .await;
        self.released = true;
        if released? {
            Ok(())
        } else {
            Err(Error::lost(self.name()))
        }
    }

    /// Resolves when the lease can no longer be relied on: somebody has taken it over, or it could not be extended in
    /// time. Never, while it holds.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; can be awaited any number of times.
    pub async fn lost(&self) {
        // An error would mean that the sender is gone, and it is a field of ours.
        let _ = self
            .valid
            .subscribe()
            .wait_for(|valid| *valid == Valid::Lost)
            .await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (store, row) = (self.store.clone(), self.row.clone());
            runtime.spawn(async move {
                // Unreleased, it expires.
                let _ = store
                    .call("release", |store| store.release(&row, Duration::ZERO))
                    .await;
            });
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.row.name)
            .field("fence", &self.row.fence)
            .field("valid", &*self.valid.borrow())
            .finish_non_exhaustive()
    }
}

async fn extend(
    store: &Guarded,
    row: &LeaseRow,
    length: Duration,
    valid: &watch::Sender<Valid>,
) -> Result<(), Error> {
    let attempt = Instant::now();
    let extended = store
        .call("extend", |store| store.extend(row, length))
        .await?;
    if extended {
        // Whoever was told that it is lost is not told otherwise.
        let holds = valid.send_if_modified(|valid| match valid {
            Valid::Until(until) => {
                *until = (*until).max(attempt + length);
                true
            }
            Valid::Lost => false,
        });
        if holds {
            return Ok(());
        }
    }
    valid.send_replace(Valid::Lost);
    Err(Error::lost(&*row.name))
}

/// Extends the lease at a third of its length, more often when that fails, until it is lost.
async fn keep_extending(
    store: Guarded,
    row: LeaseRow,
    length: Duration,
    valid: watch::Sender<Valid>,
) {
    let third = length / 3;
    let mut pause = third;
    loop {
        let Valid::Until(until) = *valid.borrow() else {
            return;
        };
        tokio::time::sleep_until(until.min(Instant::now() + pause)).await;
        let extended = tokio::time::timeout_at(until, extend(&store, &row, length, &valid)).await;
        pause = match extended {
            Ok(Ok(())) => third,
            Ok(Err(error)) if error.is_lost() => {
                tracing::warn!(
                    name = row.name,
                    "the lease is lost: somebody has taken the lock over"
                );
                return;
            }
            Ok(Err(_)) => third / 4,
            Err(_) => {
                tracing::warn!(
                    name = row.name,
                    "the lease is lost: it could not be extended in time"
                );
                valid.send_replace(Valid::Lost);
                return;
            }
        };
    }
}
