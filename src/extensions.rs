//! What a handler says about its response, in the response's extensions: its tags, and the times after which it
//! is stale or expired. A layer that stores a page removes these extensions from the response. If the request
//! bypasses the cache, they stay.
//!
//! With the feature `axum`, a handler returns them together with its response, in the same way as headers.

use std::{slice, sync::Arc, time::Duration, vec};

#[cfg(feature = "axum")]
use axum::response::{IntoResponseParts, ResponseParts};
use perennial_store::name::IntoNames;

/// Says at which age a response is stale, instead of the policy's interval, for a handler that knows how long
/// its page stays valid. The handler returns it together with the page. With a framework other than axum,
/// insert it into the extensions of the response.
///
/// ```
/// use std::time::Duration;
/// use axum::response::IntoResponse;
/// use perennial::RefreshAfter;
///
/// async fn departures() -> impl IntoResponse {
///     let next_departure = Duration::from_secs(90);
///     (RefreshAfter::new(next_departure), "10:42 to Wien")
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefreshAfter(pub(crate) Duration);

impl RefreshAfter {
    /// Sets the age at which the response is stale.
    pub const fn new(age: Duration) -> Self {
        Self(age)
    }
}

/// Sets the age at which a response expires: from then on it is neither served nor kept.
///
/// Without this, a stale page is served while it is regenerated, and for days if its generator fails. That is
/// wrong for a page that must disappear at a certain time, such as a private link, an invitation, an offer, or
/// a paste that its author has limited to an hour. From this age on, visitors wait for a new version, and get
/// an error if its generator fails. The row is removed from the database within an hour after that.
///
/// The time is counted from the moment at which the handler returns. A page expires with the first
/// of its [parts](crate::Perennial::content) that expires.
///
/// ```
/// use std::time::Duration;
/// use axum::response::IntoResponse;
/// use perennial::ExpireAfter;
///
/// async fn paste() -> impl IntoResponse {
///     let left = Duration::from_secs(1200); // until the time that its author has chosen
///     (ExpireAfter::new(left), "the paste")
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpireAfter(pub(crate) Duration);

impl ExpireAfter {
    /// Sets the age at which the response expires.
    pub const fn new(age: Duration) -> Self {
        Self(age)
    }
}

/// The tags of a response: names of the data that it depends on, for
/// [`invalidate_tag`](crate::Perennial::invalidate_tag).
///
/// A handler returns them together with its page. With a framework other than axum, insert them into the
/// extensions of the response. The tags of the [layer](crate::layer::RefreshLayer::tag) count as well.
///
/// ```
/// use axum::{extract::Path, response::{Html, IntoResponse}};
/// use perennial::Tags;
///
/// async fn book(Path(id): Path<u32>) -> impl IntoResponse {
///     (Tags::new([format!("book-{id}"), "catalogue".into()]), Html("…"))
/// }
/// ```
///
/// A page can have up to 256 tags and parts together. With more of them, any invalidation makes it stale, and a
/// warning says so. A purge by a tag makes it stale too, but does not remove it from the database. A list of many rows
/// should therefore have one tag for all rows, and not one for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags(pub(crate) Arc<[String]>);

impl Tags {
    /// Creates a list of one or more tags. A tag may have any length and contain any characters.
    ///
    /// ```
    /// # use perennial::Tags;
    /// assert_eq!(Tags::new("books"), Tags::new(["books"]));
    /// ```
    pub fn new(tags: impl IntoNames) -> Self {
        Self(tags.into_names().into())
    }

    /// Returns the tags in their order.
    pub fn iter(&self) -> slice::Iter<'_, String> {
        self.0.iter()
    }

    /// Returns the number of tags.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no tags.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns these tags and the others.
    pub(crate) fn and<'a>(&self, others: impl IntoIterator<Item = &'a String>) -> Self {
        let mut all = self.0.to_vec();
        let others = others.into_iter().filter(|tag| !self.0.contains(*tag));
        all.extend(others.cloned());
        Self(all.into())
    }
}

impl<T: Into<String>> FromIterator<T> for Tags {
    fn from_iter<I: IntoIterator<Item = T>>(tags: I) -> Self {
        Self(tags.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<String>> Extend<T> for Tags {
    fn extend<I: IntoIterator<Item = T>>(&mut self, tags: I) {
        let others: Vec<String> = tags.into_iter().map(Into::into).collect();
        *self = self.and(&others);
    }
}

impl IntoIterator for Tags {
    type Item = String;
    type IntoIter = vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        let tags: Vec<String> = self.0.iter().cloned().collect();
        tags.into_iter()
    }
}

impl<'a> IntoIterator for &'a Tags {
    type Item = &'a String;
    type IntoIter = slice::Iter<'a, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Adds the tags to those that the response has already.
#[cfg(feature = "axum")]
impl IntoResponseParts for Tags {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Self::Error> {
        let extensions = parts.extensions_mut();
        let before = extensions.remove::<Self>().unwrap_or_default();
        extensions.insert(before.and(&self));
        Ok(parts)
    }
}

/// A response without content, such as that of a handler which has changed something.
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Tags {
    fn into_response(self) -> axum::response::Response {
        (self, ()).into_response()
    }
}

#[cfg(feature = "axum")]
impl IntoResponseParts for RefreshAfter {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Self::Error> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}

#[cfg(feature = "axum")]
impl IntoResponseParts for ExpireAfter {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Self::Error> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}
