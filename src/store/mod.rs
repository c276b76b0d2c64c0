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
pub(crate) use stray::{Reclaim, Sending, Strays};
#[cfg(feature = "_sql")]
pub(crate) use stray::{sends, waits};

/// The future of a [`Store`]'s method.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'a>>;

/// The entries and locks of all processes of a site.
///
/// # Contract
///
/// - **One clock.** Every age and expiry is measured by one clock that all processes share (the
///   database's), never by a process's own.
/// - **Atomic steps.** Each method is one atomic step, and all processes see the steps in one
///   order. Exceptions are [`purge`](Self::purge), [`reclaim`](Self::reclaim) and the methods that
///   prune or forget, which may be done in part and are then repeated.
/// - **Fences only grow.** Each successful [`try_lock`](Self::try_lock) gives the lock a greater
///   fence than any before, also after an expiry, a release or a [pruning](Self::prune_locks). The
///   fence follows the clock and the previous fence.
/// - **Nothing waits for another lease.** A lock that is taken is an answer, not a reason to wait.
/// - **Content never goes backwards.** [`publish`](Self::publish) and [`remove`](Self::remove)
///   succeed only while the lock still carries the lease's fence, and a publish only over an entry
///   with a smaller fence.
/// - After an error, the step may have been done and its answer lost. A try, a publish and a
///   release may be repeated with the same owner, and succeed again.
/// - A future that is dropped has done its step or not; nothing is left half done.
///
/// Perennial gives each call a time limit and drops the future after the limit. Names have any
/// length and any characters. Two names of different [kinds](LockKind) are two locks, and two
/// entries. An entry has the name of the lock under which the entry is published.
pub trait Store: Send + Sync + 'static {
    /// Returns the entry of this name, if its fence is greater than `known`, and the state of the
    /// lock. Takes no lock and changes nothing.
    ///
    /// Exception: a lock that was acquired in the future, as the clock was set back. `probe` and
    /// [`try_lock`](Self::try_lock) move the times of such a lock into the present, so that the
    /// lock ends after its length.
    fn probe<'a>(&'a self, name: &'a LockName, known: i64) -> StoreFuture<'a, Probe>;

    /// Takes the lock `name` for `length`, if the lock is free: never held, expired or released,
    /// and not in cooldown.
    ///
    /// With `seen`, the lock is taken only if it still has that fence. A lock without a row has no
    /// fence, and is taken with any `seen`. Returns the new fence, or `None` if the lock was not
    /// taken. An owner that already holds the lock (its answer was lost) gets its fence again.
    fn try_lock<'a>(
        &'a self,
        name: &'a LockName,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>>;

    /// Extends the lease to `length` from now, if the lease has not expired; `false`: the lease is
    /// lost.
    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool>;

    /// Releases the lock, which can be taken again after `cooldown`; `false`: another owner has
    /// taken the lock since. A repeated release succeeds again. A release with a cooldown counts as
    /// a [failure](LockState::failures), and one without sets the count to zero.
    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool>;

    /// Publishes an entry under the lease, generated now; `false`: refused, as the lease has been
    /// overtaken, or as the entry that this one [renews](NewEntry::renews) is no longer stored.
    ///
    /// The entry's fence becomes the lease's.
    fn publish<'a>(&'a self, lease: &'a LeaseRow, entry: &'a NewEntry<'a>)
    -> StoreFuture<'a, bool>;

    /// Removes the entry under the lease; `false`: there is none, or the lease has been overtaken.
    fn remove<'a>(&'a self, lease: &'a LeaseRow) -> StoreFuture<'a, bool>;

    /// Stores an invalidation of `name`, of at most 255 bytes and without a NUL, and returns the
    /// new epoch. A name that begins with `revision:` keeps its first epoch.
    ///
    /// Epochs only grow, over all processes, and become visible in their order: a process that sees
    /// an epoch sees all smaller ones. A new epoch is at least the microseconds since 1970 by the
    /// database's clock, so that a database that has lost the latest epochs continues above them.
    fn invalidate<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64>;

    /// Returns the first `most` invalidated names after the epoch `since`, each with its latest
    /// epoch, in the order of epochs.
    fn invalidated(&self, since: i64, most: usize) -> StoreFuture<'_, Vec<(String, i64)>>;

    /// Returns the names that are still needed after an invalidation of everything: the name of the
    /// invalidation of everything itself (`prefix:`), if there is one, and the first `most` names
    /// after `after`, in the order of bytes, that begin with `purged` or `revision:`. The first
    /// call has `after` equal to `purged:`.
    fn invalidated_for_long<'a>(
        &'a self,
        after: &'a str,
        most: usize,
    ) -> StoreFuture<'a, Vec<(String, i64)>>;

    /// Removes the pages of `key` and of its variants (keys that begin with `key` and a `#`), and
    /// takes their locks from the holders.
    fn purge<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()>;

    /// Returns the first `most` pages whose names are not less than `from`, in the order of names.
    /// `from` has at most 255 bytes and no NUL, and is not empty.
    fn list<'a>(&'a self, from: &'a str, most: usize) -> StoreFuture<'a, Vec<EntryRow>>;

    /// Removes the entries of this kind whose retention is over, among the next few entries after
    /// `after`. Returns the place to continue; `None`: there are no more entries.
    fn prune_entries<'a>(
        &'a self,
        kind: LockKind,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<Pruned>>;

    /// Returns the state of a lock; `None`: there is no lock with this name.
    fn inspect<'a>(&'a self, name: &'a LockName) -> StoreFuture<'a, Option<LockRow>>;

    /// Returns the locks that have not expired, sorted by kind and name, without those of
    /// [`LockKind::Once`] without an owner.
    fn held(&self) -> StoreFuture<'_, Vec<LockRow>>;

    /// Takes a lock from its holder, gives the lock another fence and frees it; `false`: there is
    /// no lock with this name or, with `seen`, with this name and fence.
    fn break_lock<'a>(&'a self, name: &'a LockName, seen: Option<i64>) -> StoreFuture<'a, bool>;

    /// Frees the locks of tries whose answers were lost: the lock of each name, if the try's owner
    /// has the lock, or if the lock still has the try's fence (0: no fence is known). A freed lock
    /// gets another fence, as by [`break_lock`](Self::break_lock), so that a late release has no
    /// effect. Other locks stay unchanged, and no lock is created. May be done in part, and is then
    /// repeated.
    fn reclaim<'a>(&'a self, strays: &'a [&'a LeaseRow]) -> StoreFuture<'a, ()>;

    /// Removes locks that were [unused](Unused) for long, among the next few locks after `after`.
    /// Returns the last name examined.
    fn prune_locks<'a>(
        &'a self,
        kind: LockKind,
        unused: Unused,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>>;

    /// Forgets invalidations among the next few after the epoch `after`: those with an epoch before
    /// `before`, except for two kinds. Names that begin with `revision:` stay. Names that begin
    /// with `purged:` go only if they are older than `purged` and their epoch is at most `oldest`,
    /// the smallest epoch of a stored entry. Returns the place to continue; `None`: there are no
    /// more names.
    fn forget_invalidated(
        &self,
        before: i64,
        purged: Duration,
        oldest: i64,
        after: Option<i64>,
    ) -> StoreFuture<'_, Option<i64>>;
}

/// The answer to [`Store::probe`].
#[derive(Debug, Default)]
pub struct Probe {
    /// The entry, if it is newer than the known one.
    pub entry: Option<Entry>,
    /// A newer entry exists and is unreadable. A page is then generated again; a request does not
    /// run again.
    pub unreadable: bool,
    /// The lock.
    pub lock: LockState,
    /// The latest epoch that [`Store::invalidate`] has returned; 0 when there is none.
    pub epoch: i64,
}

/// The times after which [`Store::prune_locks`] removes locks.
#[derive(Clone, Copy, Debug)]
pub struct Unused {
    /// The time since a lock without an owner was acquired for the last time, or since its cooldown
    /// ended.
    pub released: Duration,
    /// The same, for a lock without a stored entry of its kind and name.
    pub alone: Duration,
    /// The time since a lock with an owner expired.
    pub expired: Duration,
}

/// A step of [`Store::prune_entries`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// The last key examined, after which the next step continues.
    pub last: String,
    /// The smallest epoch in the metadata of the examined entries (the number behind `epoch=`, at
    /// the beginning of the metadata); `i64::MAX` without any.
    pub oldest: i64,
}

/// An entry to publish.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// Status, headers and body.
    pub content: &'a Response<Bytes>,
    /// The fence of the stored entry that has the same content, so that the content is not sent.
    pub renews: Option<i64>,
    /// Perennial's metadata, which a probe returns unchanged.
    pub metadata: &'a str,
    /// One line of text about this generation, with its end of line. The store puts the line before
    /// the history that is stored, of which the first 2,400 bytes stay.
    pub history: &'a str,
    /// The shortest time until the entry may be pruned. A purge, a removal or the next publish ends
    /// the entry earlier.
    pub retention: Duration,
}

/// A stored entry.
#[derive(Debug)]
pub struct Entry {
    /// The fence of the lease under which the entry was published.
    pub fence: i64,
    /// The time since the publish; zero if the clock was set back.
    pub age: Duration,
    /// The time of the publish, in microseconds since 1970 by the database's clock.
    pub generated: i64,
    /// The age is unknown: the publish is further in the future than clocks differ, as the
    /// database's clock was set back.
    pub undated: bool,
    /// Status, headers and body.
    pub content: Response<Bytes>,
    /// The metadata as published.
    pub metadata: String,
}

/// A stored page without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// The page's name, as stored.
    pub name: String,
    /// The fence of the lease under which the entry was published.
    pub fence: i64,
    /// The time since the publish; zero if the clock was set back.
    pub age: Duration,
    /// See [`Entry::undated`].
    pub undated: bool,
    /// The status of the response.
    pub status: u16,
    /// The size of the body, in bytes.
    pub bytes: u64,
    /// The metadata as published.
    pub metadata: String,
    /// The lines of the latest generations, newest first. The last line may be cut.
    pub history: String,
    /// The lock of the page; with the fence 0 if there is none.
    pub lock: LockRow,
}

/// The state of a lock in a [`Probe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    /// The fence of the latest lease; 0 if the lock was never held.
    pub fence: i64,
    /// The lock has an owner. Without an owner the lock is free or, until its expiry, in cooldown.
    pub owned: bool,
    /// The time until the expiry; zero afterwards.
    pub remaining: Duration,
    /// The number of releases with a cooldown since the last one without.
    pub failures: u32,
}

/// A lock in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRow {
    /// The lock's kind.
    pub kind: LockKind,
    /// The lock's name, as stored.
    pub name: String,
    /// The latest owner, unless the lock was released.
    pub owner: Option<String>,
    /// The fence of the latest lease.
    pub fence: i64,
    /// The time since the latest lease was acquired.
    pub age: Duration,
    /// The time until the expiry; zero afterwards.
    pub remaining: Duration,
}

/// The identity of a lease in the store.
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
