//! A connection of the application's own, and the mark in its transaction.

use std::{fmt, time::Duration};

use sqlx::Transaction;

use crate::{
    clock::micros,
    error::BoxError,
    name::{LockKind, bounded},
    sql::{
        pool::dialect_on,
        run::{Arg, Driver, Statement, number},
        statements::{Sides, locks},
        store::lock_row,
    },
    store::LockRow,
};

/// A connection of the application's, or a transaction on it: made [from](From) sqlx's own.
pub struct Connection<'c>(AnyConnection<'c>);

enum AnyConnection<'c> {
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

impl Connection<'_> {
    /// Marks work as done.
    pub(crate) async fn mark(&mut self, mark: &Mark<'_>) -> Result<Marked, BoxError> {
        match &mut self.0 {
            #[cfg(feature = "sqlite")]
            AnyConnection::Sqlite(connection) => mark_on::<sqlx::Sqlite>(connection, mark).await,
            #[cfg(feature = "postgres")]
            AnyConnection::Postgres(connection) => {
                mark_on::<sqlx::Postgres>(connection, mark).await
            }
            #[cfg(feature = "mysql")]
            AnyConnection::MySql(connection) => mark_on::<sqlx::MySql>(connection, mark).await,
        }
    }
}

/// The mark of completed work.
pub(crate) struct Mark<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) name: &'a str,
    pub(crate) retention: Duration,
    /// The preceding work.
    pub(crate) after: Option<&'a str>,
    /// The longest wait for another transaction that marks the same work.
    pub(crate) wait: Duration,
}

/// The result of a mark.
pub(crate) enum Marked {
    Now,
    /// The work is not marked. The states of its own lock, and of the preceding work's lock.
    Refused([Option<LockRow>; 2]),
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

async fn mark_on<DB: Driver>(
    connection: &mut DB::Connection,
    mark: &Mark<'_>,
) -> Result<Marked, BoxError> {
    // The lock of the preceding work is only read. Before such a read, a node of a Galera cluster
    // has to apply the commits of the other nodes.
    let differs = DB::RELATIVES.iter().any(|(_, it)| !it.waits.is_empty());
    let ours = match mark.after {
        Some(_) if differs => dialect_on::<DB>(connection).await?,
        _ => DB::DIALECT,
    };
    let setting = |text| Statement::new(ours, mark.prefix, text);
    let wait = i64::try_from(mark.wait.as_millis()).unwrap_or(i64::MAX);
    if let Some([before, _]) = ours.bounds {
        DB::run(connection, &setting(before), &[Arg::Int(wait)]).await?;
    }
    let statement = |sides: &Sides| Statement::new(ours, mark.prefix, sides.of(ours.side));
    let (name, after) = (bounded(mark.name), mark.after.map(bounded));
    let arguments = [
        Arg::Text(&name),
        Arg::Int(micros(mark.retention)),
        Arg::Int(i64::from(after.is_some())),
        Arg::Text(after.as_deref().unwrap_or(&name)),
    ];
    let done = DB::run(connection, &statement(&locks::MARK), &arguments).await;
    if let Some([_, after]) = ours.bounds {
        let restored = DB::run(connection, &setting(after), &[]).await;
        // A transaction that has failed accepts no further statement, and its rollback restores the
        // setting.
        if done.is_ok() {
            restored?;
        }
    }
    if number(&done?)?.is_some() {
        return Ok(Marked::Now);
    }
    let once = Arg::Text(LockKind::Once.as_str());
    let mut found = [None, None];
    for (name, lock) in [Some(&name), after.as_ref()].into_iter().zip(&mut found) {
        if let Some(name) = name {
            let id = [once, Arg::Text(name)];
            let done = DB::run(connection, &statement(&locks::INSPECT_NOW), &id).await?;
            *lock = done.rows.first().map(lock_row::<DB>).transpose()?.flatten();
        }
    }
    Ok(Marked::Refused(found))
}
