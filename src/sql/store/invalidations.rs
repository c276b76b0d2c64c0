//! The steps on invalidations.

use super::{Answer, SqlStore};
use crate::{
    clock::{FOREVER, micros},
    sql::{
        run::{Arg, Cells, Driver, number},
        statements::{Sides, invalidations},
    },
    store::{FoldAt, Invalidate, Invalidated, InvalidatedForLong, PruneInvalidations},
};

impl<DB: Driver> SqlStore<DB> {
    pub(super) async fn invalidate(&self, call: &Invalidate) -> Answer<i64> {
        let name = [Arg::Text(&call.name)];
        let done = self.run(&invalidations::INVALIDATE, &name).await?;
        Ok(number(&done)?.ok_or("the database gave no epoch")?)
    }

    pub(super) async fn invalidated(&self, call: &Invalidated) -> Answer<Vec<(String, i64)>> {
        let since = Arg::Int(call.since);
        let sides = &invalidations::INVALIDATED;
        self.epochs(sides, since, call.most).await
    }

    pub(super) async fn fold_at(&self, call: &FoldAt) -> Answer<i64> {
        let most = [Arg::Int(i64::try_from(call.most)?)];
        let done = self.run(&invalidations::FOLD_AT, &most).await?;
        Ok(number(&done)?.ok_or(sqlx::Error::RowNotFound)?)
    }

    pub(super) async fn invalidated_for_long(
        &self,
        call: &InvalidatedForLong,
    ) -> Answer<Vec<(String, i64)>> {
        let sides = &invalidations::INVALIDATED_FOR_LONG;
        self.epochs(sides, Arg::Text(&call.after), call.most).await
    }

    /// Returns names with their epochs, from the given place on.
    async fn epochs(
        &self,
        sides: &Sides,
        after: Arg<'_>,
        most: usize,
    ) -> Answer<Vec<(String, i64)>> {
        let most = Arg::Int(i64::try_from(most).unwrap_or(i64::MAX));
        let done = self.run(sides, &[after, most]).await?;
        let names = done.rows.iter();
        names
            .map(|row| Ok((row.name(0)?, row.number(1)?)))
            .collect()
    }

    pub(super) async fn prune_invalidations(
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
