//! The rules of HTTP, as functions of headers.

pub(crate) mod cache_status;
pub(crate) mod coding;
#[cfg(feature = "compression")]
pub(crate) mod compression;
pub(crate) mod conditional;
pub(crate) mod entity_tag;
pub(crate) mod fields;
pub(crate) mod stored;
pub(crate) mod terms;
