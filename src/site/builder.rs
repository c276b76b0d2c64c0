//! The settings of a site.

use std::{sync::Arc, time::Duration};

use perennial_store::{
    Backend, Database, Error, IntoDatabase, Note, Store, name::TABLE_PREFIX, sql::Connect,
};

use super::Perennial;
use crate::{
    event::Observer,
    layer::refresh::{explain, extensions::KnownTypes},
    mode::Mode,
    page::{Pages, Settings},
    timing::{DATABASE_PATIENCE, RETENTION, STATEMENT_TIMEOUT},
};

/// The settings of a [`Perennial`]; from [`Perennial::builder`].
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are built"]
pub struct Builder {
    table_prefix: String,
    settings: Settings,
    mode: Option<Mode>,
    token_is_short: bool,
    digests_executable: bool,
    known: KnownTypes,
    statement_timeout: Option<Duration>,
    database_patience: Duration,
    connect: Connect,
    #[cfg(feature = "postgres")]
    listen: bool,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            table_prefix: TABLE_PREFIX.to_owned(),
            known: KnownTypes::default(),
            settings: Settings {
                memory_capacity: 64 << 20,
                store_capacity: None,
                max_body: 8 << 20,
                max_headers: 32 << 10,
                max_regenerations: 16,
                cache_status: true,
                retention: RETENTION,
                revision: None,
                explain_token: None,
                mode: Mode::On,
            },
            mode: None,
            token_is_short: false,
            digests_executable: false,
            statement_timeout: None,
            database_patience: DATABASE_PATIENCE,
            connect: Connect::Now,
            #[cfg(feature = "postgres")]
            listen: false,
        }
    }

    /// Sets the first part of the tables' names. Default: `perennial_`.
    ///
    /// A prefix is a lowercase letter or `_`, then up to 39 lowercase letters, digits and `_`. The
    /// opening of the database refuses any other prefix.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Sets the capacity of the memory tier in bytes, compressed copies included. Default: 64 MiB.
    /// Versions beyond the capacity are read from the database.
    pub fn memory_capacity(mut self, bytes: u64) -> Self {
        self.settings.memory_capacity = bytes;
        self
    }

    /// Sets the capacity of the stored pages in bytes, each counted with its body and 2 KiB. Default:
    /// none, and pages are stored for the [retention](Self::retention).
    ///
    /// Beyond the capacity, the pages that nobody has read for longest are removed from the database, but
    /// for those that are being regenerated. The processes check this at a request, once a minute, so
    /// that the store exceeds its capacity by what a minute publishes. Above four fifths of the capacity,
    /// each process stores once an hour which pages it has read; a generation counts as a read. The
    /// processes of a site should have one capacity: the smallest one applies. Zero is an error of `open`.
    pub fn store_capacity(mut self, bytes: u64) -> Self {
        self.settings.store_capacity = Some(bytes);
        self
    }

    /// Sets the size of the largest body that is stored, in bytes. Default: 8 MiB. On MySQL and
    /// MariaDB the size has to be less than `max_allowed_packet`.
    ///
    /// A larger response is not stored: the service itself answers each visitor, unless there is an
    /// old version.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }

    /// Sets the largest size of a stored response's headers, names and values, in bytes. Default:
    /// 32 KiB. A response with larger headers is passed on and not stored.
    pub fn max_headers(mut self, bytes: usize) -> Self {
        self.settings.max_headers = bytes;
        self
    }

    /// Sets the number of regenerations that this process runs at once. Default: 16.
    ///
    /// Further regenerations are skipped, not queued, and visitors get the old versions. A first
    /// version is always generated, as a visitor waits for the version. Zero is an error of `open`.
    pub fn max_regenerations(mut self, at_once: usize) -> Self {
        self.settings.max_regenerations = at_once;
        self
    }

    /// Leaves out the header `Cache-Status` (RFC 9211). Default: each response has the header.
    pub fn hide_cache_status(mut self) -> Self {
        self.settings.cache_status = false;
        self
    }

    /// Sets the mode of the site. Default: the environment variable `PERENNIAL_MODE` (`on`, `off` or
    /// `development`), or else [`Mode::On`].
    ///
    /// ```
    /// # async fn f() -> Result<(), perennial::Error> {
    /// use perennial::{Mode, Perennial};
    ///
    /// let mode = if cfg!(debug_assertions) { Mode::Development } else { Mode::On };
    /// let site = Perennial::builder().mode(mode).open("sqlite://site.db").await?;
    /// # Ok(()) }
    /// ```
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the [revision](Self::revision) to a digest of the executable, so that each build that
    /// differs is a revision. The opening of the site reads the executable, and blocks meanwhile for
    /// some tenths of a second. The opening fails if the executable was deleted.
    pub fn revision_of_executable(mut self) -> Self {
        self.digests_executable = true;
        self
    }

    /// Sets the name of this version of the site's code, such as `env!("GIT_HASH")` or
    /// `env!("CARGO_PKG_VERSION")`. Default: none.
    ///
    /// When a process gets its first request, and its revision is not the one that the database saw
    /// last, all content becomes stale: visitors get the old versions while the pages are
    /// regenerated. So a rollback (1, 2, 1) counts as new, too.
    ///
    /// Two revisions that run side by side do not undo each other's work. The revision that was seen
    /// later treats the other one's pages as stale; the other revision serves these pages as its
    /// own, until they are stale by their age. A process of the old revision that is restarted in
    /// the middle of a deploy counts as a rollback, until a process of the new revision begins.
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.settings.revision = Some(revision.into());
        self
    }

    /// Lets a request with this token in the header `Perennial-Explain` ask why its page is cached or not.
    /// Default: no token, and the header means nothing.
    ///
    /// A layer answers such a request with an [`Explanation`](crate::entries::Explanation) as JSON, which no
    /// cache may store, in place of the page. It generates and stores nothing. `perennial explain URL` sends
    /// such requests. The layer removes the header from each request. The token has 16 bytes or more, or
    /// opening the site is an error.
    pub fn explain_token(mut self, token: impl AsRef<str>) -> Self {
        let token = token.as_ref();
        self.token_is_short = token.len() < 16;
        self.settings.explain_token = Some(explain::digest(token.as_bytes()));
        self
    }

    /// Sets the time for which a stale version and an unused lock are stored. Default: 90 days.
    ///
    /// One process a day, at a request, removes what is older, a hundred rows at a time. With a
    /// retention of less than a day, this happens once in each retention, but at most every 10 s. A
    /// purge is remembered for the longest of these times: the retention, an hour, and until no
    /// older version is stored. A process without requests for longer than a purge is remembered
    /// may miss the purge.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// Lets PostgreSQL notify this process of invalidations (LISTEN and NOTIFY). The process then
    /// knows an invalidation after some 50 ms instead of a second.
    ///
    /// The process takes one connection of the pool for good. The connection must reach PostgreSQL
    /// without a pooler in transaction mode. While the connection is lost, the process learns of
    /// invalidations by its sync, once a second. Opening another kind of database with `listen` is
    /// an error. CockroachDB and YugabyteDB accept the setting and never notify.
    #[cfg(feature = "postgres")]
    pub fn listen(mut self) -> Self {
        self.listen = true;
        self
    }

    /// Sets the time limit of a step in the database, with the wait for a connection and further
    /// tries. After the limit the step counts as failed. Default: 5 s, or the limit of the
    /// [`Database`](crate::sql::Database::statement_timeout).
    ///
    /// The limit also holds for claims and session locks of the [site's
    /// database](Perennial::database).
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.statement_timeout = Some(limit);
        self
    }

    /// Sets the longest time that a request waits for the database although the request can be
    /// answered without the database. Default: 500 ms.
    ///
    /// | a request that | waits for | and after this time gets |
    /// |---|---|---|
    /// | is the first for more than a second | what other processes have invalidated | the version in memory, which may have been purged |
    /// | starts the regeneration of a stale version | the lock | the stale version |
    /// | waits for a version that has just been generated | the version to be stored | this version, which is stored later |
    /// | ran an exclusive route | the lock's release | the route's response; the lease is released afterwards |
    ///
    /// The first two lines of the table together take no longer than this time. The statement in
    /// the database continues in each case, up to the [statement timeout](Self::statement_timeout).
    /// With zero, no such request waits. A request for which there is no version waits for the
    /// database as long as the statement timeout allows.
    pub fn database_patience(mut self, limit: Duration) -> Self {
        self.database_patience = limit;
        self
    }

    /// Opens the site even while its database is away. The first step that needs the database
    /// connects to the database, and makes or checks Perennial's tables. Default: the opening of
    /// the site does both.
    ///
    /// While the database is away or its tables cannot be made, the site behaves as in any outage:
    /// each process generates a page once and does not store the page, and locks are errors. Such
    /// an error may be permanent (a wrong password, tables of a newer release): the site logs the
    /// error once instead of failing to open.
    ///
    /// A URL or a table prefix that cannot be used is still an error at once. The tables have to be
    /// made within the [statement timeout](Self::statement_timeout).
    /// `Once::mark_in` runs on the caller's connection and makes no
    /// tables: in a new database, the mark fails until another step has made the tables.
    pub fn connect_lazily(mut self) -> Self {
        self.connect = Connect::Lazily;
        self
    }

    /// Declares for each layer of the site that handlers generate pages without the extension of
    /// type `T`; see [`RefreshLayer::ignore_extension`](crate::layer::RefreshLayer::ignore_extension).
    pub fn ignore_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.known.declare::<T>(false);
        self
    }

    /// Declares for each layer of the site that the extension of type `T` is equal for all
    /// visitors; see
    /// [`RefreshLayer::share_extension`](crate::layer::RefreshLayer::share_extension).
    pub fn share_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.known.declare::<T>(true);
        self
    }

    /// Opens a database by its URL, as [`Perennial::open`] does, with these settings.
    ///
    /// # Errors
    ///
    /// The errors of [`Perennial::open`], and [`Invalid`](crate::ErrorKind::Invalid) for a table
    /// prefix that cannot be used, an empty revision, an executable that cannot be read, a statement
    /// timeout of zero, or `listen` on a database other than PostgreSQL.
    pub async fn open(self, url: &str) -> Result<Perennial, Error> {
        let database = Database::open_when(url, self.connect).await?;
        self.with_pool(database).await
    }

    /// Uses the application's own pool, as [`Perennial::with_pool`] does, with these settings.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub async fn with_pool(self, pool: impl IntoDatabase) -> Result<Perennial, Error> {
        let this = self.checked()?;
        let database: Database = pool.into();
        let limit = this.statement_timeout.unwrap_or(database.limit());
        let database = database.statement_timeout(limit);
        let store = database.clone();
        let store = store.store_when(&this.table_prefix, this.connect).await?;
        let prefix = this.table_prefix.clone();
        #[cfg(feature = "postgres")]
        let listens = this.listen;
        let mut site = this.site(store, limit, database.kind(), Some(prefix.clone()));
        site.database = Some(database.clone());
        #[cfg(feature = "postgres")]
        if listens {
            let pages = Arc::downgrade(&site.pages);
            let heard = move || {
                if let Some(pages) = pages.upgrade() {
                    pages.heard();
                }
            };
            site.pages.listen(database.listen(&prefix, heard)?);
        }
        Ok(site)
    }

    /// Returns the statements that make the tables in a database of the URL's kind, for an
    /// administrator to run where the site's role may not. Opens nothing.
    ///
    /// The statements are for a database without these tables. Afterwards the site's role needs
    /// SELECT, INSERT, UPDATE and DELETE on the tables and nothing else.
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
    /// [`Invalid`](crate::ErrorKind::Invalid) for a table prefix or a kind of URL that cannot be
    /// used.
    pub fn ddl(&self, url: &str) -> Result<String, Error> {
        perennial_store::sql::ddl(url, &self.table_prefix)
    }

    /// Opens a site over any store. Not part of the public API.
    #[doc(hidden)]
    pub fn with_store(self, store: Box<dyn Backend>) -> Result<Perennial, Error> {
        let this = self.checked()?;
        let limit = this.statement_timeout.unwrap_or(STATEMENT_TIMEOUT);
        Ok(this.site(store, limit, "memory", None))
    }

    /// Checks the settings, and sets what the mode changes.
    fn checked(mut self) -> Result<Self, Error> {
        if self.settings.revision.as_deref() == Some("") {
            return Err(Error::invalid(
                "the revision is empty: write a name for this version of the code, or leave out `Builder::revision`",
            ));
        }
        if self.statement_timeout == Some(Duration::ZERO) {
            return Err(Error::invalid(
                "the statement timeout is zero: write the time that a step in the database may take",
            ));
        }
        if self.token_is_short {
            return Err(Error::invalid(
                "the token of `Builder::explain_token` is shorter than 16 bytes: write one that nobody guesses",
            ));
        }
        if self.settings.store_capacity == Some(0) {
            return Err(Error::invalid(
                "the store has no room: write the number of bytes for `Builder::store_capacity`, or leave it out",
            ));
        }
        if self.settings.max_regenerations == 0 {
            return Err(Error::invalid(
                "no regeneration may run: write 1 or more for `Builder::max_regenerations`",
            ));
        }
        if self.digests_executable {
            if self.settings.revision.is_some() {
                return Err(Error::invalid(
                    "there are two revisions: leave out `Builder::revision` or `Builder::revision_of_executable`",
                ));
            }
            self.settings.revision = Some(crate::mode::digest()?);
        }
        self.settings.mode = match self.mode {
            Some(mode) => mode,
            None => Mode::from_environment()?.unwrap_or_default(),
        };
        if self.settings.mode == Mode::Development
            && let Some(modified) = crate::mode::modified()
        {
            let revision = self.settings.revision.as_deref();
            let revision = revision.unwrap_or("executable");
            self.settings.revision = Some(format!("{revision} of {modified}"));
        }
        Ok(self)
    }

    fn site(
        self,
        store: Box<dyn Backend>,
        limit: Duration,
        database: &str,
        prefix: Option<String>,
    ) -> Perennial {
        let observer = Observer::default();
        let hook = observer.clone();
        let note = move |note: &Note<'_>| hook.noted(note);
        let store = Store::new(store, limit, self.database_patience, prefix, note);
        #[cfg(feature = "metrics")]
        crate::event::metrics::describe();
        tracing::info!(
            target: "perennial",
            version = env!("CARGO_PKG_VERSION"),
            features = features(),
            database,
            tables = self.table_prefix,
            revision = self.settings.revision,
            memory = self.settings.memory_capacity,
            mode = %self.settings.mode,
            "the site is open"
        );
        if cfg!(debug_assertions) && self.settings.mode == Mode::On && self.mode.is_none() {
            tracing::info!(
                target: "perennial",
                "this is a debug build, and pages are cached as in production: with PERENNIAL_MODE=development, a changed program \
                 regenerates them, and failures are shown at once"
            );
        }
        let pages = Pages::new(store, observer, self.settings);
        Perennial {
            pages: Arc::new(pages),
            known: Arc::new(self.known),
            database: None,
        }
    }
}

/// Returns the names of the features in this build, for the log.
fn features() -> String {
    let features = [
        ("sqlite", cfg!(feature = "sqlite")),
        ("postgres", cfg!(feature = "postgres")),
        ("mysql", cfg!(feature = "mysql")),
        ("axum", cfg!(feature = "axum")),
        ("compression", cfg!(feature = "compression")),
        ("metrics", cfg!(feature = "metrics")),
    ];
    let names = features.into_iter().filter(|(_, is_built_in)| *is_built_in);
    let names: Vec<_> = names.map(|(name, _)| name).collect();
    names.join(" ")
}
