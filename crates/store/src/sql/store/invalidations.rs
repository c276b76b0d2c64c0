//! The operations of `calls.rs` on invalidations and the outbox. Rows of the outbox are numbered together
//! where that works, and one by one where one of them is refused.

use std::collections::HashMap;

use super::{BEFORE_ALL_NAMES, SqlResult, SqlStore, Template};
use crate::{
    calls::{Discard, Invalidate, Invalidated, LatestNames, MAX_NAMES, Number, PruneInvalidations},
    clock::{FOREVER, duration, micros},
    driver::{DriverError, Row},
    error::{BoxError, RejectedValue},
    fence::{Epoch, Fence},
    name::bounded,
    rows::{Numbered, OutboxRow, PeerLeaseState, Synced},
    sql::{
        run::{Arg, Cells, first_row, is_broken, number},
        statements::{Dialect, PerDialect, invalidations},
    },
};

/// After so many refused rows in a row, and before any success, the reason is not in the rows, but in the
/// database.
const SAME_FAILURE: usize = 3;

impl SqlStore {
    pub(crate) async fn invalidate(&self, call: &Invalidate) -> SqlResult<Epoch> {
        self.invalidate_all(&call.names).await
    }

    async fn invalidate_all(&self, names: &[impl AsRef<str>]) -> SqlResult<Epoch> {
        let invalidate = invalidations::INVALIDATE.of(self.dialect().await?);
        let invalidate = Template::new([invalidate]);
        let done = self.run_with_list(invalidate, Vec::new(), names).await?;
        let epoch = number(&done)?.ok_or("the database gave no epoch")?;
        Ok(Epoch(epoch))
    }

    pub(crate) async fn invalidated(&self, call: &Invalidated) -> SqlResult<Synced> {
        let mut keys = call.peer_keys.chunks(MAX_NAMES);
        let first = keys.next().unwrap_or_default();
        let mut synced = self.synced(call, first).await?;
        for rest in keys {
            let states_alone = Invalidated::new("", Epoch::NONE, 0, Vec::new());
            let rest = self.synced(&states_alone, rest).await?;
            synced.peer_leases.extend(rest.peer_leases);
        }
        Ok(synced)
    }

    /// Carries out the call with these keys in place of those in the call.
    async fn synced(&self, call: &Invalidated, keys: &[String]) -> SqlResult<Synced> {
        let names: Vec<_> = keys.iter().map(|key| bounded(key)).collect();
        let mut parts = [invalidations::INVALIDATED, "", ""];
        let limit = i64::try_from(call.limit).unwrap_or(i64::MAX);
        let since = if limit > 0 { call.since } else { Epoch::MAX };
        let mut arguments = vec![Arg::Int(since.0), Arg::Int(limit)];
        if call.limit > 0 {
            parts[1] = invalidations::COMMITTED;
            arguments.push(Arg::Text(match &*call.after {
                "" => BEFORE_ALL_NAMES,
                after => after,
            }));
        }
        if !names.is_empty() {
            parts[2] = invalidations::PEER_LEASES;
        }
        let template = Template::new(parts);
        let done = self.run_with_list(template, arguments, &names).await?;
        let mut synced = Synced::default();
        let mut states = HashMap::new();
        for row in &done.rows {
            let (name, number) = (readable(row, 0)?, row.number(1)?);
            match row.number(2)? {
                -1 => synced.names.push((name, Epoch(number))),
                -2 => {
                    let id = readable(row, 3)?;
                    synced.committed.push(OutboxRow { id, name });
                }
                remaining => {
                    let remaining = duration(remaining);
                    let fence = Fence(number);
                    states.insert(name, PeerLeaseState { fence, remaining });
                }
            }
        }
        synced.names.sort_unstable_by_key(|(_, epoch)| *epoch);
        synced.committed.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let leases = names.iter().map(|name| states.get(&**name).copied());
        synced.peer_leases = leases.map(Option::unwrap_or_default).collect();
        Ok(synced)
    }

    pub(crate) async fn number(&self, call: &Number) -> SqlResult<Numbered> {
        let error = match self.number_all(&call.ids).await {
            Ok(numbered) => return Ok(numbered),
            // The connection or the server is at fault, and not the rows.
            Err(error) if !is_refusal(&error) => return Err(error),
            Err(error) => error,
        };
        // The rows are numbered one by one, so that only those that the database refuses stay in the outbox.
        let mut numbered = Numbered::default();
        for id in &call.ids {
            if numbered.rows.is_empty() && numbered.failed.len() >= SAME_FAILURE {
                return Err(error);
            }
            match self.number_all(std::slice::from_ref(id)).await {
                Ok(one) => {
                    numbered.rows.extend(one.rows);
                    numbered.left.extend(one.left);
                }
                Err(error) if is_refusal(&error) => {
                    let take = Template::new([invalidations::TAKE]);
                    let take = self.run_with_list(take, Vec::new(), std::slice::from_ref(id));
                    if let Some(row) = take.await?.rows.first() {
                        let row = outbox_row(row)?;
                        numbered.failed.push((row, error.to_string()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(numbered)
    }

    async fn number_all(&self, ids: &[String]) -> SqlResult<Numbered> {
        if self.dialect().await? == Dialect::Postgres {
            let number = Template::new([invalidations::NUMBER]);
            let done = self.run_with_list(number, Vec::new(), ids).await?;
            let rows = done.rows.iter();
            let rows = rows.map(|row| Ok((outbox_row(row)?, row.epoch(2)?)));
            return Ok(Numbered {
                rows: rows.collect::<SqlResult<_>>()?,
                ..Numbered::default()
            });
        }
        let take = Template::new([invalidations::TAKE]);
        let taken = self.run_with_list(take, Vec::new(), ids).await?;
        let rows: Vec<_> = taken
            .rows
            .iter()
            .map(outbox_row)
            .collect::<SqlResult<_>>()?;
        if rows.is_empty() {
            return Ok(Numbered::default());
        }
        let names: Vec<_> = rows.iter().map(|row| &row.name).collect();
        let epoch = self.invalidate_all(&names).await?;
        // If the process crashes here, or if the removal fails, the rows are numbered again.
        let ids: Vec<_> = rows.iter().map(|row| row.id.clone()).collect();
        Ok(Numbered {
            left: self.remove_numbered(&ids).await.unwrap_or(ids),
            rows: rows.into_iter().map(|row| (row, epoch)).collect(),
            failed: Vec::new(),
        })
    }

    pub(crate) async fn discard(&self, call: &Discard) -> SqlResult<Vec<String>> {
        self.remove_numbered(&call.ids).await
    }

    /// Removes rows of the outbox. Returns the ids of those that somebody has locked.
    async fn remove_numbered(&self, ids: &[String]) -> SqlResult<Vec<String>> {
        let remove = Template::new([invalidations::REMOVE]);
        match self.run_with_list(remove.clone(), Vec::new(), ids).await {
            Ok(_) => return Ok(Vec::new()),
            Err(error) if !is_refusal(&error) => return Err(error),
            Err(_) if ids.len() < 2 => return Ok(ids.to_vec()),
            Err(_) => {}
        }
        let mut left = Vec::new();
        for id in ids {
            match self
                .run_with_list(remove.clone(), Vec::new(), std::slice::from_ref(id))
                .await
            {
                Ok(_) => {}
                Err(error) if is_refusal(&error) => left.push(id.clone()),
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }

    pub(crate) async fn latest_epoch(&self) -> SqlResult<Epoch> {
        self.epoch(invalidations::LATEST_EPOCH).await
    }

    pub(crate) async fn purged_until(&self) -> SqlResult<Epoch> {
        self.epoch(invalidations::PURGED_UNTIL).await
    }

    async fn epoch(&self, text: &'static str) -> SqlResult<Epoch> {
        let done = self.run(&PerDialect::same(text), &[]).await?;
        Ok(Epoch(first_row(&done)?.number(0)?))
    }

    pub(crate) async fn latest_names(&self, call: &LatestNames) -> SqlResult<Vec<(String, Epoch)>> {
        let limit = i64::try_from(call.limit).unwrap_or(i64::MAX);
        let arguments = [call.list as i64, call.before.0, limit].map(Arg::Int);
        let latest = PerDialect::same(invalidations::LATEST_NAMES);
        let done = self.run(&latest, &arguments).await?;
        let names = done.rows.iter();
        names
            .map(|row| Ok((readable(row, 0)?, row.epoch(1)?)))
            .collect()
    }

    pub(crate) async fn prune_invalidations(
        &self,
        call: &PruneInvalidations,
    ) -> SqlResult<Option<Epoch>> {
        let after = Arg::Int(call.after.map_or(i64::MIN, |after| after.0));
        let bounds = [call.oldest.0, micros(call.age.min(FOREVER))].map(Arg::Int);
        let next = [&[after], &bounds[..]].concat();
        let done = self.run(&invalidations::NEXT, &next).await?;
        let row = first_row(&done)?;
        let last = row.int(0)?;
        if let Some(last) = last {
            // The purge is stored before the names are removed, so that a process that misses the names finds
            // the purge.
            self.run(&invalidations::PURGE_ALL, &[Arg::Int(last)])
                .await?;
            let few = [after, Arg::Int(last)];
            self.run(&invalidations::PRUNE, &few).await?;
        }
        Ok(last.map(Epoch))
    }
}

fn outbox_row(row: &Row) -> SqlResult<OutboxRow> {
    Ok(OutboxRow {
        id: row.name(0)?,
        name: row.name(1)?,
    })
}

/// Returns a string of a row. A program in another language may have written bytes that are not UTF-8. They are
/// replaced, so that the other rows of the answer can be read.
fn readable(row: &Row, column: usize) -> SqlResult<String> {
    match row.name(column) {
        Ok(text) => Ok(text),
        Err(_) => {
            let bytes = row.bytes(column)?.unwrap_or_default();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }
}

/// Returns true if the database works and refuses the statement.
fn is_refusal(error: &BoxError) -> bool {
    let source = match error.downcast_ref::<RejectedValue>() {
        Some(RejectedValue(source)) => source,
        None => error,
    };
    let error = source.downcast_ref::<DriverError>();
    error.is_some_and(|error| error.code().is_some() && !is_broken(error))
}
