//! Content that is smaller than a whole response.

use std::{
    borrow::Cow,
    fmt,
    ops::Deref,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;

use super::{
    Perennial,
    call::{Call, Run, stored},
};
use crate::{
    error::{BoxError, Error, ErrorKind},
    policy::Refresh,
};

/// A piece of generated content: bytes that are shared, not copied.
///
/// Dereferences to the bytes. [`text`](Self::text) and `Display` read the bytes as UTF-8. As a
/// response of axum, the content is `text/html; charset=utf-8` if it is UTF-8, or else
/// `application/octet-stream`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content(Bytes);

impl Content {
    /// Returns the content as text. Bytes that are not UTF-8 become U+FFFD.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Returns the bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Content> for Bytes {
    fn from(content: Content) -> Self {
        content.into_bytes()
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Content {
    fn into_response(self) -> axum::response::Response {
        let kind = match std::str::from_utf8(&self.0) {
            Ok(_) => "text/html; charset=utf-8",
            Err(_) => "application/octet-stream",
        };
        ([(http::header::CONTENT_TYPE, kind)], self.0).into_response()
    }
}

/// The output of a generator of [content](Perennial::content): bytes of any kind, or a `Result` with
/// them.
///
/// `M` tells the two apart, and is inferred.
pub trait IntoContent<M> {
    /// Returns the bytes.
    ///
    /// # Errors
    ///
    /// The generator's error.
    fn into_content(self) -> Result<Bytes, BoxError>;
}

/// The output of a generator that cannot fail.
#[derive(Debug)]
pub enum Always {}

/// The output of a generator that can fail.
#[derive(Debug)]
pub enum Fallible {}

impl<T: Into<Bytes>> IntoContent<Always> for T {
    fn into_content(self) -> Result<Bytes, BoxError> {
        Ok(self.into())
    }
}

impl<T: Into<Bytes>, E: Into<BoxError>> IntoContent<Fallible> for Result<T, E> {
    fn into_content(self) -> Result<Bytes, BoxError> {
        self.map(Into::into).map_err(Into::into)
    }
}

impl Perennial {
    /// Returns content that is smaller than a whole response, such as a part of a page, and
    /// generates the content if necessary. The result is a future.
    ///
    /// The content is stored, regenerated and served like a route's page. Choose a key that does
    /// not begin with `/` (an error) and that is no route's [`Key::name`](crate::Key::name) (not
    /// checked). A generator that asks for its own key waits for itself, as long as
    /// [`Refresh::on_miss`] allows.
    ///
    /// Within a generator, such as the handler of a stored page, a stale version or a placeholder
    /// makes the generated content provisional: that content is stale after 3 s, or its interval if
    /// that is shorter. The call has to be in the generator's own task.
    ///
    /// The future that `generate` returns runs in a task of its own, and only if this call starts
    /// the regeneration. So the future owns its data: clone a pool and write `move || async move {
    /// … }`. The future returns bytes of any kind, or a `Result` with such.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// use perennial::{DAY, Refresh};
    ///
    /// const TOP_TEN: Refresh = Refresh::every(DAY);
    /// let html = site.content("sidebar/top-10", TOP_TEN, || async { "<ol>…</ol>" }).await?;
    /// println!("{html}");
    ///
    /// // Visitors do not wait for the first version, either.
    /// let html = site
    ///     .content("sidebar/top-10", TOP_TEN, || async { "<ol>…</ol>" })
    ///     .or("<p>The list is being made.</p>")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Errors occur only without a servable version, and without a [placeholder](ContentCall::or):
    ///
    /// - [The generator failed](Error::is_generator), or its content is larger than
    ///   [`Builder::max_body`](crate::Builder::max_body).
    /// - [No process generated a version in time](Error::is_unavailable).
    /// - [`Invalid`](crate::ErrorKind::Invalid), in any case: the key is empty or begins with `/`.
    ///
    /// # Panics
    ///
    /// Panics if `generate` itself panics. A panic of the future that `generate` returns is a
    /// failure of the generator.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels nothing: a regeneration that has begun continues.
    pub fn content<'a, P, F, Fut, M>(
        &'a self,
        key: &'a str,
        policy: P,
        generate: F,
    ) -> ContentCall<'a, impl FnOnce() -> Run + Send + use<'a, P, F, Fut, M>>
    where
        P: Into<Refresh>,
        F: FnOnce() -> Fut + Send + 'a,
        Fut: Future<Output: IntoContent<M>> + Send + 'static,
    {
        let policy = policy.into();
        let max_body = self.engine.settings.max_body;
        let generate = move || {
            let generated = generate();
            Run(Box::pin(async move {
                let content = generated.await.into_content();
                stored(content.map(Response::new), max_body)
            }))
        };
        ContentCall {
            call: Call::new(&self.engine, key, policy, generate),
            placeholder: None,
        }
    }
}

/// A call of [`Perennial::content`]: a future with the content.
#[must_use = "futures do nothing unless awaited"]
pub struct ContentCall<'a, G> {
    call: Call<'a, G>,
    placeholder: Option<Content>,
}

impl<G> ContentCall<'_, G> {
    /// Sets the content that is returned at once while the first version is generated in the
    /// background, and after a failure of the generator. Default: none, the call waits.
    ///
    /// The placeholder is not stored. A call waits for the database, which may have a version, for
    /// at most [`Builder::database_patience`](crate::Builder::database_patience).
    pub fn or(mut self, placeholder: impl Into<Bytes>) -> Self {
        self.placeholder = Some(Content(placeholder.into()));
        self.call.has_placeholder = true;
        self
    }
}

impl<'a, G: FnOnce() -> Run + Send + 'a> Future for ContentCall<'a, G> {
    type Output = Result<Content, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let version = match ready!(Pin::new(&mut self.call).poll(context)) {
            Ok(version) => version,
            Err(error) if error.kind() == ErrorKind::Invalid => return Poll::Ready(Err(error)),
            Err(error) => return Poll::Ready(self.placeholder.take().ok_or(error)),
        };
        let body = version.content.response().body();
        Poll::Ready(Ok(Content(body.clone())))
    }
}

impl<G> fmt::Debug for ContentCall<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentCall")
            .field("placeholder", &self.placeholder)
            .finish_non_exhaustive()
    }
}
