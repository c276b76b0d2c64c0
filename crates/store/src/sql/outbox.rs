//! Invalidations in a transaction of the application's own.

use std::time::Duration;

use crate::{
    error::Error,
    sql::{
        Connection,
        connection::OnConnection,
        run::{Arg, Driver, Statement, has_code},
        statements::invalidations,
    },
    timing::within,
};

const STEP: &str = "write-invalidation";

/// Rows to write: ids and names.
struct Rows<'a> {
    prefix: &'a str,
    rows: &'a [(String, String)],
}

impl OnConnection for Rows<'_> {
    type Output = Result<(), Error>;

    async fn run<DB: Driver>(self, connection: &mut DB::Connection) -> Self::Output {
        let write = Statement::new(DB::DIALECT.side, self.prefix, invalidations::WRITE);
        for (id, name) in self.rows {
            let row = [Arg::Text(id), Arg::Text(name)];
            let written = DB::run(connection, &write, &row).await;
            written.map_err(|error| match has_code::<DB>(&error, DB::DIALECT.missing) {
                true => Error::invalid(format!(
                    "the transaction's database has no table `{}outbox`: an invalidation in a transaction needs the \
                     site's own database; elsewhere, call `invalidate_tag` after the commit",
                    self.prefix
                )),
                false => Error::step(STEP, error),
            })?;
        }
        Ok(())
    }
}

/// Writes invalidations, ids and names, in the caller's transaction.
///
/// # Errors
///
/// The database fails, or is not the site's own.
pub async fn write(
    mut connection: Connection<'_>,
    prefix: &str,
    rows: &[(String, String)],
    limit: Duration,
) -> Result<(), Error> {
    within(limit, STEP, connection.with(Rows { prefix, rows })).await?
}
