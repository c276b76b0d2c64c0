//! The settings of a site, and how it is opened. [`Builder::checked`] checks the settings, except for the
//! table prefix and `listen`, which are checked where the database is opened. The error says which setting
//! cannot be used, and what to write.

use std::{sync::Arc, time::Duration};

use perennial_store::{
    Backend, Database, Error, IntoDatabase, Store, StoreEvent, Trigger,
    name::TABLE_PREFIX,
    sql::{Connect, Tables},
};

use super::Perennial;
use crate::{
    cache::{Cache, Settings},
    event::Observer,
    layer::{
        ExtensionTypes,
        refresh::{explain, extensions::KnownTypes, response_extensions::DroppedTypes},
    },
    mode::Mode,
    timing::{DATABASE_PATIENCE, DEFAULT_RETENTION, STATEMENT_TIMEOUT},
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
    dropped: DroppedTypes,
    statement_timeout: Option<Duration>,
    database_patience: Duration,
    connect: Connect,
    expects_tables: bool,
    listen: bool,
    triggers: Vec<Trigger>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            table_prefix: TABLE_PREFIX.to_owned(),
            known: KnownTypes::default(),
            dropped: DroppedTypes::default(),
            settings: Settings {
                memory_capacity: 64 << 20,
                store_capacity: Some(1 << 30),
                max_body: 8 << 20,
                max_headers: 32 << 10,
                max_regenerations: 16,
                cache_status: true,
                retention: DEFAULT_RETENTION,
                revision: None,
                explain_token: None,
                follows_triggers: false,
                reads_own_writes: false,
                mode: Mode::On,
            },
            mode: None,
            token_is_short: false,
            digests_executable: false,
            statement_timeout: None,
            database_patience: DATABASE_PATIENCE,
            connect: Connect::Now,
            expects_tables: false,
            listen: false,
            triggers: Vec::new(),
        }
    }

    /// Sets the prefix of the tables' names. Default: `perennial_`. It may consist of up to 40 lowercase
    /// letters, digits and `_`, and must not begin with a digit. Two sites with different prefixes can share a
    /// database.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().table_prefix("shop_");
    /// ```
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Sets how many bytes of pages this process keeps in memory, including their compressed copies. Default: 64 MiB.
    /// Beyond that, pages that are asked for rarely are read from the database.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().memory_capacity(256 << 20);
    /// ```
    pub fn memory_capacity(mut self, bytes: u64) -> Self {
        self.settings.memory_capacity = bytes;
        self
    }

    /// Sets how many bytes of pages the database stores. Default: 1 GiB. `u64::MAX` means no limit. Set the same
    /// capacity in each process. Zero is an error when the site is opened.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().store_capacity(10 << 30);
    /// ```
    ///
    /// Each page counts as the size of its body, headers, tags and key, plus 2 KiB. If the capacity is
    /// exceeded, pages are removed at most once a minute, after some visitor's request, and the log says so.
    /// They are removed in this order: stale pages that were generated once, and stale 404s and the like; other
    /// stale pages, beginning with those that have been stale for longest; and fresh pages.
    pub fn store_capacity(mut self, bytes: u64) -> Self {
        self.settings.store_capacity = (bytes < u64::MAX).then_some(bytes);
        self
    }

    /// Sets the size of the largest body that is stored, in bytes. Default: 8 MiB. A larger response is passed on to
    /// its visitor without being stored. On MySQL and MariaDB, the size has to be less than `max_allowed_packet`.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().max_body(32 << 20);
    /// ```
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }

    /// Sets how large the headers of a stored response may be, names and values together, in bytes. Default: 32 KiB.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().max_headers(64 << 10);
    /// ```
    pub fn max_headers(mut self, bytes: usize) -> Self {
        self.settings.max_headers = bytes;
        self
    }

    /// Sets how many regenerations this process runs at the same time. Default: 16. When that many are running,
    /// visitors of other stale pages get the old version. A page without any version is always generated. Zero is an
    /// error when the site is opened.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().max_regenerations(4);
    /// ```
    pub fn max_regenerations(mut self, at_once: usize) -> Self {
        self.settings.max_regenerations = at_once;
        self
    }

    /// Leaves the header `Cache-Status` (RFC 9211) out of responses, for sites that do not want to reveal how a
    /// response was served. Default: each response has it.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().hide_cache_status();
    /// ```
    pub fn hide_cache_status(mut self) -> Self {
        self.settings.cache_status = false;
        self
    }

    /// Sets the mode of the site. Default: the environment variable `PERENNIAL_MODE` (`on`, `off` or
    /// `development`), or else [`Mode::On`].
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().mode(perennial::Mode::Development);
    /// ```
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the [revision](Self::revision) to a digest of the program's file, so that each new build is a new
    /// revision. Reading the file of a release build takes a few tenths of a second. The executable of a debug
    /// build is hundreds of megabytes in size and takes seconds, so do not use this in tests.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().revision_of_executable();
    /// ```
    pub fn revision_of_executable(mut self) -> Self {
        self.digests_executable = true;
        self
    }

    /// Names the version of the site's code, such as `env!("CARGO_PKG_VERSION")`. Default: none.
    ///
    /// When a process with a new revision serves its first request, everything that is stored becomes stale,
    /// once. A revision counts as new if it differs from the last one that a process has announced. So new
    /// templates reach visitors after a deploy, and the old ones after a rollback. During a rolling deploy,
    /// processes of the old revision serve the pages that the new ones have generated.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().revision(env!("CARGO_PKG_VERSION"));
    /// ```
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.settings.revision = Some(revision.into());
        self
    }

    /// Sets a secret token for explanations. A request that has the token in its header `Perennial-Explain`
    /// asks why the requested page is or is not cached. The token needs at least 16 bytes. Default: none, so
    /// that no request can ask.
    ///
    /// A layer answers such a request with an [`Explanation`](crate::entries::Explanation) as JSON, and
    /// generates and stores nothing.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().explain_token("of 16 bytes at least");
    /// ```
    pub fn explain_token(mut self, token: impl AsRef<str>) -> Self {
        let token = token.as_ref();
        self.token_is_short = token.len() < 16;
        self.settings.explain_token = Some(explain::digest(token.as_bytes()));
        self
    }

    /// Sets how long stale versions, and named locks that nobody uses, are kept in the database. Default: 90
    /// days. Once an hour, a visitor's request starts the removal of what is older, in the background. If the
    /// retention is shorter than an hour, that happens more often.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// # use std::time::Duration;
    /// let builder = Perennial::builder().retention(7 * perennial::DAY);
    /// ```
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// Lets PostgreSQL notify this process of invalidations (LISTEN and NOTIFY), so that it learns of them
    /// within some 50 ms instead of a second. Default: off.
    ///
    /// This takes one connection of the pool for good, and does not work through a pooler in transaction mode. With
    /// another kind of database, or with a pool of one connection, opening the site is an error.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().listen();
    /// ```
    pub fn listen(mut self) -> Self {
        self.listen = true;
        self
    }

    /// Limits how long a call to the database may take, including repeated attempts. Default: 5 s. If the site is
    /// opened with a [`Database`](crate::sql::Database) that has a
    /// [limit](crate::sql::Database::statement_timeout) of its own, that limit.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// # use std::time::Duration;
    /// let builder = Perennial::builder().statement_timeout(Duration::from_secs(2));
    /// ```
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.statement_timeout = Some(limit);
        self
    }

    /// Limits how long a request waits for the database, if the request can also be answered without the
    /// database. Default: 500 ms.
    ///
    /// Such a request waits for news of invalidations, for a page's lock, for a new version to be published, or for
    /// the release of an exclusive route's lock. After the limit it is answered, and the statement goes on.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// # use std::time::Duration;
    /// let builder = Perennial::builder().database_patience(Duration::from_millis(200));
    /// ```
    pub fn database_patience(mut self, limit: Duration) -> Self {
        self.database_patience = limit;
        self
    }

    /// Opens the site even while its database is unavailable, for processes that have to start anyway. The first call
    /// then connects, and creates or checks Perennial's tables. Default: opening does both, and fails if it cannot.
    ///
    /// Until the database answers, each process generates a page once and keeps it in its memory only, and
    /// taking a lock is an error.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().connect_lazily();
    /// ```
    pub fn connect_lazily(mut self) -> Self {
        self.connect = Connect::Lazily;
        self
    }

    /// Lets the author of a change see it in each process at once. Default: the author may get the old page for a
    /// second, or while it is regenerated.
    ///
    /// After an invalidation by an [`InvalidateLayer`](crate::layer::InvalidateLayer), or by the handler inside
    /// of one, the response sets a cookie for ten seconds (`HttpOnly`, `SameSite=Lax`). Its name is
    /// `perennial-epoch-` followed by a number for the site and a number for the process. A request with such
    /// cookies waits until its process has learned of the other processes' invalidations, and then for the new
    /// version. If another request is already generating that version, the wait ends after
    /// [`follower_wait`](crate::Refresh::follower_wait). While a page is in a cooldown after a failure, the
    /// author of the change gets the same version as everybody else. Call this in each process of the site.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f() -> Result<(), perennial::Error> {
    /// let site = perennial::Perennial::builder().read_own_writes().open("sqlite://site.db").await?;
    /// # Ok(()) }
    /// ```
    pub fn read_own_writes(mut self) -> Self {
        self.settings.reads_own_writes = true;
        self
    }

    /// Makes opening the site fail if Perennial's tables are missing or belong to another release, instead of
    /// creating or upgrading them. The error is a [`Schema`](crate::ErrorKind::Schema) and says what to do.
    /// Default: opening creates and upgrades them.
    ///
    /// Use it if migrations are a separate step, which is run by a role with more rights than the
    /// application's. That step calls [`create_tables`](Self::create_tables), or runs the statements of
    /// [`ddl`](Self::ddl), which `perennial ddl` prints as well.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f() -> Result<(), perennial::Error> {
    /// let site = perennial::Perennial::builder().expect_tables().open("sqlite://site.db").await?;
    /// # Ok(()) }
    /// ```
    pub fn expect_tables(mut self) -> Self {
        self.expects_tables = true;
        self
    }

    /// Makes or upgrades Perennial's tables in this database, and opens no site: for a migration step.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// // sqlx::migrate!().run(&pool).await?;
    /// perennial::Perennial::builder().create_tables(pool.clone()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Perennial::with_pool`].
    pub async fn create_tables(&self, pool: impl IntoDatabase) -> Result<(), Error> {
        let database: Database = pool.into();
        database.store(&self.table_prefix).await.map(drop)
    }

    /// Declares a trigger that a migration has created in the database. Default: none.
    ///
    /// - `open` compares it with the database's trigger, and logs a warning if that is missing or different
    ///   (see [`Perennial::check_triggers`]). A site that [connects later](Self::connect_lazily) does not
    ///   do this check.
    /// - Inside a layer of [`Perennial::invalidate_on_success`] or of the other functions of that kind, the
    ///   response to a successful change waits until this process knows what the triggers have written. With
    ///   [`read_own_writes`](Self::read_own_writes), the visitor who has made the change then sees it in each
    ///   process. If the trigger is not declared, the wait and `read_own_writes` apply only to the tags that
    ///   the layer or the response names, and what triggers have written becomes known within a second.
    ///
    /// ```
    /// use perennial::{Perennial, sql::Trigger};
    ///
    /// let builder = Perennial::builder().trigger(Trigger::on("book").tag("book-{id}"));
    /// ```
    pub fn trigger(mut self, trigger: Trigger) -> Self {
        self.triggers.push(trigger);
        self.settings.follows_triggers = true;
        self
    }

    /// Ignores extensions of this type in all layers of the site, as
    /// [`RefreshLayer::ignore_extension`](crate::layer::RefreshLayer::ignore_extension) does in one layer.
    ///
    /// ```
    /// # #[derive(Clone)] struct Session;
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().ignore_extension::<Session>();
    /// ```
    pub fn ignore_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.known.declare::<T>(false);
        self
    }

    /// Ignores extensions of these types in all layers of the site, as
    /// [`RefreshLayer::ignore_extensions`](crate::layer::RefreshLayer::ignore_extensions) does in one layer.
    ///
    /// ```
    /// use tower_cookies::Cookies;
    /// use tower_sessions::Session;
    ///
    /// let builder = perennial::Perennial::builder().ignore_extensions::<(Session, Cookies)>();
    /// ```
    pub fn ignore_extensions<T: ExtensionTypes>(mut self) -> Self {
        T::ignored_in(&mut self.known);
        self
    }

    /// Shares extensions of this type in all layers of the site, as
    /// [`RefreshLayer::share_extension`](crate::layer::RefreshLayer::share_extension) does in one layer.
    ///
    /// ```
    /// # #[derive(Clone)] struct Pool;
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().share_extension::<Pool>();
    /// ```
    pub fn share_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.known.declare::<T>(true);
        self
    }

    /// Drops response extensions of this type in all layers of the site, as
    /// [`RefreshLayer::drop_response_extension`](crate::layer::RefreshLayer::drop_response_extension) does in
    /// one layer.
    ///
    /// ```
    /// # #[derive(Clone)] struct RanIn;
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().drop_response_extension::<RanIn>();
    /// ```
    pub fn drop_response_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.dropped.declare::<T>();
        self
    }

    /// Opens the site as [`Perennial::open`] does, with these settings.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f() -> Result<(), perennial::Error> {
    /// # use perennial::Perennial;
    /// let site = Perennial::builder().memory_capacity(256 << 20).open("sqlite://site.db").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Perennial::open`], and [`Invalid`](crate::ErrorKind::Invalid) for a setting that
    /// cannot be used.
    pub async fn open(self, url: &str) -> Result<Perennial, Error> {
        let database = Database::open_when(url, self.connect).await?;
        self.with_pool(database).await
    }

    /// Opens the site as [`Perennial::with_pool`] does, with these settings.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f(pool: sqlx::SqlitePool) -> Result<(), perennial::Error> {
    /// # use perennial::Perennial;
    /// let site = Perennial::builder().memory_capacity(256 << 20).with_pool(pool).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub async fn with_pool(self, pool: impl IntoDatabase) -> Result<Perennial, Error> {
        let this = self.checked()?;
        let database: Database = pool.into();
        let limit = this.statement_timeout.unwrap_or(database.limit());
        let database = database.statement_timeout(limit);
        let mut tables = Tables::new(&this.table_prefix)?;
        if this.expects_tables {
            tables = tables.expected();
        }
        let store = database.clone();
        let store = store.store_when(tables.clone(), this.connect).await?;
        let prefix = this.table_prefix.clone();
        let listens = this.listen;
        let connect = this.connect;
        let mut site = this.site(store, limit, database.kind(), Some(tables));
        site.database = Some(database.clone());
        if listens {
            let sync = Arc::downgrade(site.cache.sync());
            let on_notify = move || {
                if let Some(sync) = sync.upgrade() {
                    sync.on_notify();
                }
            };
            site.cache.listen(database.listen(&prefix, on_notify)?);
        }
        if connect == Connect::Now && !site.triggers.is_empty() {
            match site.check_triggers().await {
                Ok(faults) => {
                    for fault in faults {
                        tracing::warn!(target: "perennial", "{fault}");
                    }
                }
                Err(error) => tracing::warn!(
                    target: "perennial", error = format!("{error:#}"), "the triggers could not be checked"
                ),
            }
        }
        Ok(site)
    }

    /// Returns the statements that make the tables. The scheme of the URL, such as `postgres://`, determines
    /// for which kind of database they are written. Once you have run them, the site's role needs SELECT,
    /// INSERT, UPDATE and DELETE.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # fn f() -> Result<(), perennial::Error> {
    /// # use perennial::Perennial;
    /// std::fs::write("migrations/7_perennial.sql", Perennial::builder().ddl("sqlite://")?).expect("is written");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a table prefix or a kind of URL that cannot be used.
    pub fn ddl(&self, url: &str) -> Result<String, Error> {
        perennial_store::sql::ddl(url, &self.table_prefix)
    }

    /// Opens a site over any store. This is not part of the public API.
    #[doc(hidden)]
    pub fn with_store(self, store: Box<dyn Backend>) -> Result<Perennial, Error> {
        let this = self.checked()?;
        let limit = this.statement_timeout.unwrap_or(STATEMENT_TIMEOUT);
        Ok(this.site(store, limit, "memory", None))
    }

    /// Checks the settings, and adjusts those that depend on the mode.
    fn checked(mut self) -> Result<Self, Error> {
        if self.settings.revision.as_deref() == Some("") {
            return Err(Error::invalid(
                "the revision is empty: write a name for this version of the code, or leave out `Builder::revision`",
            ));
        }
        if self.statement_timeout == Some(Duration::ZERO) {
            return Err(Error::invalid(
                "the statement timeout is zero: write the time that an operation in the database may take",
            ));
        }
        if self.token_is_short {
            return Err(Error::invalid(
                "the token of `Builder::explain_token` is shorter than 16 bytes: write one that nobody guesses",
            ));
        }
        if self.settings.store_capacity == Some(0) {
            return Err(Error::invalid(
                "the store has no room: write the number of bytes for `Builder::store_capacity`, or leave it out for 1 GiB",
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
        tables: Option<Tables>,
    ) -> Perennial {
        let observer = Observer::default();
        let hook = observer.clone();
        let event = move |event: &StoreEvent<'_>| hook.on_store_event(event);
        let store = Store::new(store, limit, self.database_patience, tables, event);
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
            store_capacity = self.settings.store_capacity,
            mode = %self.settings.mode,
            "the site is open"
        );
        if cfg!(debug_assertions) && self.settings.mode == Mode::On && self.mode.is_none() {
            tracing::info!(
                target: "perennial",
                "this is a debug build, and pages are cached as in production: with PERENNIAL_MODE=development, a changed program \
                 regenerates them, and failures are shown immediately"
            );
        }
        let cache = Cache::new(store, observer, self.settings);
        Perennial {
            cache: Arc::new(cache),
            known: Arc::new(self.known),
            dropped: Arc::new(self.dropped),
            database: None,
            triggers: self.triggers.into(),
            sharing: Default::default(),
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

#[cfg(test)]
mod tests;
