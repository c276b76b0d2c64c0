//! A lock that is held.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::{
    error::Error,
    locks::{
        Common,
        state::{Extension, Hold, Term},
    },
    store::{LeaseRow, Reclaim},
};

/// A lock that is held, extended in the background at a third of its length until it is released, dropped or [lost](Self::lost).
///
/// Dropping it releases the lock in a task of its own, not before drop returns; where no runtime is left to do so, the
/// lock is free after the lease. [`Perennial::shutdown`](crate::Perennial::shutdown) and [`Locks::shutdown`](crate::Locks::shutdown) wait for that
/// task. [`release`](Self::release) tells when the lock is released.
#[must_use = "the lock is released when the lease is dropped: keep it in a variable, as in `let _lease`; `let _` and `is_some()` drop it at once"]
pub struct Lease {
    held: Held,
    /// Extends the lease, unless the caller does.
    keeper: Option<AbortOnDropHandle<()>>,
    dropped: Dropped,
    /// A try for it had no answer, and was made again: it may yet arrive.
    is_stray: bool,
}

/// The effect on the lock of dropping its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    /// Nothing: it has been released.
    Released,
    /// Nothing: its end has to come, with an owner.
    Leave,
    /// Releases it, with this cooldown.
    Release(Duration),
    /// Frees it, and lets a release that is still under way do nothing.
    Revoke,
}

/// What a lease and its keeper know. Cheap to clone.
#[derive(Clone)]
struct Held {
    common: Common,
    row: Arc<LeaseRow>,
    term: watch::Sender<Term>,
}

impl Lease {
    pub(super) fn keep(
        common: Common,
        row: LeaseRow,
        hold: Hold,
        since: Instant,
        is_stray: bool,
    ) -> Self {
        let held = Held {
            common,
            row: Arc::new(row),
            term: watch::Sender::new(Term::new(hold, since)),
        };
        let keeper = hold.extends.then(|| {
            let keeper = held.clone().keep();
            AbortOnDropHandle::new(tokio::spawn(keeper.in_current_span()))
        });
        Self {
            held,
            keeper,
            dropped: Dropped::Release(Duration::ZERO),
            is_stray,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        self.held.row.name.as_str()
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
    pub fn written(&self, result: impl Into<crate::sql::Changed>) -> Result<(), Error> {
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
        self.held.term.borrow().remaining(Instant::now())
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
        self.dropped = Dropped::Leave;
        self
    }

    /// The contrary, when it is known.
    pub(crate) fn released_when_dropped(mut self) -> Self {
        self.dropped = Dropped::Release(Duration::ZERO);
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
    pub(crate) async fn release_after(self, cooldown: Duration) -> Result<(), Error> {
        self.end(cooldown, Dropped::Release(cooldown)).await
    }

    /// As [`release_after`](Self::release_after). If that fails or is dropped, the lock is free, also when the database comes to the release
    /// later.
    pub(crate) async fn release_after_or_revoke(self, cooldown: Duration) -> Result<(), Error> {
        self.end(cooldown, Dropped::Revoke).await
    }

    /// Releases the lock; if that fails or is dropped, it is as if the lease were `dropped`.
    async fn end(mut self, cooldown: Duration, dropped: Dropped) -> Result<(), Error> {
        self.dropped = dropped;
        // From now on it may be lost without that being worth a word.
        self.keeper = None;
        let released = self.held.release(cooldown).await?;
        self.dropped = Dropped::Released;
        if released {
            Ok(())
        } else {
            Err(Error::lost(self.name()))
        }
    }

    /// Resolves when the lease can no longer be relied on: another process has taken the lock over, or the lease has ended
    /// without an extension. Never, while the lease holds.
    ///
    /// A lease is extended on the runtime on which its lock was taken. When that runtime has ended, or does not run, the lease ends
    /// too; `lost` resolves on any runtime.
    ///
    /// The clock of a lease stands still while the machine is suspended: `lost` resolves at the next extension after that, at most a
    /// third of the lease's length later.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; can be awaited any number of times.
    pub async fn lost(&self) {
        self.held.lost().await;
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
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (held, dropped) = (self.held.clone(), self.dropped);
            let tasks = &self.held.common.tasks;
            match dropped {
                Dropped::Released | Dropped::Leave => {}
                Dropped::Release(cooldown) => drop(tasks.spawn_on(
                    // Unreleased, it expires.
                    async move { drop(held.release(cooldown).await) },
                    &runtime,
                )),
                Dropped::Revoke => drop(tasks.spawn_on(held.revoke(), &runtime)),
            }
        }
        if self.is_stray && self.dropped != Dropped::Leave {
            let LeaseRow { name, owner, .. } = &*self.held.row;
            self.held.common.stray(LeaseRow::lost(name, owner));
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.held.row.name)
            .field("fence", &self.held.row.fence)
            .field("term", &*self.held.term.borrow())
            .finish_non_exhaustive()
    }
}

impl Held {
    async fn extend(&self) -> Result<(), Error> {
        let asked = Instant::now();
        let length = self.term.borrow().length(asked);
        let store = &self.common.store;
        let extended = store.call("extend", |store| store.extend(&self.row, length));
        let (extended, mut holds) = (extended.await?, false);
        self.term.send_if_modified(|term| {
            holds = extended && term.extend(asked);
            holds || term.lose()
        });
        match holds {
            true => Ok(()),
            false => Err(Error::lost(self.row.name.as_str())),
        }
    }

    async fn release(&self, cooldown: Duration) -> Result<bool, Error> {
        let cooldown = self.term.borrow().cooldown(cooldown, Instant::now());
        let store = &self.common.store;
        let released = store.call("release", |store| store.release(&self.row, cooldown));
        released.await
    }

    async fn revoke(self) {
        if !self.common.store.reclaim(&[&*self.row]).await {
            self.common.stray((*self.row).clone());
        }
    }

    /// Waits for the end of the lease. The caller's own runtime measures the time: the keeper's may have ended.
    async fn lost(&self) {
        let mut term = self.term.subscribe();
        loop {
            let Some(until) = term.borrow_and_update().until() else {
                return;
            };
            tokio::select! {
                biased;
                // The sender is a field of this lease.
                _ = term.changed() => {}
                () = tokio::time::sleep_until(until) => {
                    self.term.send_if_modified(|term| term.expire(Instant::now()));
                }
            }
        }
    }

    /// Extends the lease until it is lost.
    async fn keep(self) {
        let mut last = Extension::Done;
        loop {
            let (term, now) = (*self.term.borrow(), Instant::now());
            let (pause, until) = match (term.next(last, now), term.until()) {
                (Ok(pause), Some(until)) => (pause, until),
                // Whoever has extended it has been told.
                (Ok(_), None) => return,
                (Err(why), _) => {
                    tracing::warn!(name = self.row.name.as_str(), "the lease is lost: {why}");
                    self.term.send_if_modified(Term::lose);
                    return;
                }
            };
            tokio::time::sleep_until(until.min(now + pause)).await;
            last = match tokio::time::timeout_at(until, self.extend()).await {
                Ok(Ok(())) => Extension::Done,
                Ok(Err(error)) if error.is_lost() => Extension::Refused,
                Ok(Err(_)) | Err(_) => Extension::Failed,
            };
        }
    }
}
