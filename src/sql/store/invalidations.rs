//! The steps on invalidations.

use std::time::Duration;

use super::{Answer, SqlStore};
use crate::{
    clock::{FOREVER, micros},
    sql::{
        run::{Arg, Cells, Driver, number},
        statements::{Sides, invalidations},
    },
};

impl<DB: Driver> SqlStore<DB> {
    pub(super) async fn invalidate(&self, name: &str) -> Answer<i64> {
        let name = [Arg::Text(name)];
        let done = self.run(&invalidations::INVALIDATE, &name).await?;
        Ok(number(&done)?.ok_or("the database gave no epoch")?)
    }

    pub(super) async fn invalidated(&self, since: i64, most: usize) -> Answer<Vec<(String, i64)>> {
        let since = Arg::Int(since);
        self.epochs(&invalidations::INVALIDATED, since, most).await
    }

    pub(super) async fn invalidated_for_long(
        &self,
        after: &str,
        most: usize,
    ) -> Answer<Vec<(String, i64)>> {
        let sides = &invalidations::INVALIDATED_FOR_LONG;
        self.epochs(sides, Arg::Text(after), most).await
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

    pub(super) async fn forget_invalidated(
        &self,
        before: i64,
        purged: Duration,
        oldest: i64,
        after: Option<i64>,
    ) -> Answer<Option<i64>> {
        let after = Arg::Int(after.unwrap_or(i64::MIN));
        let done = self.run(&invalidations::NEXT, &[after]).await?;
        let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let last = row.int(0)?;
        if let Some(last) = last {
            let purged = micros(purged.min(FOREVER));
            let [last, before, purged, oldest] = [last, before, purged, oldest].map(Arg::Int);
            let arguments = [after, last, before, purged, oldest];
            self.run(&invalidations::FORGET, &arguments).await?;
        }
        Ok(last)
    }
}
