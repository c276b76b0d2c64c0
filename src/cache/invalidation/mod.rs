//! How this process learns of the invalidations of others.
//!
//! [`InvalidationSync`] asks the store once a second, when a request comes ([`timeline`] decides when), and
//! is the only one that adds to the [list](crate::cache::invalidation_list) what other processes have
//! invalidated. `Outbox` gives epochs to the invalidations of committed transactions. Start with
//! [`timeline`], and read `sync.rs` next.

mod author;
mod outbox;
mod sync;
mod timeline;

pub(crate) use author::{UNKNOWN_EPOCH, record_write, record_writes};
pub(crate) use sync::InvalidationSync;
