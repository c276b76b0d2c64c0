//! The extensions by which a handler says something about its response: its tags, and the time after which it
//! is stale. The layer takes them off before anybody else sees the response.

use std::{sync::Arc, time::Duration};

/// The age at which the response is stale, in place of the policy's interval, for an extension of the
/// response: `Extension(RefreshAfter(Duration::from_secs(60)))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefreshAfter(pub Duration);

/// The tags of the response, beside those of the [layer](crate::layer::RefreshLayer::tag): names of
/// the data that the response depends on. With its parts, a page has 256 tags and parts at most: beyond them, each
/// invalidation of anything makes it stale, and a warning says so. A list of many rows has one tag for all of
/// them.
///
/// ```
/// use axum::{Extension, extract::Path, response::IntoResponse};
/// use perennial::Tags;
///
/// async fn book(Path(id): Path<u32>) -> impl IntoResponse {
///     (Extension(Tags::new([format!("book-{id}"), "catalogue".into()])), "…")
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags(pub(crate) Arc<[String]>);

impl Tags {
    /// Creates a list of tags. A tag may have any length and any characters.
    pub fn new(tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        tags.into_iter().collect()
    }

    /// Returns the tags in their order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
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
