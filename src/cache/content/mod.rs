//! The content of a version in its representations.

#[cfg(feature = "compression")]
pub(crate) mod codings;
mod representation;

use crate::cache::entry;

pub(crate) use representation::{HitHeaders, Representation, Representations};

pub(crate) type Page = entry::Page<Representations>;
pub(crate) type Version = entry::Version<Representations>;
