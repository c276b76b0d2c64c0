//! The site: what everything starts from.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::request::Parts;

#[cfg(feature = "_sql")]
use crate::sql::{Connect, Database, IntoDatabase};
use crate::{
    content::{self, Content},
    engine::{Engine, Settings, Target},
    error::{BoxError, Error},
    extensions::Tags,
    key,
    layer::{ExclusiveLayer, IdempotencyLayer, InvalidateLayer, RefreshLayer, declared::Declared},
    lock::{LockName, Locks, Once},
    name::TABLE_PREFIX,
    refresh::Refresh,
    store::{Guarded, Store},
    timing::{DATABASE_PATIENCE, RETENTION, STATEMENT_TIMEOUT},
};

/// A site whose content regrows by itself: one database, shared by all its processes, and this process's memory.
///
/// Cheap to clone. Make one a process and database: a second one would have a memory of its own.
#[derive(Clone)]
pub struct Perennial {
    engine: Arc<Engine>,
    declared: Arc<Declared>,
}

impl Perennial {
    /// Opens a database by its URL, with a small pool of its own; makes or upgrades Perennial's tables.
    ///
    /// `sqlite://site.db` is a file in the current folder. It is made if it isn't there, and set to WAL mode with `synchronous = NORMAL`: a
    /// crash of the process loses nothing, but when the power fails what was written a moment before may be lost, and be done
    /// again. (Where that matters, set up a pool of your own, which sqlx opens with `FULL`, for [`new`](Self::new).) With their features,
    /// `postgres://user:password@host/database` and `mysql://user:password@host/database` (MariaDB too) are opened as well; such a
    /// pool has at most five connections.
    ///
    /// # Errors
    ///
    /// The URL cannot be used, the database cannot be opened (a server is waited for no longer than two seconds), its tables belong to
    /// a newer release, they can't be made within 60 s, or they are not there and the role may not make them (see [`Builder::ddl`]). For a site that is to start while its database is away, see
    /// [`Builder::connect_lazily`].
    #[cfg(feature = "_sql")]
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::builder().open(url).await
    }

    /// Uses the application's own sqlx pool; makes or upgrades Perennial's tables.
    ///
    /// No connection is held while content is generated: two to five connections are enough. A connection that doesn't answer in time is closed and not
    /// given back, on servers. On SQLite, WAL mode and a busy timeout are recommended.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[cfg(feature = "_sql")]
    pub async fn new(pool: impl IntoDatabase) -> Result<Self, Error> {
        Self::builder().build(pool).await
    }

    /// Starts with settings that are not the default.
    pub fn builder() -> Builder {
        Builder {
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
            statement_limit: STATEMENT_TIMEOUT,
            database_patience: DATABASE_PATIENCE,
            #[cfg(feature = "_sql")]
            connect: Connect::Now,
            #[cfg(feature = "postgres")]
            listen: false,
        }
    }

    /// A layer that keeps the responses of the service beneath it, each under the path and the query of its request.
    pub fn layer(&self, policy: Refresh) -> RefreshLayer {
        RefreshLayer::new(Arc::clone(&self.engine), Arc::clone(&self.declared), policy)
    }

    /// Content that is not a whole response: a part of a page, say.
    ///
    /// Kept, regenerated and served as a route's is, under a key that does not begin with `/`, and is no route's [`Key::name`](crate::Key::name). (A generator that
    /// asks for its own key waits for itself, for as long as [`Refresh::first`] allows.) The future that `generate`
    /// returns runs in a task of its own, and only if this call is the one that regenerates. So it owns what it uses: clone a pool and
    /// write `move || async move { … }`. It returns a `Result`; where nothing can fail, name an error all the same, as in
    /// `Ok::<_, std::convert::Infallible>(html)`.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// use perennial::{DAY, Refresh};
    ///
    /// const TOP_TEN: Refresh = Refresh::every(DAY);
    /// let html = site
    ///     .content("sidebar/top-10", &TOP_TEN, || async {
    ///         Ok::<_, std::io::Error>("<ol>…</ol>")
    ///     })
    ///     .await?;
    /// println!("{html}");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Only where there is no version to serve: [the generator failed](Error::is_generator), also by content larger than
    /// [`Builder::max_body`], or [nobody made one in time](Error::is_unavailable). [`Invalid`](crate::ErrorKind::Invalid): the key is
    /// empty, or begins with `/` or `idempotency/`.
    ///
    /// # Panics
    ///
    /// When `generate` itself does. A panic of the future that it returns is a failure of the generator.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it cancels nothing: a regeneration that it has begun goes on.
    pub async fn content<F, Fut, T, E>(
        &self,
        key: &str,
        policy: &Refresh,
        generate: F,
    ) -> Result<Content, Error>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Bytes>,
        E: Into<BoxError>,
    {
        content::content(&self.engine, key, policy, generate).await
    }

    /// A layer for routes that change what others show: after a request by another method than GET, HEAD, OPTIONS and TRACE that was
    /// answered without an error, what bears one of the tags is stale.
    ///
    /// ```
    /// # use axum::{Router, routing::{get, post}};
    /// # async fn books() {}
    /// # async fn add_book() {}
    /// # fn f(site: perennial::Perennial) -> Router {
    /// use perennial::{DAY, Refresh};
    ///
    /// Router::new()
    ///     .route("/books", get(books).layer(site.layer(Refresh::every(DAY)).tag("catalog")))
    ///     .route("/admin/books", post(add_book).layer(site.invalidates(["catalog"])))
    /// # }
    /// ```
    ///
    /// A response can name further tags, by [`Tags`] among its extensions. For GET and POST on one path, layer the handlers apart:
    /// `get(books).layer(…).merge(post(add_book).layer(…))`.
    pub fn invalidates<T: Into<String>>(
        &self,
        tags: impl IntoIterator<Item = T>,
    ) -> InvalidateLayer {
        InvalidateLayer::new(Arc::clone(&self.engine), Tags::new(tags))
    }

    /// Makes a resource stale, in all processes: it is served while it regrows, with the next request for it.
    ///
    /// The key of a route's page is its path and, after `?`, those parameters of its query that [count](crate::Key), in any order, all as visitors write
    /// them: `%C3%A4` and `%c3%a4`, or `%20` and `+`, are two keys. That of content is what it was given. Meant are also all variants
    /// that differ in headers, host or nesting, whose keys go on with a `#`. What isn't there is no error, so that a wrong key does
    /// nothing; for what depends on data a [tag](Self::invalidate_tag) is the surer name.
    ///
    /// This process knows it when this returns; each other one that gets requests within about a second (the sync interval), and one that
    /// had none for longer before it answers the next. What is being generated meanwhile is stale when it is made. A cooldown
    /// after a failure is kept.
    ///
    /// # Errors
    ///
    /// The database fails: nothing was invalidated, as far as is known.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it has been done or not.
    pub async fn invalidate(&self, key: &str) -> Result<(), Error> {
        let key = key::canonical(key);
        self.engine.invalidate(Target::Key(&key)).await.map(drop)
    }

    /// As [`invalidate`](Self::invalidate), all resources whose keys begin with `prefix`; with the empty one, everything.
    ///
    /// # Errors
    ///
    /// As there, and [`Invalid`](crate::ErrorKind::Invalid) for a prefix of more than 180 bytes or with a NUL.
    pub async fn invalidate_prefix(&self, prefix: &str) -> Result<(), Error> {
        self.engine
            .invalidate(Target::Prefix(prefix))
            .await
            .map(drop)
    }

    /// As [`invalidate`](Self::invalidate), all resources that bear the tag, by [`RefreshLayer::tag`] or [`Tags`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn invalidate_tag(&self, tag: &str) -> Result<(), Error> {
        self.engine.invalidate(Target::Tag(tag)).await.map(drop)
    }

    /// Removes a resource and its variants from the database and from all processes: it is not served any more, and the next visitors
    /// wait as for a first version. What is being generated meanwhile is not published.
    ///
    /// It is [`invalidate`](Self::invalidate) otherwise: the same keys, and seen as soon; but a cooldown after a failure is ended. (Variants of a key of 128 bytes or more, whose own keys have more than 180, are not served any more, but
    /// leave the database only when they are made anew, or pruned.)
    ///
    /// # Errors
    ///
    /// The database fails: it may have been done in part, and can be done again.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it has been done, in part, or not.
    pub async fn purge(&self, key: &str) -> Result<(), Error> {
        self.engine.purge(&key::canonical(key)).await
    }

    /// Invalidates a resource and, if this process has it in memory from a route, regenerates it at once, without a visitor: `true` when there is a new version.
    ///
    /// `false`: it is invalidated, but not regenerated: this process hasn't got it (another one may), or the router it was in is no more, or it is [content](Self::content), whose generator only a call brings; the next request will. The new version is
    /// made after this was called, here or by another process. It is not tried during a cooldown, which is waited for.
    ///
    /// The generator sees the [shared extensions](RefreshLayer::share_extension) of the request that caused the version in memory. A
    /// shared snapshot of data is as old as that request: share a handle from which the handler reads what is current.
    ///
    /// # Errors
    ///
    /// [The generator has failed](Error::is_generator); there is [no new version](Error::is_unavailable) within the policy's
    /// [`timeout`](Refresh::timeout); or the database fails.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it cancels nothing that it has begun.
    pub async fn regenerate_now(&self, key: &str) -> Result<bool, Error> {
        self.engine.regenerate_now(&key::canonical(key)).await
    }

    /// The locks of the site's database, for anything else that must not be done twice at once.
    pub fn locks(&self) -> Locks {
        self.engine.locks()
    }

    /// A layer for routes that are to run once at a time for each name; [`Locks::exclusive`] with the default lease.
    ///
    /// ```
    /// # use axum::{Router, routing::post};
    /// # async fn import() {}
    /// # fn f(site: perennial::Perennial) -> Router {
    /// let alone = site.exclusive(|_| "import".into()).action("import");
    /// Router::new().route("/import", post(import).layer(alone))
    /// # }
    /// ```
    pub fn exclusive(
        &self,
        name: impl Fn(&Parts) -> LockName + Send + Sync + 'static,
    ) -> ExclusiveLayer {
        self.locks().exclusive(name)
    }

    /// A layer that does requests once, however often they are sent with the same `Idempotency-Key`; [`Locks::idempotency`].
    pub fn idempotency(&self) -> IdempotencyLayer {
        self.locks().idempotency()
    }

    /// Something that is to be done at most once, in all processes together; [`Locks::once`].
    pub fn once(&self, name: impl Into<LockName>) -> Once {
        self.locks().once(name)
    }

    /// Remembers in a transaction of the application's own that something is done; [`Once::mark_in`].
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(feature = "_sql")]
    pub async fn once_in(
        &self,
        transaction: impl Into<crate::sql::Connection<'_>>,
        name: impl Into<LockName>,
    ) -> Result<crate::Outcome<()>, Error> {
        self.once(name).mark_in(transaction).await
    }

    /// Begins no further regeneration, waits for those that run and so releases their leases. Call it after the server has drained.
    ///
    /// Versions go on being served. What has none is answered by the service itself. Each regeneration is bounded by its policy's
    /// [`timeout`](Refresh::timeout) and, where the database fails, by trying to publish for as long as a lease, 15 s at most. A request that is done [once](Self::idempotency) has no limit of its
    /// own, and is waited for, too: put a timeout beneath its layer, or around this. Dropped earlier, this future cancels none of them.
    pub async fn shutdown(&self) {
        self.engine.shutdown().await;
    }
}

impl fmt::Debug for Perennial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Perennial").finish_non_exhaustive()
    }
}

/// Settings of a [`Perennial`]; from [`Perennial::builder`].
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are built"]
pub struct Builder {
    table_prefix: String,
    settings: Settings,
    declared: Declared,
    statement_limit: Duration,
    database_patience: Duration,
    #[cfg(feature = "_sql")]
    connect: Connect,
    #[cfg(feature = "postgres")]
    listen: bool,
}

impl Builder {
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
    /// Default: 5 s.
    pub fn statement_limit(mut self, limit: Duration) -> Self {
        self.statement_limit = limit;
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
    /// As long as the database is away, and as long as its tables cannot be made, the site does as in any outage: each process generates what it is asked for once, and does
    /// not store it; locks and what is to be done once are errors. Such an error, which may be for good (a wrong password, tables of a newer release), is logged once
    /// and not returned when the site is opened. A URL or a table prefix that cannot be used is still an error at once. The tables have to be made within the
    /// [statement limit](Self::statement_limit).
    #[cfg(feature = "_sql")]
    pub fn connect_lazily(mut self) -> Self {
        self.connect = Connect::Lazily;
        self
    }

    /// Declares for each layer of the site that handlers generate pages without the extension of type `T`; see
    /// [`RefreshLayer::hide_extension`].
    pub fn hide_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.declared.declare::<T>(false);
        self
    }

    /// Declares for each layer of the site that the extension of type `T` is equal for all visitors; see
    /// [`RefreshLayer::share_extension`].
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
        #[cfg(feature = "postgres")]
        let listens = self.listen.then(|| database.clone());
        let store = database
            .store_when(&self.table_prefix, self.connect)
            .await?;
        let prefix = self.table_prefix.clone();
        let site = self.site(store, Some(prefix.clone()));
        #[cfg(feature = "postgres")]
        if let Some(database) = listens {
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

    /// Uses a store of the program's own, in place of an SQL database. The table prefix means nothing then, and nothing is listened to.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for an empty revision.
    pub fn with_store(self, store: Box<dyn Store>) -> Result<Perennial, Error> {
        self.check()?;
        Ok(self.site(store, None))
    }

    fn check(&self) -> Result<(), Error> {
        if self.settings.revision.as_deref() == Some("") {
            return Err(Error::invalid(
                "the revision is empty: write what tells this version of the code from others, or leave out `Builder::revision`",
            ));
        }
        Ok(())
    }

    fn site(self, store: Box<dyn Store>, prefix: Option<String>) -> Perennial {
        let (limit, patience) = (self.statement_limit, self.database_patience);
        let store = Guarded::new(store, limit, patience, prefix);
        let engine = Engine::new(store, self.settings);
        Perennial {
            engine: Arc::new(engine),
            declared: Arc::new(self.declared),
        }
    }
}
