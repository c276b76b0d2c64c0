//! The public face of a site, [`Perennial`]. Each method is a few lines: the work is done by
//! [`cache`](crate::cache).

mod builder;
pub(crate) mod content;
mod processes;
mod transaction;
mod warm;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::Response;
use perennial_store::{
    Database, Error, IntoDatabase, Locks, Trigger, TriggerFault, name::IntoNames,
};

use crate::{
    cache::{Cache, Target},
    entries::{Entry, EntryFilter, EntryPage},
    event::{Events, MissedInvalidation, Stats},
    extensions::Tags,
    key,
    layer::{
        InvalidateLayer, RefreshLayer,
        refresh::{extensions::KnownTypes, response_extensions::DroppedTypes},
    },
    policy::Refresh,
};

pub use builder::Builder;
pub use content::Content;
pub use transaction::{InvalidationSql, PendingInvalidation};
pub use warm::{Visit, Warmed};

/// A site: the database that all its processes share, and the cache in the memory of this process. Create one
/// in each process. Cloning it is cheap, and all clones are the same site.
#[derive(Clone)]
pub struct Perennial {
    cache: Arc<Cache>,
    known: Arc<KnownTypes>,
    dropped: Arc<DroppedTypes>,
    database: Option<Database>,
    triggers: Arc<[Trigger]>,
    sharing: processes::Sharing,
}

impl RefreshLayer {
    /// Returns a layer for a site, as [`Perennial::layer`] does.
    pub fn new(site: &Perennial, policy: impl Into<Refresh>) -> Self {
        let (cache, known) = (Arc::clone(&site.cache), Arc::clone(&site.known));
        Self::with_cache(cache, known, Arc::clone(&site.dropped), policy.into())
    }
}

impl InvalidateLayer {
    /// Returns a layer for a site, as [`Perennial::invalidate_on_success`] does.
    pub fn new(site: &Perennial, tags: impl IntoNames) -> Self {
        Self::with_cache(Arc::clone(&site.cache), Tags::new(tags))
    }
}

impl Perennial {
    /// Opens a database with a pool of five connections, and makes or upgrades Perennial's tables.
    /// `url` is `sqlite://site.db` (a file in the current folder),
    /// `postgres://user:password@host/database` or `mysql://user:password@host/database` (also for
    /// MariaDB).
    ///
    /// A missing SQLite file is created. An SQLite database is set to WAL mode, with `synchronous =
    /// NORMAL`: a power failure may lose the last commits.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f() -> Result<(), perennial::Error> {
    /// # use perennial::Perennial;
    /// let site = Perennial::open("sqlite://site.db").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// - The URL cannot be used, or the database does not answer within two seconds (unless the
    ///   site is opened with [`Builder::connect_lazily`]).
    /// - The tables belong to a newer release, are not made within 60 s, or are missing and the role may not
    ///   make them ([`Builder::ddl`]).
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::builder().open(url).await
    }

    /// Uses the application's own pool, and makes or upgrades Perennial's tables. The pool is a `SqlitePool`,
    /// `PgPool` or `MySqlPool` of sqlx 0.9, or a pool of another [driver](crate::driver).
    ///
    /// The pool keeps the settings that the application has given it. For SQLite, choose the WAL mode
    /// (`SqliteConnectOptions::journal_mode`), in which readers do not wait for a writer, and leave the busy
    /// timeout at its five seconds. The [statement timeout](Builder::statement_timeout) also applies to the
    /// wait for a connection.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f(pool: sqlx::SqlitePool) -> Result<(), perennial::Error> {
    /// # use perennial::Perennial;
    /// let site = Perennial::with_pool(pool.clone()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub async fn with_pool(pool: impl IntoDatabase) -> Result<Self, Error> {
        Self::builder().with_pool(pool).await
    }

    /// Returns the default settings, to be changed.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f() -> Result<(), perennial::Error> {
    /// # use perennial::Perennial;
    /// let site = Perennial::builder().max_regenerations(4).open("sqlite://site.db").await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns a layer that caches the responses of a route: stored in the database, served from memory, and
    /// regenerated under the policy.
    ///
    /// ```
    /// # use axum::{Router, routing::get};
    /// # async fn books() -> &'static str { "" }
    /// # fn f(site: perennial::Perennial) -> Router {
    /// use perennial::DAY;
    ///
    /// Router::new().route("/books", get(books).layer(site.layer(30 * DAY)))
    /// # }
    /// ```
    ///
    /// Configure it further with [`key`](RefreshLayer::key), [`tag`](RefreshLayer::tag),
    /// [`bypass_if`](RefreshLayer::bypass_if), [`hole`](RefreshLayer::hole) and the other methods of
    /// [`RefreshLayer`], which also says what is stored and what the handler sees.
    pub fn layer(&self, policy: impl Into<Refresh>) -> RefreshLayer {
        RefreshLayer::new(self, policy)
    }

    /// Returns a layer for routes that change the data of other pages: after a change, the pages
    /// with one of these tags are stale. A response can name further tags by [`Tags`] in its
    /// extensions.
    ///
    /// ```
    /// # use axum::{Router, routing::post};
    /// # async fn add_book() {}
    /// # fn f(site: perennial::Perennial) -> Router {
    /// let change = site.invalidate_on_success("books");
    /// Router::new().route("/books", post(add_book).layer(change))
    /// # }
    /// ```
    pub fn invalidate_on_success(&self, tags: impl IntoNames) -> InvalidateLayer {
        InvalidateLayer::new(self, tags)
    }

    /// Returns a layer like [`invalidate_on_success`](Self::invalidate_on_success), with one difference: the
    /// response itself names the tags to invalidate, with [`Tags`].
    ///
    /// A handler that does the invalidation itself, for instance by [`invalidate_in`](Self::invalidate_in),
    /// does not have to return any tags. The layer sees that invalidation as well, so that
    /// [`read_own_writes`](Builder::read_own_writes) works.
    ///
    /// ```
    /// # use axum::{Router, extract::Path, routing::post};
    /// # fn f(site: perennial::Perennial) -> Router {
    /// use perennial::Tags;
    ///
    /// async fn change_price(Path(id): Path<i64>) -> Tags {
    ///     Tags::new(format!("book-{id}"))
    /// }
    ///
    /// let change = site.invalidate_by_response_tags();
    /// Router::new().route("/books/{id}/price", post(change_price).layer(change))
    /// # }
    /// ```
    pub fn invalidate_by_response_tags(&self) -> InvalidateLayer {
        InvalidateLayer::with_cache(Arc::clone(&self.cache), Tags::default())
    }

    /// Makes a resource stale: visitors get the old version while the next request regenerates it.
    ///
    /// The key of a route's page is its path and, after `?`, the parameters of the query that are [part of the
    /// key](crate::Key), in any order and percent-encoding. The key of [content](Self::content) is the `key`
    /// that was passed to it. All variants of the key are invalidated: those that differ in headers, in the
    /// host, or in the path under which their router is nested. It is not an error if the key is not stored.
    ///
    /// This process knows of the invalidation when the call returns; the others know it [a second
    /// later](crate::guide::invalidation#who-sees-the-change-when). A page that is being generated meanwhile is
    /// stored as stale. A cooldown continues.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.invalidate("/books?page=1").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails. The invalidation may have been stored all the same. That also applies if the future
    /// is dropped before it is ready.
    pub async fn invalidate(&self, key: &str) -> Result<(), Error> {
        let key = key::canonical(key);
        self.cache
            .commands
            .invalidate(Target::Key(&key))
            .await
            .map(drop)
    }

    /// Makes stale all resources whose keys begin with `prefix`, as [`invalidate`](Self::invalidate) does. The
    /// empty prefix means everything.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.invalidate_prefix("/books/").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`invalidate`](Self::invalidate), and [`Invalid`](crate::ErrorKind::Invalid)
    /// for a prefix of more than 180 bytes or with a NUL.
    pub async fn invalidate_prefix(&self, prefix: &str) -> Result<(), Error> {
        self.cache
            .commands
            .invalidate(Target::Prefix(prefix))
            .await
            .map(drop)
    }

    /// Makes all resources with the tag stale, as [`invalidate`](Self::invalidate) does. A page gets its tags
    /// from [`RefreshLayer::tag`], [`Tags`] or [`Generation::tag`](crate::Generation::tag). Content gets them
    /// from [`Generation::tag`](crate::Generation::tag).
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.invalidate_tag("books").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`invalidate`](Self::invalidate).
    pub async fn invalidate_tag(&self, tag: &str) -> Result<(), Error> {
        self.cache
            .commands
            .invalidate(Target::Tag(tag))
            .await
            .map(drop)
    }

    /// Makes stale all resources that have a tag beginning with `prefix`, as [`invalidate`](Self::invalidate)
    /// does. Use it after a change of many rows if each row has a tag of its own, such as `product-7`. An empty
    /// prefix matches every resource that has a tag.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.invalidate_tag_prefix("product-").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`invalidate_prefix`](Self::invalidate_prefix).
    pub async fn invalidate_tag_prefix(&self, prefix: &str) -> Result<(), Error> {
        self.cache
            .commands
            .invalidate(Target::TagPrefix(prefix))
            .await
            .map(drop)
    }

    /// Removes the resource of a key and its variants from the database and from all processes. They learn of a
    /// purge in the same way as of an [invalidation](Self::invalidate). The next visitors wait, as for a first
    /// version. A version that is being generated meanwhile is not published. A purge also ends the cooldown of
    /// the key.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.purge("/secret").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails. The purge may have been done in part. That also applies if the future is dropped
    /// before it is ready.
    pub async fn purge(&self, key: &str) -> Result<(), Error> {
        self.cache.commands.purge(&key::canonical(key)).await
    }

    /// Removes all resources whose keys begin with `prefix`, as [`purge`](Self::purge) does. An empty prefix
    /// stands for everything. One statement makes sure that none of them is served any more, and then each is
    /// removed. Cooldowns end, except for those of which only other processes know.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.purge_prefix("").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`purge`](Self::purge) and of [`invalidate_prefix`](Self::invalidate_prefix).
    pub async fn purge_prefix(&self, prefix: &str) -> Result<(), Error> {
        let filter = EntryFilter::new().prefix(prefix);
        self.cache
            .commands
            .purge_all(Target::PurgedPrefix(prefix), filter)
            .await
    }

    /// Removes all resources with the tag, as [`purge_prefix`](Self::purge_prefix) does.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.purge_tag("of-a-user-who-has-left").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`purge_prefix`](Self::purge_prefix).
    pub async fn purge_tag(&self, tag: &str) -> Result<(), Error> {
        let filter = EntryFilter::new().tag(tag);
        self.cache
            .commands
            .purge_all(Target::PurgedTag(tag), filter)
            .await
    }

    /// Removes all resources that have a tag which begins with `prefix`, as [`purge_prefix`](Self::purge_prefix)
    /// does.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.purge_tag_prefix("user-7-").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`purge_prefix`](Self::purge_prefix).
    pub async fn purge_tag_prefix(&self, prefix: &str) -> Result<(), Error> {
        let filter = EntryFilter::new().tag_prefix(prefix);
        self.cache
            .commands
            .purge_all(Target::PurgedTagPrefix(prefix), filter)
            .await
    }

    /// Waits until this process knows of all invalidations that any process has stored or committed, including
    /// those that triggers of the database have written. It costs one statement. Use it in tests, and where a
    /// program must not serve data that may be a second out of date.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.caught_up().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn caught_up(&self) -> Result<(), Error> {
        self.cache.sync().wait_until_current().await
    }

    /// Returns the locks of the site's database.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// if let Some(lease) = site.locks().try_lock("nightly report").await? {
    ///     // Only one process gets here at a time.
    ///     lease.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn locks(&self) -> Locks {
        self.cache.locks()
    }

    /// Returns the site's database, for `Claims` and `SessionLock` of perennial-jobs.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// let database = site.database()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the site has no SQL database, because a test has opened it in memory.
    pub fn database(&self) -> Result<Database, Error> {
        let database = self.database.clone();
        database
            .ok_or_else(|| Error::invalid("the site is open in memory, and has no SQL database"))
    }

    /// Compares the triggers of [`Builder::trigger`] with those in the database; see [`Trigger::check`]. For a
    /// health check, or a test of the migrations.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// for fault in site.check_triggers().await? {
    ///     eprintln!("{fault}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Trigger::check`] and of [`database`](Self::database).
    pub async fn check_triggers(&self) -> Result<Vec<TriggerFault>, Error> {
        let database = self.database()?;
        let mut faults = Vec::new();
        for trigger in &*self.triggers {
            faults.extend(trigger.check(&database).await?);
        }
        Ok(faults)
    }

    /// Returns the [events](crate::event) of this site in this process, from now on.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) {
    /// use perennial::event::Event;
    ///
    /// let mut events = site.subscribe();
    /// while let Some(event) = events.next().await {
    ///     if let Event::Regenerated(regeneration) = event {
    ///         println!("{} took {:?}", regeneration.key, regeneration.took);
    ///     }
    /// }
    /// # }
    /// ```
    pub fn subscribe(&self) -> Events {
        self.cache.observer().subscribe()
    }

    /// Returns the figures of this site in this process. Runs no statement.
    ///
    /// ```
    /// # fn f(site: perennial::Perennial) {
    /// use perennial::event::Served;
    ///
    /// let stats = site.stats();
    /// println!("{} hits, {} bytes in memory", stats.requests(Served::Hit), stats.memory_bytes);
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Returns the latest hundred [missed invalidations](crate::event::Event::MissedInvalidation) that this process
    /// has found, the newest first. It sends no statement.
    ///
    /// ```
    /// # fn f(site: perennial::Perennial) {
    /// for missed in site.missed_invalidations() {
    ///     println!("{} has changed, and none of {:?} was named", missed.key, missed.tags);
    /// }
    /// # }
    /// ```
    pub fn missed_invalidations(&self) -> Vec<Arc<MissedInvalidation>> {
        self.cache.missed_invalidations()
    }

    /// Records the number of requests, the use of memory and the running regenerations as metrics. Call it
    /// before each scrape: all other metrics are recorded as they happen. It sends no statement to the
    /// database.
    ///
    /// ```
    /// # fn f(site: perennial::Perennial) {
    /// // In the handler of /metrics, before it renders.
    /// site.record_metrics();
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        crate::event::metrics::figures(&self.stats());
    }

    /// Returns one page of the list of resources, sorted by name. The whole list contains all stored
    /// resources, and the keys that this process knows to be in a cooldown or in hit-for-pass. No content
    /// is read.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// use perennial::entries::{EntryFilter, EntryState};
    ///
    /// let stale = EntryFilter::new().state(EntryState::Stale).limit(50);
    /// for entry in site.entries(&stale).await?.entries {
    ///     println!("{} is {:?} old", entry.key, entry.age);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        self.cache.listing.entries(filter).await
    }

    /// Counts the stored pages. This is not part of the public API.
    #[doc(hidden)]
    pub async fn counted(&self) -> Result<perennial_store::Counted, Error> {
        self.cache.store().call(perennial_store::Count {}).await
    }

    /// Returns the size of each table. This is not part of the public API.
    #[doc(hidden)]
    pub async fn sizes(&self) -> Result<Vec<(String, u64)>, Error> {
        self.cache.store().call(perennial_store::Sizes {}).await
    }

    /// Returns the resources that were generated last. This is not part of the public API.
    #[doc(hidden)]
    pub async fn latest(&self, limit: usize) -> Result<Vec<Entry>, Error> {
        self.cache.listing.latest(limit).await
    }

    /// Returns the entry for this key, as [`entries`](Self::entries) lists it.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// if let Some(entry) = site.entry("/books").await? {
    ///     println!("{} bytes, tags {:?}", entry.bytes, entry.tags);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn entry(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.cache.listing.entry(&key::canonical(key)).await
    }

    /// Returns the stored response for this key, as generated, if there is one.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// if let Some(response) = site.stored_response("/books").await? {
    ///     println!("{} with {} bytes", response.status(), response.body().len());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn stored_response(&self, key: &str) -> Result<Option<Response<Bytes>>, Error> {
        self.cache.listing.stored(&key::canonical(key)).await
    }

    /// Returns the [revision](Builder::revision) of the site's code.
    ///
    /// ```
    /// # fn f(site: perennial::Perennial) {
    /// println!("revision {}", site.revision().unwrap_or("unknown"));
    /// # }
    /// ```
    pub fn revision(&self) -> Option<&str> {
        self.cache.settings().revision.as_deref()
    }

    /// Starts no further regenerations, and waits for the running ones, which release their leases. Call it
    /// after the server has drained. Requests that come later are still answered from memory.
    ///
    /// For each regeneration, the call waits no longer than the policy's
    /// [`generator_timeout`](Refresh::generator_timeout) plus 15 s plus five statement timeouts. A request
    /// under an idempotency layer has no limit: put a timeout inside that layer, or around `shutdown`.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial, app: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
    /// # async fn signal() {}
    /// axum::serve(listener, app).with_graceful_shutdown(signal()).await?;
    /// site.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels no regeneration. A process that [shares its figures](Self::share_stats) may then look as if
    /// it had crashed.
    pub async fn shutdown(&self) {
        self.cache.shutdown().await;
        self.sharing.end(&self.cache).await;
    }
}

impl fmt::Debug for Perennial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Perennial").finish_non_exhaustive()
    }
}
