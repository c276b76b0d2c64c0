//! Connections of the application's own, in whose transactions Perennial writes.

use std::{convert::Infallible, fmt, marker::PhantomData};

use sqlx::{Connection as _, Transaction};

use super::{
    dialect::NO_TRANSACTION,
    guard,
    run::{Arg, Driver, Statement, StatementResult},
    statements::Dialect,
};
use crate::error::Error;

/// A connection of the application's, or a transaction on it: made [from](From) sqlx's own.
pub struct Connection<'c>(AnyConnection<'c>);

enum AnyConnection<'c> {
    /// There is no connection in a build without a database.
    #[allow(dead_code, reason = "is never made")]
    None(Infallible, PhantomData<&'c mut ()>),
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut sqlx::SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(&'c mut sqlx::PgConnection),
    #[cfg(feature = "mysql")]
    MySql(&'c mut sqlx::MySqlConnection),
}

macro_rules! from_sqlx {
    ($feature:literal, $kind:ident, $database:ty, $connection:ty) => {
        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut $connection> for Connection<'c> {
            fn from(connection: &'c mut $connection) -> Self {
                Self(AnyConnection::$kind(connection))
            }
        }

        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut Transaction<'_, $database>> for Connection<'c> {
            fn from(transaction: &'c mut Transaction<'_, $database>) -> Self {
                Self(AnyConnection::$kind(&mut *transaction))
            }
        }
    };
}

from_sqlx!("sqlite", Sqlite, sqlx::Sqlite, sqlx::SqliteConnection);
from_sqlx!("postgres", Postgres, sqlx::Postgres, sqlx::PgConnection);
from_sqlx!("mysql", MySql, sqlx::MySql, sqlx::MySqlConnection);

pub trait OnConnection: Send {
    type Output;

    fn run<DB: Driver>(
        self,
        connection: &mut DB::Connection,
    ) -> impl Future<Output = Self::Output> + Send;
}

impl Connection<'_> {
    pub async fn with<W: OnConnection>(&mut self, work: W) -> W::Output {
        match &mut self.0 {
            AnyConnection::None(never, _) => match *never {},
            #[cfg(feature = "sqlite")]
            AnyConnection::Sqlite(connection) => work.run::<sqlx::Sqlite>(connection).await,
            #[cfg(feature = "postgres")]
            AnyConnection::Postgres(connection) => work.run::<sqlx::Postgres>(connection).await,
            #[cfg(feature = "mysql")]
            AnyConnection::MySql(connection) => work.run::<sqlx::MySql>(connection).await,
        }
    }
}

/// Runs a statement in the transaction of a connection. Outside of a transaction, nothing is done, and
/// [`operation`] explains the error.
pub async fn run_inside<DB: Driver>(
    connection: &mut DB::Connection,
    dialect: Dialect,
    statement: &Statement,
    arguments: &[Arg<'_>],
) -> Result<StatementResult<DB>, sqlx::Error> {
    if let Some(guarded) = guard::inside(dialect, statement) {
        return DB::run(connection, &guarded, arguments).await;
    }
    let is_inside = match dialect {
        // BEGIN fails inside of a transaction.
        Dialect::Sqlite => {
            let both = Statement::new(dialect, "", "BEGIN; ROLLBACK");
            match DB::run(connection, &both, &[]).await {
                Ok(_) => false,
                Err(error) if error.to_string().contains(DB::RULES.guard_failure) => true,
                Err(error) => return Err(error),
            }
        }
        // The server does not say so itself.
        Dialect::MySql => connection.is_in_transaction(),
        _ => true,
    };
    if is_inside {
        DB::run(connection, statement, arguments).await
    } else {
        Err(sqlx::Error::Protocol(NO_TRANSACTION.to_owned()))
    }
}

/// Returns the error of an operation in a transaction of the application's.
pub fn operation(operation: &str, error: sqlx::Error) -> Error {
    if error.to_string().contains(NO_TRANSACTION) {
        Error::invalid(format!(
            "`{operation}` needs a transaction, and the connection is in none: begin one by `pool.begin()`, pass it, and commit it. \
             (On MySQL, Perennial sees only a transaction that sqlx has begun.)"
        ))
    } else {
        Error::operation(operation, error)
    }
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
