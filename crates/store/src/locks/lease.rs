//! A held lock. The holder has a [`Lease`], and a background task extends it until it is released, dropped
//! or lost. [`state`](super::state) decides what the task does next, without I/O, and this module carries
//! it out.
//!
//! Invariant: after a loss that the holder has seen, the lease never counts as held again.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::{
    calls::{BreakLock, Extend, Release, Revoke},
    error::{Error, ErrorKind},
    fence::Fence,
    locks::{
        Common,
        state::{Extension, LeaseSettings, Term},
    },
    rows::LeaseRow,
    store_event::StoreEvent,
};

/// A held lock. The lease is extended in the background each time a third of its length has passed, until it is
/// released, dropped or [lost](Self::lost).
///
/// Dropping it releases the lock in a task, for which [`Locks::shutdown`](crate::locks::Locks::shutdown) waits;
/// without a runtime, the lock becomes free when the lease expires.
#[must_use = "the lock is released when the lease is dropped: keep it in a variable, as in `let _lease`; `let _` and `is_some()` drop it immediately"]
pub struct Lease {
    core: LeaseCore,
    /// Extends the lease, unless the caller does.
    extender: Option<AbortOnDropHandle<()>>,
    dropped: Dropped,
    /// True if the attempt was sent twice. The database may execute one of the copies only after the end of the
    /// lease, so the lock is revoked then.
    resent: bool,
}

/// The effect on the lock of dropping its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    /// Nothing, as the lock has been released.
    Released,
    /// Releases the lock with this cooldown.
    Release(Duration),
    /// Breaks the lock, so that an unfinished release has no effect.
    Break,
}

/// The shared part of a lease and its extender. Cheap to clone.
#[derive(Clone)]
struct LeaseCore {
    common: Common,
    row: Arc<LeaseRow>,
    term: watch::Sender<Term>,
}

impl Lease {
    pub(super) fn start(
        common: Common,
        row: LeaseRow,
        settings: LeaseSettings,
        since: Instant,
        resent: bool,
    ) -> Self {
        let core = LeaseCore {
            common,
            row: Arc::new(row),
            term: watch::Sender::new(Term::new(settings, since)),
        };
        let extender = settings.extends.then(|| {
            let extender = core.clone().extend_until_lost();
            AbortOnDropHandle::new(tokio::spawn(extender.in_current_span()))
        });
        Self {
            core,
            extender,
            dropped: Dropped::Release(Duration::ZERO),
            resent,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        self.core.row.name.as_str()
    }

    /// Returns the fencing token, which is greater than the token of every earlier lease on this name.
    ///
    /// A late write by a paused holder cannot overwrite a later holder's, if each write stores its fence, and
    /// is refused when a greater fence is stored already:
    ///
    /// ```sql
    /// UPDATE document SET text = $1, fence = $2 WHERE id = $3 AND fence <= $2
    /// ```
    pub fn fence(&self) -> Fence {
        self.core.row.fence
    }

    #[doc(hidden)]
    pub fn row(&self) -> &LeaseRow {
        &self.core.row
    }

    /// Returns the time until the lease ends, by this process's monotonic clock. Zero if the lease
    /// is lost.
    pub fn remaining(&self) -> Duration {
        self.core.term.borrow().remaining(Instant::now())
    }

    /// Extends the lease to its full length, counted from now.
    ///
    /// # Errors
    ///
    /// [Lost](crate::ErrorKind::Lost) if the lease is lost. If the database fails, the lease may still be
    /// valid, and this process treats it as ending at its old time.
    pub async fn extend(&self) -> Result<(), Error> {
        self.core.extend().await
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// [Lost](crate::ErrorKind::Lost) if another holder has taken the lock over, or if the lock was
    /// [broken](crate::locks::Locks::break_lock). An error of another kind if the database fails;
    /// the lock is then free when the lease expires, at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released as when the lease is dropped.
    pub async fn release(self) -> Result<(), Error> {
        self.release_after(Duration::ZERO).await
    }

    /// Releases the lock with a cooldown, during which no process can take it.
    ///
    /// # Errors
    ///
    /// The errors of [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released with the cooldown.
    pub async fn release_after(self, cooldown: Duration) -> Result<(), Error> {
        self.end(cooldown, Dropped::Release(cooldown)).await
    }

    /// Releases the lock with a cooldown. Breaks the lock if the release fails or is dropped.
    #[doc(hidden)]
    pub async fn release_after_or_break(self, cooldown: Duration) -> Result<(), Error> {
        self.end(cooldown, Dropped::Break).await
    }

    /// Releases the lock. If the release fails or the call is dropped, the lease is treated as `dropped` says.
    async fn end(mut self, cooldown: Duration, dropped: Dropped) -> Result<(), Error> {
        self.dropped = dropped;
        // The lock is given up on purpose, so from here on a loss is not reported.
        self.extender = None;
        let released = self.core.release(cooldown).await?;
        self.dropped = Dropped::Released;
        if released {
            Ok(())
        } else {
            Err(Error::lost(self.name()))
        }
    }

    /// Resolves when the lease can no longer be relied on: it has ended without an extension, or an
    /// extension was refused, because another holder has taken the lock over or somebody has broken
    /// it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; can be awaited any number of times.
    pub async fn lost(&self) {
        self.core.lost().await;
    }

    /// Runs a future for as long as the lease holds: when it is [lost](Self::lost), the future is dropped,
    /// at its next `await`.
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
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (core, dropped) = (self.core.clone(), self.dropped);
            let tasks = &self.core.common.tasks;
            match dropped {
                Dropped::Released => {}
                Dropped::Release(cooldown) => drop(tasks.spawn_on(
                    // An unreleased lock expires.
                    async move { drop(core.release(cooldown).await) },
                    &runtime,
                )),
                Dropped::Break => drop(tasks.spawn_on(core.break_lock(), &runtime)),
            }
        }
        if self.resent {
            let LeaseRow { name, owner, .. } = &*self.core.row;
            let revoke = Revoke::new(name, owner);
            self.core.common.store.undo(revoke);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.core.row.name)
            .field("fence", &self.core.row.fence)
            .field("term", &*self.core.term.borrow())
            .finish_non_exhaustive()
    }
}

impl LeaseCore {
    async fn extend(&self) -> Result<(), Error> {
        let requested = Instant::now();
        let length = self.term.borrow().length(requested);
        let store = &self.common.store;
        let extended = store.call(Extend::new(&*self.row, length));
        let (extended, mut holds) = (extended.await?, false);
        self.term.send_if_modified(|term| {
            holds = extended && term.extend(requested);
            holds || term.lose()
        });
        if holds {
            Ok(())
        } else {
            Err(Error::lost(self.row.name.as_str()))
        }
    }

    async fn release(&self, cooldown: Duration) -> Result<bool, Error> {
        let cooldown = self.term.borrow().cooldown(cooldown, Instant::now());
        let store = &self.common.store;
        let released = store.call(Release::new(&*self.row, cooldown));
        released.await
    }

    async fn break_lock(self) {
        let (store, row) = (&self.common.store, &self.row);
        let lock = BreakLock::new(&row.name, Some(row.fence));
        if store.call(lock.clone()).await.is_err() {
            store.undo(lock);
        }
    }

    /// Waits for the end of the lease. The caller's own runtime measures the time: the extender's
    /// may have ended.
    async fn lost(&self) {
        let mut term = self.term.subscribe();
        loop {
            let Some(until) = term.borrow_and_update().until() else {
                return;
            };
            tokio::select! {
                biased;
                // The sender is a field of this lease, so the channel is never closed while we wait.
                _ = term.changed() => {}
                () = tokio::time::sleep_until(until) => {
                    self.term.send_if_modified(|term| term.expire(Instant::now()));
                }
            }
        }
    }

    /// Extends the lease until it is lost.
    async fn extend_until_lost(self) {
        let mut last = Extension::Done;
        loop {
            let (term, now) = (*self.term.borrow(), Instant::now());
            let (pause, until) = match (term.next(last, now), term.until()) {
                (Ok(pause), Some(until)) => (pause, until),
                // The caller of `extend` has already received the error.
                (Ok(_), None) => return,
                (Err(reason), _) => {
                    let LeaseRow { name, fence, .. } = &*self.row;
                    self.common.store.notify(&StoreEvent::LockLost {
                        name,
                        fence: *fence,
                        reason,
                    });
                    self.term.send_if_modified(Term::lose);
                    return;
                }
            };
            tokio::time::sleep_until(until.min(now + pause)).await;
            last = match tokio::time::timeout_at(until, self.extend()).await {
                Ok(Ok(())) => Extension::Done,
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => Extension::Refused,
                // The store has logged it.
                Ok(Err(_)) => Extension::Failed,
                Err(_) => {
                    // A process that was paused gets here long after the end of its lease.
                    let late = Instant::now().saturating_duration_since(until);
                    tracing::warn!(
                        target: "perennial::lock",
                        name = self.row.name.as_str(),
                        late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX),
                        "the lease has ended before it was extended: the database did not answer in time, or this process stood still"
                    );
                    Extension::Failed
                }
            };
        }
    }
}
