//! The settings of a site.

use std::{sync::Arc, time::Duration};

use super::Perennial;
#[cfg(feature = "_sql")]
use crate::sql::{Connect, Database, IntoDatabase};
use crate::{
    error::Error,
    layer::refresh::declared::Declared,
    name::TABLE_PREFIX,
    resource::{Engine, Settings},
    store::{Guarded, Store},
    timing::{DATABASE_PATIENCE, RETENTION},
};

/// Settings of a [`Perennial`]; from [`Perennial::builder`].
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are built"]
pub struct Builder {
    table_prefix: String,
    settings: Settings,
    declared: Declared,
    statement_limit: Option<Duration>,
    database_patience: Duration,
    #[cfg(feature = "_sql")]
    connect: Connect,
    #[cfg(feature = "postgres")]
    listen: bool,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            table_prefix: TABLE_PREFIX.to_owned(),
            declared: Declared::default(),
            settings: Settings {
                memory: 64 << 20,
                max_body: 8 << 20,
                max_headers: 32 << 10,
                regenerations: 16,
                cache_status: true,
                retention: RETENTION,
                revision: None,
            },
            statement_limit: None,
            database_patience: DATABASE_PATIENCE,
            #[cfg(feature = "_sql")]
            connect: Connect::Now,
            #[cfg(feature = "postgres")]
            listen: false,
        }
    }

    /// What the names of the tables begin with. Default: `perennial_`.
    ///
    /// A lowercase letter or `_`, then up to 39 lowercase letters, digits and `_`; anything else is refused when the database is
    /// opened.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// How many bytes of entries are kept in memory, with what they are compressed in. Default: 64 MiB. What doesn't fit is read from the database.
    ///
    /// Each thread that serves keeps the headers of 64 entries at most beside that.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.settings.memory = bytes;
        self
    }

    /// The largest body that is stored, in bytes. Default: 8 MiB. On MySQL and MariaDB, less than `max_allowed_packet`.
    ///
    /// A larger one is passed on to the visitor whole, without being buffered beyond this, and not stored.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }

    /// How large the headers of a stored response may be, names and values, in bytes. Default: 32 KiB. A response with more is passed on, and not
    /// stored.
    pub fn max_headers(mut self, bytes: usize) -> Self {
        self.settings.max_headers = bytes;
        self
    }

    /// How many regenerations this process runs at once. Default: 16.
    ///
    /// More are skipped, not queued: their old versions go on being served. A first version is always made, as a
    /// visitor waits for it. With 0 nothing that is stale is ever regenerated.
    pub fn regenerations(mut self, at_once: usize) -> Self {
        self.settings.regenerations = at_once;
        self
    }

    /// Whether the layers' responses say in `Cache-Status` how they came about (RFC 9211). Default: yes.
    pub fn cache_status(mut self, said: bool) -> Self {
        self.settings.cache_status = said;
        self
    }

    /// What distinguishes this version of the site's code, as `env!("GIT_HASH")` or `env!("CARGO_PKG_VERSION")`. Default: nothing does.
    ///
    /// When the first process of a revision that the database has not seen gets its first request, all content is stale: served, and regrown. While two
    /// revisions run side by side, what the older one makes is stale for the newer one, and not the other way round, so that they
    /// do not undo each other's work; an old process may go on with what it has made itself. A revision that comes back after another one was there makes nothing stale: call
    /// [`invalidate_prefix("")`](Perennial::invalidate_prefix) when you roll back.
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.settings.revision = Some(revision.into());
        self
    }

    /// How long an entry is kept after it has become stale without having been made anew, and a lock unused. Default: 90 days.
    ///
    /// One process a day, at a request, removes them, a hundred at a time (with a shorter retention that often, every 10 s at most). A purge is remembered for as long, too, an hour
    /// at least, and until no older entry is stored: no process should be without requests for longer.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// Whether PostgreSQL tells this process of invalidations, by LISTEN and NOTIFY, so that it knows them in some 50 ms instead of a second. Default: no.
    ///
    /// It takes a connection of the pool, for good, and one that a pooler doesn't share by the transaction. Where it is lost nothing is:
    /// requests ask in any case. Another database, and a relative of PostgreSQL's, can't: the former is an error when it is opened, the latter never tells.
    #[cfg(feature = "postgres")]
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = listen;
        self
    }

    /// How long a step in the database may take, the wait for a connection and further tries included, before it counts as failed.
    /// Default: 5 s, or the limit of the [`Database`](crate::sql::Database::statement_limit).
    ///
    /// The limit also holds for claims and session locks of the [site's database](Perennial::database).
    pub fn statement_limit(mut self, limit: Duration) -> Self {
        self.statement_limit = Some(limit);
        self
    }

    /// The longest time that a request waits for the database although the request can be answered without the database. Default: 500 ms.
    ///
    /// | a request that | waits for | and after this time gets |
    /// |---|---|---|
    /// | is the first for more than a second | what other processes have invalidated | the version in memory, which may have been purged |
    /// | starts the regeneration of a stale version | the lock | the stale version |
    /// | waits for a version that has just been generated | the version to be stored | this version, which is stored later |
    /// | ran an [exclusive](Perennial::exclusive) route | the lock's release | the route's response; the lease is released afterwards |
    ///
    /// The first two lines together take no longer than this time. The statement in the database goes on in each case, up to its own
    /// [limit](Self::statement_limit). With zero, no such request waits. A request for which there is no version waits for the database as long as the
    /// statement limit allows.
    pub fn database_patience(mut self, limit: Duration) -> Self {
        self.database_patience = limit;
        self
    }

    /// Opens the site though its database may be away: the first step that needs the database connects to it, and makes or checks Perennial's tables. Default: the
    /// database is connected to, and the tables are made, before the site is opened.
    ///
    /// While the database is away, and while its tables cannot be made, the site does as in any outage: each process generates a page
    /// once and does not store the page, and locks are errors. Such an error, which may be for good (a wrong password, tables of a
    /// newer release), is logged once and not returned when the site is opened. A URL or a table prefix that cannot be used is still
    /// an error at once. The tables have to be made within the [statement limit](Self::statement_limit).
    /// [`Once::mark_in`](crate::Once::mark_in) runs on the caller's connection and makes no tables: in a new database, the mark fails
    /// until another step has made the tables.
    #[cfg(feature = "_sql")]
    pub fn connect_lazily(mut self) -> Self {
        self.connect = Connect::Lazily;
        self
    }

    /// Declares for each layer of the site that handlers generate pages without the extension of type `T`; see
    /// [`RefreshLayer::hide_extension`](crate::layer::RefreshLayer::hide_extension).
    pub fn hide_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.declared.declare::<T>(false);
        self
    }

    /// Declares for each layer of the site that the extension of type `T` is equal for all visitors; see
    /// [`RefreshLayer::share_extension`](crate::layer::RefreshLayer::share_extension).
    pub fn share_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.declared.declare::<T>(true);
        self
    }

    /// As [`Perennial::open`], with these settings.
    ///
    /// # Errors
    ///
    /// As there, and [`Invalid`](crate::ErrorKind::Invalid) for a table prefix that cannot be used, an empty revision, or `listen` on a
    /// database other than PostgreSQL.
    #[cfg(feature = "_sql")]
    pub async fn open(self, url: &str) -> Result<Perennial, Error> {
        let database = Database::open_when(url, self.connect).await?;
        self.build(database).await
    }

    /// As [`Perennial::new`], with these settings.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[cfg(feature = "_sql")]
    pub async fn build(self, pool: impl IntoDatabase) -> Result<Perennial, Error> {
        self.check()?;
        let database = pool.into_database();
        let limit = self.statement_limit.unwrap_or(database.limit());
        let database = database.statement_limit(limit);
        let store = database.clone();
        let store = store.store_when(&self.table_prefix, self.connect).await?;
        let prefix = self.table_prefix.clone();
        #[cfg(feature = "postgres")]
        let listens = self.listen;
        let mut site = self.site(store, limit, Some(prefix.clone()));
        site.database = Some(database.clone());
        #[cfg(feature = "postgres")]
        if listens {
            let engine = Arc::downgrade(&site.engine);
            let heard = move || {
                if let Some(engine) = engine.upgrade() {
                    engine.heard();
                }
            };
            site.engine
                .listen(database.listen(&prefix, Box::new(heard))?);
        }
        Ok(site)
    }

    /// The statements that make the tables in a database of the URL's kind: for an administrator to run, where the site's own role may
    /// not. Nothing is opened.
    ///
    /// They are for a database that has none of the tables yet. Once they are there, that role needs no more than SELECT, INSERT, UPDATE and DELETE on them.
    ///
    /// ```
    /// # fn f() -> Result<(), perennial::Error> {
    /// # #[cfg(feature = "postgres")]
    /// println!("{}", perennial::Perennial::builder().ddl("postgres://")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a table prefix or a kind of URL that cannot be used.
    #[cfg(feature = "_sql")]
    pub fn ddl(&self, url: &str) -> Result<String, Error> {
        crate::sql::ddl(url, &self.table_prefix)
    }

    /// Opens a site over any store. No part of the public API.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn with_store(self, store: Box<dyn Store>) -> Result<Perennial, Error> {
        self.check()?;
        let limit = self
            .statement_limit
            .unwrap_or(crate::timing::STATEMENT_TIMEOUT);
        Ok(self.site(store, limit, None))
    }

    fn check(&self) -> Result<(), Error> {
        if self.settings.revision.as_deref() == Some("") {
            return Err(Error::invalid(
                "the revision is empty: write what tells this version of the code from others, or leave out `Builder::revision`",
            ));
        }
        Ok(())
    }

    fn site(self, store: Box<dyn Store>, limit: Duration, prefix: Option<String>) -> Perennial {
        let store = Guarded::new(store, limit, self.database_patience, prefix);
        let engine = Engine::new(store, self.settings);
        Perennial {
            engine: Arc::new(engine),
            declared: Arc::new(self.declared),
            #[cfg(feature = "_sql")]
            database: None,
        }
    }
}
