//! The steps on invalidations.

use super::{Answer, SqlStore};
use crate::{
    clock::{FOREVER, micros},
    sql::{
        run::{Arg, Cells, Driver, number},
        statements::{Sides, invalidations},
    },
    store::{Invalidate, Invalidated, InvalidatedForLong, PruneInvalidations},
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
        let done = self.run(&invalidations::NEXT, &[after]).await?;
        let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let last = row.int(0)?;
        if let Some(last) = last {
            let purged = micros(call.purged.min(FOREVER));
            let numbers = [last, call.before, purged, call.oldest];
            let [last, before, purged, oldest] = numbers.map(Arg::Int);
            let arguments = [after, last, before, purged, oldest];
            self.run(&invalidations::PRUNE, &arguments).await?;
        }
        Ok(last)
    }
}
