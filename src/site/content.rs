//! Generated content without a route: bytes and values that a closure generates, stored and regenerated as
//! pages are.

use std::{borrow::Cow, convert::Infallible, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use bytestring::ByteString;
use http::{HeaderValue, Response, header};
use perennial_store::{Epoch, Error, ErrorKind, error::BoxError};
use serde::{Serialize, de::DeserializeOwned};

use super::Perennial;
use crate::{
    cache::{
        Answer, Failure, Generate, Generated, Generator, Lookup, Readable, Reading, Version,
        VisitOptions, author, parts,
    },
    generation::{Generates, Generation},
    key,
    policy::Refresh,
    timing::RECHECK_INTERVAL,
};

/// A piece of generated content: bytes that are shared, not copied. `Display` reads them as UTF-8.
///
/// It has no media type, as Perennial cannot know whether the bytes are HTML or a visitor's text.
/// As a response it needs one:
///
/// ```
/// use axum::{http::header, response::{Html, IntoResponse}};
/// use perennial::Content;
///
/// fn html(content: Content) -> impl IntoResponse {
///     Html(content.into_bytes())
/// }
///
/// fn text(content: Content) -> impl IntoResponse {
///     ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], content.into_bytes())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Content(Checked);

/// Bytes that were checked for UTF-8 once, when the version came into memory, so that no call checks them again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Checked {
    Text(ByteString),
    Bytes(Bytes),
}

impl Content {
    fn new(bytes: Bytes) -> Self {
        match ByteString::try_from(bytes.clone()) {
            Ok(text) => Self(Checked::Text(text)),
            Err(_) => Self(Checked::Bytes(bytes)),
        }
    }

    /// Returns the content as text. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// ```
    /// # fn f(content: perennial::Content) {
    /// let page = format!("<aside>{}</aside>", content.text());
    /// # }
    /// ```
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Checked::Text(text) => Cow::Borrowed(text),
            Checked::Bytes(bytes) => String::from_utf8_lossy(bytes),
        }
    }

    /// Returns the bytes, without a copy.
    ///
    /// ```
    /// # fn f(content: perennial::Content) {
    /// let bytes: bytes::Bytes = content.into_bytes();
    /// # }
    /// ```
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Checked::Text(text) => text.into_bytes(),
            Checked::Bytes(bytes) => bytes,
        }
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::new(Bytes::new())
    }
}

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Checked::Text(text) => text.as_bytes(),
            Checked::Bytes(bytes) => bytes,
        }
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

impl Perennial {
    /// Returns content that is no response of its own, such as a part of a page. It is stored,
    /// regenerated and served like a route's page.
    ///
    /// The key must not begin with `/`, or be a route's [`Key::name`](crate::Key::name). `generate`
    /// runs in a task of its own, so it owns its data: clone a pool and write `async move || { …
    /// }`.
    ///
    /// When a handler that generates a page calls this (and not a task that the handler has spawned), the
    /// content becomes a *part* of the page: the page inherits the part's key and
    /// [tags](crate::Generation::tag), and becomes stale together with the part, unless
    /// [`Refresh::outlives_parts`] says otherwise.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// # use perennial::{DAY, Refresh};
    /// # async fn list() -> Result<String, std::io::Error> { Ok("<ol>…</ol>".into()) }
    /// let html = site.content("sidebar/top-10", Refresh::every(DAY), list).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the key is empty, begins with `/` or is longer than 4 KiB, or
    /// the call comes from the generator of this very content, which would wait for itself. The other errors
    /// occur only if there is no version that may be served. [`Generator`](crate::ErrorKind::Generator) means
    /// that the generator has failed, panicked or timed out, or that its content is larger than
    /// [`Builder::max_body`](crate::Builder::max_body). [`Unavailable`](crate::ErrorKind::Unavailable) means
    /// that another call has been generating for too long, or that the content is in a cooldown.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels no regeneration.
    pub async fn content<T, E, Arguments>(
        &self,
        key: &str,
        policy: impl Into<Refresh>,
        generate: impl Generates<Arguments, Output = Result<T, E>>,
    ) -> Result<Content, Error>
    where
        T: Into<Bytes>,
        E: Into<BoxError>,
    {
        let generate = self.bytes(generate);
        self.version(key, policy.into(), generate, None, false)
            .await
            .map(|version| content_of(&version))
    }

    /// Returns content as [`content`](Self::content) does, but never waits for a first version: if there is
    /// none that may be served, it returns `placeholder` while the content is generated. The placeholder is not
    /// stored.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// # use perennial::DAY;
    /// # async fn list() -> Result<String, std::io::Error> { Ok("<ol>…</ol>".into()) }
    /// let html = site.content_or("sidebar/top-10", DAY, "<p>soon</p>", list).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid), as for [`content`](Self::content).
    pub async fn content_or<T, E, Arguments>(
        &self,
        key: &str,
        policy: impl Into<Refresh>,
        placeholder: impl Into<Bytes>,
        generate: impl Generates<Arguments, Output = Result<T, E>>,
    ) -> Result<Content, Error>
    where
        T: Into<Bytes>,
        E: Into<BoxError>,
    {
        let generate = self.bytes(generate);
        let version = self.version(key, policy.into(), generate, None, true);
        match version.await {
            Ok(version) => Ok(content_of(&version)),
            Err(error) if error.kind() == ErrorKind::Invalid => Err(error),
            Err(_) => Ok(Content::new(placeholder.into())),
        }
    }

    /// Returns a generated value of a Rust type, as [`content`](Self::content) does. The database stores
    /// JSON; memory keeps the decoded value.
    ///
    /// A stored value that cannot be decoded because its type has changed counts as missing, with a warning. A
    /// change of meaning needs another key, such as `top-10/2`.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// # use perennial::DAY;
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Totals { orders: u64, revenue: u64 }
    ///
    /// let totals = site.value("totals", DAY, async || {
    ///     Ok::<_, std::io::Error>(Totals { orders: 7, revenue: 4200 })
    /// });
    /// println!("{} orders", totals.await?.orders);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`content`](Self::content). A value that cannot be encoded, or decoded again, is a
    /// failure of the generator.
    pub async fn value<T, E, Arguments>(
        &self,
        key: &str,
        policy: impl Into<Refresh>,
        generate: impl Generates<Arguments, Output = Result<T, E>>,
    ) -> Result<Arc<T>, Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        let max_body = self.cache.settings().max_body;
        let generate = move || -> Generator {
            Box::pin(async move {
                let value = generate.run(Generation::current()).await;
                let value = value.map_err(Into::into);
                let encoded = value.and_then(|value| encode(&value));
                let encoded = encoded.and_then(|it| decode::<T>(it.body()).map(|_| it));
                generated(encoded, max_body)
            })
        };
        let readable: Readable = Arc::new(|page| match page.decoded(decode::<T>) {
            Ok(_) => Reading::Readable,
            Err(error) if is_of_other_type(&error) => Reading::OtherCode,
            Err(_) => Reading::Damaged,
        });
        let version = self.version(key, policy.into(), generate, Some(readable), false);
        let value = version.await?.page.decoded(decode::<T>);
        value.map_err(|error| {
            Error::generator(format!(
                "the value cannot be decoded ({error}): perhaps two types share its key"
            ))
        })
    }

    fn bytes<T, E, Arguments>(
        &self,
        generate: impl Generates<Arguments, Output = Result<T, E>>,
    ) -> impl FnOnce() -> Generator
    where
        T: Into<Bytes>,
        E: Into<BoxError>,
    {
        let max_body = self.cache.settings().max_body;
        move || {
            Box::pin(async move {
                let content = generate.run(Generation::current()).await;
                let content = content.map_err(Into::into);
                generated(content.map(|it| Response::new(it.into())), max_body)
            })
        }
    }

    /// Returns a version of this key, and marks the content of a surrounding generator as
    /// provisional if the version is.
    async fn version(
        &self,
        key: &str,
        policy: Refresh,
        generate: impl FnOnce() -> Generator,
        readable: Option<Readable>,
        has_placeholder: bool,
    ) -> Result<Arc<Version>, Error> {
        let cache = &self.cache;
        let policy = if has_placeholder {
            cache.applied(policy).follower_wait(Duration::ZERO)
        } else {
            cache.applied(policy)
        };
        if key.is_empty() || key.starts_with('/') {
            return Err(Error::invalid(format!(
                "the key {key:?} cannot be used for content: write a name that does not begin with `/`, as in \
                 `sidebar/top-10` (keys of routes begin with `/`)"
            )));
        }
        if key.len() > key::MAX_KEY_BYTES {
            return Err(Error::invalid(format!(
                "the key of the content has {} bytes, more than {}: write a digest of the longer text, and none of \
                 what a visitor sends unchecked",
                key.len(),
                key::MAX_KEY_BYTES
            )));
        }
        if parts::waits_for_itself(cache.site(), key) {
            return Err(Error::invalid(format!(
                "the generator of {key:?} asks for {key:?} itself, directly or through another one, and would wait for itself"
            )));
        }
        let run = parts::generator();
        let min_epoch = author::min_epoch(cache.site());
        let answer = if cache.is_off() {
            cache.unstored(key, generate()).await
        } else if run.is_none()
            && min_epoch == Epoch::NONE
            && let Lookup::Hit(answer) = cache.lookup_decoded(key, &policy, cache.now())
        {
            answer
        } else {
            let generate = || {
                Ok(Generate {
                    run: Some(generate()),
                    layer: Arc::clone(&cache.content_layer),
                    readable,
                })
            };
            let options = VisitOptions {
                has_placeholder,
                min_epoch,
                ..VisitOptions::default()
            };
            let visited = match run {
                Some(run) => {
                    let visit = cache.visit_as_part(key, &policy, &run, options, generate);
                    visit.await
                }
                None if min_epoch == Epoch::NONE => {
                    cache.visit(key, &policy, options, generate).await
                }
                None => {
                    let visit = cache.visit(key, &policy, options, generate);
                    cache.visit_as_author(visit, key, &policy).await
                }
            };
            visited.answer
        };
        match answer {
            Answer::Version(version) => Ok(version),
            Answer::Failed(failure) => Err(Error::generator(failure.error.into_inner())),
            Answer::Unavailable { retry_in } => Err(Error::unavailable(retry_in)),
            // The site is shutting down, or a purge has overtaken the generator.
            Answer::Pass(_) => Err(Error::unavailable(RECHECK_INTERVAL)),
        }
    }
}

fn content_of(version: &Version) -> Content {
    let check = |stored: &Bytes| Ok(Content::new(stored.clone()));
    let content: Result<_, Infallible> = version.page.decoded(check);
    match content {
        Ok(content) => Content::clone(&content),
        Err(never) => match never {},
    }
}

/// Returns the result of a generator. If the body is larger than what may be stored, the result says so.
fn generated(content: Result<Response<Bytes>, BoxError>, max_body: usize) -> Generated {
    match content {
        Ok(response) if response.body().len() > max_body => {
            let length = response.body().len();
            let error = format!(
                "the content has {length} bytes, more than the limit of {max_body} (`Builder::max_body`)"
            );
            Generated::Failed(Failure::new(error))
        }
        // A copy has the content's own size, even if the content is a part of a larger buffer.
        Ok(response) => Generated::Content(response.map(|body| Bytes::copy_from_slice(&body))),
        Err(error) => Generated::Failed(Failure::new(error)),
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Response<Bytes>, BoxError> {
    let mut response = Response::new(Bytes::from(serde_json::to_vec(value)?));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

fn decode<T: DeserializeOwned>(stored: &Bytes) -> Result<T, BoxError> {
    Ok(serde_json::from_slice(stored)?)
}

/// Returns true if a value that could not be decoded is complete, so that it must be a value of another type.
fn is_of_other_type(error: &BoxError) -> bool {
    let error = error.downcast_ref::<serde_json::Error>();
    error.is_some_and(serde_json::Error::is_data)
}
