//! The store in SQL databases.
//!
//! `store/` carries out the operations of `calls.rs`, with the texts of `statements/`. `pool.rs` runs a
//! statement on a connection of a pool, behind the guard of `guard.rs`; `connection.rs` and `outbox.rs` run
//! one in the application's own transaction. `run.rs` is the only place that calls sqlx for a statement. What
//! differs between databases is in `statements/` (texts) and `dialect.rs` (everything else).

pub mod connection;
pub mod dialect;
mod file;
mod guard;
#[cfg(feature = "postgres")]
mod listen;
pub mod outbox;
pub mod pool;
pub mod run;
mod schema;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod statements;
pub mod store;
mod tables;
mod url;
mod wire;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use self::{
    pool::{AnyPool, Connections, OnPool, Server},
    run::{Driver, Supported},
    statements::{Dialect, PerDialect},
    store::SqlStore,
    url::check_url,
};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::timing::CONNECT_LIMIT;
use crate::{
    calls::Backend,
    error::Error,
    timing::{PREPARE_CONNECT_LIMIT, PREPARE_LIMIT, STATEMENT_TIMEOUT, within},
};
pub use connection::Connection;
pub use tables::Tables;
pub use url::{dialect_of, without_password};

/// The largest number of connections in Perennial's own pool.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
const CONNECTIONS: u32 = 5;

/// Says when a site connects and makes its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// Before the site is opened.
    Now,
    /// Before the first operation that needs the database.
    Lazily,
}

/// A database for Perennial: from the application's own `SqlitePool`, `PgPool` or `MySqlPool` of
/// sqlx 0.9, from [`open`](Self::open), or from `Perennial::database`.
#[derive(Clone, Debug)]
pub struct Database {
    pool: AnyPool,
    server: Arc<Server>,
    dialect: Dialect,
    limit: Duration,
}

/// A database that Perennial can use: a pool of sqlx's, or a [`Database`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no database that Perennial can use",
    label = "no pool of sqlx 0.9 whose database this build knows",
    note = "Perennial takes the pools of sqlx 0.9, owned: `SqlitePool`, and with their features `PgPool` and `MySqlPool`",
    note = "for a pool of another version of sqlx, use sqlx 0.9 in Cargo.toml, or let Perennial open a pool of its own with `Perennial::open(url)`; for a `PgPool` or a `MySqlPool`, enable perennial's feature `postgres` or `mysql`; for a reference, write `pool.clone()`"
)]
pub trait IntoDatabase: Into<Database> {}

// Otherwise the compiler would show `From` and its implementations.
#[diagnostic::do_not_recommend]
impl<T: Into<Database>> IntoDatabase for T {}

macro_rules! from_pool {
    ($feature:literal, $kind:ident, $pool:ty) => {
        #[cfg(feature = $feature)]
        impl From<$pool> for Database {
            fn from(pool: $pool) -> Self {
                Self {
                    pool: AnyPool::$kind(pool),
                    server: Arc::new(Server::new(true, None)),
                    dialect: sqlx::$kind::RULES.dialect,
                    limit: STATEMENT_TIMEOUT,
                }
            }
        }
    };
}

from_pool!("sqlite", Sqlite, sqlx::SqlitePool);
from_pool!("postgres", Postgres, sqlx::PgPool);
from_pool!("mysql", MySql, sqlx::MySqlPool);

impl Database {
    /// Opens a database by its URL, with a small pool of its own.
    ///
    /// # Errors
    ///
    /// The URL cannot be used, or the database cannot be opened.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::open_when(url, Connect::Now).await
    }

    /// Sets the time limit of a call, with all attempts. Default: 5 s. A site's
    /// `Builder::statement_timeout` replaces it.
    ///
    /// # Panics
    ///
    /// Panics at zero.
    #[must_use = "returns the database with this limit"]
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a statement takes time");
        self.limit = limit;
        self
    }
}

#[doc(hidden)]
impl Database {
    pub async fn open_when(url: &str, connect: Connect) -> Result<Self, Error> {
        check_url(url)?;
        let database: Self = match dialect_of(url)? {
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => sqlite::open(url, connect).await?.into(),
            #[cfg(feature = "postgres")]
            Dialect::Postgres => open::<sqlx::Postgres>(url, connect, &[]).await?.into(),
            #[cfg(feature = "mysql")]
            Dialect::MySql => open::<sqlx::MySql>(url, connect, &["SET autocommit = 1"])
                .await?
                .into(),
            _ => unreachable!("the database is built in"),
        };
        Ok(Self {
            server: Arc::new(Server::new(false, None)),
            ..database
        })
    }

    /// Returns the database as MySQL itself would be used, for tests on MariaDB, which understands the
    /// same statements.
    #[cfg(feature = "mysql")]
    pub fn as_mysql(self) -> Self {
        Self {
            server: Arc::new(Server::new(true, Some(Dialect::MySql))),
            ..self
        }
    }

    pub async fn with<W: OnPool>(&self, work: W) -> W::Output {
        // In a box, as the futures of statements are deep: a caller's compiler computes their layout.
        Box::pin(self.pool.with(&self.server, self.limit, work)).await
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the kind, by the name of its feature.
    pub fn kind(&self) -> &'static str {
        let kind = PerDialect {
            sqlite: "sqlite",
            postgres: "postgres",
            mysql: "mysql",
        };
        kind.of(self.dialect)
    }

    #[cfg(feature = "postgres")]
    pub fn postgres(&self) -> Option<&sqlx::PgPool> {
        match &self.pool {
            AnyPool::Postgres(pool) => Some(pool),
            #[allow(unreachable_patterns, reason = "another database may not be built in")]
            _ => None,
        }
    }

    /// Returns the store in this database, after making or upgrading its tables.
    pub async fn store(self, prefix: &str) -> Result<Box<dyn Backend>, Error> {
        let tables = Tables::new(prefix)?;
        self.store_when(tables, Connect::Now).await
    }

    /// Returns the store in this database.
    ///
    /// # Errors
    ///
    /// The sessions cannot be used, the database fails, or its tables are of a newer release or cannot
    /// be made, within 60 s. None with [`Connect::Lazily`].
    pub async fn store_when(
        self,
        tables: Tables,
        connect: Connect,
    ) -> Result<Box<dyn Backend>, Error> {
        let store = self.with(Opening { tables, connect });
        within(PREPARE_LIMIT, "preparing the tables", store).await?
    }
}

struct Opening {
    tables: Tables,
    connect: Connect,
}

impl OnPool for Opening {
    type Output = Result<Box<dyn Backend>, Error>;

    async fn run<DB: Driver>(self, connections: Connections<DB>) -> Self::Output {
        let store = SqlStore::new(connections, self.tables);
        if self.connect == Connect::Now {
            let begun = Instant::now();
            let mut prepared = store.dialect().await;
            // The server has answered before. On a loaded machine it is slow to take more connections.
            while prepared.as_ref().is_err_and(is_late) && begun.elapsed() < PREPARE_CONNECT_LIMIT {
                prepared = store.dialect().await;
            }
            prepared?;
        }
        Ok(Box::new(store))
    }
}

/// Returns true if the pool gave no connection in time.
fn is_late(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    matches!(source, Some(sqlx::Error::PoolTimedOut))
}

/// Returns the statements that make the tables in a database of the URL's kind.
pub fn ddl(url: &str, prefix: &str) -> Result<String, Error> {
    schema::check_prefix(prefix)?;
    Ok(schema::script(dialect_of(url)?, prefix))
}

/// Opens a small pool of connections to a server. `begin` are the first statements on each connection.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn open<DB: Driver>(
    url: &str,
    connect: Connect,
    begin: &'static [&'static str],
) -> Result<sqlx::Pool<DB>, Error> {
    use sqlx::{ConnectOptions, Connection};

    let cannot = |hint: &str| {
        let context = format!("cannot open the database {:?}{hint}", without_password(url));
        move |error| Error::database(context, error)
    };
    let options: <DB::Connection as Connection>::Options = url.parse().map_err(cannot(""))?;
    // The store logs what is slow, by the operation's name.
    let options = options.disable_statement_logging();
    if connect == Connect::Now {
        // A pool would try for a while, and then report no more than a timeout.
        let first = async { options.connect().await?.close().await };
        let first = tokio::time::timeout(CONNECT_LIMIT, first).await;
        let hint = " (a site that is to start while its database is unavailable: `Builder::connect_lazily`)";
        first
            .unwrap_or_else(|_| Err(no_answer()))
            .map_err(cannot(hint))?;
    }
    Ok(sqlx::pool::PoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(CONNECT_LIMIT)
        // A pool tests each connection on its return. A second test before its use would cost a
        // round trip.
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                for statement in begin {
                    let statement = run::Statement::new(DB::RULES.dialect, "", statement);
                    DB::run(connection, &statement, &[]).await?;
                }
                Ok(())
            })
        })
        .connect_lazy_with(options))
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn no_answer() -> sqlx::Error {
    let said = format!("the server did not answer within {CONNECT_LIMIT:?}");
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, said))
}
