//! How a command reaches its database: the URL, the table prefix and the time limit that all commands share.

use std::time::Duration;

use clap::Args;
use perennial::{Builder, Perennial, sql::Database};
use perennial_store::sql::without_password;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, sqlite::SqliteConnectOptions};

use crate::{Failure, Result};

#[derive(Args)]
pub(crate) struct Source {
    /// The site's database: sqlite://site.db, postgres://user:password@host/site or
    /// mysql://user:password@host/site.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, global = true)]
    database: Option<String>,
    /// The prefix of the tables' names, if the site sets one by `Builder::table_prefix`.
    #[arg(long, default_value = "perennial_", global = true)]
    table_prefix: String,
    /// The longest time to wait for a statement, and for the answer of a site.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration, global = true)]
    timeout: Duration,
}

impl Source {
    pub(crate) fn url(&self) -> Result<&str> {
        self.database.as_deref().ok_or_else(|| {
            Failure::Usage(
                "which database? Write --database sqlite://site.db, or set DATABASE_URL".to_owned(),
            )
        })
    }

    pub(crate) fn builder(&self) -> Builder {
        Perennial::builder()
            .table_prefix(&self.table_prefix)
            .statement_timeout(self.timeout)
            // The command line serves no visitors, and reads no pages in advance, so it needs no memory for
            // them.
            .memory_capacity(0)
            // The site's own capacity is not known here, so nothing may be removed because of it.
            .store_capacity(u64::MAX)
    }

    /// Returns the name of one of Perennial's tables.
    pub(crate) fn table(&self, name: &str) -> String {
        format!("{}{name}", self.table_prefix)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Opens the site of a database that has Perennial's tables.
    pub(crate) async fn site(&self) -> Result<Perennial> {
        let mut connection = self.connect().await?;
        if let Err(error) = self.version_of(&mut connection).await? {
            return Err(Failure::Failed(format!(
                "there are no Perennial tables with the prefix {:?} in {} ({error}). Is this the site's database? \
                 A site makes its tables when it starts; `perennial ddl` prints them",
                self.table_prefix,
                without_password(self.url()?),
            )));
        }
        // Some servers log a warning if a client does not say that it is closing the connection.
        let _ = self.within(connection.close()).await;
        self.site_as_it_is().await
    }

    /// Opens a site whose tables are there. An SQLite file keeps its journal mode:
    /// `Perennial::open` would set WAL.
    pub(crate) async fn site_as_it_is(&self) -> Result<Perennial> {
        let url = self.url()?;
        if !url.starts_with("sqlite:") {
            return self.site_with_tables().await;
        }
        let pool = sqlx::SqlitePool::connect(url).await?;
        Ok(self.builder().with_pool(pool).await?)
    }

    /// Opens an existing database, with or without Perennial's tables.
    pub(crate) async fn database(&self) -> Result<Database> {
        // Some servers log a warning if a client does not say that it is closing the connection.
        let _ = self.within(self.connect().await?.close()).await;
        let url = self.url()?;
        let database = match url.starts_with("sqlite:") {
            true => sqlx::SqlitePool::connect(url).await?.into(),
            false => Database::open(url).await?,
        };
        Ok(database.statement_timeout(self.timeout))
    }

    /// Opens the site, and makes the tables if they are missing.
    pub(crate) async fn site_with_tables(&self) -> Result<Perennial> {
        Ok(self.builder().open(self.url()?).await?)
    }

    /// Returns the version of the tables, if they are there.
    pub(crate) async fn version_of(
        &self,
        connection: &mut AnyConnection,
    ) -> Result<Result<i64, sqlx::Error>> {
        let version = format!("SELECT version FROM {} WHERE id = 1", self.table("schema"));
        let version = sqlx::query_scalar(AssertSqlSafe(version));
        self.within(version.fetch_one(connection)).await
    }

    /// Awaits the database's answer, for as long as a statement may take.
    pub(crate) async fn within<T>(&self, answer: impl Future<Output = T>) -> Result<T> {
        let url = without_password(self.url()?);
        let answer = tokio::time::timeout(self.timeout, answer).await;
        answer.map_err(|_| {
            Failure::Failed(format!("{url} has not answered within {:?}", self.timeout))
        })
    }

    /// Connects to an existing database. A missing SQLite file is an error, and is not created.
    pub(crate) async fn connect(&self) -> Result<AnyConnection> {
        sqlx::any::install_default_drivers();
        let url = self.url()?;
        if url.starts_with("sqlite:") {
            let options: SqliteConnectOptions = url.parse()?;
            let file = options.get_filename();
            if !file.exists() {
                let folder = std::env::current_dir().unwrap_or_default();
                return Err(Failure::Failed(format!(
                    "there is no database file {file:?} (looked from {})",
                    folder.display()
                )));
            }
        }
        let connected = self.within(AnyConnection::connect(url)).await?;
        connected.map_err(|error| {
            Failure::Failed(format!(
                "cannot connect to {}: {error}",
                without_password(url)
            ))
        })
    }
}
