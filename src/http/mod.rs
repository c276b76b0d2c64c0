//! The rules of HTTP, as functions of headers.

use http::HeaderName;

/// The freshness of a response for caches of a content delivery network (RFC 9213).
pub(crate) const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

pub(crate) mod cache_status;
#[cfg(feature = "compression")]
pub(crate) mod compression;
pub(crate) mod conditional;
pub(crate) mod fields;
pub(crate) mod stored;
pub(crate) mod terms;
