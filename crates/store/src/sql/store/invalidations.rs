use std::collections::HashMap;

use super::{Answer, MOST_NAMES, SqlStore};
use crate::{
    calls::{Apply, FoldAt, Invalidate, Invalidated, InvalidatedForLong, PruneInvalidations},
    clock::{FOREVER, duration, micros},
    name::bounded,
    rows::{Awaited, Synced},
    sql::{
        run::{Arg, Cells, Driver, Statement, number},
        statements::{Side, invalidations, tables},
    },
};

impl<DB: Driver> SqlStore<DB> {
    pub(crate) async fn invalidate(&self, call: &Invalidate) -> Answer<i64> {
        let name = [Arg::Text(&call.name)];
        let done = self.run(&invalidations::INVALIDATE, &name).await?;
        Ok(number(&done)?.ok_or("the database gave no epoch")?)
    }

    pub(crate) async fn invalidated(&self, call: &Invalidated) -> Answer<Synced> {
        let mut keys = call.awaited.chunks(MOST_NAMES);
        let first = keys.next().unwrap_or_default();
        let mut synced = self.synced(call.since, call.most, first).await?;
        for rest in keys {
            let rest = self.synced(i64::MAX, 0, rest).await?;
            synced.awaited.extend(rest.awaited);
        }
        Ok(synced)
    }

    async fn synced(&self, since: i64, most: usize, keys: &[String]) -> Answer<Synced> {
        let names: Vec<_> = keys.iter().map(|key| bounded(key)).collect();
        let mut text = invalidations::INVALIDATED.to_owned();
        if most > 0 {
            text.push_str(invalidations::COMMITTED);
        }
        let most = Arg::Int(i64::try_from(most).unwrap_or(i64::MAX));
        let arguments = vec![Arg::Int(since), most];
        if !names.is_empty() {
            text.push_str(invalidations::AWAITED);
        }
        let done = self.run_listed(&text, arguments, &names).await?;
        let mut synced = Synced::default();
        let mut states = HashMap::new();
        for row in &done.rows {
            let (name, number) = (row.name(0)?, row.number(1)?);
            match row.number(2)? {
                -1 => synced.names.push((name, number)),
                -2 => synced.committed.push(name),
                remaining => {
                    let remaining = duration(remaining);
                    let fence = number;
                    states.insert(name, Awaited { fence, remaining });
                }
            }
        }
        synced.names.sort_unstable_by_key(|(_, epoch)| *epoch);
        let awaited = names.iter().map(|name| states.get(&**name).copied());
        synced.awaited = awaited.map(Option::unwrap_or_default).collect();
        Ok(synced)
    }

    pub(crate) async fn apply(&self, call: &Apply) -> Answer<Option<(String, i64)>> {
        let side = self.side().await?;
        let statement = |text: &str| Statement::new(side, self.tables.prefix(), text);
        let id = [Arg::Text(&call.id)];
        if let Side::Postgres | Side::Relative = side {
            let apply = statement(invalidations::APPLY);
            let done = self.connections.run(&apply, &id).await?;
            let row = done.rows.first();
            return Ok(row
                .map(|row| Ok::<_, sqlx::Error>((row.name(0)?, row.number(1)?)))
                .transpose()?);
        }
        let mut borrowed = self.connections.acquire().await?;
        let mut transaction = self
            .connections
            .begin(&mut borrowed, tables::BEGIN.of(side))
            .await?;
        let take = statement(invalidations::TAKE.of(side));
        let taken = DB::run(&mut transaction, &take, &id).await?;
        let Some(name) = taken.rows.first().map(|row| row.name(0)).transpose()? else {
            // Dropped, the transaction is rolled back.
            return Ok(None);
        };
        let invalidate = statement(invalidations::INVALIDATE.of(side));
        let done = DB::run(&mut transaction, &invalidate, &[Arg::Text(&name)]).await?;
        let epoch = number(&done)?.ok_or("the database gave no epoch")?;
        let remove = statement(invalidations::REMOVE.of(side));
        DB::run(&mut transaction, &remove, &id).await?;
        transaction.commit().await?;
        borrowed.give_back();
        Ok(Some((name, epoch)))
    }

    pub(crate) async fn fold_at(&self, call: &FoldAt) -> Answer<i64> {
        let most = [Arg::Int(i64::try_from(call.most)?)];
        let done = self.run(&invalidations::FOLD_AT, &most).await?;
        Ok(number(&done)?.ok_or(sqlx::Error::RowNotFound)?)
    }

    pub(crate) async fn invalidated_for_long(
        &self,
        call: &InvalidatedForLong,
    ) -> Answer<Vec<(String, i64)>> {
        let most = Arg::Int(i64::try_from(call.most).unwrap_or(i64::MAX));
        let arguments = [Arg::Text(&call.after), most];
        let sides = &invalidations::INVALIDATED_FOR_LONG;
        let done = self.run(sides, &arguments).await?;
        let names = done.rows.iter();
        names
            .map(|row| Ok((row.name(0)?, row.number(1)?)))
            .collect()
    }

    pub(crate) async fn prune_invalidations(
        &self,
        call: &PruneInvalidations,
    ) -> Answer<Option<i64>> {
        let after = Arg::Int(call.after.unwrap_or(i64::MIN));
        let bounds = [call.oldest, micros(call.age.min(FOREVER))].map(Arg::Int);
        let next = [&[after], &bounds[..]].concat();
        let done = self.run(&invalidations::NEXT, &next).await?;
        let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let last = row.int(0)?;
        if let Some(last) = last {
            // First, so that a process that misses the removed names finds the purge.
            self.run(&invalidations::FOLD, &[Arg::Int(last)]).await?;
            let few = [after, Arg::Int(last)];
            self.run(&invalidations::PRUNE, &few).await?;
        }
        Ok(last)
    }
}
