//! What the site shows of its pages: entries and explanations. Read only.

pub(crate) mod entries;
pub(crate) mod explain;
mod list;
