//! The store in SQL databases.
//!
//! `store/` carries out the operations of `calls.rs`, with the texts of `statements/`. `pool.rs` runs a
//! statement on a connection of a pool, behind the guard of `guard.rs`; `connection.rs` and `outbox.rs` run
//! one in the application's own transaction. `run.rs` is the only place that gives a statement to a driver;
//! `sqlx_driver/` is the driver for sqlx's pools, and the only place that knows sqlx. What differs between databases is
//! in `statements/` (texts) and `dialect.rs` (everything else).

pub mod connection;
pub mod dialect;
mod file;
mod guard;
mod listen;
pub mod outbox;
pub mod pool;
pub mod run;
mod schema;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod sqlx_driver;
pub mod statements;
pub mod store;
mod tables;
pub mod triggers;
mod url;
mod wire;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use self::{
    pool::{Connections, Server},
    statements::{Dialect, PerDialect},
    store::SqlStore,
    url::check_url,
};
use crate::{
    calls::Backend,
    driver::{Driver, DriverError},
    error::Error,
    timing::{PREPARE_CONNECT_LIMIT, PREPARE_LIMIT, STATEMENT_TIMEOUT, within},
};
pub use connection::Connection;
pub use tables::Tables;
pub use url::{dialect_of, without_password};

/// Says when a site connects and makes its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// Before the site is opened.
    Now,
    /// Before the first operation that needs the database.
    Lazily,
}

/// A database for Perennial: from the application's own `SqlitePool`, `PgPool` or `MySqlPool` of
/// sqlx 0.9, from another [driver](Self::with_driver), from [`open`](Self::open), or from
/// `Perennial::database`.
#[derive(Clone, Debug)]
pub struct Database {
    pool: Arc<dyn Driver>,
    server: Arc<Server>,
    limit: Duration,
}

/// A database that Perennial can use: an sqlx pool, or a [`Database`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no database that Perennial can use",
    label = "no pool of sqlx 0.9 whose database this build knows, nor of another driver of Perennial's",
    note = "Perennial takes the pools of sqlx 0.9, owned: `SqlitePool`, and with their features `PgPool` and `MySqlPool`; by perennial-rusqlite and perennial-tokio-postgres those of rusqlite and deadpool",
    note = "for a pool of another version of sqlx, or of Diesel, let Perennial open a small pool of its own with `Perennial::open(url)`; for a `PgPool` or a `MySqlPool`, enable perennial's feature `postgres` or `mysql`; for a reference, write `pool.clone()`"
)]
pub trait IntoDatabase: Into<Database> {}

// Without this attribute, the compiler's message would show `From` and its implementations.
#[diagnostic::do_not_recommend]
impl<T: Into<Database>> IntoDatabase for T {}

impl Database {
    /// Returns the database of a [driver](crate::driver)'s pool, which the application uses, too.
    pub fn with_driver(driver: impl Driver) -> Self {
        Self {
            pool: Arc::new(driver),
            server: Arc::new(Server::new(true, None)),
            limit: STATEMENT_TIMEOUT,
        }
    }

    /// Opens a database by its URL, with a small pool of its own.
    ///
    /// # Errors
    ///
    /// The URL cannot be used, or the database cannot be opened.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::open_when(url, Connect::Now).await
    }

    /// Sets the time limit of a call, including all attempts. Default: 5 s. A site's
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
        let dialect = dialect_of(url)?;
        #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
        return Ok(Self {
            server: Arc::new(Server::new(false, None)),
            ..sqlx_driver::open(url, dialect, connect).await?
        });
        #[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "mysql")))]
        unreachable!("{dialect:?} is built in: {connect:?}")
    }

    /// Returns the same database, but as if its server were MySQL. It is for tests that run on MariaDB, which
    /// understands MySQL's statements.
    pub fn as_mysql(self) -> Self {
        Self {
            server: Arc::new(Server::new(true, Some(Dialect::MySql))),
            ..self
        }
    }

    pub fn driver(&self) -> &dyn Driver {
        &*self.pool
    }

    pub fn connections(&self) -> Connections {
        let pool = Arc::clone(&self.pool);
        Connections::new(pool, Arc::clone(&self.server), self.limit)
    }

    /// Returns the dialect that most servers of this kind use.
    pub fn dialect(&self) -> Dialect {
        self.pool.engine().dialect()
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the kind of database under the name of its Cargo feature: `sqlite`, `postgres` or `mysql`.
    pub fn kind(&self) -> &'static str {
        let kind = PerDialect {
            sqlite: "sqlite",
            postgres: "postgres",
            mysql: "mysql",
        };
        kind.of(self.dialect())
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
    /// The settings of the server's sessions are unsuitable, the database fails, its tables belong to a newer
    /// release, or the tables cannot be created within 60 s. With [`Connect::Lazily`] there are no errors here,
    /// because the database is contacted later.
    pub async fn store_when(
        self,
        tables: Tables,
        connect: Connect,
    ) -> Result<Box<dyn Backend>, Error> {
        let store = SqlStore::new(self.connections(), tables);
        if connect == Connect::Lazily {
            return Ok(Box::new(store));
        }
        let preparing = async {
            let begun = Instant::now();
            let mut prepared = store.dialect().await;
            // The server has answered before. On a loaded machine it is slow to take more connections.
            while prepared.as_ref().is_err_and(is_late) && begun.elapsed() < PREPARE_CONNECT_LIMIT {
                prepared = store.dialect().await;
            }
            prepared
        };
        within(PREPARE_LIMIT, "preparing the tables", Box::pin(preparing)).await??;
        Ok(Box::new(store))
    }
}

/// Returns true if the pool gave no connection in time.
fn is_late(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.is_some_and(DriverError::is_late)
}

/// Returns the statements that make the tables for the kind of database that the URL names.
pub fn ddl(url: &str, prefix: &str) -> Result<String, Error> {
    schema::check_prefix(prefix)?;
    Ok(schema::script(dialect_of(url)?, prefix))
}
