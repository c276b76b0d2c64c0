//! The arguments and the answers of calls.

use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::name::{LockKind, LockName};

/// The answer to [`Probe`](crate::Probe).
#[derive(Debug, Default)]
pub struct Probed {
    /// The entry, if it is newer than the known one and readable.
    pub entry: Option<Entry>,
    /// The lock.
    pub lock: LockState,
    /// The latest epoch of an [`Invalidate`](crate::Invalidate); 0 when there is none.
    pub epoch: i64,
}

/// The answer to [`TryLock`](crate::TryLock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The fence of the lease; `None`: the lock was not taken.
    pub fence: Option<i64>,
    /// The statement was sent again after its connection broke. The database may carry the first
    /// sending out later.
    pub resent: bool,
}

/// The times after which [`PruneLocks`](crate::PruneLocks) removes locks.
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

/// The answer to [`PruneEntries`](crate::PruneEntries).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// The last key examined, after which the next step continues.
    pub last: String,
    /// The smallest epoch of the examined entries; `i64::MAX` without any.
    pub oldest: i64,
}

/// An entry to publish.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// Status, headers and body.
    pub content: Response<Bytes>,
    /// The fence of the stored entry that has the same content, so that the content is not sent.
    pub renews: Option<i64>,
    /// The latest epoch before the content was generated. Later invalidations apply to the entry.
    pub epoch: i64,
    /// The age at which the entry becomes stale.
    pub interval: Duration,
    /// Perennial's metadata, which a probe returns unchanged.
    pub metadata: String,
    /// One line of text about this generation, with its end of line. The store puts the line before
    /// the history that is stored, of which the first 2,400 bytes stay.
    pub history: String,
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
    /// See [`NewEntry::epoch`].
    pub epoch: i64,
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
    /// See [`NewEntry::interval`].
    pub interval: Duration,
    /// See [`NewEntry::epoch`].
    pub epoch: i64,
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

/// The answer to [`Count`](crate::Count).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The number of stored pages.
    pub pages: u64,
    /// Those whose interval is over.
    pub stale: u64,
    /// The size of their bodies, in bytes.
    pub bytes: u64,
}

impl Counted {
    /// Returns the approximate size of the rows, in bytes.
    pub fn weight(&self) -> u64 {
        self.bytes + self.pages * ROW
    }
}

/// The approximate size of a page's row beside the body: headers, metadata, history and indexes.
pub const ROW: u64 = 2 << 10;

/// The state of a lock in a [`Probed`].
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

/// The answer to [`Invalidated`](crate::Invalidated).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// The invalidated names with their epochs.
    pub names: Vec<(String, i64)>,
    /// The state of the page of each awaited key.
    pub awaited: Vec<Awaited>,
    /// The ids of some invalidations that transactions of the application have committed, and that no
    /// process has [applied](crate::Apply).
    pub committed: Vec<String>,
}

/// The state of a page in a [`Synced`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// The fence of the stored version; 0 if there is none.
    pub fence: i64,
    /// The time until the lease on the page expires; zero if no process holds the lease.
    pub remaining: Duration,
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

/// The answer to [`Begin`](crate::Begin).
#[derive(Clone, Debug)]
pub enum Begun<C = Response<Bytes>> {
    /// The owner has begun the request, now or by an earlier call.
    Own,
    /// The request was begun by another owner, or has finished.
    Other {
        /// The fingerprint of the first request.
        fingerprint: String,
        /// The state of the first request.
        progress: Progress<C>,
    },
}

/// The state of a request that was begun.
#[derive(Clone, Debug)]
pub enum Progress<C = Response<Bytes>> {
    /// The request may be running.
    Running,
    /// The request was begun longer ago than it may count as running, and has not finished.
    Unknown,
    /// The request was done. `None`: its response is not stored, or cannot be read.
    Done(Option<C>),
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

impl From<&LeaseRow> for LeaseRow {
    fn from(row: &Self) -> Self {
        row.clone()
    }
}
