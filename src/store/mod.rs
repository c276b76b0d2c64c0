//! The store: the database tier, behind a trait.

#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "tests of the project name these items")
)]

mod guard;
mod stray;

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use http::Response;

use crate::{
    error::BoxError,
    name::{LockKind, LockName},
};

pub(crate) use guard::Guarded;
#[cfg(feature = "_sql")]
pub(crate) use stray::{BATCH, sends, waits};
pub(crate) use stray::{Reclaim, Sending, Strays};

/// What a [`Store`]'s methods return.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'a>>;

/// The entries and locks of all processes of a site.
///
/// # Contract
///
/// - **One clock.** Every age and expiry is reckoned by one clock that all processes share (a database's), and never by theirs.
/// - **Each method is one atomic step**, seen by all processes in one order; but [`purge`](Self::purge) and the two that prune, which may be done in part and
///   are then called again.
/// - **Fences only grow.** Each [`try_lock`](Self::try_lock) that succeeds gives the lock a greater fence than it ever
///   had, also when its lease has expired or was released in between, or it was [pruned](Self::prune_locks): by the clock, say, and what it had.
/// - **Nothing waits for another lease.** A lock that is taken is an answer, not a reason to wait.
/// - **Content never goes backwards.** [`publish`](Self::publish), [`renew`](Self::renew) and [`remove`](Self::remove) succeed only
///   while the lock still carries the lease's fence, and the first two only over an entry with a smaller fence.
/// - An error may mean that the step was done and its answer lost. A try, a publish and a release may be made again: repeated with
///   the same owner, they succeed again.
/// - A future that is dropped has either done its step or not; nothing is left half done.
///
/// Perennial gives each call a time limit and drops the future after it. Names can be of any length and have any characters; two
/// names of different [kinds](LockKind) are two locks, and two entries. An entry has the name of the lock under which it is published.
pub trait Store: Send + Sync + 'static {
    /// The entry of this name, when its fence is greater than `known`, and the state of the lock. Takes no lock, changes nothing.
    ///
    /// An exception is a lock that was acquired in the future: the clock was set back. The times of such a lock are moved into the present, here and by
    /// [`try_lock`](Self::try_lock), so that the lock ends after its length.
    fn probe<'a>(&'a self, name: &'a LockName, known: i64) -> StoreFuture<'a, Probe>;

    /// Takes the lock `name` for `length`, if it is free: never held before, expired or released, and not in cooldown.
    ///
    /// With `seen`, only if the lock's fence still is that; one that was never held has any. Returns the new fence, or `None`
    /// when it was not taken. To an owner that holds it already, who was not told so, the fence that it has.
    fn try_lock<'a>(
        &'a self,
        name: &'a LockName,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>>;

    /// Lets the lease expire `length` from now, if it has not expired; `false`: it is lost.
    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool>;

    /// Gives the lock up, if nobody else has taken it since; `false`: somebody has. The lock can be taken again after `cooldown`. Repeated,
    /// it succeeds again.
    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool>;

    /// Stores an edition under the lease, made now; `false`: refused, the lease has been overtaken.
    ///
    /// The entry's fence becomes the lease's.
    fn publish<'a>(
        &'a self,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
    ) -> StoreFuture<'a, bool>;

    /// As [`publish`](Self::publish), for the same content as that of the entry with the fence `known`, which is not sent again; `false` also
    /// when that entry is not the stored one any more.
    fn renew<'a>(
        &'a self,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
        known: i64,
    ) -> StoreFuture<'a, bool>;

    /// Removes the entry under the lease; `false`: there is none, or the lease has been overtaken.
    fn remove<'a>(&'a self, lease: &'a LeaseRow) -> StoreFuture<'a, bool>;

    /// Notes that `name`, of at most 255 bytes and without a NUL, is invalidated now, and returns the new epoch. One that begins with
    /// `revision:` keeps the first that it had.
    ///
    /// Epochs only grow, by all processes, and in the order in which they are seen: whoever sees one sees all smaller ones. They
    /// are also greater than the clock's microseconds since 1970 a moment ago, so that a database that has lost the last of them goes on above.
    fn invalidate<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64>;

    /// Returns the first `most` names that were invalidated after the epoch `since`, each with its latest epoch, in the order of
    /// epochs.
    fn invalidated(&self, since: i64, most: usize) -> StoreFuture<'_, Vec<(String, i64)>>;

    /// Returns, of the invalidated names, those that an invalidation of everything does not make needless: that one itself (`prefix:`),
    /// if it is there, and the first `most` names after `after`, in the order of their bytes, that begin with `purged:` or
    /// `revision:`. For the first page `after` is `purged:`.
    fn invalidated_for_long<'a>(
        &'a self,
        after: &'a str,
        most: usize,
    ) -> StoreFuture<'a, Vec<(String, i64)>>;

    /// Removes the pages of `key` and of its variants (keys that begin with `key` and a `#`), whatever is being made of them: each
    /// one's lock is taken from its holder.
    fn purge<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()>;

    /// Removes, of the first few entries of this kind, or the next ones after `after`, those that were to be kept no longer. Returns
    /// where to go on; `None`: there are no more.
    fn prune_entries<'a>(
        &'a self,
        kind: LockKind,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<Pruned>>;

    /// A lock as it stands; `None`: there is none of this name.
    fn inspect<'a>(&'a self, name: &'a LockName) -> StoreFuture<'a, Option<LockRow>>;

    /// The locks that have not expired, in the order of kinds and names; but those of [`LockKind::Once`] that have no owner.
    fn held(&self) -> StoreFuture<'_, Vec<LockRow>>;

    /// Takes a lock from whoever has it, whose fence is then no longer the lock's, and lets it be free; `false`: there is none of this name.
    fn break_lock<'a>(&'a self, name: &'a LockName) -> StoreFuture<'a, bool>;

    /// Frees the locks that were taken by tries whose answers were lost: of each, the lock of its name if its owner has it, or if it still has its
    /// fence (0: no fence is known). Such a lock gets another fence, as by [`break_lock`](Self::break_lock), so that a release that arrives
    /// later does nothing. All other locks stay as they are, and none is made. May be done in part, and is then called again.
    fn reclaim<'a>(&'a self, strays: &'a [&'a LeaseRow]) -> StoreFuture<'a, ()>;

    /// Removes in the same way locks that were [unused](Unused) for long. Returns the last name that was looked at.
    fn prune_locks<'a>(
        &'a self,
        kind: LockKind,
        unused: Unused,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>>;

    /// Forgets, of the first few names or the next ones after the epoch `after`, those that were invalidated before the epoch `before`,
    /// except two kinds of names. Those that begin with `revision:` stay. Those that begin with `purged:` go when they are older than
    /// `purged` and their epoch is not greater than `oldest`, the smallest one noted in a stored entry. Returns where to go on; `None`:
    /// there are no more.
    fn forget_invalidated(
        &self,
        before: i64,
        purged: Duration,
        oldest: i64,
        after: Option<i64>,
    ) -> StoreFuture<'_, Option<i64>>;
}

/// What [`Store::probe`] found.
#[derive(Debug, Default)]
pub struct Probe {
    /// The entry, when it is newer than the known one.
    pub entry: Option<Entry>,
    /// There is one that is newer, and can't be read. (A page is made anew then; a request is not done again.)
    pub unreadable: bool,
    /// The lock.
    pub lock: LockState,
    /// The latest epoch that [`Store::invalidate`] has returned; 0 when there is none.
    pub epoch: i64,
}

/// The times after which [`Store::prune_locks`] removes locks.
#[derive(Clone, Copy, Debug)]
pub struct Unused {
    /// The time since a lock without an owner was last held, or its cooldown ended.
    pub released: Duration,
    /// The time since a lock with an owner expired.
    pub expired: Duration,
}

/// A step of [`Store::prune_entries`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// The last key that was looked at, where the next step goes on.
    pub last: String,
    /// The smallest epoch in the notes of the entries that were looked at (the number behind `epoch=`, with which the notes begin); `i64::MAX` where none has one.
    pub oldest: i64,
}

/// What is published of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Edition<'a> {
    /// Status, headers and body.
    pub content: &'a Response<Bytes>,
    /// What Perennial notes beside it: to come back as it is.
    pub notes: &'a str,
    /// How long it is to be kept at least, unless something else is published.
    pub keep: Duration,
}

/// What is stored of a resource.
#[derive(Debug)]
pub struct Entry {
    /// The fence of the lease under which it was published.
    pub fence: i64,
    /// The time since it was published; zero if the clock was set back.
    pub age: Duration,
    /// The age is not known: it was published further in the future than clocks differ, before the database's clock was set back.
    pub undated: bool,
    /// Status, headers and body.
    pub content: Response<Bytes>,
    /// As they were published.
    pub notes: String,
}

/// A lock as [`Store::probe`] found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    /// The fence of the latest lease on it; 0 when it was never held.
    pub fence: i64,
    /// It has an owner; without one it is free or, until it expires, in cooldown.
    pub owned: bool,
    /// The time until it expires; zero when it has.
    pub remaining: Duration,
}

/// A lock in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRow {
    /// Its kind.
    pub kind: LockKind,
    /// Its name, as it is stored.
    pub name: String,
    /// Its latest owner, unless it was released.
    pub owner: Option<String>,
    /// The fence of the latest lease on it.
    pub fence: i64,
    /// The time since that was acquired.
    pub age: Duration,
    /// The time until it expires; zero when it has.
    pub remaining: Duration,
}

/// What identifies a lease in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The lock's name.
    pub name: LockName,
    /// The owner: fresh for each acquisition.
    pub owner: String,
    /// The fencing token.
    pub fence: i64,
}

impl LeaseRow {
    /// Returns the row of a try whose answer was lost.
    pub(crate) fn lost(name: &LockName, owner: &str) -> Self {
        Self {
            name: name.clone(),
            owner: owner.to_owned(),
            fence: 0,
        }
    }
}
