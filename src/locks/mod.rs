//! The lock: a row in the database, held for as long as its lease is extended.

mod attempt;
#[cfg(feature = "_sql")]
mod claims;
mod lease;
mod once;
#[cfg(feature = "_sql")]
mod session;
mod state;

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::{
    error::Error,
    policy::bounded_lease,
    store::{Guarded, LeaseRow, LockRow, Sending, Strays, Unused},
    timing::{self, REQUEST_DONE, UNKNOWN_OUTCOME},
};

#[cfg(feature = "_sql")]
use crate::{
    name::TABLE_PREFIX,
    sql::{Connect, IntoDatabase},
    timing::DATABASE_PATIENCE,
};

use attempt::Queues;
use state::{Hold, Term};

pub use crate::name::{LockKind, LockName};
pub use attempt::LockAttempt;
#[cfg(feature = "_sql")]
pub use claims::{Claim, Claims};
pub use lease::Lease;
#[cfg(feature = "_sql")]
pub use once::changed_one;
pub use once::{Once, OnceRetried, Outcome};
#[cfg(feature = "_sql")]
pub use session::SessionLock;

/// Locks by name, shared by all processes on the database.
///
/// One lease at a time on a name, while leases are honoured: time is the database's, and a holder that is paused for longer
/// than its lease may overlap with the next one, which its smaller [`fence`](Lease::fence) gives away. Names are bytes: `a`, `A` and
/// `a ` are three. Perennial's own locks are of other [kinds](LockKind), which have their own names.
///
/// ```
/// # async fn f(site: perennial::Perennial, customer: &str) -> Result<(), perennial::Error> {
/// if let Some(lease) = site.locks().try_lock(["sync", "bookmarks", customer]).await? {
///     // Nobody else is here.
///     lease.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    common: Common,
    hold: Hold,
    label: Arc<str>,
    queues: Arc<Queues>,
}

/// The parts that all locks of a store, and their leases, share.
#[derive(Clone)]
struct Common {
    store: Guarded,
    /// The tasks that go on when their callers have gone, and that a shutdown waits for.
    tasks: TaskTracker,
    /// The tries whose answers were lost, each of which may have taken its lock, or may take it yet.
    strays: Arc<Strays<LeaseRow>>,
}

impl Common {
    /// Frees the lock that this stray may have taken, or takes later.
    fn stray(&self, stray: LeaseRow) {
        let first = timing::STRAY_PAUSES[0];
        self.strays.add(stray, first, self.store.clone());
    }
}

/// The longest text of a label and of an action that is kept, in bytes.
const TEXT: usize = 100;

impl Locks {
    pub(crate) fn with_store(store: Guarded) -> Self {
        Self {
            common: Common {
                store,
                tasks: TaskTracker::new(),
                strays: Arc::default(),
            },
            hold: Hold::DEFAULT,
            label: format!("process {}", std::process::id()).into(),
            queues: Arc::default(),
        }
    }

    /// The locks of a database, for an application that keeps no content; makes or upgrades Perennial's tables.
    ///
    /// # Errors
    ///
    /// As for [`Perennial::new`](crate::Perennial::new).
    #[cfg(feature = "_sql")]
    pub async fn new(pool: impl IntoDatabase) -> Result<Self, Error> {
        let database = pool.into_database();
        let limit = database.limit();
        let store = database.store_when(TABLE_PREFIX, Connect::Now).await?;
        let prefix = Some(TABLE_PREFIX.to_owned());
        Ok(Self::with_store(Guarded::new(
            store,
            limit,
            DATABASE_PATIENCE,
            prefix,
        )))
    }

    /// How long a holder that has fallen silent keeps the lock. Default: 15 s; taken into 10 ms to a year.
    #[must_use = "returns the locks with this lease"]
    pub fn lease(mut self, length: Duration) -> Self {
        self.hold.lease = bounded_lease(length);
        self
    }

    /// How long nobody else gets a lock that was taken, even if it is released before, or its holder crashes: for a job that is not to run twice
    /// in a short while on servers that begin it at nearly the same time. Default: zero; at most a year.
    #[must_use = "returns the locks with this time"]
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        self.hold.at_least = time.min(bounded_lease(Duration::MAX));
        self
    }

    /// Leases are not extended by themselves: they are [lost](Lease::lost) when they end, unless [`Lease::extend`] is called.
    #[must_use = "returns the locks whose leases end"]
    pub fn without_extension(mut self) -> Self {
        self.hold.extends = false;
        self
    }

    /// Who holds the locks that are taken by this, as others are told; the first 100 bytes count. Default: `process` and its number.
    #[must_use = "returns the locks with this label"]
    pub fn label(mut self, label: &str) -> Self {
        self.label = label.into();
        self
    }

    /// Takes the lock if it is free; `None` if somebody holds it. Never waits for the holder.
    ///
    /// Keep the lease for as long as you work (`if let Some(lease) = …`): `is_some()` alone drops it, and the lock is free.
    ///
    /// # Errors
    ///
    /// The database fails or does not answer within the statement limit.
    ///
    /// After an error the database may run the statement later, and take the lock for nobody. So the lock is checked six times in the next 21 minutes, and freed;
    /// a statement that arrives even later holds it for the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it may have taken the lock, which is then released.
    pub async fn try_lock(&self, name: impl Into<LockName>) -> Result<Option<Lease>, Error> {
        self.take(&name.into(), "", None).await
    }

    /// Takes the lock, and waits for it if somebody holds it: 10 s, unless [told otherwise](LockAttempt::wait). To be awaited.
    ///
    /// ```
    /// # async fn f(locks: perennial::Locks) -> Result<(), perennial::Error> {
    /// use std::time::Duration;
    ///
    /// let lease = locks.lock("album/7").wait(Duration::from_secs(5)).action("upload").await?;
    /// # lease.release().await }
    /// ```
    pub fn lock(&self, name: impl Into<LockName>) -> LockAttempt {
        LockAttempt {
            locks: self.clone(),
            name: name.into(),
            wait: timing::LOCK_WAIT,
            action: String::new(),
        }
    }

    /// Something that is to be done at most once, in all processes together.
    ///
    /// ```
    /// # async fn send() {}
    /// # async fn f(site: perennial::Perennial, order: &str) -> Result<(), perennial::Error> {
    /// use perennial::Outcome;
    ///
    /// let mail = site.locks().once(["mail", order]);
    /// if let Outcome::AlreadyDone { since } = mail.run(|| async { send().await }).await? {
    ///     println!("was sent {since:?} ago");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn once(&self, name: impl Into<LockName>) -> Once {
        Once::new(self.clone(), name.into())
    }

    pub(crate) fn store(&self) -> &Guarded {
        &self.common.store
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.common.tasks
    }

    /// Waits for requests that are being done [once](Self::idempotency) though their clients have gone, for their responses to be stored, and for the locks of dropped
    /// [leases](Lease) to be released. Call it after the server has
    /// drained; [`Perennial::shutdown`](crate::Perennial::shutdown) does. A request has no limit of its own: put a timeout beneath its layer, or around this. A response that
    /// cannot be stored while the database is away is given up half a minute later, and the release of a lock after the [statement limit](crate::Builder::statement_limit).
    ///
    /// The locks of a site shut down with the site: the site begins no further regeneration.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it cancels none of them.
    pub async fn shutdown(&self) {
        self.common.tasks.close();
        self.common.tasks.wait().await;
    }

    /// Takes a lock of housekeeping, for no longer than needed, whatever the application's locks are.
    pub(crate) async fn take_housekeeping(&self, name: &str) -> Result<Option<Lease>, Error> {
        let (mut locks, name) = (self.clone(), LockName::of(LockKind::Housekeeping, name));
        locks.hold = Hold::DEFAULT;
        locks.take(&name, "", None).await
    }

    /// Takes the lock if it is free and, where a fence was `seen`, still has that fence.
    pub(crate) async fn take(
        &self,
        name: &LockName,
        action: &str,
        seen: Option<i64>,
    ) -> Result<Option<Lease>, Error> {
        // In a task of its own: if this is dropped meanwhile, so is the lease that the task ends with, and is released.
        let (locks, name, action) = (self.clone(), name.clone(), action.to_owned());
        let token = self.tasks().token();
        // A shutdown waits until the lease is in its caller's hands, or its release is under way.
        let task = async move { (locks.take_now(name, &action, seen).await, token) };
        match tokio::spawn(task.in_current_span()).await {
            Ok((taken, _token)) => taken,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(Error::database("try_lock", Box::new(error))),
            },
        }
    }

    async fn take_now(
        &self,
        name: LockName,
        action: &str,
        seen: Option<i64>,
    ) -> Result<Option<Lease>, Error> {
        let id = uuid::Uuid::new_v4();
        let owner = format!("{} {}\t{}", id.simple(), plain(&self.label), plain(action));
        // The lease counts from before the attempt: its answer may be late.
        let since = Instant::now();
        let length = Term::new(self.hold, since).length(since);
        let sending = Sending::default();
        let tried = self.store().call("try_lock", |store| {
            store.try_lock(&name, &owner, length, seen)
        });
        let tried = sending.watch(tried).await;
        let is_stray = match &tried {
            Ok(_) => sending.is_open(),
            Err(_) => !sending.is_settled(),
        };
        if let Ok(Some(fence)) = tried {
            let row = LeaseRow { name, owner, fence };
            let common = self.common.clone();
            return Ok(Some(Lease::keep(common, row, self.hold, since, is_stray)));
        }
        if is_stray {
            self.common.stray(LeaseRow::lost(&name, &owner));
        }
        tried.map(|_| None)
    }

    /// What is known of a lock; `None`: it was never held, or not for so long that it was forgotten.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn inspect(&self, name: impl Into<LockName>) -> Result<Option<LockInfo>, Error> {
        let name = name.into();
        let row = self
            .store()
            .call("inspect", |store| store.inspect(&name))
            .await?;
        Ok(row.map(LockInfo::from))
    }

    /// Returns the locks of all kinds that are held or in cooldown, in the order of kinds and names, without the marks of what is
    /// [done](Self::once).
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn list(&self) -> Result<Vec<LockInfo>, Error> {
        let rows = self.store().call("list", |store| store.held()).await?;
        Ok(rows.into_iter().map(LockInfo::from).collect())
    }

    /// Takes a lock from whoever holds it, and ends a cooldown: it is free. `false`: there is no such lock. [`LockName::of`] names the lock of a
    /// page, of work that is done once or of a request.
    ///
    /// The holder finds out when it extends its lease, at a third of its length, or when it releases it: it is [lost](Lease::lost).
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn break_lock(&self, name: impl Into<LockName>) -> Result<bool, Error> {
        let name = name.into();
        self.store()
            .call("break_lock", |store| store.break_lock(&name))
            .await
    }

    /// Forgets the locks that nobody has held for so long, so that the table doesn't grow by names that are used once.
    ///
    /// Fences go on growing all the same, as they follow the database's clock. What is [done](Self::once) is not forgotten; nor, for an hour, that a
    /// [request](Self::idempotency) was done, and for 90 days that nobody knows what has come of one.
    ///
    /// # Errors
    ///
    /// The database fails: some may have been forgotten.
    pub async fn prune(&self, unused: Duration) -> Result<(), Error> {
        for kind in LockKind::ALL {
            // The lock of a request outlives the look for a response that finds none; without a note, nobody knows what came of it.
            let (released, expired) = match kind {
                LockKind::Request => (REQUEST_DONE, unused.max(UNKNOWN_OUTCOME)),
                _ => (unused, unused),
            };
            let unused = Unused { released, expired };
            let mut next = None;
            loop {
                let after: Option<String> = next;
                let pruned = self.store().call("prune", |store| {
                    store.prune_locks(kind, unused, after.as_deref())
                });
                next = pruned.await?;
                if next.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// What fits into an owner: the first bytes, without control characters.
fn plain(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(TEXT)];
    text.replace(char::is_control, " ")
}

/// What [`Locks::inspect`] and [`Locks::list`] tell of a lock. Times are by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its kind.
    pub kind: LockKind,
    /// Its name; of one longer than 180 bytes the beginning and a digest.
    pub name: String,
    /// The fence of its latest lease.
    pub fence: i64,
    /// Who holds it.
    pub holder: Option<Holder>,
    /// The time since it was taken.
    pub age: Duration,
    /// The time until it can be taken again, unless the lease is extended; zero when it is free.
    pub remaining: Duration,
}

/// Who holds a lock, as it has said itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// By [`Locks::label`].
    pub label: String,
    /// By [`LockAttempt::action`]; may be empty.
    pub action: String,
}

impl From<LockRow> for LockInfo {
    fn from(row: LockRow) -> Self {
        let held = !row.remaining.is_zero();
        let holder = row.owner.filter(|_| held).map(|owner| {
            let (_, said) = owner.split_once(' ').unwrap_or_default();
            let (label, action) = said.split_once('\t').unwrap_or((said, ""));
            Holder {
                label: label.to_owned(),
                action: action.to_owned(),
            }
        });
        Self {
            kind: row.kind,
            name: row.name,
            fence: row.fence,
            holder,
            age: row.age,
            remaining: row.remaining,
        }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("hold", &self.hold)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
