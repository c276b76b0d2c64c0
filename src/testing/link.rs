//! The way of a call from a process to the store in memory.

use std::{sync::Arc, time::Duration};

use super::memory::{Call, Memory, Owned, Reply};
use crate::{
    error::BoxError,
    store::{Edition, LeaseRow, LockRow, Probe, Pruned, Store, StoreFuture},
};

/// What a call passes through on its way to the store, and its answer on its way back.
pub trait Link: Send + Sync + 'static {
    fn send(&self, call: Call) -> impl Future<Output = Result<Reply, BoxError>> + Send;
}

/// Answers at once.
impl Link for Memory {
    async fn send(&self, call: Call) -> Result<Reply, BoxError> {
        Ok(self.apply(&call))
    }
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
            Call::Probe { key, name, known } => Reply::Probe(self.probe(key, name, *known).await?),
            Call::TryLock {
                name,
                owner,
                length,
                seen,
            } => Reply::Fence(self.try_lock(name, owner, *length, *seen).await?),
            Call::Extend(lease, length) => Reply::Done(self.extend(lease, *length).await?),
            Call::Release(lease, cooldown) => Reply::Done(self.release(lease, *cooldown).await?),
            Call::Publish {
                key,
                lease,
                edition,
                renews,
            } => {
                let edition = edition.lent();
                Reply::Done(match renews {
                    None => self.publish(key, lease, &edition).await?,
                    Some(known) => self.renew(key, lease, &edition, *known).await?,
                })
            }
            Call::Remove(key, lease) => Reply::Done(self.remove(key, lease).await?),
            Call::Invalidate(name) => Reply::Epoch(self.invalidate(name).await?),
            Call::Invalidated(since, most) => Reply::Names(self.invalidated(*since, *most).await?),
            Call::InvalidatedForLong(after, most) => {
                Reply::Names(self.invalidated_for_long(after, *most).await?)
            }
            Call::Purge { key, lock_prefix } => {
                self.purge(key, lock_prefix).await?;
                Reply::Nothing
            }
            Call::PruneEntries(after) => Reply::Pruned(self.prune_entries(after.as_deref()).await?),
            Call::Inspect(name) => Reply::Lock(self.inspect(name).await?),
            Call::Held => Reply::Locks(self.held().await?),
            Call::BreakLock(name) => Reply::Done(self.break_lock(name).await?),
            Call::Reclaim(strays) => {
                self.reclaim(&strays.iter().collect::<Vec<_>>()).await?;
                Reply::Nothing
            }
            Call::PruneLocks(unused, after) => {
                Reply::Next(self.prune_locks(*unused, after.as_deref()).await?)
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

/// The answer of a call, taken out of its [`Reply`].
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
    fn of(edition: &Edition<'_>) -> Self {
        Self {
            content: edition.content.clone(),
            notes: edition.notes.to_owned(),
            keep: edition.keep,
        }
    }

    fn lent(&self) -> Edition<'_> {
        Edition {
            content: &self.content,
            notes: &self.notes,
            keep: self.keep,
        }
    }
}

impl<L: Link> Store for Linked<L> {
    fn probe<'a>(&'a self, key: &'a str, name: &'a str, known: i64) -> StoreFuture<'a, Probe> {
        let (key, name) = (key.to_owned(), name.to_owned());
        send!(self, Call::Probe { key, name, known }, Reply::Probe(probe) => probe)
    }

    fn try_lock<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>> {
        let call = Call::TryLock {
            name: name.to_owned(),
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
        key: &'a str,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
    ) -> StoreFuture<'a, bool> {
        let call = Call::Publish {
            key: key.to_owned(),
            lease: lease.clone(),
            edition: Owned::of(edition),
            renews: None,
        };
        send!(self, call, Reply::Done(done) => done)
    }

    fn renew<'a>(
        &'a self,
        key: &'a str,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
        known: i64,
    ) -> StoreFuture<'a, bool> {
        let call = Call::Publish {
            key: key.to_owned(),
            lease: lease.clone(),
            edition: Owned::of(edition),
            renews: Some(known),
        };
        send!(self, call, Reply::Done(done) => done)
    }

    fn remove<'a>(&'a self, key: &'a str, lease: &'a LeaseRow) -> StoreFuture<'a, bool> {
        send!(self, Call::Remove(key.to_owned(), lease.clone()), Reply::Done(done) => done)
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

    fn purge<'a>(&'a self, key: &'a str, lock_prefix: &'a str) -> StoreFuture<'a, ()> {
        let (key, lock_prefix) = (key.to_owned(), lock_prefix.to_owned());
        send!(self, Call::Purge { key, lock_prefix }, Reply::Nothing => ())
    }

    fn prune_entries<'a>(&'a self, after: Option<&'a str>) -> StoreFuture<'a, Option<Pruned>> {
        send!(self, Call::PruneEntries(after.map(str::to_owned)), Reply::Pruned(pruned) => pruned)
    }

    fn inspect<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<LockRow>> {
        send!(self, Call::Inspect(name.to_owned()), Reply::Lock(lock) => lock)
    }

    fn held(&self) -> StoreFuture<'_, Vec<LockRow>> {
        send!(self, Call::Held, Reply::Locks(locks) => locks)
    }

    fn break_lock<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        send!(self, Call::BreakLock(name.to_owned()), Reply::Done(done) => done)
    }

    fn reclaim<'a>(&'a self, strays: &'a [&'a LeaseRow]) -> StoreFuture<'a, ()> {
        let strays = strays.iter().copied().cloned().collect();
        send!(self, Call::Reclaim(strays), Reply::Nothing => ())
    }

    fn prune_locks<'a>(
        &'a self,
        unused: Duration,
        after: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>> {
        let call = Call::PruneLocks(unused, after.map(str::to_owned));
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
