//! The steps on locks that take more than one statement.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use super::SqlStore;
use crate::{
    clock::{duration, micros},
    error::BoxError,
    name::{LockKind, LockName, bounded},
    sql::{
        run::{Arg, Cells, Driver, Statement, is_broken, is_contended, number},
        statements::locks,
    },
    store::{BATCH, LeaseRow, LockRow, waits},
};

/// How long a statement may still run on the server after its connection broke, by and large.
const SETTLING: Duration = Duration::from_millis(250);

impl<DB: Driver> SqlStore<DB> {
    pub(super) async fn try_once(
        &self,
        name: &LockName,
        owner: &str,
        length: Duration,
        seen: Option<i64>,
    ) -> Result<Option<i64>, BoxError> {
        // Also while the tables are being made.
        waits();
        let statement = self.statement(&locks::TRY).await?;
        let column = bounded(name.as_str());
        let arguments = [
            Arg::Text(name.kind().as_str()),
            Arg::Text(&column),
            Arg::Text(owner),
            Arg::Int(micros(length)),
            Arg::Int(seen.unwrap_or(-1)),
        ];
        let broke = AtomicBool::new(false);
        // Who loses does not try again.
        let again = |error: &_| {
            let is_broken = is_broken::<DB>(error);
            broke.fetch_or(is_broken, Relaxed);
            is_broken
        };
        for settles in [true, false] {
            let tried = self.connections.run_while(again, &statement, &arguments);
            match tried.await {
                Ok(done) => {
                    if let Some(fence) = number(&done)? {
                        return Ok(Some(fence));
                    }
                }
                Err(error) if is_contended::<DB>(&error) => {}
                Err(error) => return Err(error.into()),
            }
            if !settles || !broke.load(Relaxed) {
                break;
            }
            // The one whose connection broke may be taking it yet, which only its owner is told.
            tokio::time::sleep(SETTLING).await;
        }
        Ok(None)
    }

    /// Takes a lock from whoever has it now; a second run of the statement finds another fence, and takes nothing from the next one.
    pub(super) async fn break_stored(&self, kind: &str, name: &str) -> Result<bool, BoxError> {
        let id = [Arg::Text(kind), Arg::Text(name)];
        let found = self.run(&locks::INSPECT, &id).await?;
        let Some(row) = found.rows.first() else {
            return Ok(false);
        };
        let [kind, name] = id;
        let seen = [kind, name, Arg::Int(row.number(3)?)];
        self.run(&locks::BREAK, &seen).await?;
        Ok(true)
    }

    pub(super) async fn reclaim_strays(&self, strays: &[&LeaseRow]) -> Result<(), BoxError> {
        let named = Statement::new(self.dialect().await?, &self.prefix, &locks::named(BATCH));
        for strays in strays.chunks(BATCH) {
            let id = |stray: &&LeaseRow| {
                let name = &stray.name;
                (name.kind().as_str(), bounded(name.as_str()).into_owned())
            };
            let ids: Vec<_> = strays.iter().map(id).collect();
            let Some(last) = ids.last() else { break };
            // The statement has a fixed number of arguments, so that it is prepared once.
            let arguments = ids.iter().chain(std::iter::repeat(last)).take(BATCH);
            let arguments = arguments.flat_map(|(kind, name)| [Arg::Text(kind), Arg::Text(name)]);
            let arguments: Vec<_> = arguments.collect();
            let found = self.connections.run(&named, &arguments).await?;
            for row in &found.rows {
                let (kind, name) = (row.name(0)?, row.name(1)?);
                let (owner, fence) = (row.text(2)?, row.number(3)?);
                let of = |id: &(&str, String)| id.0 == kind && id.1 == name;
                let mut strays = strays.iter().zip(&ids).filter(|(_, id)| of(id));
                let is_stray = strays
                    .any(|(stray, _)| owner.as_ref() == Some(&stray.owner) || stray.fence == fence);
                if is_stray {
                    let seen = [Arg::Text(&kind), Arg::Text(&name), Arg::Int(fence)];
                    self.run(&locks::BREAK, &seen).await?;
                }
            }
        }
        Ok(())
    }
}

/// A row of [`locks::INSPECT`]; `None`: of a kind that this release does not know.
pub(in crate::sql) fn lock_row<DB: Driver>(row: &DB::Row) -> Result<Option<LockRow>, BoxError> {
    let kind = row.name(0)?;
    let Some(kind) = LockKind::ALL.into_iter().find(|it| it.as_str() == kind) else {
        return Ok(None);
    };
    Ok(Some(LockRow {
        kind,
        name: row.name(1)?,
        owner: row.text(2)?,
        fence: row.number(3)?,
        age: duration(row.number(4)?),
        remaining: duration(row.number(5)?),
    }))
}
