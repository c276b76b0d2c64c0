//! The operations on the invalidation list and the outbox, over the tables in memory.

use std::{cmp::Reverse, ops::Bound, time::Duration};

use super::{memory::micros, rows::Rows};
use perennial_store::{
    Epoch, Fence, Invalidated, LatestNames, LockKind, NameList, Numbered, OutboxRow,
    PeerLeaseState, PruneInvalidations, Synced, clock::duration, name::bounded,
};

/// The name of a purge of everything.
const EVERYTHING: &str = "purged_prefix:";

impl Rows {
    pub(super) fn invalidate(&mut self, names: &[String], now: i64) -> Epoch {
        self.epoch = Epoch(now).max(self.epoch.next());
        for name in names {
            let latest = self.names.entry(name.clone()).or_insert(self.epoch);
            if !name.starts_with("revision:") {
                *latest = self.epoch;
            }
        }
        self.epoch
    }

    pub(super) fn number(&mut self, ids: &[String], now: i64) -> Numbered {
        let taken = ids.iter();
        let taken: Vec<_> = taken
            .filter_map(|id| self.outbox.remove_entry(id))
            .map(|(id, name)| OutboxRow { id, name })
            .collect();
        if taken.is_empty() {
            return Numbered::default();
        }
        let names: Vec<_> = taken.iter().map(|row| row.name.clone()).collect();
        let epoch = self.invalidate(&names, now);
        Numbered {
            rows: taken.into_iter().map(|row| (row, epoch)).collect(),
            ..Numbered::default()
        }
    }

    pub(super) fn discard(&mut self, ids: &[String]) -> Vec<String> {
        self.outbox.retain(|id, _| !ids.contains(id));
        Vec::new()
    }

    fn committed(&self, after: &str, limit: usize) -> Vec<OutboxRow> {
        let rows = (Bound::Excluded(after), Bound::Unbounded);
        let rows = self.outbox.range::<str, _>(rows).take(limit);
        let row = |(id, name): (&String, &String)| OutboxRow {
            id: id.clone(),
            name: name.clone(),
        };
        rows.map(row).collect()
    }

    pub(super) fn invalidated(&self, call: &Invalidated, now: i64) -> Synced {
        let names = self.names.iter().filter(|(_, epoch)| **epoch > call.since);
        let mut names: Vec<_> = names.map(|(name, epoch)| (name.clone(), *epoch)).collect();
        names.sort_by_key(|(_, epoch)| *epoch);
        if let Some((_, last)) = names.get(call.limit).cloned() {
            names.retain(|(_, epoch)| call.limit > 0 && *epoch <= last);
        }
        let peer_leases = call.peer_keys.iter().map(|key| self.peer_lease(key, now));
        Synced {
            names,
            peer_leases: peer_leases.collect(),
            committed: self.committed(&call.after, call.limit),
        }
    }

    fn peer_lease(&self, key: &str, now: i64) -> PeerLeaseState {
        let (kind, name) = (LockKind::Page, bounded(key).into_owned());
        let page = self.entries.get(&name);
        let lock = self.locks.get(&(kind, name.clone()));
        let held = lock.filter(|lock| lock.owner.is_some());
        PeerLeaseState {
            fence: page.map_or(Fence::NONE, |page| page.fence),
            remaining: held.map_or(Duration::ZERO, |lock| duration(lock.expires - now)),
        }
    }

    pub(super) fn purged_until(&self) -> Epoch {
        self.names.get(EVERYTHING).copied().unwrap_or_default()
    }

    pub(super) fn latest_names(&self, call: &LatestNames) -> Vec<(String, Epoch)> {
        let names = self.names.iter();
        let names =
            names.filter(|(name, epoch)| list_of(name) == call.list && **epoch < call.before);
        let mut names: Vec<_> = names.map(|(name, epoch)| (name.clone(), *epoch)).collect();
        names.sort_by_key(|(_, epoch)| Reverse(*epoch));
        if let Some((_, oldest)) = names.get(call.limit).cloned() {
            names.retain(|(_, epoch)| *epoch >= oldest);
        }
        names
    }

    pub(super) fn prune_invalidations(
        &mut self,
        call: &PruneInvalidations,
        now: i64,
    ) -> Option<Epoch> {
        let PruneInvalidations { oldest, age, after } = *call;
        let after = after.unwrap_or(Epoch(i64::MIN));
        let recent = now.saturating_sub(micros(age));
        let goes = |epoch: Epoch| epoch > after && epoch <= oldest && epoch.0 < recent;
        let epochs = self.names.values().copied();
        let last = epochs.filter(|epoch| goes(*epoch)).max()?;
        self.names.retain(|name, epoch| {
            !goes(*epoch) || name == EVERYTHING || name.starts_with("revision:")
        });
        let purged = self.names.entry(EVERYTHING.to_owned()).or_insert(last);
        *purged = last.max(*purged);
        Some(last)
    }
}

fn list_of(name: &str) -> NameList {
    match name {
        name if name.starts_with("revision:") => NameList::Revisions,
        name if name.starts_with("purged") => NameList::Purged,
        _ => NameList::Stale,
    }
}
