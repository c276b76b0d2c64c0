//! The stores in SQL databases: the application's own pool, or one of ours from a URL.

mod dialect;
mod name;
mod schema;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod wire;

use self::store::SqlStore;
use crate::{error::Error, store::Store};

/// How many connections a pool of ours has at most.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const CONNECTIONS: u32 = 5;

/// A database for Perennial: made [from](From) the application's own sqlx pool.
#[derive(Clone, Debug)]
pub struct Database(Pool);

#[derive(Clone, Debug)]
enum Pool {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

#[cfg(feature = "sqlite")]
impl From<sqlx::SqlitePool> for Database {
    fn from(pool: sqlx::SqlitePool) -> Self {
        Self(Pool::Sqlite(pool))
    }
}

#[cfg(feature = "postgres")]
impl From<sqlx::PgPool> for Database {
    fn from(pool: sqlx::PgPool) -> Self {
        Self(Pool::Postgres(pool))
    }
}

#[cfg(feature = "mysql")]
impl From<sqlx::MySqlPool> for Database {
    fn from(pool: sqlx::MySqlPool) -> Self {
        Self(Pool::MySql(pool))
    }
}

/// How a URL of each kind that can be opened is written.
const EXAMPLES: &[&str] = &[
    #[cfg(feature = "sqlite")]
    "`sqlite://site.db` for a file in the current folder, `sqlite:///var/lib/site.db` for one with an absolute path",
    #[cfg(feature = "postgres")]
    "`postgres://user:password@host/database`",
    #[cfg(feature = "mysql")]
    "`mysql://user:password@host/database`, for MariaDB too",
];

impl Database {
    /// Opens a database by its URL, with a small pool of its own; see [`Perennial::open`](crate::Perennial::open).
    ///
    /// # Errors
    ///
    /// The URL cannot be used, or the database cannot be opened.
    pub async fn open(url: &str) -> Result<Self, Error> {
        #[cfg(any(feature = "postgres", feature = "mysql"))]
        let cannot = |error: sqlx::Error| {
            Error::database(
                format!("cannot open the database {:?}", without_password(url)),
                error,
            )
        };
        match url.split(':').next().unwrap_or_default() {
            #[cfg(feature = "sqlite")]
            "sqlite" => Ok(sqlite::open(url).await?.into()),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let pool = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS);
                Ok(pool.connect(url).await.map_err(cannot)?.into())
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(CONNECTIONS);
                Ok(pool.connect(url).await.map_err(cannot)?.into())
            }
            _ => Err(Error::invalid(format!(
                "the database URL {:?} cannot be used: write {}",
                without_password(url),
                EXAMPLES.join(", or "),
            ))),
        }
    }

    /// The store in this database, its tables made or upgraded: for a [`Store`] of the program's own that wraps it.
    ///
    /// # Errors
    ///
    /// The table prefix cannot be used, the database fails, or its tables belong to a newer release.
    pub async fn store(self, prefix: &str) -> Result<Box<dyn Store>, Error> {
        schema::check_prefix(prefix)?;
        match self.0 {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => {
                schema::prepare(&pool, prefix, dialect::SQLITE.schema).await?;
                Ok(Box::new(SqlStore::new(pool, prefix)))
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                schema::prepare(&pool, prefix, dialect::POSTGRES.schema).await?;
                Ok(Box::new(SqlStore::new(pool, prefix)))
            }
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => {
                schema::prepare(&pool, prefix, dialect::MYSQL.schema).await?;
                Ok(Box::new(SqlStore::new(pool, prefix)))
            }
        }
    }
}

/// The URL without what stands between the scheme and the `@`: it may be logged.
fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://…{}", &url[..scheme], &url[at..]),
        _ => url.to_owned(),
    }
}
