//! Content that is not a whole response.

use std::{borrow::Cow, fmt, ops::Deref};

use bytes::Bytes;
use http::Response;

use super::Perennial;
use crate::{
    error::{BoxError, Error},
    policy::Refresh,
    resource::{Answer, Failure, Generated, Work},
};

/// A piece of generated content: bytes that are shared, not copied.
///
/// Dereferences to them; [`text`](Self::text) and `Display` read them as UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content(Bytes);

impl Content {
    /// The content as text; bytes that are not UTF-8 become U+FFFD.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Content> for Bytes {
    fn from(content: Content) -> Self {
        content.0
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Perennial {
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
    /// [`Builder::max_body`](crate::Builder::max_body), or [nobody made one in time](Error::is_unavailable). [`Invalid`](crate::ErrorKind::Invalid): the key is
    /// empty, or begins with `/`.
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
        let engine = &self.engine;
        if key.is_empty() || key.starts_with('/') {
            return Err(Error::invalid(format!(
                "the key {key:?} cannot be used for content: write a name that does not begin with `/`, as in \
                 `sidebar/top-10` (keys that do are those of routes)"
            )));
        }
        let answer = match engine.look(key, policy, engine.now()) {
            Ok(answer) => answer,
            Err(_) => {
                let (cooldown, max_body) = (policy.cooldown(), engine.settings.max_body);
                let work = || {
                    let generated = generate();
                    let generator = async move {
                        match limited(generated.await, max_body) {
                            Ok(content) => Generated::Content(Response::new(content)),
                            Err(error) => Generated::Failed(Failure::new(error, cooldown)),
                        }
                    };
                    Work {
                        generator: Box::pin(generator),
                        seed: None,
                        begun: true,
                    }
                };
                engine.visit(key, policy, work).await.0
            }
        };
        match answer {
            Answer::Version(version) => Ok(Content(version.content.response().body().clone())),
            Answer::Failed(failure) => Err(Error::generator(failure.error)),
            Answer::Unavailable { retry_in } => Err(Error::unavailable(retry_in)),
            // Nothing is begun during a shutdown.
            Answer::Pass(_) => Err(Error::unavailable(policy.cooldown())),
        }
    }
}

/// The content, if it may be stored.
fn limited(
    generated: Result<impl Into<Bytes>, impl Into<BoxError>>,
    max_body: usize,
) -> Result<Bytes, BoxError> {
    let content = generated.map_err(Into::into)?.into();
    if content.len() > max_body {
        let length = content.len();
        return Err(BoxError::from(format!(
            "the content has {length} bytes, more than the limit of {max_body} (`Builder::max_body`)"
        )));
    }
    // Of the content's own size, whatever buffer it is a part of.
    Ok(Bytes::copy_from_slice(&content))
}
