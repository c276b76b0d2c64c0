//! A connection of the application's own, and what is done in its transactions.

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
    /// Notes that something is done.
    pub(crate) async fn mark(&mut self, mark: &Mark<'_>) -> Result<Marked, BoxError> {
        match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(connection) => mark_on::<sqlx::Sqlite>(connection, mark).await,
            #[cfg(feature = "postgres")]
            Kind::Postgres(connection) => mark_on::<sqlx::Postgres>(connection, mark).await,
            #[cfg(feature = "mysql")]
            Kind::MySql(connection) => mark_on::<sqlx::MySql>(connection, mark).await,
        }
    }
}

/// What is noted as done.
pub(crate) struct Mark<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) name: &'a str,
    pub(crate) keep: Duration,
    /// What is to be done before.
    pub(crate) after: Option<&'a str>,
    /// How long another transaction that is at it may be waited for.
    pub(crate) wait: Duration,
}

/// What came of that.
pub(crate) enum Marked {
    Now,
    /// It was not, as these locks stand: its own, and that of what is to be done before.
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
    // What comes before is only read, which is where a node of a cluster has to wait. (It does outside a transaction alone.)
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
        Arg::Int(micros(mark.keep)),
        Arg::Int(i64::from(after.is_some())),
        Arg::Text(after.as_deref().unwrap_or(&name)),
    ];
    let done = DB::run(connection, &statement(&locks::MARK), &arguments).await;
    if let Some([_, after]) = ours.bounds {
        let restored = DB::run(connection, &setting(after), &[]).await;
        // A transaction that has failed takes nothing more, and will be rolled back.
        if done.is_ok() {
            restored?;
        }
    }
    if number(&done?)?.is_some() {
        return Ok(Marked::Now);
    }
    let once = Arg::Text(LockKind::Once.as_str());
    // A lock from before the clock was set back, which may be a holder's that has crashed, ends after its length.
    let own = [once, Arg::Text(&name)];
    DB::run(connection, &statement(&locks::REDATE), &own).await?;
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
