//! Invalidations in a transaction of the application's own.

use std::{sync::Arc, time::Duration};

use crate::{
    error::Error,
    sql::{
        Connection, Tables,
        connection::{self, run_inside},
        run::{Arg, has_code},
        statements::{Dialect, invalidations},
    },
    timing::within,
};

const OPERATION: &str = "invalidate_in` or `purge_in";

/// Writes invalidations into the outbox, in the caller's transaction. Each has an id and a name.
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
    let writing = async {
        let dialect = tables.dialect_on(&mut connection).await;
        let dialect = dialect.map_err(|error| Error::operation(OPERATION, error))?;
        let write = tables.statement(dialect, invalidations::WRITE);
        for (id, name) in rows {
            let row = [Arg::Text(id), Arg::Text(name)];
            let written = run_inside(connection.get(), dialect, &write, &row).await;
            written.map_err(|error| {
                if has_code(&error, |rules| rules.no_such_table) {
                    no_tables(tables)
                } else {
                    connection::operation(OPERATION, error)
                }
            })?;
        }
        Ok(())
    };
    within(limit, OPERATION, writing).await?
}

/// The most rows in one statement: SQLite accepts up to 32,766 arguments.
const MAX_ROWS: usize = 10_000;

/// Returns the SQL that writes this number of rows. Its arguments are the id and the name of each row. For zero
/// rows, the SQL changes nothing.
///
/// # Errors
///
/// There are too many rows.
pub fn text(tables: &Tables, dialect: Dialect, rows: usize) -> Result<Arc<str>, Error> {
    let template = match rows {
        0 => "DELETE FROM {p}outbox WHERE 1 = 0".to_owned(),
        1..=MAX_ROWS => {
            let row = |row: usize| format!("(${}, ${})", 2 * row + 1, 2 * row + 2);
            let rows: Vec<_> = (0..rows).map(row).collect();
            invalidations::WRITE.replace("($1, $2)", &rows.join(", "))
        }
        _ => {
            return Err(Error::invalid(format!(
                "a statement invalidates {MAX_ROWS} names at most, and here are {rows}: give the pages a common tag, or make several statements"
            )));
        }
    };
    Ok(Arc::clone(tables.statement(dialect, &template).sql()))
}

/// The error in a database without the site's tables.
fn no_tables(tables: &Tables) -> Error {
    Error::invalid(format!(
        "the transaction's database has no table `{}outbox`: an invalidation in a transaction needs the \
         site's own database; elsewhere, call `invalidate_tag` after the commit",
        tables.qualified()
    ))
}
