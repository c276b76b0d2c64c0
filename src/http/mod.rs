//! The rules of HTTP, as functions of headers: no state, and no I/O but the encoders.

#[cfg(feature = "compression")]
pub(crate) mod compression;
pub(crate) mod conditional;
pub(crate) mod fields;
pub(crate) mod terms;
