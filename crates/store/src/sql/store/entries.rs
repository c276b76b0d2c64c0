//! The operations of `calls.rs` on stored pages: they run the statements of `statements/entries.rs` and read
//! their rows. A row that cannot be read is left out or shown empty, so that the rest of a list or a purge
//! goes on.

use http::{Response, StatusCode};

use super::{BEFORE_ALL_NAMES, SqlResult, SqlStore, Template};
use crate::{
    calls::{Evict, Latest, List, Probe, PruneEntries, Publish, Purge, Remove},
    clock::{FOREVER, duration, micros},
    driver::Row,
    error::BoxError,
    fence::{Epoch, Fence},
    name::{LockKind, LockName, bounded},
    rows::{
        Counted, EVICTION, EntryRow, Listed, LockRow, LockState, Probed, Pruned, ROW_OVERHEAD,
        StoredEntry, VISITED_AGAIN,
    },
    sql::{
        dialect::SET_BACK,
        run::{Arg, Cells, first_row, number},
        statements::{entries, locks, tables},
        wire,
    },
};

impl SqlStore {
    pub(crate) async fn probe(&self, Probe { name, known }: &Probe) -> SqlResult<Probed> {
        let done = self
            .run_on(&entries::PROBE, name, &[Arg::Int(known.0)])
            .await?;
        let row = first_row(&done)?;
        let lock = LockState {
            fence: row.fence(8)?,
            owned: row.number(9)? != 0,
            remaining: duration(row.number(10)?),
            failures: u32::try_from(row.number(11)?).unwrap_or(u32::MAX),
        };
        Ok(Probed {
            entry: Self::readable(name.as_str(), row),
            lock,
            epoch: row.epoch(12)?,
        })
    }

    fn readable(name: &str, row: &Row) -> Option<StoredEntry> {
        Self::read_entry(row).unwrap_or_else(|error| {
            tracing::warn!(name, %error, "the stored entry cannot be read");
            None
        })
    }

    fn read_entry(row: &Row) -> SqlResult<Option<StoredEntry>> {
        let Some(fence) = row.int(0)?.map(Fence) else {
            return Ok(None);
        };
        let mut content = Response::new(row.bytes(6)?.unwrap_or_default());
        *content.status_mut() = StatusCode::from_u16(u16::try_from(row.number(4)?)?)?;
        *content.headers_mut() = wire::decode(&row.bytes(5)?.unwrap_or_default())?;
        let age = row.number(1)?;
        Ok(Some(StoredEntry {
            fence,
            age: duration(age),
            generated: row.number(2)?,
            age_unknown: age < -SET_BACK,
            content,
            epoch: row.epoch(3)?,
            metadata: row.name(7)?,
        }))
    }

    pub(crate) async fn publish(&self, Publish { lease, entry }: &Publish) -> SqlResult<bool> {
        let content = &entry.content;
        let headers = wire::encode(content.headers());
        let mut arguments = vec![
            Arg::Int(entry.epoch.0),
            Arg::Int(micros(entry.interval.min(FOREVER))),
            Arg::Int(micros(entry.retention.min(FOREVER))),
            Arg::Text(&entry.metadata),
            Arg::Text(&entry.history),
            Arg::Int(i64::try_from(entry.size())?),
            Arg::Int(i64::from(entry.lasting)),
        ];
        let statement = match entry.renews {
            Some(known) => {
                arguments.push(Arg::Int(known.0));
                &entries::RENEW
            }
            None => {
                arguments.extend([
                    Arg::Int(i64::from(content.status().as_u16())),
                    Arg::Bytes(&headers),
                    Arg::Bytes(content.body()),
                ]);
                &entries::PUBLISH
            }
        };
        let mut fence = number(&self.run_under(statement, lease, &arguments).await?)?;
        if fence.is_none() {
            // The publish was refused, or done by an earlier try whose answer was lost.
            let name = bounded(lease.name.as_str());
            fence = number(&self.run(&entries::FENCE, &[Arg::Text(&name)]).await?)?;
        }
        Ok(fence == Some(lease.fence.0))
    }

    pub(crate) async fn remove(&self, call: &Remove) -> SqlResult<bool> {
        let done = self.run_under(&entries::REMOVE, &call.lease, &[]).await?;
        Ok(done.changed > 0)
    }

    /// Purges a key and its variants: breaks each lock before it removes the entry, so that no
    /// holder publishes. A variant that is being generated for the first time has a lock, too.
    pub(crate) async fn purge(&self, Purge { key }: &Purge) -> SqlResult<()> {
        let page = LockName::of(LockKind::Page, key.as_str());
        self.break_lock(&page, None).await?;
        let name = bounded(key);
        self.run(&entries::DELETE, &[Arg::Text(&name)]).await?;
        // A name with a NUL is stored as a digest, because text values in PostgreSQL cannot contain a `NUL`.
        if !key.contains('\0') {
            let [first, behind] = [format!("{key}#"), format!("{key}$")];
            let variants = [Arg::Text(&first), Arg::Text(&behind)];
            self.run(&locks::BREAK_VARIANTS, &variants).await?;
            self.run(&entries::DELETE_VARIANTS, &variants).await?;
        }
        Ok(())
    }

    pub(crate) async fn list(&self, List { from, limit }: &List) -> SqlResult<Listed> {
        let rows = Arg::Int(i64::try_from(*limit).unwrap_or(i64::MAX));
        let done = self.run(&entries::LIST, &[Arg::Text(from), rows]).await?;
        Ok(Listed {
            rows: Self::entry_rows(&done.rows),
            more: done.rows.len() == *limit,
        })
    }

    pub(crate) async fn latest(&self, call: &Latest) -> SqlResult<Vec<EntryRow>> {
        let limit = [Arg::Int(i64::try_from(call.limit).unwrap_or(i64::MAX))];
        let done = self.run(&entries::LATEST, &limit).await?;
        Ok(Self::entry_rows(&done.rows))
    }

    pub(crate) async fn count(&self) -> SqlResult<Counted> {
        let done = self.run(&entries::COUNT, &[]).await?;
        let row = first_row(&done)?;
        // A broken row may have a negative size.
        let number = |column| Ok::<_, BoxError>(row.number(column)?.max(0).unsigned_abs());
        Ok(Counted {
            pages: number(0)?,
            stale: number(1)?,
            bytes: number(2)?,
        })
    }

    pub(crate) async fn sizes(&self) -> SqlResult<Vec<(String, u64)>> {
        let done = self.run(&tables::SIZES, &[]).await?;
        let size = |row: &Row| Ok((row.name(0)?, u64::try_from(row.number(1)?)?));
        done.rows.iter().map(size).collect()
    }

    pub(crate) async fn evict(&self, Evict { excess }: &Evict) -> SqlResult<u64> {
        for group in EVICTION {
            let regenerated = i64::from(group.regenerated);
            let arguments = [regenerated, group.after, group.until, VISITED_AGAIN].map(Arg::Int);
            let evictable = self.run(&entries::EVICTABLE, &arguments);
            let (mut names, mut freed, mut fence) = (Vec::new(), 0, Fence::NONE);
            for row in &evictable.await?.rows {
                if freed >= *excess {
                    break;
                }
                let Ok(name) = row.name(0) else {
                    tracing::warn!("a stored entry cannot be removed, as its name cannot be read");
                    continue;
                };
                names.push(name);
                freed += row.number(1)?.max(0).unsigned_abs() + ROW_OVERHEAD;
                fence = fence.max(row.fence(2)?);
            }
            if !names.is_empty() {
                let fence = vec![Arg::Int(fence.0)];
                let evict = Template::new([entries::EVICT]);
                self.run_with_list(evict, fence, &names).await?;
                return Ok(freed);
            }
        }
        Ok(0)
    }

    /// Reads the rows whose names can be read.
    fn entry_rows(rows: &[Row]) -> Vec<EntryRow> {
        let rows = rows.iter().map(Self::entry_row);
        let rows = rows.filter_map(|row| {
            row.map_err(|error| tracing::warn!(%error, "a stored entry cannot be read"))
                .ok()
        });
        rows.collect()
    }

    /// Reads a row of the list. A column that cannot be read is left empty: that way the other rows can still
    /// be listed, and this one can be seen and removed.
    fn entry_row(row: &Row) -> SqlResult<EntryRow> {
        let (name, age) = (row.name(0)?, row.number(2)?);
        let (status, bytes) = (u16::try_from(row.number(5)?), u64::try_from(row.number(6)?));
        let (metadata, history) = (row.name(7), row.name(8));
        if status.is_err() || bytes.is_err() || metadata.is_err() || history.is_err() {
            tracing::warn!(name, "a stored entry cannot be read in full");
        }
        Ok(EntryRow {
            lock: LockRow {
                kind: LockKind::Page,
                name: name.clone(),
                owner: row.text(9)?,
                fence: row.fence(10)?,
                remaining: duration(row.number(11)?),
                age: duration(row.number(12)?),
            },
            name,
            fence: row.fence(1)?,
            age: duration(age),
            age_unknown: age < -SET_BACK,
            interval: duration(row.number(3)?),
            epoch: row.epoch(4)?,
            status: status.unwrap_or_default(),
            bytes: bytes.unwrap_or_default(),
            metadata: metadata.unwrap_or_default(),
            history: history.unwrap_or_default(),
        })
    }

    pub(crate) async fn prune_entries(&self, call: &PruneEntries) -> SqlResult<Option<Pruned>> {
        let from = [Arg::Text(call.after.as_deref().unwrap_or(BEFORE_ALL_NAMES))];
        let pruned = self.prune([&entries::NEXT, &entries::PRUNE], &from, &[]);
        let Some((last, rows)) = pruned.await? else {
            return Ok(None);
        };
        let mut oldest = Epoch::MAX;
        for row in &rows {
            oldest = oldest.min(row.epoch(1)?);
        }
        Ok(Some(Pruned { last, oldest }))
    }
}
