//! Reads the list of stored resources, in batches, and adds what only this process knows: the keys in
//! cooldown or hit-for-pass, and what memory holds.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::StatusCode;
use perennial_store::{
    EntryRow, Error, Fence, Latest, List, LockInfo, LockKind, LockName, Probe, name::bounded,
};

use super::{
    Listing,
    entries::{Entry, EntryFilter, EntryPage, EntryState},
};
use crate::cache::{
    CacheEntry,
    entry::Freshness,
    history::PastVersion,
    metadata::{Description, Metadata},
};
use crate::http::terms::Terms;

/// The number of rows that one statement reads.
const STEP: usize = 200;

/// The number of statements of one call. A filter that few entries pass would otherwise read the whole table
/// in one call.
const STEPS: usize = 10;

impl Listing {
    /// Returns a page of the entries that pass the filter, after a sync, if one is due.
    pub(crate) async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        self.wait_until_known().await?;
        let (mut entries, mut from) = (Vec::new(), filter.first_name());
        for _ in 0..STEPS {
            let stored = self.environment.store.call(List::new(&from, STEP)).await?;
            let last = stored.rows.last().filter(|_| stored.more);
            let mut until = last.map(|last| name_after(&last.name));
            let rows = stored.rows.into_iter();
            let mut listed: Vec<_> = rows.map(|row| self.entry_of(row)).collect();
            listed.extend(self.not_stored(&from, until.as_deref()));
            listed.sort_by(|(a, _), (b, _)| a.cmp(b));
            // Of two entries with the same key, the one with a stored version comes first, and is kept.
            listed.dedup_by(|(later, _), (first, _)| later == first);
            for (name, entry) in listed {
                if filter.is_behind(&name) {
                    until = None;
                    break;
                }
                if !filter.passes(&entry) {
                    continue;
                }
                if entries.len() == filter.limit {
                    let next = Some(name);
                    return Ok(EntryPage { entries, next });
                }
                entries.push(entry);
            }
            match until {
                Some(until) => from = until,
                None => {
                    return Ok(EntryPage {
                        entries,
                        next: None,
                    });
                }
            }
        }
        let next = Some(from);
        Ok(EntryPage { entries, next })
    }

    /// Returns the entry of this key.
    pub(crate) async fn entry(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.wait_until_known().await?;
        let name = bounded(key);
        let row = self
            .environment
            .store
            .call(List::new(&*name, 1))
            .await?
            .rows
            .pop();
        let stored = row.filter(|row| row.name == name);
        if let Some(row) = stored {
            return Ok(Some(self.entry_of(row).1));
        }
        let in_memory = self.not_stored(&name, Some(&name_after(&name)));
        Ok(in_memory.into_iter().next().map(|(_, entry)| entry))
    }

    /// Returns the stored response of this key.
    pub(crate) async fn stored(&self, key: &str) -> Result<Option<Response<Bytes>>, Error> {
        let name = LockName::of(LockKind::Page, key);
        let probe = self.environment.store.call(Probe {
            name,
            known: Fence::NONE,
        });
        let entry = probe.await?.entry;
        Ok(entry.map(|entry| entry.content))
    }

    /// Returns the resources that were generated last, the latest one first.
    pub(crate) async fn latest(&self, limit: usize) -> Result<Vec<Entry>, Error> {
        self.wait_until_known().await?;
        let rows = self
            .environment
            .store
            .call(Latest { limit })
            .await?
            .into_iter();
        Ok(rows.map(|row| self.entry_of(row).1).collect())
    }

    fn entry_of(&self, row: EntryRow) -> (String, Entry) {
        let (metadata, description) = (
            Metadata::decode(row.epoch, &row.metadata),
            Description::decode(&row.metadata),
        );
        let key = description.key.unwrap_or_else(|| row.name.clone());
        let terms = Terms {
            interval: row.interval,
            stale_while_revalidate: description.stale_while_revalidate,
            stale_if_error: Duration::ZERO,
        };
        let by_age = Freshness::by_age(row.age, &terms);
        let by_readability = match (metadata.is_damaged, row.age_unknown) {
            (true, _) => Freshness::Expired,
            (false, true) => Freshness::Stale,
            (false, false) => Freshness::Fresh,
        };
        let freshness = by_age
            .max(by_readability)
            .max(self.environment.list.validity_of(&key, &metadata).into());
        let lock = LockInfo::of(row.lock);
        let cools_down = lock.cools_down();
        let state = match freshness {
            Freshness::Fresh => EntryState::Fresh,
            _ if cools_down => EntryState::Cooldown,
            Freshness::Stale => EntryState::Stale,
            Freshness::Expired | Freshness::Purged => EntryState::Expired,
        };
        let next_regeneration = match state {
            EntryState::Fresh => terms.interval.saturating_sub(row.age),
            EntryState::Cooldown => lock.remaining,
            _ => Duration::ZERO,
        };
        let memory = self.memory.weight_of(&key);
        let entry = Entry {
            layer: description.layer,
            state,
            status: StatusCode::from_u16(row.status).ok(),
            age: row.age,
            interval: row.interval,
            next_regeneration,
            bytes: row.bytes,
            memory_bytes: memory,
            tags: metadata.tags.to_vec(),
            revision: description.code,
            fence: row.fence,
            holder: lock.holder,
            remaining: lock.remaining,
            history: PastVersion::read(&row.history, row.age),
            key,
        };
        (row.name, entry)
    }

    /// Returns the resources that this process knows and that have no version, if their names lie
    /// between `from` and `until`. Their responses are not stored (hit-for-pass), or their
    /// regeneration has failed.
    fn not_stored(&self, from: &str, until: Option<&str>) -> Vec<(String, Entry)> {
        let now = self.environment.now();
        let known = self.memory.without_version().into_iter();
        let listed = known.filter_map(|(key, entry)| {
            let name = bounded(&key).into_owned();
            if &*name < from || until.is_some_and(|until| &*name >= until) {
                return None;
            }
            let (state, until, meta) = match entry {
                CacheEntry::HitForPass { until, meta, .. } => (EntryState::HitForPass, until, meta),
                CacheEntry::Cooldown { until, meta, .. } => (EntryState::Cooldown, until, meta),
                CacheEntry::Version(_) => return None,
            };
            let remaining = until - now;
            (!remaining.is_zero()).then(|| {
                let entry = Entry {
                    layer: String::new(),
                    state,
                    status: None,
                    age: Duration::ZERO,
                    interval: Duration::ZERO,
                    next_regeneration: remaining,
                    bytes: 0,
                    memory_bytes: self.memory.weight_of(&key),
                    tags: meta.stored.tags.to_vec(),
                    revision: None,
                    fence: Fence::NONE,
                    holder: None,
                    remaining,
                    history: Vec::new(),
                    key,
                };
                (name, entry)
            })
        });
        listed.collect()
    }
}

/// Returns the name that comes directly after this one in the order of names. It ends with U+0001, which
/// is smaller than any character of a name.
fn name_after(name: &str) -> String {
    format!("{name}\u{1}")
}
