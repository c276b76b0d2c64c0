//! What is removed from the store: rows whose time is over, and pages above the store's capacity.

mod capacity;
mod prune;

pub(crate) use capacity::CapacityCheck;
