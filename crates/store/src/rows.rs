//! The arguments and answers of the operations of `calls.rs` as plain data. Nothing here decides anything.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;

use crate::{
    clock::FOREVER,
    fence::{Epoch, Fence},
    name::{LockKind, LockName},
};

#[derive(Debug, Default)]
pub struct Probed {
    pub entry: Option<StoredEntry>,
    pub lock: LockState,
    pub epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLockResult {
    /// The fence of the lease, or `None` if the lock was not taken.
    pub fence: Option<Fence>,
    /// True if the statement was sent again. The database may still execute the first copy later.
    pub resent: bool,
}

/// The times after which [`PruneLocks`](crate::PruneLocks) removes locks.
#[derive(Clone, Copy, Debug)]
pub struct Unused {
    /// A lock that nobody holds is removed when this time has passed since it was acquired or, if it has a
    /// cooldown, since the cooldown ended.
    pub released: Duration,
    /// The same as `released`, for a lock that has no stored entry.
    pub alone: Duration,
    /// A lock that still has an owner is removed this long after its lease has expired.
    pub expired: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// The name of the last entry that this call has examined.
    pub last: String,
    /// The smallest epoch of the entries that this call has examined, including those that it has removed. If
    /// there are none, it is [`Epoch::MAX`].
    pub oldest: Epoch,
}

/// What a process has said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    pub name: String,
    /// The time at which the figures were reported, by the database's clock.
    pub noted_at: SystemTime,
    /// The time since then.
    pub age: Duration,
    pub figures: String,
}

#[derive(Clone, Debug)]
pub struct NewEntry {
    pub content: Response<Bytes>,
    /// The fence of the stored entry that has the same content, if there is one. The content is then not sent
    /// to the database again.
    pub renews: Option<Fence>,
    /// The latest epoch that was known before the generation began. Invalidations with a later epoch make the
    /// entry stale.
    pub epoch: Epoch,
    pub interval: Duration,
    pub metadata: String,
    /// The line about this generation, to be put in front of the stored history.
    pub history: String,
    /// The minimum time for which the entry is kept before it may be pruned.
    pub retention: Duration,
    /// False for entries that are removed early if the store is full, such as a 404, however often they are
    /// generated.
    pub lasting: bool,
}

impl NewEntry {
    /// Returns the size of the entry, in bytes.
    pub fn size(&self) -> u64 {
        stored_size(&self.content, &self.metadata)
    }
}

/// Returns the size of a stored page in bytes: its headers, its body, and its metadata, which include its key
/// and its tags.
pub fn stored_size(content: &Response<Bytes>, metadata: &str) -> u64 {
    let headers = content.headers().iter();
    let headers = headers.map(|(name, value)| name.as_str().len() + value.len());
    (headers.sum::<usize>() + content.body().len() + metadata.len()) as u64
}

#[derive(Debug)]
pub struct StoredEntry {
    pub fence: Fence,
    /// The time since the version was published; zero if the clock was set back.
    pub age: Duration,
    /// The time at which the version was published, in microseconds since 1970.
    pub generated: i64,
    /// True if the age is unknown, because the database's clock was set back.
    pub age_unknown: bool,
    pub content: Response<Bytes>,
    pub epoch: Epoch,
    pub metadata: String,
}

/// A stored page without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    pub name: String,
    pub fence: Fence,
    /// The time since the version was published; zero if the clock was set back.
    pub age: Duration,
    pub age_unknown: bool,
    pub interval: Duration,
    pub epoch: Epoch,
    pub status: u16,
    /// See [`NewEntry::size`].
    pub bytes: u64,
    pub metadata: String,
    pub history: String,
    /// The lock of the page. Its fence is 0 if there is no lock.
    pub lock: LockRow,
}

/// A group of stored pages, defined by whether they were regenerated, and by when they become stale, in
/// microseconds from now.
#[derive(Clone, Copy, Debug)]
pub struct Evictable {
    /// True for pages whose current version has replaced an older one. That shows that somebody asked for them
    /// again after they were first stored.
    pub regenerated: bool,
    /// The begin of the span, excluded.
    pub after: i64,
    /// The end of the span.
    pub until: i64,
}

/// The order in which pages are evicted from a full store: group after group, and within a group, those that
/// have been stale longest go first. A page that visitors ask for is regenerated soon after it has become
/// stale. A page that has been stale for a long time is therefore one that nobody asks for, unless its
/// regeneration fails. In that case, its lock shows that somebody has tried to regenerate it, and the page
/// is kept for some time.
pub const EVICTION: [Evictable; 4] = [
    Evictable {
        regenerated: false,
        after: -ALWAYS,
        until: 0,
    },
    Evictable {
        regenerated: true,
        after: -ALWAYS,
        until: -VISITED_AGAIN,
    },
    Evictable {
        regenerated: false,
        after: 0,
        until: ALWAYS,
    },
    Evictable {
        regenerated: true,
        after: -VISITED_AGAIN,
        until: ALWAYS,
    },
];

/// If a page has been stale for longer than this, in microseconds, it counts as one that nobody visits: a page
/// in use is regenerated earlier.
pub const VISITED_AGAIN: i64 = Duration::from_mins(10).as_micros() as i64;

const ALWAYS: i64 = FOREVER.as_micros() as i64;

/// A list of invalidated names. The discriminants are the values of the column `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum NameList {
    /// Names whose pages are stale.
    Stale = 0,
    /// Names whose pages are not served any more; they begin with `purged`.
    Purged = 1,
    /// Revisions of the site's code; they begin with `revision:`.
    Revisions = 2,
}

/// A part of the list of stored pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The pages, without those whose names cannot be read.
    pub rows: Vec<EntryRow>,
    /// True if there may be more pages after the last row.
    pub more: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub pages: u64,
    /// The number of pages whose interval is over.
    pub stale: u64,
    pub bytes: u64,
}

impl Counted {
    /// Returns the approximate size of the rows, in bytes.
    pub fn weight(&self) -> u64 {
        self.bytes + self.pages * ROW_OVERHEAD
    }
}

/// The space that a page takes up in the database in addition to its [size](NewEntry::size), approximately: the
/// history, the lock and the indexes.
pub const ROW_OVERHEAD: u64 = 2 << 10;

/// The state of a lock in a [`Probed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockState {
    pub fence: Fence,
    /// The lock has an owner; without one it is free or in cooldown.
    pub owned: bool,
    /// The time until the lease or the cooldown ends.
    pub remaining: Duration,
    /// The number of releases with a cooldown since the last one without.
    pub failures: u32,
}

/// A lock that was never held.
impl Default for LockState {
    fn default() -> Self {
        Self {
            fence: Fence::NONE,
            owned: false,
            remaining: Duration::ZERO,
            failures: 0,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    pub names: Vec<(String, Epoch)>,
    pub peer_leases: Vec<PeerLeaseState>,
    /// Invalidations that transactions of the application have committed, and that have no epoch
    /// yet.
    pub committed: Vec<OutboxRow>,
}

/// An invalidation that one of the application's transactions has written into the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    pub id: String,
    pub name: String,
}

/// The outcome of [`Number`](crate::Number).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbered {
    /// The numbered rows, and the epoch of each.
    pub rows: Vec<(OutboxRow, Epoch)>,
    /// The ids of the rows that were given an epoch, and could not be removed from the outbox afterwards.
    pub left: Vec<String>,
    /// The rows that could not be given an epoch, each with the error.
    pub failed: Vec<(OutboxRow, String)>,
}

/// What a sync reports about a page whose lease is held by another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLeaseState {
    /// The fence of the stored version; [`Fence::NONE`] if there is none.
    pub fence: Fence,
    /// The time until the lease of its lock ends; zero in a cooldown.
    pub remaining: Duration,
}

/// The state of a page that has no stored version, and that nobody is generating.
impl Default for PeerLeaseState {
    fn default() -> Self {
        Self {
            fence: Fence::NONE,
            remaining: Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRow {
    pub kind: LockKind,
    pub name: String,
    pub owner: Option<String>,
    pub fence: Fence,
    pub age: Duration,
    pub remaining: Duration,
}

#[derive(Clone, Debug)]
pub enum Begun<C = Response<Bytes>> {
    /// The owner has begun the request, now or by an earlier call.
    Own,
    /// The request was begun by another owner, or has finished.
    Other {
        fingerprint: String,
        progress: RequestProgress<C>,
    },
}

#[derive(Clone, Debug)]
pub enum RequestProgress<C = Response<Bytes>> {
    Running,
    /// The request was begun so long ago that it no longer counts as running, and it has not finished.
    Unknown,
    /// The request was done. `None` means that its response is not stored, or cannot be read.
    Done(Option<C>),
}

/// The identity of a lease in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    pub name: LockName,
    pub owner: String,
    pub fence: Fence,
}

impl From<&LeaseRow> for LeaseRow {
    fn from(row: &Self) -> Self {
        row.clone()
    }
}
