#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(
    not(any(feature = "_sql", feature = "testing")),
    allow(dead_code, reason = "without a store, no site can be opened")
)]

// The rooms, in the order in which a newcomer should read them: first what a user meets, then floor by floor downward. A room uses
// only rooms below it, which `tests/structure.rs` checks. (The blank lines keep rustfmt from sorting.)

mod policy; // how a page is regenerated

mod site; // the entry point

#[cfg(feature = "testing")]
pub mod testing; // a site without a database, for tests

pub mod layer; // the Tower layers

mod resource; // the heart: a resource on its way through memory, regeneration and store

mod locks; // leases by name, and what is built on them

#[cfg(feature = "_sql")]
pub mod sql; // the store in three databases

mod store; // what a store does, as a trait; the guarded way to it

mod http; // the rules of HTTP

mod key; // from a URI to a key

mod name; // names of locks and entries, and their kinds; from a name to a column

mod extensions; // what a generator says beside its response

mod timing; // defaults, deadlines, pauses

#[cfg(test)]
mod search; // all states of a model, for the checks

mod clock; // the monotonic time of this process

mod error; // the one error type

pub use error::{Error, ErrorKind};
pub use extensions::{Fence, RefreshAfter, Tags};
pub use layer::refresh::keying::Key;
#[cfg(feature = "_sql")]
pub use locks::{Claim, Claims, SessionLock, changed_one};
pub use locks::{
    Holder, Lease, LockAttempt, LockInfo, LockKind, LockName, Locks, Once, OnceRetried, Outcome,
};
pub use policy::{Client, DAY, First, Refresh};
pub use site::{Builder, Content, Perennial};
