//! Content that is not a whole response.

use std::{borrow::Cow, fmt, ops::Deref, sync::Arc};

use bytes::Bytes;
use http::Response;

use crate::{
    error::{BoxError, Error},
    name::IDEMPOTENCY,
    policy::Refresh,
    resource::{Answer, Engine, Failure, Generated, Work},
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

pub(crate) async fn content<F, Fut, T, E>(
    engine: &Arc<Engine>,
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
    if key.starts_with(IDEMPOTENCY) {
        return Err(Error::invalid(format!(
            "the key {key:?} cannot be used for content: write a name that does not begin with `{IDEMPOTENCY}`, which is \
             Perennial's own"
        )));
    }
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
                        Err(error) => Generated::Failed(Failure {
                            error: error.into(),
                            response: None,
                            retry_in: cooldown,
                        }),
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
