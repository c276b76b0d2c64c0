//! The settings of a site, and how it is opened. All checks of settings are in [`Builder::checked`], so that
//! a setting that cannot be used is one error of `open`, which says what to write.

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

    /// Sets the first part of the tables' names: up to 40 lowercase letters, digits and `_`, and no
    /// digit first. Default: `perennial_`.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().table_prefix("shop_");
    /// ```
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Sets the capacity of the memory tier in bytes, compressed copies included. Default: 64 MiB.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().memory_capacity(256 << 20);
    /// ```
    pub fn memory_capacity(mut self, bytes: u64) -> Self {
        self.settings.memory_capacity = bytes;
        self
    }

    /// Sets the capacity of the stored pages in bytes. Each counts with its body, headers, tags and key, and
    /// 2 KiB. Default: 1 GiB. With `u64::MAX` there is no limit.
    ///
    /// Beyond it, once a minute, a request removes pages that nobody seems to ask for, and the log says so:
    /// first stale ones that were generated once or that say that there is nothing, then other stale ones,
    /// those first that have been stale for longest; fresh ones at last. Set the same capacity in each
    /// process. Zero is an error of `open`.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().store_capacity(10 << 30);
    /// ```
    pub fn store_capacity(mut self, bytes: u64) -> Self {
        self.settings.store_capacity = (bytes < u64::MAX).then_some(bytes);
        self
    }

    /// Sets the size of the largest body that is stored, in bytes. Default: 8 MiB. On MySQL and
    /// MariaDB it has to be less than `max_allowed_packet`.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().max_body(32 << 20);
    /// ```
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }

    /// Sets the largest size of a stored response's headers, names and values, in bytes. Default: 32 KiB.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().max_headers(64 << 10);
    /// ```
    pub fn max_headers(mut self, bytes: usize) -> Self {
        self.settings.max_headers = bytes;
        self
    }

    /// Sets the number of regenerations that this process runs concurrently. Default: 16.
    ///
    /// Visitors get old versions in place of further regenerations. A first version is always
    /// generated. Zero is an error of `open`.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().max_regenerations(4);
    /// ```
    pub fn max_regenerations(mut self, at_once: usize) -> Self {
        self.settings.max_regenerations = at_once;
        self
    }

    /// Leaves out the header `Cache-Status` (RFC 9211). Default: each response has the header.
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

    /// Sets the [revision](Self::revision) to a digest of the executable. This takes some tenths of a second in a
    /// release build, and seconds in a debug build, whose executable has hundreds of megabytes: not for tests.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().revision_of_executable();
    /// ```
    pub fn revision_of_executable(mut self) -> Self {
        self.digests_executable = true;
        self
    }

    /// Sets the name of this version of the site's code, such as `env!("CARGO_PKG_VERSION")`. Default: none.
    ///
    /// At the first request of a process with another revision than the one before, also after a
    /// rollback, all content becomes stale. An older process that still runs serves the newer one's
    /// pages as its own.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().revision(env!("CARGO_PKG_VERSION"));
    /// ```
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.settings.revision = Some(revision.into());
        self
    }

    /// Lets a request with this token, of 16 bytes at least, in the header `Perennial-Explain` ask
    /// why its page is cached or not. Default: none.
    ///
    /// A layer answers such a request with an [`Explanation`](crate::entries::Explanation) as JSON,
    /// and generates and stores nothing.
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

    /// Sets the time for which a stale version and an unused named lock are stored. Default: 90
    /// days.
    ///
    /// Once an hour (with a shorter retention, as often), a request removes what is older.
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

    /// Lets PostgreSQL notify this process of invalidations (LISTEN and NOTIFY), after some 50 ms instead of
    /// a second. Default: off.
    ///
    /// Takes one connection of the pool for good, and does not work through a pooler in transaction
    /// mode. Another kind of database, or a pool of one connection, is an error of `open`.
    ///
    /// ```
    /// # use perennial::Perennial;
    /// let builder = Perennial::builder().listen();
    /// ```
    pub fn listen(mut self) -> Self {
        self.listen = true;
        self
    }

    /// Sets the time limit of a call to the database, with all attempts. Default: 5 s, or the limit
    /// of the [`Database`](crate::sql::Database::statement_timeout).
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

    /// Sets the longest time for which a request waits for the database where it can be answered
    /// without. Default: 500 ms.
    ///
    /// A request may wait for news of invalidations, for a page's lock, for the publish of a new
    /// version, or for the release of an exclusive route's lock. After the limit the request is
    /// answered, and the statement runs on.
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

    /// Opens the site even while its database is unavailable. The first call connects, and makes or
    /// checks Perennial's tables. Default: the opening does both.
    ///
    /// Meanwhile each process generates a page once, unsaved, and locks are errors.
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
    /// After an invalidation by an [`InvalidateLayer`](crate::layer::InvalidateLayer), or by the handler inside of one,
    /// the response sets a cookie for ten seconds (`HttpOnly`, `SameSite=Lax`). Its name begins with `perennial-epoch-`,
    /// and ends with a number of the site and one of the process. A request with such cookies waits until its process
    /// knows the invalidations of the other processes, and then for the new version. If another request generates that,
    /// the wait ends after [`follower_wait`](crate::Refresh::follower_wait). A page in a cooldown is served as to
    /// everybody. Set this in each process of the site.
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

    /// Makes no tables: they have to be there when the site is opened. Default: opening makes or upgrades them.
    ///
    /// Where they are missing, or of another release, opening fails with [`Schema`](crate::ErrorKind::Schema). The error
    /// says what to do.
    ///
    /// Use it where migrations run as a step of their own, by a role with more rights than the application has:
    /// [`create_tables`](Self::create_tables) from your own migration program, or the statements of
    /// [`ddl`](Self::ddl) or of `perennial ddl` in a migration file.
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

    /// Says that the database has this trigger, made by a migration. Default: none.
    ///
    /// - `open` compares it with the database's, and logs a warning where it is missing or differs
    ///   ([`Perennial::check_triggers`]); a site that [connects later](Self::connect_lazily) does not.
    /// - Behind [`Perennial::invalidate_on_success`] and its like, the answer to a successful change waits
    ///   until this process knows what the triggers have written, and with
    ///   [`read_own_writes`](Self::read_own_writes) its author is shown the change
    ///   by each process. Without this, that is so for the names that the layer or the response has, and what
    ///   the triggers have written is known within a second.
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

    /// Does as [`RefreshLayer::ignore_extension`](crate::layer::RefreshLayer::ignore_extension) for
    /// each layer of the site.
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

    /// Does as [`RefreshLayer::ignore_extensions`](crate::layer::RefreshLayer::ignore_extensions) for each layer of the
    /// site.
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

    /// Does as [`RefreshLayer::share_extension`](crate::layer::RefreshLayer::share_extension) for
    /// each layer of the site.
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

    /// Does as
    /// [`RefreshLayer::drop_response_extension`](crate::layer::RefreshLayer::drop_response_extension)
    /// for each layer of the site.
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

    /// Does as [`Perennial::open`], with these settings.
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

    /// Does as [`Perennial::with_pool`], with these settings.
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

    /// Returns the statements that make the tables in a database of the URL's kind, such as
    /// `postgres://`. The site's role then needs SELECT, INSERT, UPDATE and DELETE.
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

    /// Checks the settings, and sets what the mode changes.
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
