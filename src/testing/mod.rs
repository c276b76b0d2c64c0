//! A site without a database, for tests.

#![allow(
    missing_docs,
    reason = "the hidden part is documented where it needs it"
)]

mod link;
mod lock;
mod memory;
mod rows;

/// The store as Perennial's own tests drive it. No part of the public API: anything here may change in any release.
#[doc(hidden)]
pub mod internal {
    /// The error of a store.
    pub type BoxError = crate::error::BoxError;

    pub use super::{
        link::{Link, Linked},
        memory::{Call, Memory, Owned, Reply, micros},
    };
    pub use crate::store::{
        Edition, Entry, LeaseRow, LockRow, LockState, Probe, Pruned, Store, StoreFuture,
    };
}
