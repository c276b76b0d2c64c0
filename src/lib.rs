#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(
    not(any(feature = "_sql", feature = "testing")),
    allow(dead_code, reason = "without a store, no site can be opened")
)]

// The rooms, in reading order for a newcomer: the public entry points first, then floor by floor
// downward. A room uses only rooms below it, which `tests/structure.rs` checks. (The blank lines
// keep rustfmt from sorting.)

mod policy; // when a page is stale, and the limits of each wait

mod site; // the entry point

#[cfg(feature = "testing")]
pub mod testing; // a site without a database, for tests

pub mod layer; // the Tower layers

mod resource; // the heart: a resource between memory, generator and store

mod lock; // leases by name, waiting, once, session locks, claims

#[cfg(feature = "_sql")]
pub mod sql; // the store in three databases

mod store; // the trait of a store, and its calls with a deadline

mod http; // the rules of HTTP

mod key; // the key of a URI

mod name; // names and kinds of locks and entries

mod extensions; // extensions of responses and requests

mod timing; // defaults, deadlines, pauses

#[cfg(test)]
mod search; // breadth-first search of a model, for the checks

mod clock; // the monotonic time of this process

mod error; // the one error type

pub use error::{Error, ErrorKind};
pub use extensions::{RefreshAfter, Tags};
pub use layer::refresh::keying::Key;
pub use policy::{BrowserCache, DAY, OnMiss, Refresh};
pub use site::{Builder, Content, Perennial};

/// Locks by name in the site's database, and everything that is built on them.
pub mod locks {
    #[cfg(feature = "_sql")]
    pub use crate::lock::{Claim, Claims, SessionLock};
    pub use crate::{
        extensions::Fence,
        layer::{
            exclusive::{ExclusiveLayer, ExclusiveService},
            idempotency::{IdempotencyLayer, IdempotencyService},
        },
        lock::{
            Holder, Lease, LockAttempt, LockInfo, LockKind, LockName, Locks, Once, OnceOutcome,
            OnceRetried,
        },
    };
}
