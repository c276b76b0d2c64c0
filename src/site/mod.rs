//! The site: what everything starts from.

mod builder;
mod content;

use std::{fmt, sync::Arc};

use http::request::Parts;

#[cfg(feature = "_sql")]
use crate::sql::{Database, IntoDatabase};
use crate::{
    error::Error,
    extensions::Tags,
    key,
    layer::{
        ExclusiveLayer, IdempotencyLayer, InvalidateLayer, RefreshLayer,
        refresh::declared::Declared,
    },
    locks::{LockName, Locks, Once},
    policy::Refresh,
    resource::{Engine, Target},
};

pub use builder::Builder;
pub use content::Content;

/// A site whose content regrows by itself: one database, shared by all its processes, and this process's memory.
///
/// Cheap to clone. Make one a process and database: a second one would have a memory of its own.
#[derive(Clone)]
pub struct Perennial {
    engine: Arc<Engine>,
    declared: Arc<Declared>,
    #[cfg(feature = "_sql")]
    database: Option<Database>,
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
        Builder::new()
    }

    /// A layer that keeps the responses of the service beneath it, each under the path and the query of its request.
    pub fn layer(&self, policy: Refresh) -> RefreshLayer {
        RefreshLayer::new(Arc::clone(&self.engine), Arc::clone(&self.declared), policy)
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
    /// The keys and the time until other processes know are those of [`invalidate`](Self::invalidate), and a purge ends a cooldown after a failure. (Variants of a key of 128 bytes or more, whose own keys have more than 180, are not served any more, but
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

    /// Returns the site's database, with the site's [statement limit](Builder::statement_limit): for [`Claims`](crate::Claims) and
    /// [`SessionLock`](crate::SessionLock).
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the site is open in memory, and has no SQL database.
    #[cfg(feature = "_sql")]
    pub fn database(&self) -> Result<Database, Error> {
        let database = self.database.clone();
        database
            .ok_or_else(|| Error::invalid("the site is open in memory, and has no SQL database"))
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
