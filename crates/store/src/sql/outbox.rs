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

const OPERATION: &str = "invalidate_in` or `purge_in";

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
        let dialect = self.tables.dialect_on::<DB>(connection).await;
        let dialect = dialect.map_err(|error| Error::operation(OPERATION, error))?;
        let write = self.tables.statement(dialect, invalidations::WRITE);
        for (id, name) in self.rows {
            let row = [Arg::Text(id), Arg::Text(name)];
            let written = run_inside::<DB>(connection, dialect, &write, &row).await;
            written.map_err(|error| {
                if has_code::<DB>(&error, DB::RULES.no_such_table) {
                    self.no_tables()
                } else {
                    connection::operation(OPERATION, error)
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
    within(limit, OPERATION, connection.with(Rows { tables, rows })).await?
}
