//! The rows of the store in memory, and what each statement does to them.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;
use http::Response;

use super::{
    lock::{Lock, SET_BACK, time},
    memory::{Call, Owned, Reply, micros},
};
use crate::store::{Entry, LeaseRow, LockState, Probe, Pruned};

/// The number of rows that one call of the pruning looks at.
const STEP: usize = 100;

#[derive(Default)]
pub(super) struct Rows {
    /// The distance by which the clock was moved, in microseconds.
    pub(super) moved: i64,
    locks: BTreeMap<String, Lock>,
    pub(super) entries: BTreeMap<String, Page>,
    /// How often an entry of each key was stored.
    pub(super) generations: BTreeMap<String, u64>,
    names: BTreeMap<String, i64>,
    /// The latest epoch.
    pub(super) epoch: i64,
}

pub(super) struct Page {
    pub(super) fence: i64,
    pub(super) generated: i64,
    pub(super) keep_until: i64,
    pub(super) content: Response<Bytes>,
    pub(super) notes: String,
}

impl Rows {
    pub(super) fn apply(&mut self, call: &Call, now: i64) -> Reply {
        match call {
            Call::Probe { key, name, known } => Reply::Probe(self.probe(key, name, *known, now)),
            Call::TryLock {
                name,
                owner,
                length,
                seen,
            } => Reply::Fence(self.try_lock(name, owner, now, micros(*length), *seen)),
            Call::Extend(lease, length) => Reply::Done(self.update(lease, |lock| {
                let extends = lock.owner.is_some() && lock.expires > now;
                if extends {
                    lock.expires = now + micros(*length);
                }
                extends
            })),
            Call::Release(lease, cooldown) => Reply::Done(self.update(lease, |lock| {
                lock.owner = None;
                lock.expires = match micros(*cooldown) {
                    0 => 0,
                    cooldown => now + cooldown,
                };
                true
            })),
            Call::Publish {
                key,
                lease,
                edition,
                renews,
            } => Reply::Done(self.publish(key, lease, edition, *renews, now)),
            Call::Remove(key, lease) => {
                let key = bounded(key);
                let removes = self.holds(lease)
                    && self
                        .entries
                        .get(&key)
                        .is_some_and(|page| page.fence <= lease.fence);
                Reply::Done(removes && self.entries.remove(&key).is_some())
            }
            Call::Invalidate(name) => Reply::Epoch(self.invalidate(name, now)),
            Call::Invalidated(since, most) => {
                let names = self.names.iter().filter(|(_, epoch)| *epoch > since);
                let mut names: Vec<_> = names.map(|(name, epoch)| (name.clone(), *epoch)).collect();
                names.sort_by_key(|(_, epoch)| *epoch);
                names.truncate(*most);
                Reply::Names(names)
            }
            Call::InvalidatedForLong(after, most) => {
                let everything = self.names.get_key_value("prefix:");
                let (first, end) = (Bound::Excluded(&**after), Bound::Excluded("revision;"));
                let rest = self.names.range::<str, _>((first, end)).take(*most);
                let names = everything.into_iter().chain(rest);
                Reply::Names(names.map(|(name, epoch)| (name.clone(), *epoch)).collect())
            }
            Call::Purge { key, lock_prefix } => {
                self.purge(key, lock_prefix);
                Reply::Nothing
            }
            Call::PruneEntries(after) => {
                let next = next(&self.entries, after.as_deref());
                let pages = next.iter().map(|key| &self.entries[key]);
                let oldest = pages.filter_map(|page| epoch_in(&page.notes)).min();
                for key in &next {
                    if self.entries[key].keep_until < now {
                        self.entries.remove(key);
                    }
                }
                Reply::Pruned(next.into_iter().next_back().map(|last| Pruned {
                    last,
                    oldest: oldest.unwrap_or(i64::MAX),
                }))
            }
            Call::Inspect(name) => {
                let name = bounded(name);
                Reply::Lock(self.locks.get(&name).map(|lock| lock.row(&name, now)))
            }
            Call::Held => {
                let held = self.locks.iter().filter(|(name, lock)| {
                    lock.expires > now && (lock.owner.is_some() || !name.starts_with("once/"))
                });
                Reply::Locks(held.map(|(name, lock)| lock.row(name, now)).collect())
            }
            Call::Reclaim(strays) => {
                for stray in strays {
                    self.reclaim(stray);
                }
                Reply::Nothing
            }
            Call::BreakLock(name) => Reply::Done(self.break_lock(&bounded(name))),
            Call::PruneLocks(unused, after) => {
                let next = next(&self.locks, after.as_deref());
                for name in &next {
                    if self.locks[name].is_unused(name, micros(*unused), now) {
                        self.locks.remove(name);
                    }
                }
                Reply::Next(next.last().cloned())
            }
            Call::Forget {
                before,
                purged,
                oldest,
                after,
            } => {
                let recent = now.saturating_sub(micros(*purged));
                let after = after.unwrap_or(i64::MIN);
                let last = self.names.values().copied().max();
                self.names
                    .retain(|name, epoch| match name.split(':').next() {
                        _ if *epoch <= after => true,
                        Some("purged") => *epoch >= recent || *epoch > *oldest,
                        Some("revision") => true,
                        _ => *epoch >= *before,
                    });
                Reply::NextEpoch(last.filter(|last| *last > after))
            }
        }
    }

    fn probe(&mut self, key: &str, name: &str, known: i64, now: i64) -> Probe {
        let name = bounded(name);
        if let Some(lock) = self.locks.get_mut(&name) {
            lock.redate(now);
        }
        let lock = self.locks.get(&name);
        let page = self.entries.get(&bounded(key));
        let page = page.filter(|page| page.fence > known);
        Probe {
            entry: page.map(|page| Entry {
                fence: page.fence,
                age: time(now - page.generated),
                undated: page.generated > now + SET_BACK,
                content: page.content.clone(),
                notes: page.notes.clone(),
            }),
            lock: lock.map_or(LockState::default(), |lock| LockState {
                fence: lock.fence,
                owned: lock.owner.is_some(),
                remaining: time(lock.expires - now),
            }),
            epoch: self.epoch,
            ..Probe::default()
        }
    }

    fn try_lock(
        &mut self,
        name: &str,
        owner: &str,
        now: i64,
        length: i64,
        seen: Option<i64>,
    ) -> Option<i64> {
        let lock = self.locks.entry(bounded(name)).or_insert(Lock {
            owner: Some(owner.to_owned()),
            fence: now,
            acquired: now,
            expires: now,
        });
        if lock.owner.as_deref() != Some(owner) {
            lock.redate(now);
            if lock.expires > now || seen.is_some_and(|seen| seen != lock.fence) {
                return None;
            }
            lock.fence = now.max(lock.fence + 1);
            lock.owner = Some(owner.to_owned());
        }
        (lock.acquired, lock.expires) = (now, now.saturating_add(length));
        Some(lock.fence)
    }

    /// Changes a lock that carries the lease's fence, and whose owner is the lease's, or was.
    fn update(&mut self, lease: &LeaseRow, change: impl FnOnce(&mut Lock) -> bool) -> bool {
        let lock = self.locks.get_mut(&bounded(&lease.name));
        let lock = lock.filter(|lock| {
            let owner = lock.owner.as_ref();
            lock.fence == lease.fence && owner.is_none_or(|owner| *owner == lease.owner)
        });
        lock.is_some_and(change)
    }

    fn holds(&mut self, lease: &LeaseRow) -> bool {
        self.update(lease, |lock| lock.owner.is_some())
    }

    fn publish(
        &mut self,
        key: &str,
        lease: &LeaseRow,
        edition: &Owned,
        renews: Option<i64>,
        now: i64,
    ) -> bool {
        let (holds, row) = (self.holds(lease), bounded(key));
        let stored = self.entries.get_mut(&row);
        let fence = stored.as_ref().map(|page| page.fence);
        let allowed = match renews {
            Some(known) => fence == Some(known) && known < lease.fence,
            None => fence.is_none_or(|fence| fence < lease.fence),
        };
        if !holds || !allowed {
            // An earlier try did it, and its answer was lost.
            return fence == Some(lease.fence);
        }
        let page = Page {
            fence: lease.fence,
            generated: now,
            keep_until: now.saturating_add(micros(edition.keep)),
            content: match (renews, stored) {
                (Some(_), Some(stored)) => stored.content.clone(),
                _ => edition.content.clone(),
            },
            notes: edition.notes.clone(),
        };
        self.entries.insert(row, page);
        *self.generations.entry(key.to_owned()).or_default() += 1;
        true
    }

    fn invalidate(&mut self, name: &str, now: i64) -> i64 {
        self.epoch = now.max(self.epoch + 1);
        let latest = self.names.entry(name.to_owned()).or_insert(self.epoch);
        if !name.starts_with("revision:") {
            *latest = self.epoch;
        }
        *latest
    }

    fn purge(&mut self, key: &str, lock_prefix: &str) {
        let variant = format!("{key}#");
        let mut keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.retain(|key| key.starts_with(&variant));
        keys.push(bounded(key));
        let begun = format!("{lock_prefix}{variant}");
        let mut locks: Vec<_> = self.locks.keys().cloned().collect();
        locks.retain(|name| name.starts_with(&begun));
        locks.extend(
            keys.iter()
                .map(|key| bounded(&format!("{lock_prefix}{key}"))),
        );
        locks.dedup();
        for name in locks {
            self.break_lock(&name);
        }
        for key in keys {
            self.entries.remove(&key);
        }
    }

    /// Frees what a lost try has taken.
    fn reclaim(&mut self, stray: &LeaseRow) {
        let name = bounded(&stray.name);
        let is_stray = self.locks.get(&name).is_some_and(|lock| {
            lock.owner.as_ref() == Some(&stray.owner) || lock.fence == stray.fence
        });
        if is_stray {
            self.break_lock(&name);
        }
    }

    fn break_lock(&mut self, name: &str) -> bool {
        let lock = self.locks.get_mut(name);
        lock.is_some_and(|lock| {
            (lock.owner, lock.fence, lock.expires) = (None, lock.fence + 1, 0);
            true
        })
    }
}

/// The epoch with which notes begin.
fn epoch_in(notes: &str) -> Option<i64> {
    let epoch = notes.strip_prefix("epoch=")?;
    epoch.split('&').next()?.parse().ok()
}

/// The names of the next rows.
fn next<T>(rows: &BTreeMap<String, T>, after: Option<&str>) -> Vec<String> {
    let after = after.unwrap_or_default();
    let next = rows.keys().filter(|name| name.as_str() > after);
    next.take(STEP).cloned().collect()
}

/// A name as a column holds it.
pub(super) fn bounded(name: &str) -> String {
    crate::name::bounded(name).into_owned()
}
