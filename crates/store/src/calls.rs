//! The list of operations that a store carries out, with the contract of each: this is the interface between
//! Perennial and its database.
//!
//! An operation is a struct, such as [`Probe`]. It implements [`Operation`], which names the type of its
//! answer. The enums [`Call`] and [`Reply`] hold any of them as values, which is what lets a test delay,
//! repeat or lose an operation, and a simulation carry it out late. A new operation is one entry of the
//! list at the end, an arm in `sql/store/mod.rs`, and one in `crates/testing`; the contract tests then run
//! it on every store.
//!
//! Start with [`Backend`], whose documentation has the rules that hold for all operations.

#![allow(missing_docs, reason = "the list documents each call")]

use std::{
    pin::Pin,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::Response;

use crate::rows::{
    Begun, Counted, EntryRow, LeaseRow, Listed, LockRow, NameList, NewEntry, Numbered, Probed,
    ProcessRow, Pruned, Synced, TryLockResult, Unused,
};
use crate::{
    error::BoxError,
    fence::{Epoch, Fence},
    name::{LockKind, LockName},
};

/// The largest number of names, or of ids, in one operation.
pub const MAX_NAMES: usize = 500;

pub type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<Reply, BoxError>> + Send + 'a>>;

/// The entries and locks of all processes of a site.
///
/// The numbers are those of docs/invariants.md.
///
/// - C1, **one clock**: the database's clock measures every age and expiry.
/// - C2, **atomic operations**, in one order for all processes. [`Purge`] and the operations that prune may be
///   done in part.
/// - C3, **fences only grow**, even after an expiry, a release or a [pruning](PruneLocks).
/// - C4, **nothing waits for a lease** that somebody else holds.
/// - C5, **content never goes backwards**: [`Publish`] and [`Remove`] succeed only while the lock still carries
///   the lease's fence, and a publish only over an entry with a smaller fence.
/// - C6, **repetition is safe**: after an error or a drop, the operation may have been done. A repetition by the
///   same owner succeeds, unless the operation removes a row or breaks a lock.
/// - C7, **epochs are complete**: they become visible in their order, so that a process which sees one sees all
///   smaller ones.
/// - C8, **invalidations outlive what they apply to**: an invalidation is pruned only when no stored entry has
///   an older epoch.
pub trait Backend: Send + Sync + 'static {
    /// Carries out a call. The reply is of the same kind as the call.
    fn call(&self, call: Call) -> CallFuture<'_>;

    /// Returns the time by the clock of this process, for the dates that go into an entry. A
    /// simulated backend has a simulated clock, so that a run can be repeated.
    fn wall_clock(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl dyn Backend {
    /// Carries out an operation, and returns its answer.
    pub async fn ask<O: Operation>(&self, operation: O) -> Result<O::Answer, BoxError> {
        let reply = self.call(operation.into()).await?;
        O::answer(reply).map_err(|other| format!("{other:?} answers another call").into())
    }
}

impl<B: Backend + ?Sized> Backend for std::sync::Arc<B> {
    fn call(&self, call: Call) -> CallFuture<'_> {
        B::call(self, call)
    }

    fn wall_clock(&self) -> SystemTime {
        B::wall_clock(self)
    }
}

/// An operation on the store: a struct with its arguments, and the type of its answer.
pub trait Operation: Into<Call> {
    /// The name of the operation, for errors, the log and metrics.
    const NAME: &'static str;

    type Answer;

    /// Takes the answer out of a reply. An error means that the reply belongs to another operation.
    #[allow(clippy::result_large_err, reason = "the error never happens")]
    fn answer(reply: Reply) -> Result<Self::Answer, Reply>;
}

/// Makes the operations of the list: a struct for each, whose `new` converts the arguments in brackets, and
/// the enums of all calls and replies.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $call:ident $name:literal $effect:ident [$($converted:ident: $of:ty),*]
            { $($field:ident: $type:ty),* } -> $answer:ty;
    )*) => {
        /// Any operation of a [`Backend`], as a value.
        #[derive(Clone, Debug)]
        #[allow(
            clippy::large_enum_variant,
            reason = "a call is moved once, into the future of its statements"
        )]
        pub enum Call {
            $($(#[$doc])* $call($call),)*
        }

        #[derive(Debug)]
        pub enum Reply {
            $($call($answer),)*
        }

        impl Call {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$call(_) => $call::NAME,)*
                }
            }

            /// Returns true if the operation may change the store.
            pub fn writes(&self) -> bool {
                match self {
                    $(Self::$call(_) => stringify!($effect) == "writes",)*
                }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            pub struct $call {
                $(pub $converted: $of,)*
                $(pub $field: $type,)*
            }

            impl $call {
                #[allow(
                    clippy::new_without_default,
                    dead_code,
                    reason = "some calls have no arguments, or only their fields are used"
                )]
                pub fn new($($converted: impl Into<$of>,)* $($field: $type,)*) -> Self {
                    Self { $($converted: $converted.into(),)* $($field,)* }
                }
            }

            impl From<$call> for Call {
                fn from(call: $call) -> Self {
                    Self::$call(call)
                }
            }

            impl Operation for $call {
                const NAME: &'static str = $name;

                type Answer = $answer;

                fn answer(reply: Reply) -> Result<$answer, Reply> {
                    match reply {
                        Reply::$call(answer) => Ok(answer),
                        other => Err(other),
                    }
                }
            }
        )*
    };
}

calls! {
    /// Returns the state of the lock and the latest epoch. Also returns the entry of this name, if its fence is
    /// greater than `known`. Takes no lock and changes nothing.
    Probe "probe" reads [name: LockName] { known: Fence } -> Probed;

    /// Takes the lock `name` for `length`, if the lock is free: never held, expired or released,
    /// and not in cooldown.
    ///
    /// With `seen`, the lock is taken only if it still has that fence. A lock without a row has no
    /// fence, and is taken with any `seen`. If the owner already holds the lock, because the answer
    /// to its first attempt was lost, it gets the same fence, and the full length once more.
    TryLock "try-lock" writes [name: LockName, owner: String]
        { length: Duration, seen: Option<Fence> } -> TryLockResult;

    /// Extends the lease to `length` from now, if the lease has not expired. `false` means that the lease is
    /// lost.
    Extend "extend" writes [lease: LeaseRow] { length: Duration } -> bool;

    /// Releases the lock, which can be taken again after `cooldown`. `false` means that another owner has
    /// taken the lock since, or the lock was broken. A repeated release succeeds again. A release with a
    /// cooldown counts as a [failure](crate::LockState::failures), and one without sets the count to zero.
    Release "release" writes [lease: LeaseRow] { cooldown: Duration } -> bool;

    /// Publishes an entry under the lease. The entry counts as generated now, and gets the fence of the lease.
    /// `false` means that it was refused, because the lease has been overtaken, or because the entry that this
    /// one [renews](NewEntry::renews) is no longer stored.
    Publish "publish" writes [lease: LeaseRow] { entry: NewEntry } -> bool;

    /// Removes the entry under the lease. `false` means that there is none, or that the lease has been
    /// overtaken.
    Remove "remove" writes [lease: LeaseRow] {} -> bool;

    /// Stores an invalidation of each of these names, at least one and at most [`MAX_NAMES`], and
    /// returns their new epoch. A name has at most 255 bytes and no NUL. All are stored, or none. A
    /// stored name that begins with `revision:` keeps its first epoch; the returned epoch then
    /// means nothing.
    ///
    /// Epochs only grow, over all processes, and become visible in their order: a process that sees
    /// an epoch sees all smaller ones. A new epoch is at least the number of microseconds since
    /// 1970, by the database's clock, so that a database that has lost the latest epochs continues
    /// above them.
    Invalidate "invalidate" writes [] { names: Vec<String> } -> Epoch;

    /// The query of a sync. Returns three lists, all as of the same moment: the first invalidated names after
    /// the epoch `since`, each with its latest epoch, in the order of epochs; the states of the leases of the
    /// `peer_keys` keys, in the order of the keys; and the first `limit` rows of the outbox whose ids follow
    /// `after`, in the order of ids. Of the names with one epoch, the answer has either all or none, so there
    /// may be a few more names than `limit`. If `limit` is zero, the answer has no names.
    Invalidated "sync" reads [after: String]
        { since: Epoch, limit: usize, peer_keys: Vec<String> } -> Synced;

    /// Gives epochs to the committed rows of the outbox with these ids, of which there may be up to
    /// [`MAX_NAMES`]: it stores the invalidations of their names, as [`Invalidate`] does, and then removes the
    /// rows. Rows that do not exist or are not committed are left out. A row that somebody else has locked is
    /// left out on PostgreSQL; on the other databases it may get an epoch now, and is then reported as left. A
    /// row that cannot be stored does not hold up the others.
    ///
    /// The call may be repeated, and two processes may make the same call at the same time. On databases other
    /// than PostgreSQL a name may then get two epochs, which makes its pages stale twice.
    Number "number" writes [] { ids: Vec<String> } -> Numbered;

    /// Removes the rows of the outbox with these ids, at most [`MAX_NAMES`], that were
    /// [numbered](Number) and could not be removed. Returns the ids that still cannot be removed.
    Discard "discard" writes [] { ids: Vec<String> } -> Vec<String>;

    /// Returns the latest epoch; 0 if nothing was ever invalidated.
    LatestEpoch "sync-epoch" reads [] {} -> Epoch;

    /// Returns the epoch of the latest purge of everything. If there was none, it is 0. When
    /// [pruning](PruneInvalidations) removes invalidations, it first stores such a purge, for
    /// processes that have not read them.
    PurgedUntil "sync-purged" reads [] {} -> Epoch;

    /// Returns the latest names of a list whose epochs are smaller than `before`, each with its epoch. Names
    /// that share an epoch are either all in the answer or not at all, so there may be a few more names than
    /// `limit`.
    LatestNames "sync-latest" reads [] { list: NameList, before: Epoch, limit: usize }
        -> Vec<(String, Epoch)>;

    /// Removes the pages of `key` and of its variants, and takes their locks from the holders. The name of a
    /// variant is `key` followed by a `#` and more.
    Purge "purge" writes [key: String] {} -> ();

    /// Returns the first `limit` pages whose names are not less than `from`, in the order of names.
    /// `from` has at most 255 bytes and no NUL, and is not empty.
    List "list" reads [from: String] { limit: usize } -> Listed;

    /// Returns the `limit` pages that were generated last, the latest one first.
    Latest "latest" reads [] { limit: usize } -> Vec<EntryRow>;

    /// Counts the stored pages.
    Count "count" reads [] {} -> Counted;

    /// Returns the size of each table with its indexes, in bytes, as far as the database reports it. For
    /// SQLite, it is the size of the file.
    Sizes "sizes" reads [] {} -> Vec<(String, u64)>;

    /// Removes pages that are not being regenerated, in the order of [`EVICTION`](crate::EVICTION). It stops
    /// after a hundred pages, or when the removed pages have `excess` bytes together, counted as in
    /// [`Counted::weight`](crate::Counted::weight). Returns the approximate weight of the removed pages.
    Evict "evict" writes [] { excess: u64 } -> u64;

    /// Removes the entries whose retention is over, among the next few entries after `after`. Returns the name
    /// after which the next call has to continue, and the smallest epoch among the entries that were examined
    /// in this call. When all entries have been examined, the smallest of these epochs is the one for
    /// [`PruneInvalidations`]. `None` means that there are no more entries.
    PruneEntries "prune-entries" writes [] { after: Option<String> }
        -> Option<Pruned>;

    /// Returns the state of a lock, or `None` if there is no lock with this name.
    Inspect "inspect" reads [name: LockName] {} -> Option<LockRow>;

    /// Returns the locks that have not expired, sorted by kind and name. Rows of the kind [`LockKind::Once`]
    /// that have no owner are left out: they are marks of work that is done.
    Held "held" reads [] {} -> Vec<LockRow>;

    /// Takes a lock from its holder, gives the lock a new fence and frees it. `false` means that there is no
    /// lock with this name or, if `seen` is given, that the lock has a different fence.
    BreakLock "break-lock" writes [name: LockName] { seen: Option<Fence> } -> bool;

    /// Frees the lock `name` if `owner` holds it: this undoes a [`TryLock`] whose reply was lost. A freed lock
    /// gets a new fence, as with [`BreakLock`]. Creates no lock.
    Revoke "revoke" writes [name: LockName, owner: String] {} -> ();

    /// Removes locks that have been [unused](Unused) for a long time, among the next few locks after `after`.
    /// Returns the name of the last examined lock.
    PruneLocks "prune-locks" writes []
        { kind: LockKind, unused: Unused, after: Option<String> } -> Option<String>;

    /// Removes up to 10,000 invalidations after the epoch `after`, if they are older than `age` and not later
    /// than `oldest`, the smallest epoch of all stored entries. Before that, it stores a purge of everything
    /// (`purged_prefix:`) with the latest removed epoch, for processes that have not read the removed names.
    /// The purge applies to no stored entry, provided that `oldest` is right. If it were too great, processes
    /// would treat pages as purged that nobody has purged. Names that begin with `revision:` stay. Returns the
    /// epoch after which the next call has to continue, or `None` if there are no more.
    PruneInvalidations "prune-invalidations" writes []
        { oldest: Epoch, age: Duration, after: Option<Epoch> } -> Option<Epoch>;

    /// Begins the request `name` for this owner, if no other owner has begun it, or if the row's
    /// retention is over. An owner that has begun the request already (its reply was lost) gets the
    /// same answer again.
    ///
    /// The request counts as [running](crate::RequestProgress::Running) for `length`. Its row stays for
    /// `retention`, unless a [`Finish`] or a [`Forget`] comes before. With `again`, this owner takes over an
    /// unfinished request with the same fingerprint, if at least the time `again` has passed since it began.
    Begin "begin" writes [name: String, owner: String, fingerprint: String]
        { length: Duration, retention: Duration, again: Option<Duration> } -> Begun;

    /// Stores the response to a request that this owner has begun, for `retention`. If the response cannot
    /// be stored, it stores only that the request was answered. `false` means that the row belongs to
    /// another owner, or is gone. A repeated call succeeds again, and the response that was stored first
    /// stays.
    Finish "finish" writes [name: String, owner: String]
        { response: Option<Response<Bytes>>, retention: Duration } -> bool;

    /// Removes the row of a request that has not finished, if the row is this owner's. `None` stands for any
    /// owner of the row. `false` means that there is no such row.
    Forget "forget" writes [name: String] { owner: Option<String> } -> bool;

    /// Removes the first `limit` requests whose retention is over, and returns their number.
    PruneRequests "prune-requests" writes [] { limit: u32 } -> u64;

    /// Stores the figures of the process `name`, in place of its earlier ones.
    NoteProcess "note-process" writes [name: String, figures: String] {} -> ();

    /// Returns the figures of at most `limit` processes, the latest ones first.
    Processes "processes" reads [] { limit: u32 } -> Vec<ProcessRow>;

    /// Removes the figures of the processes that have not written theirs for the time `silent`.
    PruneProcesses "prune-processes" writes [] { silent: Duration } -> ();
}
