//! The tables in memory, and what each operation does to them, in one place and under one lock.

use std::{collections::BTreeMap, time::SystemTime};

use bytes::Bytes;
use http::Response;

use super::{lock::Lock, memory::micros, requests::Requests};
use perennial_store::{
    BreakLock, Call, Epoch, Extend, Fence, LeaseRow, Listed, LockKind, LockName, LockState,
    NewEntry, NoteProcess, Probe, Probed, ProcessRow, PruneEntries, PruneLocks, PruneProcesses,
    Pruned, Publish, Release, Remove, Reply, Revoke, StoredEntry, TryLock, TryLockResult,
    clock::duration, name::bounded, sql::dialect::SET_BACK, stored_size,
};

/// The number of rows that one pruning call examines.
pub(super) const STEP: usize = 100;

/// The primary key of a row.
pub(super) type Id = (LockKind, String);

#[derive(Default)]
pub(super) struct Rows {
    /// The distance by which the clock was moved, in microseconds.
    pub(super) moved: i64,
    pub(super) locks: BTreeMap<Id, Lock>,
    pub(super) entries: BTreeMap<String, PageRow>,
    /// The number of publishes of each key's page.
    pub(super) generations: BTreeMap<String, u64>,
    pub(super) requests: Requests,
    /// What processes have said of themselves, and when.
    pub(super) processes: BTreeMap<String, (i64, String)>,
    pub(super) names: BTreeMap<String, Epoch>,
    /// The names that transactions have written, by their ids.
    pub(super) outbox: BTreeMap<String, String>,
    /// The latest epoch.
    pub(super) epoch: Epoch,
}

pub(super) struct PageRow {
    pub(super) fence: Fence,
    pub(super) generated: i64,
    pub(super) stale_at: i64,
    pub(super) retain_until: i64,
    pub(super) regenerated: bool,
    pub(super) epoch: Epoch,
    pub(super) content: Response<Bytes>,
    pub(super) metadata: String,
    pub(super) history: String,
}

impl PageRow {
    pub(super) fn size(&self) -> u64 {
        stored_size(&self.content, &self.metadata)
    }

    fn entry(&self, now: i64) -> StoredEntry {
        StoredEntry {
            fence: self.fence,
            age: duration(now - self.generated),
            generated: self.generated,
            age_unknown: self.generated > now + SET_BACK,
            content: self.content.clone(),
            epoch: self.epoch,
            metadata: self.metadata.clone(),
        }
    }
}

impl Rows {
    pub(super) fn apply(&mut self, call: &Call, now: i64) -> Reply {
        match call {
            Call::Probe(Probe { name, known }) => Reply::Probe(self.probe(&id(name), *known, now)),
            Call::TryLock(call) => Reply::TryLock(TryLockResult {
                fence: self.try_lock(call, now),
                resent: false,
            }),
            Call::Extend(Extend { lease, length }) => Reply::Extend(self.update(lease, |lock| {
                let extends = lock.owner.is_some() && lock.expires > now;
                if extends {
                    lock.expires = now + micros(*length);
                }
                extends
            })),
            Call::Release(Release { lease, cooldown }) => {
                Reply::Release(self.update(lease, |lock| {
                    let releases = lock.owner.take().is_some();
                    (lock.failures, lock.expires) = match micros(*cooldown) {
                        0 => (0, 0),
                        cooldown => (lock.failures + u32::from(releases), now + cooldown),
                    };
                    true
                }))
            }
            Call::Publish(Publish { lease, entry }) => {
                Reply::Publish(self.publish(lease, entry, now))
            }
            Call::Remove(Remove { lease }) => {
                let id = id(&lease.name);
                let entry = self.entries.get(&id.1);
                let is_older = entry.is_some_and(|page| page.fence <= lease.fence);
                let removes = self.holds(lease) && is_older;
                Reply::Remove(removes && self.entries.remove(&id.1).is_some())
            }
            Call::Invalidate(call) => Reply::Invalidate(self.invalidate(&call.names, now)),
            Call::Invalidated(call) => Reply::Invalidated(self.invalidated(call, now)),
            Call::Number(call) => Reply::Number(self.number(&call.ids, now)),
            Call::Discard(call) => Reply::Discard(self.discard(&call.ids)),
            Call::LatestEpoch(_) => Reply::LatestEpoch(self.epoch),
            Call::PurgedUntil(_) => Reply::PurgedUntil(self.purged_until()),
            Call::LatestNames(call) => Reply::LatestNames(self.latest_names(call)),
            Call::PruneInvalidations(call) => {
                Reply::PruneInvalidations(self.prune_invalidations(call, now))
            }
            Call::Purge(call) => {
                self.purge(&call.key);
                Reply::Purge(())
            }
            Call::List(call) => {
                let rows = self.list(&call.from, call.limit, now);
                let more = rows.len() == call.limit;
                Reply::List(Listed { rows, more })
            }
            Call::Latest(call) => Reply::Latest(self.latest(call.limit, now)),
            Call::Evict(call) => Reply::Evict(self.evict(call.excess, now)),
            Call::Sizes(_) => Reply::Sizes(Vec::new()),
            Call::Count(_) => Reply::Count(self.count(now)),
            Call::PruneEntries(PruneEntries { after }) => {
                let after = after.as_deref().unwrap_or_default();
                let names = self.entries.keys().filter(|name| name.as_str() > after);
                let next: Vec<_> = names.take(STEP).cloned().collect();
                let pages = next.iter().map(|name| &self.entries[name]);
                let oldest = pages.map(|page| page.epoch).min();
                for name in &next {
                    if self.entries[name].retain_until < now {
                        self.entries.remove(name);
                    }
                }
                Reply::PruneEntries(next.into_iter().next_back().map(|last| Pruned {
                    last,
                    oldest: oldest.unwrap_or(Epoch::MAX),
                }))
            }
            Call::Inspect(call) => {
                let id = id(&call.name);
                Reply::Inspect(self.locks.get(&id).map(|lock| lock.row(&id, now)))
            }
            Call::Held(_) => {
                let held = self.locks.iter().filter(|((kind, _), lock)| {
                    lock.expires > now && (lock.owner.is_some() || *kind != LockKind::Once)
                });
                Reply::Held(held.map(|(id, lock)| lock.row(id, now)).collect())
            }
            Call::Revoke(Revoke { name, owner }) => {
                let lock = self.locks.get_mut(&id(name));
                let owned = lock.filter(|lock| lock.owner.as_ref() == Some(owner));
                owned.into_iter().for_each(Lock::break_up);
                Reply::Revoke(())
            }
            Call::BreakLock(BreakLock { name, seen }) => {
                let lock = self.locks.get_mut(&id(name));
                let seen = lock.filter(|lock| seen.is_none_or(|seen| lock.fence == seen));
                Reply::BreakLock(seen.map(Lock::break_up).is_some())
            }
            Call::PruneLocks(PruneLocks {
                kind,
                unused,
                after,
            }) => {
                let next = next(&self.locks, *kind, after.as_deref());
                for id in &next {
                    if self.locks[id].is_unused(unused, self.entries.contains_key(&id.1), now) {
                        self.locks.remove(id);
                    }
                }
                Reply::PruneLocks(next.into_iter().next_back().map(|(_, last)| last))
            }
            Call::Begin(call) => Reply::Begin(self.requests.begin(call, now)),
            Call::Finish(call) => Reply::Finish(self.requests.finish(call, now)),
            Call::Forget(call) => Reply::Forget(self.requests.forget(call)),
            Call::PruneRequests(call) => Reply::PruneRequests(self.requests.prune(call.limit, now)),
            Call::NoteProcess(NoteProcess { name, figures }) => {
                let row = (now, figures.clone());
                self.processes.insert(bounded(name).into_owned(), row);
                Reply::NoteProcess(())
            }
            Call::Processes(call) => Reply::Processes(self.processes(call.limit, now)),
            Call::PruneProcesses(PruneProcesses { silent }) => {
                let silent = micros(*silent);
                self.processes
                    .retain(|_, (noted, _)| *noted > now - silent && *noted <= now + silent);
                Reply::PruneProcesses(())
            }
        }
    }

    fn processes(&self, limit: u32, now: i64) -> Vec<ProcessRow> {
        let processes = self.processes.iter();
        let rows = processes.map(|(name, (noted, figures))| ProcessRow {
            name: name.clone(),
            noted_at: SystemTime::UNIX_EPOCH + duration(*noted),
            age: duration(now - noted),
            figures: figures.clone(),
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.noted_at));
        rows.truncate(limit.try_into().unwrap_or(usize::MAX));
        rows
    }

    fn probe(&self, id: &Id, known: Fence, now: i64) -> Probed {
        let lock = self.locks.get(id);
        let page = self.entries.get(&id.1);
        let page = page.filter(|page| page.fence > known);
        Probed {
            entry: page.map(|page| page.entry(now)),
            lock: lock.map_or(LockState::default(), |lock| LockState {
                fence: lock.fence,
                owned: lock.owner.is_some(),
                remaining: duration(lock.expires - now),
                failures: lock.failures,
            }),
            epoch: self.epoch,
        }
    }

    fn try_lock(&mut self, call: &TryLock, now: i64) -> Option<Fence> {
        let (id, owner, seen) = (id(&call.name), &*call.owner, call.seen);
        let length = micros(call.length);
        let lock = self.locks.entry(id).or_default();
        if lock.owner.as_deref() != Some(owner) {
            let other = |seen| lock.fence != Fence::NONE && seen != lock.fence;
            if lock.expires > now || seen.is_some_and(other) {
                return None;
            }
            lock.fence = Fence(now).max(lock.fence.next());
            lock.owner = Some(owner.to_owned());
        }
        (lock.acquired, lock.expires) = (now, now.saturating_add(length));
        Some(lock.fence)
    }

    /// Changes a lock if it carries the lease's fence, and if its owner is, or was before a
    /// release, the owner of the lease.
    fn update(&mut self, lease: &LeaseRow, change: impl FnOnce(&mut Lock) -> bool) -> bool {
        let lock = self.locks.get_mut(&id(&lease.name));
        let lock = lock.filter(|lock| {
            let owner = lock.owner.as_ref();
            lock.fence == lease.fence && owner.is_none_or(|owner| *owner == lease.owner)
        });
        lock.is_some_and(change)
    }

    fn holds(&mut self, lease: &LeaseRow) -> bool {
        self.update(lease, |lock| lock.owner.is_some())
    }

    fn publish(&mut self, lease: &LeaseRow, entry: &NewEntry, now: i64) -> bool {
        let holds = self.holds(lease);
        let id = id(&lease.name);
        let stored = self.entries.get_mut(&id.1);
        let fence = stored.as_ref().map(|page| page.fence);
        let allowed = match entry.renews {
            Some(known) => fence == Some(known) && known < lease.fence,
            None => fence.is_none_or(|fence| fence < lease.fence),
        };
        if !holds || !allowed {
            // True if an earlier attempt at this publish has stored the entry, and its answer was
            // lost.
            return fence == Some(lease.fence);
        }
        let mut history = entry.history.clone();
        if let Some(page) = &stored {
            let kept = page.history.floor_char_boundary(2400);
            history.push_str(&page.history[..kept]);
        }
        let page = PageRow {
            history,
            fence: lease.fence,
            generated: now,
            regenerated: stored.is_some() && entry.lasting,
            stale_at: now.saturating_add(micros(entry.interval)),
            epoch: entry.epoch,
            retain_until: now.saturating_add(micros(entry.retention)),
            content: match (entry.renews, stored) {
                (Some(_), Some(stored)) => stored.content.clone(),
                _ => entry.content.clone(),
            },
            metadata: entry.metadata.clone(),
        };
        self.entries.insert(id.1, page);
        if lease.name.kind() == LockKind::Page {
            let key = lease.name.as_str().to_owned();
            *self.generations.entry(key).or_default() += 1;
        }
        true
    }

    fn purge(&mut self, key: &str) {
        let (own, variant) = (bounded(key), format!("{key}#"));
        let is_meant = |name: &str| name == own || name.starts_with(&variant);
        for ((kind, name), lock) in &mut self.locks {
            if *kind == LockKind::Page && is_meant(name) {
                lock.break_up();
            }
        }
        self.entries.retain(|name, _| !is_meant(name));
    }
}

/// The next locks of this kind.
fn next(locks: &BTreeMap<Id, Lock>, kind: LockKind, after: Option<&str>) -> Vec<Id> {
    let after = after.unwrap_or_default();
    let next = locks
        .keys()
        .filter(|(of, name)| *of == kind && name.as_str() > after);
    next.take(STEP).cloned().collect()
}

pub(super) fn id(name: &LockName) -> Id {
    (name.kind(), bounded(name.as_str()).into_owned())
}
