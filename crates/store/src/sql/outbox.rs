//! Invalidations in a transaction of the application's own.

use std::time::Duration;

use crate::{
    error::Error,
    sql::{
        Connection, Tables,
        connection::{self, OnConnection, run_inside},
        run::{Arg, Driver, has_code},
        statements::invalidations,
    },
    timing::within,
};

const STEP: &str = "invalidate_in` or `purge_in";

/// Rows to write: ids and names.
struct Rows<'a> {
    tables: &'a Tables,
    rows: &'a [(String, String)],
}

impl Rows<'_> {
    /// The error in a database without the site's tables.
    fn no_tables(&self) -> Error {
        Error::invalid(format!(
            "the transaction's database has no table `{}outbox`: an invalidation in a transaction needs the \
             site's own database; elsewhere, call `invalidate_tag` after the commit",
            self.tables.qualified()
        ))
    }
}

impl OnConnection for Rows<'_> {
    type Output = Result<(), Error>;

    async fn run<DB: Driver>(self, connection: &mut DB::Connection) -> Self::Output {
        let side = self.tables.side_on::<DB>(connection).await;
        let side = side.map_err(|error| Error::step(STEP, error))?;
        let write = self.tables.statement(side, invalidations::WRITE);
        for (id, name) in self.rows {
            let row = [Arg::Text(id), Arg::Text(name)];
            let written = run_inside::<DB>(connection, side, &write, &row).await;
            written.map_err(|error| {
                if has_code::<DB>(&error, DB::DIALECT.missing) {
                    self.no_tables()
                } else {
                    connection::step(STEP, error)
                }
            })?;
        }
        Ok(())
    }
}

/// Writes invalidations, ids and names, in the caller's transaction.
///
/// # Errors
///
/// The database fails or is not the site's own, or the connection is in no transaction.
pub async fn write(
    mut connection: Connection<'_>,
    tables: &Tables,
    rows: &[(String, String)],
    limit: Duration,
) -> Result<(), Error> {
    within(limit, STEP, connection.with(Rows { tables, rows })).await?
}
