//! The way of a call from a process to the store in memory.

use std::{sync::Arc, time::Duration};

use super::memory::{Call, Owned, Reply};
use crate::{
    error::BoxError,
    name::{LockKind, LockName},
    store::{EntryRow, LeaseRow, LockRow, NewEntry, Probe, Pruned, Store, StoreFuture, Unused},
};

/// The path of a call to the store, and of its answer back.
pub trait Link: Send + Sync + 'static {
    fn send(&self, call: Call) -> impl Future<Output = Result<Reply, BoxError>> + Send;
}

impl<L: Link> Link for Arc<L> {
    fn send(&self, call: Call) -> impl Future<Output = Result<Reply, BoxError>> + Send {
        L::send(self, call)
    }
}

/// Calls the method of the store.
impl Link for Box<dyn Store> {
    async fn send(&self, call: Call) -> Result<Reply, BoxError> {
        Ok(match &call {
            Call::Probe { name, known } => Reply::Probe(self.probe(name, *known).await?),
            Call::TryLock {
                name,
                owner,
                length,
                seen,
            } => Reply::Fence(self.try_lock(name, owner, *length, *seen).await?),
            Call::Extend(lease, length) => Reply::Done(self.extend(lease, *length).await?),
            Call::Release(lease, cooldown) => Reply::Done(self.release(lease, *cooldown).await?),
            Call::Publish(lease, entry) => Reply::Done(self.publish(lease, &entry.lent()).await?),
            Call::Remove(lease) => Reply::Done(self.remove(lease).await?),
            Call::Invalidate(name) => Reply::Epoch(self.invalidate(name).await?),
            Call::Invalidated(since, most) => Reply::Names(self.invalidated(*since, *most).await?),
            Call::InvalidatedForLong(after, most) => {
                Reply::Names(self.invalidated_for_long(after, *most).await?)
            }
            Call::Purge(key) => {
                self.purge(key).await?;
                Reply::Nothing
            }
            Call::List(from, most) => Reply::Entries(self.list(from, *most).await?),
            Call::PruneEntries(kind, after) => {
                Reply::Pruned(self.prune_entries(*kind, after.as_deref()).await?)
            }
            Call::Inspect(name) => Reply::Lock(self.inspect(name).await?),
            Call::HeldLocks => Reply::Locks(self.held().await?),
            Call::BreakLock(name, seen) => Reply::Done(self.break_lock(name, *seen).await?),
            Call::Reclaim(strays) => {
                self.reclaim(&strays.iter().collect::<Vec<_>>()).await?;
                Reply::Nothing
            }
            Call::PruneLocks(kind, unused, after) => {
                let pruned = self.prune_locks(*kind, *unused, after.as_deref());
                Reply::Next(pruned.await?)
            }
            Call::Forget {
                before,
                purged,
                oldest,
                after,
            } => {
                let forgotten = self.forget_invalidated(*before, *purged, *oldest, *after);
                Reply::NextEpoch(forgotten.await?)
            }
        })
    }
}

/// The [`Store`] behind a link.
pub struct Linked<L>(pub L);

/// Takes the answer of a call out of its [`Reply`].
macro_rules! send {
    ($self:ident, $call:expr, $pattern:pat => $answer:expr) => {{
        let call = $call;
        Box::pin(async move {
            match $self.0.send(call).await? {
                $pattern => Ok($answer),
                other => Err(format!("{other:?} answers another call").into()),
            }
        })
    }};
}

impl Owned {
    fn of(entry: &NewEntry<'_>) -> Self {
        Self {
            content: entry.content.clone(),
            renews: entry.renews,
            metadata: entry.metadata.to_owned(),
            history: entry.history.to_owned(),
            retention: entry.retention,
        }
    }

    fn lent(&self) -> NewEntry<'_> {
        NewEntry {
            content: &self.content,
            renews: self.renews,
            metadata: &self.metadata,
            history: &self.history,
            retention: self.retention,
        }
    }
}

impl<L: Link> Store for Linked<L> {
    fn probe<'a>(&'a self, name: &'a LockName, known: i64) -> StoreFuture<'a, Probe> {
        let name = name.clone();
        send!(self, Call::Probe { name, known }, Reply::Probe(probe) => probe)
    }

    fn try_lock<'a>(
        &'a self,
        name: &'a LockName,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>> {
        let call = Call::TryLock {
            name: name.clone(),
            owner: owner.to_owned(),
            length,
            seen,
        };
        send!(self, call, Reply::Fence(fence) => fence)
    }

    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool> {
        send!(self, Call::Extend(lease.clone(), length), Reply::Done(done) => done)
    }

    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool> {
        send!(self, Call::Release(lease.clone(), cooldown), Reply::Done(done) => done)
    }

    fn publish<'a>(
        &'a self,
        lease: &'a LeaseRow,
        entry: &'a NewEntry<'a>,
    ) -> StoreFuture<'a, bool> {
        let call = Call::Publish(lease.clone(), Owned::of(entry));
        send!(self, call, Reply::Done(done) => done)
    }

    fn remove<'a>(&'a self, lease: &'a LeaseRow) -> StoreFuture<'a, bool> {
        send!(self, Call::Remove(lease.clone()), Reply::Done(done) => done)
    }

    fn invalidate<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        send!(self, Call::Invalidate(name.to_owned()), Reply::Epoch(epoch) => epoch)
    }

    fn invalidated(&self, since: i64, most: usize) -> StoreFuture<'_, Vec<(String, i64)>> {
        send!(self, Call::Invalidated(since, most), Reply::Names(names) => names)
    }

    fn invalidated_for_long<'a>(
        &'a self,
        after: &'a str,
        most: usize,
    ) -> StoreFuture<'a, Vec<(String, i64)>> {
        let call = Call::InvalidatedForLong(after.to_owned(), most);
        send!(self, call, Reply::Names(names) => names)
    }

    fn purge<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        send!(self, Call::Purge(key.to_owned()), Reply::Nothing => ())
    }

    fn list<'a>(&'a self, from: &'a str, most: usize) -> StoreFuture<'a, Vec<EntryRow>> {
        let call = Call::List(from.to_owned(), most);
        send!(self, call, Reply::Entries(entries) => entries)
    }

    fn prune_entries<'a>(
        &'a self,
        kind: LockKind,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<Pruned>> {
        let call = Call::PruneEntries(kind, after.map(str::to_owned));
        send!(self, call, Reply::Pruned(pruned) => pruned)
    }

    fn inspect<'a>(&'a self, name: &'a LockName) -> StoreFuture<'a, Option<LockRow>> {
        send!(self, Call::Inspect(name.clone()), Reply::Lock(lock) => lock)
    }

    fn held(&self) -> StoreFuture<'_, Vec<LockRow>> {
        send!(self, Call::HeldLocks, Reply::Locks(locks) => locks)
    }

    fn break_lock<'a>(&'a self, name: &'a LockName, seen: Option<i64>) -> StoreFuture<'a, bool> {
        send!(self, Call::BreakLock(name.clone(), seen), Reply::Done(done) => done)
    }

    fn reclaim<'a>(&'a self, strays: &'a [&'a LeaseRow]) -> StoreFuture<'a, ()> {
        let strays = strays.iter().copied().cloned().collect();
        send!(self, Call::Reclaim(strays), Reply::Nothing => ())
    }

    fn prune_locks<'a>(
        &'a self,
        kind: LockKind,
        unused: Unused,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>> {
        let call = Call::PruneLocks(kind, unused, after.map(str::to_owned));
        send!(self, call, Reply::Next(next) => next)
    }

    fn forget_invalidated(
        &self,
        before: i64,
        purged: Duration,
        oldest: i64,
        after: Option<i64>,
    ) -> StoreFuture<'_, Option<i64>> {
        let call = Call::Forget {
            before,
            purged,
            oldest,
            after,
        };
        send!(self, call, Reply::NextEpoch(next) => next)
    }
}
