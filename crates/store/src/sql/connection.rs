use std::{convert::Infallible, fmt, marker::PhantomData};

use sqlx::Transaction;

use super::run::Driver;

/// A connection of the application's, or a transaction on it: made [from](From) sqlx's own.
pub struct Connection<'c>(AnyConnection<'c>);

enum AnyConnection<'c> {
    /// No connection: for a build without a database.
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

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
