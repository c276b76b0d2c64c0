//! The content of a version in its representations.

#[cfg(feature = "compression")]
pub(crate) mod codings;
mod representation;

pub(crate) use representation::{HitHeaders, Representation, Representations};
