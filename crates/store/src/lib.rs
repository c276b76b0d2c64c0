//! The rows of a site in its SQL database: leases with fencing tokens, pages, invalidations and
//! requests. **The crate is exempt from semantic versioning**: only the other crates of Perennial,
//! pinned to the same version, may use it. What they re-export is stable. Applications use
//! [perennial](https://docs.rs/perennial).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// The modules are in the order of their dependencies, entry points first; `tests/structure.rs` fails if two
// modules use each other.

mod locks; // leases by name, and waiting

#[doc(hidden)]
pub mod sql; // the store in three databases

mod store; // the handle: each call has a time limit

mod lost; // lost replies

mod store_event; // what a store tells its site

mod fence; // the fencing token, and the number of an invalidation

mod calls; // the list of calls

#[allow(missing_docs, reason = "not public; most names say it")]
mod rows; // their arguments and answers

#[doc(hidden)]
pub mod http_util; // what layers share

#[doc(hidden)]
pub mod name; // names and kinds of locks and entries

#[doc(hidden)]
pub mod timing; // deadlines and pauses

#[doc(hidden)]
pub mod clock; // units of time

#[doc(hidden)]
pub mod error; // the one error type, and enums whose values are words

pub mod driver; // the boundary to the driver of a database

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use error::{Error, ErrorKind};
pub use fence::{Epoch, Fence, LockLoss};
pub use locks::{Holder, Lease, LockAttempt, LockInfo, Locks};
pub use name::{LockKind, LockName};
pub use sql::{
    Connection, Database, IntoDatabase,
    triggers::{ColumnType, Trigger, TriggerFault},
};

#[doc(hidden)]
pub use self::{
    calls::*, locks::is_lease, lost::LostReplies, rows::*, store::Store, store_event::StoreEvent,
};

// Also after a panic under the mutex.
#[doc(hidden)]
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
