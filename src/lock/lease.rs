//! A lock that is held.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::{
    error::Error,
    lock::Hold,
    store::{Guarded, LeaseRow},
};

/// A lock that is held, extended in the background at a third of its length until it is released, dropped or [lost](Self::lost).
///
/// Dropping it releases the lock in a task of its own, not before drop returns; where no runtime is left to do so, the
/// lock is free after the lease. [`release`](Self::release) tells when it is done.
#[must_use = "the lock is released when the lease is dropped: keep it in a variable, as in `let _lease`; `let _` and `is_some()` drop it at once"]
pub struct Lease {
    held: Held,
    keeper: AbortOnDropHandle<()>,
    /// Dropping it leaves the lock as it is.
    left: bool,
    /// With which it is released when it is dropped.
    cooldown: Duration,
}

/// What a lease and its keeper know. Cheap to clone.
#[derive(Clone)]
struct Held {
    store: Guarded,
    row: Arc<LeaseRow>,
    hold: Hold,
    /// When it was tried to take it.
    since: Instant,
    /// Until when the lease is known to hold.
    valid: watch::Sender<Valid>,
}

/// What is known of a lease, in this process's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Valid {
    Until(Instant),
    Lost,
}

impl Lease {
    pub(super) fn keep(store: Guarded, row: LeaseRow, hold: Hold, since: Instant) -> Self {
        let valid = watch::Sender::new(Valid::Until(since + hold.length(since, since)));
        let held = Held {
            store,
            row: Arc::new(row),
            hold,
            since,
            valid,
        };
        let keeper = held.clone().keep();
        Self {
            held,
            keeper: AbortOnDropHandle::new(tokio::spawn(keeper.in_current_span())),
            left: false,
            cooldown: Duration::ZERO,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.held.row.name
    }

    /// The fencing token: greater than that of every earlier lease on this name.
    ///
    /// Whoever is written to under the lock can refuse a holder that has been overtaken, by the greatest fence it has seen.
    /// In SQL, beside what is written, as in `examples/locks.rs`; no row is changed when a later fence has written:
    ///
    /// ```sql
    /// UPDATE document SET text = $1, fence = $2 WHERE id = $3 AND fence <= $2
    /// ```
    pub fn fence(&self) -> i64 {
        self.held.row.fence
    }

    /// Whether what was written under the [fence](Self::fence) has been: as the result of sqlx's statement says, which changes no row when a later holder has written.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f(pool: sqlx::SqlitePool, lease: perennial::Lease) -> Result<(), Box<dyn std::error::Error>> {
    /// let write = sqlx::query("UPDATE document SET text = 'new', fence = ?1 WHERE id = 7 AND fence <= ?1");
    /// lease.written(write.bind(lease.fence()).execute(&pool).await?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// It tells no more than that. A holder that was overtaken by one that has not written yet can still write; where even that is too late, `docs/protocol.md` has a statement that
    /// asks for the lock, too.
    ///
    /// # Errors
    ///
    /// [Lost](Error::is_lost): no row was changed. (So does a row that isn't there: write it before, with the fence 0.)
    #[cfg(feature = "_sql")]
    pub fn written(&self, result: impl Into<crate::store::Changed>) -> Result<(), Error> {
        match result.into().0 {
            0 => Err(Error::lost(self.name())),
            _ => Ok(()),
        }
    }

    pub(crate) fn row(&self) -> &LeaseRow {
        &self.held.row
    }

    /// How long it holds at least, unless it is extended: counted from before the attempt, or the extension, by this process's
    /// monotonic clock. Zero when it is lost.
    pub fn remaining(&self) -> Duration {
        match *self.held.valid.borrow() {
            Valid::Until(until) => until.saturating_duration_since(Instant::now()),
            Valid::Lost => Duration::ZERO,
        }
    }

    /// Lets the lease run for its whole length again from now. Rarely needed, as it is extended by itself.
    ///
    /// # Errors
    ///
    /// [Lost](Error::is_lost), or the database fails: then it stands as it was.
    pub async fn extend(&self) -> Result<(), Error> {
        self.held.extend().await
    }

    /// If it is dropped, the lock is not released, but runs out with an owner: nobody knows what has come of that.
    pub(crate) fn left_when_dropped(mut self) -> Self {
        self.left = true;
        self
    }

    /// The contrary, when it is known.
    pub(crate) fn released_when_dropped(mut self) -> Self {
        self.left = false;
        self
    }

    /// Gives the lock up, at once for the next one to take, unless it is to be [held at least](crate::Locks::hold_at_least) for longer.
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
        self.cooldown = cooldown;
        self.try_release_after(cooldown).await
    }

    /// The same, but if it fails or is dropped, the lock is to be free.
    pub(crate) async fn try_release_after(mut self, cooldown: Duration) -> Result<(), Error> {
        // From now on it may be lost without that being worth a word.
        self.keeper.abort();
        // Dropped because it could not be, it is released once more.
        let released = self.held.release(cooldown).await?;
        self.left = true;
        if released {
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
            .held
            .valid
            .subscribe()
            .wait_for(|valid| *valid == Valid::Lost)
            .await;
    }

    /// Runs a future for as long as the lease holds: when it is [lost](Self::lost), the future is dropped.
    ///
    /// It can't be stopped before its next `await`: what must not be done twice needs the [fence](Self::fence) as well.
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
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (held, cooldown) = (self.held.clone(), self.cooldown);
            runtime.spawn(async move {
                // Unreleased, it expires.
                let _ = held.release(cooldown).await;
            });
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.held.row.name)
            .field("fence", &self.held.row.fence)
            .field("valid", &*self.held.valid.borrow())
            .finish_non_exhaustive()
    }
}

impl Held {
    async fn extend(&self) -> Result<(), Error> {
        let now = Instant::now();
        let length = self.hold.length(self.since, now);
        let extended = self
            .store
            .call("extend", |store| store.extend(&self.row, length))
            .await?;
        if extended {
            // Whoever was told that it is lost is not told otherwise.
            let holds = self.valid.send_if_modified(|valid| match valid {
                Valid::Until(until) => {
                    *until = (*until).max(now + length);
                    true
                }
                Valid::Lost => false,
            });
            if holds {
                return Ok(());
            }
        }
        self.valid.send_replace(Valid::Lost);
        Err(Error::lost(&*self.row.name))
    }

    async fn release(&self, cooldown: Duration) -> Result<bool, Error> {
        let least = self.hold.at_least.saturating_sub(self.since.elapsed());
        let cooldown = cooldown.max(least);
        self.store
            .call("release", |store| store.release(&self.row, cooldown))
            .await
    }

    /// Extends the lease at a third of its length, more often when that fails, until it is lost; or sees it end.
    async fn keep(self) {
        let third = self.hold.lease / 3;
        let mut pause = third;
        loop {
            let Valid::Until(until) = *self.valid.borrow() else {
                return;
            };
            if !self.hold.extends {
                tokio::time::sleep_until(until).await;
                self.valid.send_if_modified(|valid| {
                    let over = *valid == Valid::Until(until);
                    if over {
                        *valid = Valid::Lost;
                    }
                    over
                });
                continue;
            }
            tokio::time::sleep_until(until.min(Instant::now() + pause)).await;
            let name = &self.row.name;
            pause = match tokio::time::timeout_at(until, self.extend()).await {
                Ok(Ok(())) => third,
                Ok(Err(error)) if error.is_lost() => {
                    tracing::warn!(
                        name,
                        "the lease is lost: somebody has taken the lock over, or broken it"
                    );
                    return;
                }
                Ok(Err(_)) if Instant::now() < until => third / 4,
                // An error that comes at once would be followed by the next one without end.
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(name, "the lease is lost: it could not be extended in time");
                    self.valid.send_replace(Valid::Lost);
                    return;
                }
            };
        }
    }
}
