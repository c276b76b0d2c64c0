//! Databases for tests: an SQLite file, or a database on a server, created for one test and removed
//! with it.
//!
//! Sites and stores reach PostgreSQL by the driver that `PERENNIAL_TEST_DRIVER` names: `deadpool`, or sqlx without it.
//! The processes that a test starts inherit it. What a test says itself, it says by sqlx.

use std::{sync::Arc, time::Duration};

use perennial::{Builder, Perennial, sql::Database};
use perennial_driver_tests::{TestDatabase, shift_rows, store::Patient};
use perennial_store::Backend;
use sqlx::{
    AnyPool, AssertSqlSafe, Transaction,
    any::AnyPoolOptions,
    pool::{PoolConnection, PoolOptions},
};
use tokio::sync::OnceCell;

use crate::{Folder, HANG, patient};

/// Makes a test of each function for each kind of database in this build. Each test gets a [`Db`]
/// of its own. `postgres` and `mysql` are features of the package whose test this is, which turn on those
/// of this crate.
#[macro_export]
macro_rules! on_each_database {
    ($($test:ident)*) => {
        $crate::on_database! { sqlite = $crate::Db::sqlite(); $($test)* }
        #[cfg(feature = "postgres")]
        $crate::on_database! { postgres = $crate::Db::postgres(); $($test)* }
        #[cfg(feature = "mysql")]
        $crate::on_database! { mysql = $crate::Db::mysql(); $($test)* }
    };
}

/// Makes the tests for servers alone.
#[macro_export]
macro_rules! on_each_server {
    ($($test:ident)*) => {
        #[cfg(feature = "postgres")]
        $crate::on_database! { postgres = $crate::Db::postgres(); $($test)* }
        #[cfg(feature = "mysql")]
        $crate::on_database! { mysql = $crate::Db::mysql(); $($test)* }
    };
}

/// Makes the tests for one kind of database.
#[macro_export]
macro_rules! on_database {
    ($name:ident = $db:expr; $($test:ident)*) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    if let Some(db) = $db.await {
                        super::$test(db).await;
                    }
                }
            )*
        }
    };
}

/// Runs a block. In the block, the variable `$pool` is a pool of sqlx for the database.
#[macro_export]
macro_rules! with_pool {
    ($db:expr, $pool:ident => $block:block) => {
        match $db.url().split(':').next().unwrap_or_default() {
            #[cfg(feature = "postgres")]
            "postgres" => {
                let $pool = $crate::sqlx::PgPool::connect($db.url())
                    .await
                    .expect("opens");
                $block
            }
            #[cfg(feature = "mysql")]
            "mysql" => {
                let $pool = $crate::sqlx::MySqlPool::connect($db.url())
                    .await
                    .expect("opens");
                $block
            }
            _ => {
                let $pool = $crate::sqlx::SqlitePool::connect($db.url())
                    .await
                    .expect("opens");
                $block
            }
        }
    };
}

/// A database of one test, removed with the value.
pub struct Db {
    url: String,
    /// The URL of the server itself. A pooler does not know the statements that another connection
    /// has prepared.
    direct: String,
    home: Home,
    pool: OnceCell<AnyPool>,
    /// The first statements on each new connection of [`Db::database`].
    #[cfg(feature = "mysql")]
    session: &'static [&'static str],
    /// What the application does with each connection of [`Db::database`] before the connection is used
    /// again. Statements that fail are meant to.
    leaves: &'static [&'static str],
    /// The server is MariaDB, and Perennial takes it for MySQL.
    #[cfg(feature = "mysql")]
    is_mysql: bool,
}

enum Home {
    /// Held for as long as the file is needed.
    Folder(#[expect(dead_code, reason = "its drop removes the file")] Folder),
    Memory(perennial_testing::Database),
    Elsewhere,
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    Server {
        url: String,
        name: String,
    },
}

impl Db {
    /// A new file.
    pub async fn sqlite() -> Option<Self> {
        let folder = Folder::new();
        Some(Self::new(folder.url(), Home::Folder(folder)))
    }

    /// A store in memory, which only the tests of the store's contract use.
    pub async fn in_memory() -> Option<Self> {
        let database = perennial_testing::Database::new();
        Some(Self::new("memory:".to_owned(), Home::Memory(database)))
    }

    /// The database in memory, if it is one.
    pub fn memory(&self) -> Option<&perennial_testing::Database> {
        match &self.home {
            Home::Memory(database) => Some(database),
            _ => None,
        }
    }

    /// Uses an existing database, and does not remove it.
    pub fn at(url: &str) -> Self {
        Self::new(url.to_owned(), Home::Elsewhere)
    }

    fn new(url: String, home: Home) -> Self {
        Self {
            direct: url.clone(),
            url,
            home,
            pool: OnceCell::new(),
            #[cfg(feature = "mysql")]
            session: &[],
            leaves: &[],
            #[cfg(feature = "mysql")]
            is_mysql: false,
        }
    }

    /// Makes the store send the SQL that it sends to MySQL, and not that for MariaDB.
    #[cfg(feature = "mysql")]
    pub fn taken_for_mysql(mut self) -> Self {
        self.is_mysql = true;
        self
    }

    /// Returns the database of a site that uses the application's pool. The application runs these
    /// statements on each connection before it gives the connection back. What has not been
    /// committed by then is lost.
    pub fn left_by(mut self, leaves: &'static [&'static str]) -> Self {
        self.leaves = leaves;
        self
    }

    /// The URL for a pool or [`Perennial::open`].
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens a site on the database, as a process of its own would.
    pub async fn site(&self) -> Perennial {
        match self.memory() {
            Some(database) => database.open(patient()).expect("opens"),
            None => {
                let begun = tokio::time::Instant::now();
                loop {
                    match open_site(patient(), &self.url).await {
                        Ok(site) => return site,
                        Err(error) if is_slow(&error) && begun.elapsed() < HANG => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
    }

    /// Returns the database with a statement timeout that a slow machine does not exceed.
    pub async fn database(&self) -> Database {
        #[cfg(feature = "mysql")]
        if !self.session.is_empty() {
            let session = self.session;
            let pool = sqlx::mysql::MySqlPoolOptions::new();
            let pool = pool.after_connect(move |connection, _| {
                Box::pin(async move {
                    for setting in session {
                        sqlx::Executor::execute(&mut *connection, *setting).await?;
                    }
                    Ok(())
                })
            });
            let pool = pool.connect(&self.url).await.expect("opens");
            return Database::from(pool).statement_timeout(HANG / 2);
        }
        if !self.leaves.is_empty() {
            return self.left_behind().await;
        }
        let begun = tokio::time::Instant::now();
        loop {
            match open(&self.url).await {
                Ok(database) => return database.statement_timeout(HANG / 2),
                Err(error) if is_slow(&error) && begun.elapsed() < HANG => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Returns the pool of an application that leaves its connections in some state.
    async fn left_behind(&self) -> Database {
        fn pool<DB: sqlx::Database>(
            connections: u32,
            leaves: &'static [&'static str],
        ) -> PoolOptions<DB>
        where
            for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
        {
            let pool = PoolOptions::new().max_connections(connections);
            pool.after_release(move |connection, _| {
                Box::pin(async move {
                    for statement in leaves {
                        let done =
                            sqlx::Executor::execute(&mut *connection, sqlx::raw_sql(*statement));
                        let _ = done.await;
                    }
                    Ok(true)
                })
            })
        }
        let database: Database = match self.url.split(':').next().unwrap_or_default() {
            #[cfg(feature = "postgres")]
            "postgres" => {
                let pool = pool::<sqlx::Postgres>(2, self.leaves).connect(&self.url);
                pool.await.expect("opens").into()
            }
            #[cfg(feature = "mysql")]
            "mysql" => {
                let pool = pool::<sqlx::MySql>(2, self.leaves).connect(&self.url);
                pool.await.expect("opens").into()
            }
            _ => {
                let options: sqlx::sqlite::SqliteConnectOptions = self.url.parse().expect("a URL");
                let options = options.create_if_missing(true);
                // Another connection would wait for the one that writes.
                let pool = pool::<sqlx::Sqlite>(1, self.leaves).connect_with(options);
                pool.await.expect("opens").into()
            }
        };
        #[cfg(feature = "mysql")]
        if self.is_mysql {
            return database.as_mysql().statement_timeout(HANG / 2);
        }
        database.statement_timeout(HANG / 2)
    }

    /// Opens a store with its tables.
    pub async fn store(&self) -> Arc<dyn Backend> {
        if let Some(database) = self.memory() {
            return Arc::new(database.clone());
        }
        let store = self.database().await.store("perennial_").await;
        Arc::new(Patient(store.expect("prepares")))
    }

    /// Returns a pool for the test's own statements.
    async fn pool(&self) -> &AnyPool {
        let open = async || {
            sqlx::any::install_default_drivers();
            let pool = AnyPoolOptions::new().max_connections(2);
            pool.connect(&self.direct).await.expect("opens")
        };
        self.pool.get_or_init(open).await
    }

    /// Runs a statement without arguments, and returns the number of changed rows.
    pub async fn execute(&self, sql: &str) -> u64 {
        let done = self.try_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs a statement that may fail, as [`execute`](Self::execute) does.
    pub async fn try_execute(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql));
        let done = sqlx::Executor::execute(self.pool().await, statement).await;
        done.map(|done| done.rows_affected())
    }

    /// Returns a transaction with a changed row. Open until dropped.
    pub async fn uncommitted(&self, change: &str) -> Transaction<'static, sqlx::Any> {
        let mut transaction = self.pool().await.begin().await.expect("begins");
        let done = sqlx::query(AssertSqlSafe(change)).execute(&mut *transaction);
        assert_eq!(done.await.expect("is done").rows_affected(), 1, "{change}");
        transaction
    }

    /// Locks a table, so that nobody else reads or writes it, until the connection is dropped.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub async fn locked(&self, table: &str) -> sqlx::AnyConnection {
        self.pool().await;
        let connection = <sqlx::AnyConnection as sqlx::Connection>::connect(&self.direct);
        let mut connection = connection.await.expect("connects");
        let lock = if self.url.starts_with("postgres") {
            format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        } else {
            format!("LOCK TABLES {table} WRITE")
        };
        let lock = sqlx::raw_sql(AssertSqlSafe(lock));
        sqlx::Executor::execute(&mut connection, lock)
            .await
            .expect("is locked");
        connection
    }

    /// Returns true if a transaction in this database waits for another one's row.
    pub async fn waits(&self) -> bool {
        /// MariaDB returns the same list again within 100 ms of the last query.
        static ASKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _asking = ASKING.lock().await;
        let waiting = match self.url.split(':').next() {
            Some("postgres") => {
                "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'"
            }
            Some("mysql") => {
                tokio::time::sleep(std::time::Duration::from_millis(150)).await;
                "SELECT count(*) FROM information_schema.innodb_trx t
                    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
                    WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'"
            }
            _ => return false,
        };
        self.int(waiting).await > Some(0)
    }

    /// The first column of the first row.
    pub async fn int(&self, sql: &str) -> Option<i64> {
        let query = sqlx::query_scalar(AssertSqlSafe(sql));
        let value = query.fetch_optional(self.pool().await).await;
        value.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The text in the first column of the first row.
    pub async fn text(&self, sql: &str) -> String {
        let query = sqlx::query_scalar(AssertSqlSafe(sql));
        let value = query.fetch_one(self.pool().await).await;
        value.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Returns the statement that raises the latest epoch.
    pub fn raise_epochs(&self, by: u64) -> String {
        if self.url.starts_with("postgres") {
            format!("UPDATE perennial_schema SET version = version + {by} WHERE id = 2")
        } else {
            format!("UPDATE perennial_invalidation SET epoch = epoch + {by} WHERE name = '*'")
        }
    }

    /// Returns the query of the latest epoch.
    pub fn latest_epoch(&self) -> &'static str {
        if self.url.starts_with("postgres") {
            "SELECT version FROM perennial_schema WHERE id = 2"
        } else {
            "SELECT epoch FROM perennial_invalidation WHERE name = '*'"
        }
    }

    /// Inserts ten thousand invalidated names with this beginning, of the epochs after `since`.
    pub async fn invalidate_ten_thousand(&self, beginning: &str, since: i64) {
        const NUMBER: &str = "a.d + 10 * b.d + 100 * c.d + 1000 * d.d";
        let name = if self.url.starts_with("mysql") {
            format!("CONCAT('{beginning}', {NUMBER})")
        } else {
            format!("'{beginning}' || ({NUMBER})")
        };
        let sql = format!(
            "INSERT INTO perennial_invalidation (name, epoch) SELECT {name}, {since} + 1 + {NUMBER} FROM {}",
            four_digits()
        );
        assert_eq!(self.execute(&sql).await, 10_000);
    }

    /// Returns the stored fence and body of a path.
    pub async fn entry(&self, path: &str) -> Option<(i64, String)> {
        let sql = format!("SELECT fence, body FROM perennial_entry WHERE name = '{path}'");
        let query = sqlx::query_as::<_, (i64, Vec<u8>)>(AssertSqlSafe(sql));
        let row = query
            .fetch_optional(self.pool().await)
            .await
            .expect("reads");
        row.map(|(fence, body)| (fence, String::from_utf8(body).expect("text")))
    }
}

impl TestDatabase for Db {
    async fn store(&self) -> Arc<dyn Backend> {
        self.store().await
    }

    async fn execute(&self, sql: &str) -> u64 {
        self.execute(sql).await
    }

    async fn shift_clock(&self, seconds: i64) {
        let Some(database) = self.memory() else {
            return shift_rows(self, seconds).await;
        };
        let by = Duration::from_secs(seconds.unsigned_abs());
        match seconds {
            0.. => database.set_clock_forward(by),
            _ => database.set_clock_back(by),
        }
    }
}

/// Returns true where a server on a loaded machine is slow to take connections.
fn is_slow(error: &perennial::Error) -> bool {
    format!("{error:?}").contains("did not answer within")
}

/// Takes all connections of a pool, as a busy application does.
pub async fn all_of<D: sqlx::Database>(pool: &sqlx::Pool<D>) -> Vec<PoolConnection<D>> {
    let mut held = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        held.push(pool.acquire().await.expect("is free"));
    }
    held
}

/// A query of 10,000 rows of four digits each, `a.d` to `d.d`, in any dialect.
pub fn four_digits() -> String {
    let digits: Vec<_> = (0..10).map(|n| format!("SELECT {n} AS d")).collect();
    let digits = digits.join(" UNION ALL ");
    format!("({digits}) a CROSS JOIN ({digits}) b CROSS JOIN ({digits}) c CROSS JOIN ({digits}) d")
}

/// Opens a site through the driver under test, as [`Builder::open`](perennial::Builder::open) does
/// through sqlx.
pub async fn open_site(builder: Builder, url: &str) -> Result<Perennial, perennial::Error> {
    match by_deadpool(url) {
        true => builder.with_pool(pool_of(url, CONNECTIONS).await).await,
        false => builder.open(url).await,
    }
}

/// Opens a database by the driver under test, as [`Database::open`] does by sqlx.
pub async fn open(url: &str) -> Result<Database, perennial::Error> {
    match by_deadpool(url) {
        true => Ok(pool_of(url, CONNECTIONS).await),
        false => Database::open(url).await,
    }
}

/// Of a pool of the driver under test.
const CONNECTIONS: u32 = 10;

/// Returns true if the driver under test is deadpool, and not sqlx.
pub fn by_deadpool(url: &str) -> bool {
    let driver = std::env::var("PERENNIAL_TEST_DRIVER");
    match driver.as_deref() {
        Ok("deadpool") => url.starts_with("postgres"),
        Ok(other) => panic!("PERENNIAL_TEST_DRIVER is {other}, and there is `deadpool` alone"),
        Err(_) => false,
    }
}

/// A pool of deadpool's.
#[cfg(feature = "postgres")]
pub fn deadpool_of(url: &str, connections: u32) -> deadpool_postgres::Pool {
    let config: tokio_postgres::Config = url.parse().expect("a URL");
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(connections as usize);
    pool.build().expect("no timeouts")
}

/// A pool such as an application has.
pub async fn pool_of(url: &str, connections: u32) -> Database {
    let database: Database = match url.split(':').next().unwrap_or_default() {
        #[cfg(feature = "postgres")]
        "postgres" if by_deadpool(url) => {
            perennial_tokio_postgres::Deadpool::new(deadpool_of(url, connections)).into()
        }
        #[cfg(feature = "postgres")]
        "postgres" => {
            let pool = PoolOptions::<sqlx::Postgres>::new().max_connections(connections);
            pool.connect(url).await.expect("opens").into()
        }
        #[cfg(feature = "mysql")]
        "mysql" => {
            let pool = PoolOptions::<sqlx::MySql>::new().max_connections(connections);
            pool.connect(url).await.expect("opens").into()
        }
        _ => {
            // The same setting as in `Perennial::open`. SQLite serves writers in a random order.
            // With sqlx's default each commit waits for the disk, and on a slow disk one of many
            // writers may exceed the time limit of a step.
            let options: sqlx::sqlite::SqliteConnectOptions = url.parse().expect("a URL");
            let options = options.synchronous(sqlx::sqlite::SqliteSynchronous::Normal);
            let pool = PoolOptions::<sqlx::Sqlite>::new().max_connections(connections);
            pool.connect_with(options).await.expect("opens").into()
        }
    };
    database.statement_timeout(HANG / 2)
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

    use super::{Db, Home};

    /// The URL of a server to test against, from the environment.
    pub(super) fn server(variable: &str) -> Option<String> {
        let url = std::env::var(variable).ok();
        if url.is_none() {
            assert!(
                std::env::var_os("PERENNIAL_TEST_ALL").is_none(),
                "{variable} is not set, and nothing may be skipped"
            );
            eprintln!("SKIPPED: {variable} is not set; scripts/test starts a server");
        }
        url
    }

    async fn say(url: &str, sql: &str) {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(url).await.expect("connects");
        let done = connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
        connection.close().await.expect("closes");
    }

    /// The URL with another database.
    fn with_database(url: &str, name: &str) -> String {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (server, _) = base.rsplit_once('/').expect("names a database");
        match query {
            "" => format!("{server}/{name}"),
            query => format!("{server}/{name}?{query}"),
        }
    }

    impl Db {
        /// Makes a new database on the PostgreSQL server of `PERENNIAL_TEST_POSTGRES_URL`. Returns
        /// `None` without that variable.
        #[cfg(feature = "postgres")]
        pub async fn postgres() -> Option<Self> {
            Self::make("PERENNIAL_TEST_POSTGRES_URL").await
        }

        /// Returns a database behind PgBouncer in transaction mode: each transaction may get
        /// another connection.
        #[cfg(feature = "postgres")]
        pub async fn postgres_pooled() -> Option<Self> {
            let pooler = server("PERENNIAL_TEST_PGBOUNCER_URL")?;
            let mut db = Self::postgres().await?;
            db.url = with_database(&pooler, db.name());
            Some(db)
        }

        /// Returns a database of PostgreSQL whose `version()` is this one.
        #[cfg(feature = "postgres")]
        pub async fn postgres_called(version: &str) -> Option<Self> {
            let db = Self::postgres().await?;
            let called = format!(
                "CREATE SCHEMA called; CREATE FUNCTION called.version() RETURNS text LANGUAGE sql AS $$ SELECT '{version}'::text $$"
            );
            db.execute(&called).await;
            db.set("search_path = public, called, pg_catalog").await;
            Some(db)
        }

        /// Returns a server whose defaults are unusual in what matters here, or `None` if there is
        /// none.
        #[cfg(feature = "postgres")]
        pub async fn postgres_unusual() -> Option<Self> {
            let db = Self::postgres().await?;
            for setting in [
                "default_transaction_isolation = 'serializable'",
                "standard_conforming_strings = off",
                "bytea_output = 'escape'",
                "timezone = 'Asia/Kathmandu'",
                "datestyle = 'SQL, DMY'",
                "enable_indexscan = off",
            ] {
                db.set(setting).await;
            }
            Some(db)
        }

        #[cfg(feature = "postgres")]
        async fn set(&self, setting: &str) {
            let name = self.name();
            self.execute(&format!("ALTER DATABASE {name} SET {setting}"))
                .await;
        }

        /// A new database of the MariaDB or MySQL of `PERENNIAL_TEST_MYSQL_URL`; `None` without one.
        #[cfg(feature = "mysql")]
        pub async fn mysql() -> Option<Self> {
            Self::make("PERENNIAL_TEST_MYSQL_URL").await
        }

        /// Returns a database whose relevant defaults have rare values.
        #[cfg(feature = "mysql")]
        pub async fn mysql_unusual() -> Option<Self> {
            let mut db = Self::mysql().await?;
            let name = db.name().to_owned();
            db.execute(&format!("ALTER DATABASE {name} COLLATE utf8mb4_general_ci"))
                .await;
            db.session = &[
                "SET sql_mode = 'ORACLE,ANSI,STRICT_ALL_TABLES,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
                "SET time_zone = '+05:45'",
                "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
                "SET innodb_lock_wait_timeout = 1",
            ];
            Some(db)
        }

        /// Returns a database whose sessions begin with these statements.
        #[cfg(feature = "mysql")]
        pub async fn mysql_with(session: &'static [&'static str]) -> Option<Self> {
            let mut db = Self::mysql().await?;
            db.session = session;
            Some(db)
        }

        async fn make(variable: &str) -> Option<Self> {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let url = server(variable)?;
            let name = format!("t{}_{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
            say(&url, &format!("CREATE DATABASE {name}")).await;
            let home = Home::Server {
                url: url.clone(),
                name: name.clone(),
            };
            Some(Self::new(with_database(&url, &name), home))
        }

        /// The name of the database on its server.
        pub fn name(&self) -> &str {
            match &self.home {
                Home::Server { name, .. } => name,
                _ => unreachable!("it is a server's"),
            }
        }
    }

    impl Drop for Db {
        fn drop(&mut self) {
            let Home::Server { url, name } = &self.home else {
                return;
            };
            let force = if url.starts_with("postgres") {
                "WITH (FORCE)"
            } else {
                ""
            };
            let (url, drop) = (url.clone(), format!("DROP DATABASE {name} {force}"));
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                runtime.block_on(say(&url, &drop));
            });
            // If the database cannot be dropped here, it disappears together with the test server.
            let _ = thread.join();
        }
    }
}
