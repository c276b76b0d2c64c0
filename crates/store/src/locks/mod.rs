//! Locks by name, shared by all processes on a database.
//!
//! [`Locks`] takes, inspects and breaks locks. A [`Lease`] is a lock that is held, and a [`LockAttempt`] waits
//! for a lock. `state` decides when a lease is extended and when it is lost; it consists of pure functions.
//! The statements are in `sql/statements/locks.rs`, and [`TryLock`] describes what every store guarantees
//! about locks.
//!
//! Invariant: an acquisition whose caller has left, or whose reply was lost, is undone; it never holds the
//! lock for longer than one lease.

mod attempt;
mod info;
mod lease;
mod state;

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::{
    calls::{BreakLock, Held, Inspect, PruneLocks, Revoke, TryLock},
    clock::YEAR,
    error::{Error, ErrorKind},
    fence::Fence,
    name::TABLE_PREFIX,
    rows::{LeaseRow, Unused},
    sql::{Connect, Database, IntoDatabase, Tables},
    store::Store,
    store_event::StoreEvent,
    timing::{self, BRIEF_RETENTION, DATABASE_PATIENCE},
};

use attempt::Queues;
use info::{owner, process_label};
use state::{LeaseSettings, Term};

pub(crate) use crate::name::{LockKind, LockName};
pub use attempt::LockAttempt;
pub use info::{Holder, LockInfo};
pub use lease::Lease;
pub use state::is_lease;

/// Named locks, which all processes that use the database share.
///
/// A name has one lease at a time, by the database's clock. A holder that is paused for longer than
/// its lease may overlap with the next one, and is recognised by its smaller
/// [`fence`](Lease::fence).
#[derive(Clone)]
pub struct Locks {
    common: Common,
    settings: LeaseSettings,
    label: Arc<str>,
    queues: Arc<Queues>,
}

/// The parts that all locks of a store, and their leases, share.
#[derive(Clone)]
struct Common {
    store: Store,
    /// The tasks that continue without their callers, and that a shutdown waits for.
    tasks: TaskTracker,
}

impl Locks {
    #[doc(hidden)]
    pub fn with_store(store: Store) -> Self {
        Self {
            common: Common {
                store,
                tasks: TaskTracker::new(),
            },
            settings: LeaseSettings::DEFAULT,
            label: process_label().into(),
            queues: Arc::default(),
        }
    }

    /// Returns the locks of a database, and makes or upgrades Perennial's tables.
    ///
    /// # Errors
    ///
    /// The errors of `Perennial::with_pool`.
    pub async fn with_pool(pool: impl IntoDatabase) -> Result<Self, Error> {
        let database: Database = pool.into();
        let limit = database.limit();
        let tables = Tables::new(TABLE_PREFIX)?;
        let store = database.store_when(tables.clone(), Connect::Now).await?;
        Ok(Self::with_store(Store::new(
            store,
            limit,
            DATABASE_PATIENCE,
            Some(tables),
            |_| {},
        )))
    }

    /// Sets the time after which the lock of a silent holder is free. Default: 15 s.
    ///
    /// # Panics
    ///
    /// Panics outside of 10 ms – 1 year.
    #[must_use = "returns the locks with this lease"]
    pub fn lease_duration(mut self, length: Duration) -> Self {
        assert!(is_lease(length), "a lease lasts from 10 ms to a year");
        self.settings.lease = length;
        self
    }

    /// Sets the minimum time between two acquisitions of a lock. Default: zero. `Once` ignores it.
    ///
    /// # Panics
    ///
    /// Panics above 1 year.
    #[must_use = "returns the locks with this time"]
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        assert!(time <= YEAR, "a lock is held for a year at most");
        self.settings.at_least = time;
        self
    }

    /// Turns off the automatic extension of the lease in the background. The lease is then [lost](Lease::lost)
    /// at its end, unless the caller calls [`Lease::extend`].
    #[must_use = "returns the locks whose leases end"]
    pub fn manual_extension(mut self) -> Self {
        self.settings.extends = false;
        self
    }

    /// Sets the holder's label, which others see; its first 100 bytes are stored. Default: the host name and
    /// the process ID, such as `web1:4711`.
    #[must_use = "returns the locks with this label"]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into().into();
        self
    }

    /// Takes the lock if it is free, without waiting. `None` means that another holder has the lock, or that
    /// it is in cooldown.
    ///
    /// ```
    /// # async fn f(locks: perennial_store::Locks, customer: &str) -> Result<(), perennial_store::Error> {
    /// if let Some(lease) = locks.try_lock(["sync", "bookmarks", customer]).await? {
    ///     // No other process is here, until the lease is dropped: `is_some()` alone drops it.
    ///     lease.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails. The database may still carry out the statement later. The lock
    /// is then taken until its lease expires. This process also tries to release it, several times within a
    /// quarter of an hour.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it returns may have taken the lock, which is then released.
    pub async fn try_lock(&self, name: impl Into<LockName>) -> Result<Option<Lease>, Error> {
        self.take(&name.into(), "", None).await
    }

    /// Returns an attempt, which takes the lock when awaited, within its
    /// [limit](LockAttempt::wait).
    pub fn lock(&self, name: impl Into<LockName>) -> LockAttempt {
        LockAttempt {
            locks: self.clone(),
            name: name.into(),
            wait: timing::DEFAULT_LOCK_WAIT,
            action: String::new(),
        }
    }

    #[doc(hidden)]
    pub fn store(&self) -> &Store {
        &self.common.store
    }

    /// Returns a unique owner, which no other acquisition or request has.
    #[doc(hidden)]
    pub fn owner(&self) -> String {
        owner(&self.label, "")
    }

    /// Returns the label of the leases' holder.
    #[doc(hidden)]
    pub fn own_label(&self) -> &str {
        &self.label
    }

    #[doc(hidden)]
    pub fn tasks(&self) -> &TaskTracker {
        &self.common.tasks
    }

    /// Waits for idempotent requests that continue without their clients, and for the release of
    /// dropped [leases](Lease). Call it after the server has drained. For the locks of a site, call
    /// `Perennial::shutdown` instead.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels none of the tasks.
    pub async fn shutdown(&self) {
        self.common.tasks.close();
        self.common.tasks.wait().await;
    }

    #[doc(hidden)]
    pub async fn take_housekeeping(&self, name: &str) -> Result<Option<Lease>, Error> {
        let (mut locks, name) = (self.clone(), LockName::of(LockKind::Housekeeping, name));
        locks.settings = LeaseSettings::DEFAULT;
        locks.take(&name, "", None).await
    }

    /// Takes the lock if it is free. If `seen` is given, the lock must also still have that fence.
    #[doc(hidden)]
    pub async fn take(
        &self,
        name: &LockName,
        action: &str,
        seen: Option<Fence>,
    ) -> Result<Option<Lease>, Error> {
        // The task runs to its end even if the caller has dropped this future. A lease that nobody
        // receives is dropped with the task's result, which releases the lock.
        let (locks, name, action) = (self.clone(), name.clone(), action.to_owned());
        let token = self.tasks().token();
        // A shutdown waits until the caller has the lease, or its release has begun.
        let task = async move { (locks.take_now(name, &action, seen).await, token) };
        match tokio::spawn(task.in_current_span()).await {
            Ok((taken, _token)) => taken,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(Error::caused(
                    ErrorKind::Cancelled,
                    "the attempt was cancelled",
                    error,
                )),
            },
        }
    }

    async fn take_now(
        &self,
        name: LockName,
        action: &str,
        seen: Option<Fence>,
    ) -> Result<Option<Lease>, Error> {
        let owner = owner(&self.label, action);
        // The lease is counted from the moment before the attempt, because the answer may come late.
        let since = Instant::now();
        let length = Term::new(self.settings, since).length(since);
        let tried = self.store().call(TryLock::new(&name, &owner, length, seen));
        let tried = tried.await;
        let resent = tried.as_ref().map_or(true, |tried| tried.resent);
        let taken = tried.map(|tried| tried.fence);
        if let Ok(Some(fence)) = taken {
            let event = StoreEvent::LockAcquired { name: &name, fence };
            self.store().notify(&event);
            let row = LeaseRow { name, owner, fence };
            let common = self.common.clone();
            return Ok(Some(Lease::start(
                common,
                row,
                self.settings,
                since,
                resent,
            )));
        }
        if resent {
            self.store().undo(Revoke::new(&name, owner));
        }
        if taken.is_ok() {
            self.store()
                .notify(&StoreEvent::LockContended { name: &name });
        }
        taken.map(|_| None)
    }

    #[doc(hidden)]
    pub fn shown_label(&self) -> &str {
        &self.label
    }

    /// Returns the state of a lock, or `None` if the lock has no row.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn inspect(&self, name: impl Into<LockName>) -> Result<Option<LockInfo>, Error> {
        let name = name.into();
        let row = self.store().call(Inspect { name }).await?;
        Ok(row.map(LockInfo::of))
    }

    /// Returns the locks of all kinds that are held or in cooldown, sorted by kind and name, without the marks
    /// of completed work.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn list(&self) -> Result<Vec<LockInfo>, Error> {
        let rows = self.store().call(Held {}).await?;
        Ok(rows.into_iter().map(LockInfo::of).collect())
    }

    /// Takes a lock from its holder, ends a cooldown, or removes the mark of completed work. If `seen` is
    /// given, it does so only if the lock still has this [fence](LockInfo::fence). Returns false if the lock
    /// has a different fence, or is unknown.
    ///
    /// The holder learns of the [loss](Lease::lost) at its next extension.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn break_lock(
        &self,
        name: impl Into<LockName>,
        seen: Option<Fence>,
    ) -> Result<bool, Error> {
        let name = name.into();
        let store = self.store();
        let broken = store.call(BreakLock::new(&name, seen)).await?;
        if broken {
            store.notify(&StoreEvent::LockBroken { name: &name });
        }
        Ok(broken)
    }

    /// Removes the rows of free locks: those whose lease expired more than `unused` ago, and those that were
    /// released more than an hour ago, or more than `unused` ago if that is shorter. The locks of stored pages
    /// and of Perennial's own work stay for `unused`, and the marks of completed work until their retention is
    /// over. If a removed lock is acquired again, its fence is still greater than before, unless the
    /// database's clock was set back by more than the time for which the lock was unused.
    ///
    /// # Errors
    ///
    /// The database fails: some of the locks may have been removed.
    pub async fn prune(&self, unused: Duration) -> Result<(), Error> {
        for kind in LockKind::all() {
            // Visitors can invent pages, and names for the locks of exclusive routes. Locks of these kinds are
            // removed sooner.
            let alone = match kind {
                LockKind::Page | LockKind::Lock => unused.min(BRIEF_RETENTION),
                LockKind::Housekeeping | LockKind::Once => unused,
            };
            let unused = Unused {
                released: unused,
                expired: unused,
                alone,
            };
            let mut next = None;
            loop {
                let after: Option<String> = next;
                let pruned = self.store().call(PruneLocks::new(kind, unused, after));
                next = pruned.await?;
                if next.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("hold", &self.settings)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
