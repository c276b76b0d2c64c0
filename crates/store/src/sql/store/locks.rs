//! The operations of `calls.rs` on locks. If the connection breaks, an attempt is sent once more, and its
//! result says so, because the database may still execute the first copy.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{BEFORE_ALL_NAMES, SqlResult, SqlStore};
use crate::{
    calls::{Extend, PruneLocks, Release, Revoke, TryLock},
    clock::{FOREVER, duration, micros},
    driver::Row,
    fence::Fence,
    name::{LockKind, LockName, bounded},
    rows::{LeaseRow, LockRow, TryLockResult},
    sql::{
        run::{Arg, Cells, is_broken, is_contended, number},
        statements::locks,
    },
    timing::SETTLING_TIME,
};

impl SqlStore {
    pub(crate) async fn try_lock(&self, call: &TryLock) -> SqlResult<TryLockResult> {
        let statement = self.statement(&locks::TRY).await?;
        let column = bounded(call.name.as_str());
        let arguments = [
            Arg::Text(call.name.kind().as_str()),
            Arg::Text(&column),
            Arg::Text(&call.owner),
            Arg::Int(micros(call.length)),
            Arg::Int(call.seen.map_or(-1, |seen| seen.0)),
        ];
        let resent = AtomicBool::new(false);
        // An attempt that loses the race is not repeated. One whose reply was lost is sent again: if the first
        // attempt has taken the lock, the second one gets its fence, because the owner is the same.
        let again = |error: &_| {
            let is_broken = is_broken(error);
            resent.fetch_or(is_broken, Relaxed);
            is_broken
        };
        let attempt = async || -> SqlResult<Option<Fence>> {
            let tried = self.connections.run_while(again, &statement, &arguments);
            match tried.await {
                Ok(done) => Ok(number(&done)?.map(Fence)),
                Err(error) if is_contended(&error) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let mut fence = attempt().await?;
        if fence.is_none() && resent.load(Relaxed) {
            // The first attempt may still be running in the database, and then the lock looks taken.
            tokio::time::sleep(SETTLING_TIME).await;
            fence = attempt().await?;
        }
        Ok(TryLockResult {
            fence,
            resent: resent.into_inner(),
        })
    }

    pub(crate) async fn extend(&self, call: &Extend) -> SqlResult<bool> {
        let statement = self.statement(&locks::EXTEND).await?;
        let LeaseRow { name, owner, fence } = &call.lease;
        let column = bounded(name.as_str());
        let arguments = [
            Arg::Text(name.kind().as_str()),
            Arg::Text(&column),
            Arg::Text(owner),
            Arg::Int(fence.0),
            Arg::Int(micros(call.length)),
        ];
        let connections = self.connections.urgent();
        let done = connections.run(&statement, &arguments).await?;
        Ok(done.changed > 0)
    }

    pub(crate) async fn release(&self, call: &Release) -> SqlResult<bool> {
        let cooldown = [Arg::Int(micros(call.cooldown.min(FOREVER)))];
        let released = self.run_under(&locks::RELEASE, &call.lease, &cooldown);
        let done = released.await?;
        Ok(done.changed > 0)
    }

    pub(crate) async fn inspect(&self, name: &LockName) -> SqlResult<Option<LockRow>> {
        let done = self.run_on(&locks::INSPECT, name, &[]).await?;
        Ok(done.rows.first().map(lock_row).transpose()?.flatten())
    }

    pub(crate) async fn held(&self) -> SqlResult<Vec<LockRow>> {
        let done = self.run(&locks::HELD, &[]).await?;
        // A lock of a kind that this release does not know is not listed, nor is one that cannot be read.
        let rows = done.rows.iter().map(lock_row);
        let rows = rows.filter_map(|row| {
            row.unwrap_or_else(|error| {
                tracing::warn!(%error, "a lock cannot be read");
                None
            })
        });
        Ok(rows.collect())
    }

    /// Takes a lock from its current holder. A second run of the statement finds another fence, and
    /// does not affect the next holder.
    pub(crate) async fn break_lock(&self, name: &LockName, seen: Option<Fence>) -> SqlResult<bool> {
        let fence = match seen {
            Some(fence) => Some(fence),
            None => self.inspect(name).await?.map(|row| row.fence),
        };
        let Some(fence) = fence else {
            return Ok(false);
        };
        let done = self
            .run_on(&locks::BREAK, name, &[Arg::Int(fence.0)])
            .await?;
        // If the fence has changed since `inspect`, the holder seen there has lost the lock already.
        Ok(seen.is_none() || done.changed > 0)
    }

    pub(crate) async fn prune_locks(&self, call: &PruneLocks) -> SqlResult<Option<String>> {
        let unused = call.unused;
        let unused = [unused.released, unused.expired, unused.alone];
        let unused = unused.map(|time| Arg::Int(micros(time.min(FOREVER))));
        let after = call.after.as_deref().unwrap_or(BEFORE_ALL_NAMES);
        let from = [Arg::Text(call.kind.as_str()), Arg::Text(after)];
        let pruned = self.prune([&locks::NEXT, &locks::PRUNE], &from, &unused);
        Ok(pruned.await?.map(|(last, _)| last))
    }

    pub(crate) async fn revoke(&self, call: &Revoke) -> SqlResult<()> {
        let owner = [Arg::Text(&call.owner)];
        self.run_on(&locks::REVOKE, &call.name, &owner).await?;
        Ok(())
    }
}

/// Reads the row of a lock, with the columns that [`locks::INSPECT`] selects. `None` means that this version of
/// the crate does not know the lock's kind.
pub fn lock_row(row: &Row) -> SqlResult<Option<LockRow>> {
    let kind = row.name(0)?;
    let Some(kind) = LockKind::all().find(|it| it.as_str() == kind) else {
        return Ok(None);
    };
    Ok(Some(LockRow {
        kind,
        name: row.name(1)?,
        owner: row.text(2)?,
        fence: row.fence(3)?,
        age: duration(row.number(4)?),
        remaining: duration(row.number(5)?),
    }))
}
