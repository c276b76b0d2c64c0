//! A connection of the application's own, and what is done in its transactions.

use std::{fmt, time::Duration};

use sqlx::{ColumnIndex, Decode, Encode, Executor, IntoArguments, Transaction, Type};

use crate::{
    clock::micros,
    name::bounded,
    sql::{
        dialect,
        run::{Arg, Driver, Statement, number, run},
        store::lock_row,
    },
    store::{BoxError, LockRow},
};

/// A connection of the application's, or a transaction on it: made [from](From) sqlx's own.
pub struct Connection<'c>(Kind<'c>);

enum Kind<'c> {
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
                Self(Kind::$kind(connection))
            }
        }

        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut Transaction<'_, $database>> for Connection<'c> {
            fn from(transaction: &'c mut Transaction<'_, $database>) -> Self {
                Self(Kind::$kind(&mut *transaction))
            }
        }
    };
}

from_sqlx!("sqlite", Sqlite, sqlx::Sqlite, sqlx::SqliteConnection);
from_sqlx!("postgres", Postgres, sqlx::Postgres, sqlx::PgConnection);
from_sqlx!("mysql", MySql, sqlx::MySql, sqlx::MySqlConnection);

impl Connection<'_> {
    /// Notes that something is done, unless it is noted already.
    pub(crate) async fn mark(
        &mut self,
        prefix: &str,
        name: &str,
        keep: Duration,
    ) -> Result<bool, BoxError> {
        match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(connection) => mark::<sqlx::Sqlite>(connection, prefix, name, keep).await,
            #[cfg(feature = "postgres")]
            Kind::Postgres(connection) => {
                mark::<sqlx::Postgres>(connection, prefix, name, keep).await
            }
            #[cfg(feature = "mysql")]
            Kind::MySql(connection) => mark::<sqlx::MySql>(connection, prefix, name, keep).await,
        }
    }

    /// A lock, as this connection sees it.
    pub(crate) async fn inspect(
        &mut self,
        prefix: &str,
        name: &str,
    ) -> Result<Option<LockRow>, BoxError> {
        match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(connection) => inspect::<sqlx::Sqlite>(connection, prefix, name).await,
            #[cfg(feature = "postgres")]
            Kind::Postgres(connection) => inspect::<sqlx::Postgres>(connection, prefix, name).await,
            #[cfg(feature = "mysql")]
            Kind::MySql(connection) => inspect::<sqlx::MySql>(connection, prefix, name).await,
        }
    }
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

async fn mark<DB>(
    connection: &mut DB::Connection,
    prefix: &str,
    name: &str,
    keep: Duration,
) -> Result<bool, BoxError>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    let statement = Statement::new(DB::DIALECT, prefix, DB::DIALECT.mark);
    let name = bounded(name);
    let arguments = [Arg::Text(&name), Arg::Int(micros(keep))];
    let done = run(connection, &statement, &arguments).await?;
    Ok(number(&done)?.is_some())
}

async fn inspect<DB>(
    connection: &mut DB::Connection,
    prefix: &str,
    name: &str,
) -> Result<Option<LockRow>, BoxError>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    for<'q> String: Decode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    let statement = Statement::new(DB::DIALECT, prefix, dialect::INSPECT);
    let done = run(connection, &statement, &[Arg::Text(&bounded(name))]).await?;
    done.rows.first().map(lock_row::<DB>).transpose()
}
