//! The application's own connections, in whose transactions Perennial writes.

use std::fmt;

use super::{
    dialect::NO_TRANSACTION,
    guard::{self, is_guard_failure},
    run::{Arg, Statement, run},
    statements::Dialect,
};
use crate::{
    driver::{DriverConnection, DriverError, Engine, Rows},
    error::Error,
};

/// One of the application's connections, or a transaction on it. It is converted [from](From) sqlx's own types,
/// or created by [`new`](Self::new) for another driver.
pub struct Connection<'c> {
    connection: Box<dyn DriverConnection + 'c>,
    engine: Engine,
}

impl<'c> Connection<'c> {
    /// Wraps a connection of a [driver](crate::driver), so that it can be passed to `Perennial::invalidate_in`
    /// and to the other calls that write in one of the application's transactions. The application has begun
    /// the transaction, and commits it.
    pub fn new(engine: Engine, connection: impl DriverConnection + 'c) -> Self {
        Self {
            connection: Box::new(connection),
            engine,
        }
    }
}

#[doc(hidden)]
impl<'c> Connection<'c> {
    pub fn engine(&self) -> Engine {
        self.engine
    }

    pub fn get(&mut self) -> &mut (dyn DriverConnection + 'c) {
        &mut *self.connection
    }
}

/// Runs a statement in the transaction of a connection. Outside of a transaction, it does nothing and
/// returns an error, which [`operation`] turns into one that says what is wrong.
pub async fn run_inside(
    connection: &mut (dyn DriverConnection + '_),
    dialect: Dialect,
    statement: &Statement,
    arguments: &[Arg<'_>],
) -> Result<Rows, DriverError> {
    if let Some(guarded) = guard::inside(dialect, statement) {
        return run(connection, &guarded, arguments).await;
    }
    let is_inside = match dialect {
        // BEGIN fails inside of a transaction.
        Dialect::Sqlite => {
            let both = Statement::new(dialect, "", "BEGIN; ROLLBACK");
            match run(connection, &both, &[]).await {
                Ok(_) => false,
                Err(error) if is_guard_failure(&error) => true,
                Err(error) => return Err(error),
            }
        }
        // The server does not say so itself.
        Dialect::MySql => connection.is_in_transaction() == Some(true),
        _ => true,
    };
    if is_inside {
        run(connection, statement, arguments).await
    } else {
        Err(DriverError::other(NO_TRANSACTION))
    }
}

/// Returns the error of an operation that was part of one of the application's transactions.
pub fn operation(operation: &str, error: DriverError) -> Error {
    if error.to_string().contains(NO_TRANSACTION) || error.message().contains(NO_TRANSACTION) {
        Error::invalid(format!(
            "`{operation}` needs a transaction, and the connection is in none: begin one by `pool.begin()`, pass it, and commit it. \
             (On MySQL, Perennial sees only a transaction that the driver knows of, as sqlx does of those by `begin`.)"
        ))
    } else {
        Error::operation(operation, error)
    }
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut connection = f.debug_struct("Connection");
        connection
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
