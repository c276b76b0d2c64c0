//! The rules of HTTP as pure functions of requests and responses. Each names the section of the RFC that it
//! follows. Nothing here knows of pages, of the store or of a clock.

pub(crate) mod cache_status;
pub(crate) mod cdn_tags;
pub(crate) mod coding;
#[cfg(feature = "compression")]
pub(crate) mod compression;
pub(crate) mod conditional;
pub(crate) mod entity_tag;
pub(crate) mod fields;
#[cfg(feature = "compression")]
pub(crate) mod gzip_pieces;
pub(crate) mod stored;
pub(crate) mod terms;
