//! How this process learns of the invalidations of others.
//!
//! [`InvalidationSync`] asks the store when a request comes, at most once a second ([`timeline`] decides when).
//! Nothing else adds the invalidations of other processes to the [list](crate::cache::invalidation_list).
//! `Outbox` assigns epochs, the numbers that order invalidations, to what committed transactions have written.
//! Start with [`timeline`], and read `sync.rs` next.

mod author;
mod outbox;
mod sync;
mod timeline;

pub(crate) use author::{UNKNOWN_EPOCH, record_write, record_writes};
pub(crate) use sync::InvalidationSync;
