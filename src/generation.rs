//! The handle with which application code finds out about the current generation, and adds tags to it.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use perennial_store::name::IntoNames;

use crate::cache::parts::{self, RunContext};

/// A handle to the current generation of a page or of content. Code uses it to add tags, and to find out
/// whether anything is being generated at all.
///
/// A handler gets it as an extractor of axum, or from the extensions of its request. The closure of
/// [`content`](crate::Perennial::content) and [`value`](crate::Perennial::value) gets it as its argument. You
/// can pass it on, even to spawned tasks.
///
/// ```
/// use axum::{extract::Path, response::Html};
/// use perennial::Generation;
///
/// # struct Book { id: u32, author: u32 }
/// # async fn load(id: u32) -> Book { Book { id, author: 1 } }
/// async fn book(generation: Generation, Path(id): Path<u32>) -> Html<String> {
///     let book = load(id).await;
///     generation.tag([format!("book-{}", book.id), format!("author-{}", book.author)]);
///     Html("…".to_owned())
/// }
/// ```
///
/// A layer gives a handle to every request, even to one that bypasses the cache. In that case,
/// [`is_generating`](Self::is_generating) returns false, and the other calls do nothing. A handler that may
/// also run without a layer takes an `Option<Generation>`.
///
/// A handler can also return [`Tags`](crate::Tags) together with its page. The handle is for code further down
/// the call stack, which knows what it reads, and for content, which is not a response.
#[derive(Clone, Default)]
pub struct Generation(Weak<RunContext>);

impl Generation {
    pub(crate) fn of(run: &Arc<RunContext>) -> Self {
        Self(Arc::downgrade(run))
    }

    /// Returns the handle of the generator that this task runs.
    pub(crate) fn current() -> Self {
        parts::generator().map_or_else(Self::default, |run| Self::of(&run))
    }

    /// Returns true while the calling code generates something for all visitors, and false while it answers one
    /// visitor.
    ///
    /// A handler that counts visits, consumes a one-time link or marks something as read must not do so while
    /// it generates a page for everybody: the page is stored, and later visitors get it without running the
    /// handler. Such a handler first returns a response with `Cache-Control: no-store`. Perennial then calls it
    /// again for the visitor alone.
    ///
    /// ```
    /// # use axum::{http::header, response::IntoResponse};
    /// # use perennial::Generation;
    /// async fn burn(generation: Generation) -> impl IntoResponse {
    ///     if generation.is_generating() {
    ///         return ([(header::CACHE_CONTROL, "no-store")], "");
    ///     }
    ///     ([(header::CACHE_CONTROL, "no-store")], "the secret, which is deleted now")
    /// }
    /// ```
    pub fn is_generating(&self) -> bool {
        self.0.upgrade().is_some_and(|run| run.is_generator())
    }

    /// Adds one tag or several to what is generated, for [`invalidate_tag`](crate::Perennial::invalidate_tag).
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// use perennial::{DAY, Generation};
    ///
    /// let price = site.content("price/7", DAY, async |generation: Generation| {
    ///     generation.tag("product-7");
    ///     Ok::<_, std::io::Error>("42 €")
    /// });
    /// # price.await?;
    /// # Ok(()) }
    /// ```
    pub fn tag(&self, tags: impl IntoNames) {
        if let Some(run) = self.generator() {
            run.add_tags(tags.into_names());
        }
    }

    /// Sets the age at which the page or the content is stale, instead of the policy's interval, as
    /// [`RefreshAfter`](crate::RefreshAfter) does in a response. If it is called several times, the shortest
    /// age applies.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// # use perennial::{DAY, Generation};
    /// # use std::time::Duration;
    /// let rates = site.content("rates", DAY, async |generation: Generation| {
    ///     generation.refresh_after(Duration::from_secs(600)); // as the bank says
    ///     Ok::<_, std::io::Error>("1 EUR = 25.1 CZK")
    /// });
    /// # rates.await?;
    /// # Ok(()) }
    /// ```
    pub fn refresh_after(&self, age: Duration) {
        if let Some(run) = self.generator() {
            run.refresh_after(age);
        }
    }

    /// Sets the time, from now, after which the page or the content is neither served nor kept, as
    /// [`ExpireAfter`](crate::ExpireAfter) does in a response. If it is called several times, the earliest end
    /// applies.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// # use perennial::{DAY, Generation};
    /// let offer = site.content("offer", DAY, async |generation: Generation| {
    ///     generation.expire_after(7 * DAY);
    ///     Ok::<_, std::io::Error>("three for the price of two")
    /// });
    /// # offer.await?;
    /// # Ok(()) }
    /// ```
    pub fn expire_after(&self, left: Duration) {
        if let Some(run) = self.generator() {
            run.expire_after(left);
        }
    }

    fn generator(&self) -> Option<Arc<RunContext>> {
        self.0.upgrade().filter(|run| run.is_generator())
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("is_generating", &self.is_generating())
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "axum")]
const NO_LAYER: (http::StatusCode, &str) = (
    http::StatusCode::INTERNAL_SERVER_ERROR,
    "no layer of Perennial is around this route: add `.layer(site.layer(…))`, or extract an `Option<Generation>`",
);

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for Generation {
    type Rejection = (http::StatusCode, &'static str);

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or(NO_LAYER)
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::OptionalFromRequestParts<S> for Generation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// The closure that generates content: without an argument, or with the [`Generation`].
///
/// This trait is implemented for closures and functions, and cannot be implemented otherwise. `Arguments` is chosen by
/// the compiler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not generate content",
    label = "expected a closure such as `async move || Ok::<_, Error>(text)`",
    note = "it has no argument, or one of the type `Generation`; it is `Send + 'static`, so it owns what it uses (clone a pool before it)"
)]
pub trait Generates<Arguments>: sealed::Generates<Arguments> + Send + 'static {
    /// What the closure generates: a `Result`.
    type Output;

    #[doc(hidden)]
    fn run(self, generation: Generation) -> impl Future<Output = Self::Output> + Send;
}

mod sealed {
    pub trait Generates<Arguments> {}
}

impl<F, Fut> sealed::Generates<()> for F
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + Send,
{
}

impl<F, Fut> Generates<()> for F
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + Send,
{
    type Output = Fut::Output;

    fn run(self, _: Generation) -> impl Future<Output = Self::Output> + Send {
        self()
    }
}

impl<F, Fut> sealed::Generates<(Generation,)> for F
where
    F: FnOnce(Generation) -> Fut + Send + 'static,
    Fut: Future + Send,
{
}

impl<F, Fut> Generates<(Generation,)> for F
where
    F: FnOnce(Generation) -> Fut + Send + 'static,
    Fut: Future + Send,
{
    type Output = Fut::Output;

    fn run(self, generation: Generation) -> impl Future<Output = Self::Output> + Send {
        self(generation)
    }
}
