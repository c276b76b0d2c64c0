//! The content of a version: the page itself, and the forms in which it is sent.

#[cfg(feature = "compression")]
pub(crate) mod codings;
mod representation;

use crate::cache::entry;

pub(crate) use representation::{HitHeaders, Representation, Representations};

pub(crate) type Page = entry::Page<Representations>;
pub(crate) type Version = entry::Version<Representations>;
