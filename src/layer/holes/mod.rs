//! Holes: spots of a page that differ for each visitor, in a page that is generated once for all of them.
//!
//! The handler writes [marks](marks), which are cut out of the generated body; [`crate::holes`] describes what is
//! then stored. When the stored page is sent to a visitor, [functions](functions) make the content of its holes for
//! that visitor. Where the handler itself answers a visitor, the marks are replaced while the body is
//! [streamed](stream).
//!
//! Invariants: a mark never leaves the layer; and what fills a hole is never stored.

mod functions;
mod marks;
mod stream;

pub use functions::IntoFilling;
pub(in crate::layer) use functions::{Fillings, HoleFunctions};
pub use marks::Holes;
pub(in crate::layer) use stream::{Filled, Streamed};
