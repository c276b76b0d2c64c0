//! What a generator says of its content, by extensions of its response, and what an exclusive route is told, by one of its request.

use std::{sync::Arc, time::Duration};

/// The response is stale at this age, whatever the policy's interval is.
///
/// ```
/// use std::time::Duration;
/// use axum::{Extension, response::IntoResponse};
/// use perennial::RefreshAfter;
///
/// async fn price() -> impl IntoResponse {
///     (Extension(RefreshAfter(Duration::from_secs(60))), "42 €")
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefreshAfter(pub Duration);

/// The tags of the response, beside those of the [layer](crate::layer::RefreshLayer::tag): whatever it depends on, to be
/// [invalidated](crate::Perennial::invalidate_tag) by.
///
/// ```
/// use axum::{Extension, extract::Path, response::IntoResponse};
/// use perennial::Tags;
///
/// async fn book(Path(id): Path<u32>) -> impl IntoResponse {
///     (Extension(Tags::new([format!("book-{id}"), "catalog".into()])), "…")
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(pub(crate) Arc<[String]>);

impl Tags {
    /// These tags; of any length and any characters.
    pub fn new<T: Into<String>>(tags: impl IntoIterator<Item = T>) -> Self {
        Self(tags.into_iter().map(Into::into).collect())
    }

    /// These and others.
    pub(crate) fn and(&self, others: &[String]) -> Self {
        let mut all = self.0.to_vec();
        all.extend(others.iter().filter(|tag| !self.0.contains(tag)).cloned());
        Self(all.into())
    }
}

/// The fencing token of the lock under which a request is served, among its extensions beneath an [`ExclusiveLayer`](crate::layer::ExclusiveLayer); see
/// [`Lease::fence`](crate::Lease::fence).
///
/// ```
/// use axum::Extension;
/// use perennial::Fence;
///
/// async fn upload(Extension(Fence(fence)): Extension<Fence>) {
///     // UPDATE album SET photos = …, fence = $fence WHERE id = … AND fence <= $fence
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub i64);
