//! The site: the entry point.

mod builder;
pub(crate) mod content;
mod transaction;
mod warm;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::Response;
use perennial_store::{Database, Error, IntoDatabase, Locks};

use crate::{
    entries::{Entry, EntryFilter, EntryPage},
    event::{Events, Stats},
    extensions::Tags,
    key,
    layer::{InvalidateLayer, RefreshLayer, refresh::extensions::KnownTypes},
    page::{Pages, Target},
    policy::Refresh,
};

pub use builder::Builder;
pub use content::Content;
pub use transaction::PendingInvalidation;

/// A site whose content regrows by itself: one database, shared by all processes of the site, and
/// the memory of this process.
///
/// Cheap to clone. Create one for each process and database: a second one would have a memory of
/// its own.
#[derive(Clone)]
pub struct Perennial {
    pages: Arc<Pages>,
    known: Arc<KnownTypes>,
    database: Option<Database>,
}

impl RefreshLayer {
    /// Returns a layer for a site, as [`Perennial::layer`] does.
    pub fn new(site: &Perennial, policy: impl Into<Refresh>) -> Self {
        let (pages, known) = (Arc::clone(&site.pages), Arc::clone(&site.known));
        Self::with_pages(pages, known, policy.into())
    }
}

impl InvalidateLayer {
    /// Returns a layer for a site, as [`Perennial::invalidate_on_success`] does.
    pub fn new(site: &Perennial, tags: Tags) -> Self {
        Self::with_pages(Arc::clone(&site.pages), tags)
    }
}

impl Perennial {
    /// Opens a database by its URL, with a small pool of its own, and makes or upgrades Perennial's
    /// tables.
    ///
    /// | URL | opens |
    /// |---|---|
    /// | `sqlite://site.db` | a file in the current folder |
    /// | `postgres://user:password@host/database` | PostgreSQL, with the feature `postgres` |
    /// | `mysql://user:password@host/database` | MySQL or MariaDB, with the feature `mysql` |
    ///
    /// A pool has at most five connections. A missing SQLite file is created, in WAL mode with
    /// `synchronous = NORMAL`: a crash of the process loses nothing, and a power failure may lose
    /// the last commits, so that their work is done again. For full durability, set up a pool of
    /// your own, which sqlx opens with `FULL`, and use [`with_pool`](Self::with_pool).
    ///
    /// # Errors
    ///
    /// - The URL cannot be used.
    /// - The database cannot be opened. A server has two seconds to answer;
    ///   [`Builder::connect_lazily`] opens a site while its database is away.
    /// - The tables belong to a newer release, or are not made within 60 s.
    /// - The tables are missing and the role may not make them; see [`Builder::ddl`].
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::builder().open(url).await
    }

    /// Uses the application's own sqlx pool, and makes or upgrades Perennial's tables.
    ///
    /// Two to five connections are enough, as no connection is held while content is generated. On
    /// servers, a connection that does not answer in time is closed and not returned to the pool.
    /// On SQLite, WAL mode and a busy timeout are recommended.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub async fn with_pool(pool: impl IntoDatabase) -> Result<Self, Error> {
        Self::builder().with_pool(pool).await
    }

    /// Returns the default settings, to be changed.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns a layer that stores the inner service's responses, each under the path and the query
    /// of its request.
    pub fn layer(&self, policy: impl Into<Refresh>) -> RefreshLayer {
        RefreshLayer::new(self, policy)
    }

    /// Returns a layer for routes that change the data of other pages. After a successful request
    /// by a method other than GET, HEAD, OPTIONS and TRACE, the pages with one of these tags are
    /// stale.
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
    ///     .route("/admin/books", post(add_book).layer(site.invalidate_on_success(["catalog"])))
    /// # }
    /// ```
    ///
    /// A response can name further tags by [`Tags`] in its extensions. For GET and POST on one
    /// path, layer the handlers apart: `get(books).layer(…).merge(post(add_book).layer(…))`.
    pub fn invalidate_on_success(
        &self,
        tags: impl IntoIterator<Item = impl Into<String>>,
    ) -> InvalidateLayer {
        InvalidateLayer::new(self, Tags::new(tags))
    }

    /// Returns a layer as [`invalidate_on_success`](Self::invalidate_on_success) does, for which each
    /// response names all tags by [`Tags`] in its extensions.
    pub fn invalidate_as_responses_say(&self) -> InvalidateLayer {
        InvalidateLayer::new(self, Tags::default())
    }

    /// Makes a resource stale in all processes: visitors get the old version while the next request
    /// regenerates the resource.
    ///
    /// The key of a route's page is its path and, after `?`, the parameters of the query that are
    /// [part of the key](crate::Key), in any order of the names. Percent-encodings that mean the same
    /// are one key (RFC 3986 §6.2.2): `ä`, `%C3%A4` and `%c3%a4`, and `%20` and `+` in a query. (A
    /// path in another form that a router has matched is a variant of that key.) The key of
    /// [content](Self::content) is the `key` of that call.
    ///
    /// The invalidation applies to all variants of the key, which differ in headers, host or
    /// nesting: their keys continue with a `#`. A key that is not stored is no error, so a misspelt
    /// key does nothing. For pages that depend on data, a [tag](Self::invalidate_tag) is the safer
    /// name.
    ///
    /// This process knows the invalidation when the call returns. Another process with requests
    /// learns of the invalidation within about a second (the sync interval); a process that had no
    /// request for longer learns of the invalidation before its next answer. A page that is being
    /// generated during an invalidation is stored as stale, so the next request regenerates the
    /// page. A cooldown after a failure continues.
    ///
    /// # Errors
    ///
    /// The database fails. The invalidation may have been stored all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the invalidation is stored.
    pub async fn invalidate(&self, key: &str) -> Result<(), Error> {
        let key = key::canonical(key);
        self.pages.invalidate(Target::Key(&key)).await.map(drop)
    }

    /// Makes all resources stale whose keys begin with `prefix`, as
    /// [`invalidate`](Self::invalidate) does. The empty prefix means everything.
    ///
    /// # Errors
    ///
    /// The errors of [`invalidate`](Self::invalidate), and [`Invalid`](crate::ErrorKind::Invalid)
    /// for a prefix of more than 180 bytes or with a NUL.
    pub async fn invalidate_prefix(&self, prefix: &str) -> Result<(), Error> {
        self.pages
            .invalidate(Target::Prefix(prefix))
            .await
            .map(drop)
    }

    /// Makes all resources with the tag stale, as [`invalidate`](Self::invalidate) does. A resource
    /// has tags by [`RefreshLayer::tag`] or [`Tags`].
    ///
    /// # Errors
    ///
    /// The errors of [`invalidate`](Self::invalidate).
    pub async fn invalidate_tag(&self, tag: &str) -> Result<(), Error> {
        self.pages.invalidate(Target::Tag(tag)).await.map(drop)
    }

    /// Removes a resource and its variants from the database and from all processes. The resource
    /// is no longer served, and the next visitors wait as for a first version. A version that is
    /// being generated during the purge is not published.
    ///
    /// The key is written as for [`invalidate`](Self::invalidate), and other processes learn of the
    /// purge within the same time. A purge ends a cooldown after a failure. Variants of a key of
    /// 128 bytes or more, whose own keys have more than 180 bytes, are no longer served either;
    /// their rows stay in the database until the next version replaces them or a pruning deletes
    /// them.
    ///
    /// # Errors
    ///
    /// The database fails. The purge may have been done in part, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the purge undone, done, or done in part.
    pub async fn purge(&self, key: &str) -> Result<(), Error> {
        self.pages.purge(&key::canonical(key)).await
    }

    /// Removes all resources whose keys begin with `prefix`, as [`purge`](Self::purge) does. The
    /// empty prefix means everything.
    ///
    /// Visitors get none of the resources from the first statement on. Their rows are then removed
    /// one after the other, by a statement each.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.purge_prefix("/users/42").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`purge`](Self::purge), and [`Invalid`](crate::ErrorKind::Invalid) for a prefix
    /// of more than 180 bytes or with a NUL.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the purge undone, done, or done in part.
    pub async fn purge_prefix(&self, prefix: &str) -> Result<(), Error> {
        let filter = EntryFilter::new().prefix(prefix);
        self.pages
            .purge_all(Target::PurgedPrefix(prefix), filter)
            .await
    }

    /// Removes all resources with the tag, as [`purge_prefix`](Self::purge_prefix) does. The names of all stored resources are read, 200 in each statement.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// site.purge_tag("user-42").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`purge`](Self::purge).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the purge undone, done, or done in part.
    pub async fn purge_tag(&self, tag: &str) -> Result<(), Error> {
        let filter = EntryFilter::new().tag(tag);
        self.pages.purge_all(Target::PurgedTag(tag), filter).await
    }

    /// Waits until this process knows all invalidations that were stored before the call, by any
    /// process. For code, and tests, that must not see a page from before a change. Costs one
    /// statement.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn caught_up(&self) -> Result<(), Error> {
        let known = self.pages.caught_up().await;
        known.map_err(|error| Error::clone(&error))
    }

    /// Returns the locks of the site's database, for anything else that must run in one process at
    /// a time.
    pub fn locks(&self) -> Locks {
        self.pages.locks()
    }

    /// Returns the site's database with its [statement timeout](Builder::statement_timeout), for
    /// `Claims` and `SessionLock`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the site is open in memory, and has no SQL database.
    pub fn database(&self) -> Result<Database, Error> {
        let database = self.database.clone();
        database
            .ok_or_else(|| Error::invalid("the site is open in memory, and has no SQL database"))
    }

    /// Returns the [events](crate::event) of this site in this process, from now on.
    ///
    /// The number of subscribers is not limited. Dropping the subscription ends it.
    pub fn subscribe(&self) -> Events {
        self.pages.observer().subscribe()
    }

    /// Returns the figures of this site in this process: requests, regenerations and memory. Runs
    /// no statement.
    ///
    /// ```
    /// # fn f(site: perennial::Perennial) {
    /// use perennial::event::{Outcome, Served};
    ///
    /// let stats = site.stats();
    /// println!("{} hits, {} stale", stats.requests(Served::Hit), stats.requests(Served::Stale));
    /// println!("{} failures", stats.regenerations(Outcome::Failed));
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.pages.stats()
    }

    /// Records the figures of [`stats`](Self::stats) as [metrics](crate::event#metrics): the requests
    /// by result, and memory. To be called before each scrape, or every few seconds; all other metrics
    /// are recorded as they happen. Runs no statement.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        crate::event::metrics::figures(&self.stats());
    }

    /// Returns a page of the list of stored resources, in the order of their names, with this
    /// process's knowledge about each. One statement reads 200 rows without their content, and a call
    /// runs at most ten.
    ///
    /// Resources without a stored version are listed while this process remembers that they are in
    /// cooldown or hit-for-pass.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        self.pages.entries(filter).await
    }

    /// Counts the stored pages. Not part of the public API.
    #[doc(hidden)]
    pub async fn counted(&self) -> Result<perennial_store::Counted, Error> {
        self.pages.store().call(perennial_store::Count {}).await
    }

    /// Returns the size of each table. Not part of the public API.
    #[doc(hidden)]
    pub async fn sizes(&self) -> Result<Vec<(String, u64)>, Error> {
        self.pages.store().call(perennial_store::Sizes {}).await
    }

    /// Returns the resources that were generated or read last. Not part of the public API.
    #[doc(hidden)]
    pub async fn latest(&self, most: usize) -> Result<Vec<Entry>, Error> {
        self.pages.latest(most).await
    }

    /// Returns the stored resource of this key, written as for [`invalidate`](Self::invalidate);
    /// `None`: there is none. A variant is an entry of its own, whose key continues with a `#`.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn entry(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.pages.entry(&key::canonical(key)).await
    }

    /// Returns the stored response of this key, as generated, for an operator who looks at the
    /// content; `None`: there is none.
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn stored_response(&self, key: &str) -> Result<Option<Response<Bytes>>, Error> {
        self.pages.stored(&key::canonical(key)).await
    }

    /// Returns the [revision](Builder::revision) of the site's code.
    pub fn revision(&self) -> Option<&str> {
        self.pages.settings.revision.as_deref()
    }

    /// Begins no further regeneration and waits for the running ones, which release their leases.
    /// Call `shutdown` after the server has drained.
    ///
    /// Stored versions are still served, and the inner service answers requests for all other
    /// pages. The policy's [`timeout`](Refresh::timeout) bounds each regeneration; while the
    /// database fails, the tries to publish take as long as a lease, at most 15 s. An idempotent
    /// request has no limit of its own: put a timeout inside its
    /// layer, or around `shutdown`. Dropping the future cancels nothing.
    pub async fn shutdown(&self) {
        self.pages.shutdown().await;
    }
}

impl fmt::Debug for Perennial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Perennial").finish_non_exhaustive()
    }
}
