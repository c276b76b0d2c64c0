//! The invalidations as this process knows them, and how it learns of them and stores its own.
//!
//! [`InvalidationList`] says what applies to a version. [`InvalidationSync`] asks the store once a second,
//! when a request comes ([`timeline`]), and is the only one that adds what other processes have
//! invalidated. [`Outbox`] gives epochs to the invalidations of committed transactions.

mod author;
mod list;
mod names;
mod outbox;
mod sync;
mod timeline;

pub(crate) use author::{UNKNOWN, written, wrote};
pub(crate) use list::{InvalidationList, Target};
pub(crate) use sync::InvalidationSync;
