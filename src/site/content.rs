//! Content that is smaller than a whole response.

use std::{borrow::Cow, fmt, ops::Deref, sync::Arc};

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
/// Dereferences to the bytes. [`text`](Self::text) and `Display` read the bytes as UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content(Bytes);

impl Content {
    /// Returns the content as text. Bytes that are not UTF-8 become U+FFFD.
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
    /// Returns content that is smaller than a whole response, such as a part of a page, and
    /// generates the content if necessary.
    ///
    /// The content is stored, regenerated and served like a route's page. Choose a key that does
    /// not begin with `/` (an error) and that is no route's [`Key::name`](crate::Key::name) (not
    /// checked). A generator that asks for its own key waits for itself, as long as
    /// [`Refresh::on_miss`] allows.
    ///
    /// The future that `generate` returns runs in a task of its own, and only if this call starts
    /// the regeneration. So the future owns its data: clone a pool and write `move || async move {
    /// … }`. The future returns a `Result`. A generator that cannot fail names an error type all
    /// the same: `Ok::<_, std::convert::Infallible>(html)`.
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
    /// Errors occur only without a servable version:
    ///
    /// - [The generator failed](Error::is_generator), or its content is larger than
    ///   [`Builder::max_body`](crate::Builder::max_body).
    /// - [No process generated a version in time](Error::is_unavailable).
    /// - [`Invalid`](crate::ErrorKind::Invalid): the key is empty or begins with `/`.
    ///
    /// # Panics
    ///
    /// Panics if `generate` itself panics. A panic of the future that `generate` returns is a
    /// failure of the generator.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels nothing: a regeneration that has begun continues.
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
                 `sidebar/top-10` (keys of routes begin with `/`)"
            )));
        }
        let answer = match engine.look(key, policy, engine.now()) {
            Ok(answer) => answer,
            Err(_) => {
                let (cooldown, max_body) = (policy.cooldown_time(), engine.settings.max_body);
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
                        source: None,
                        begun: true,
                        layer: Arc::clone(&engine.content_layer),
                        is_requested: false,
                    }
                };
                engine.visit(key, policy, work).await.0
            }
        };
        match answer {
            Answer::Version(version) => Ok(Content(version.content.response().body().clone())),
            Answer::Failed(failure) => Err(Error::generator(failure.error)),
            Answer::Unavailable { retry_in } => Err(Error::unavailable(retry_in)),
            // No regeneration begins during a shutdown.
            Answer::Pass(_) => Err(Error::unavailable(policy.cooldown_time())),
        }
    }
}

/// Returns the content if its size allows storing.
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
    // A copy has the content's own size, even if the content is a part of a larger buffer.
    Ok(Bytes::copy_from_slice(&content))
}
