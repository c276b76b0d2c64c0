#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod clock;
#[cfg(feature = "compression")]
mod compression;
mod content;
mod decide;
mod engine;
mod error;
mod extensions;
mod fields;
mod key;
pub mod layer;
mod lock;
mod name;
mod refresh;
mod site;
#[cfg(feature = "_sql")]
pub mod sql;
pub mod store;
mod terms;
mod timing;

pub use content::Content;
pub use error::{Error, ErrorKind};
pub use extensions::{Fence, RefreshAfter, Tags};
pub use layer::keying::Key;
pub use lock::{Holder, Lease, LockAttempt, LockInfo, LockName, Locks, Once, OnceRetried, Outcome};
#[cfg(feature = "_sql")]
pub use lock::{SessionLock, changed_one};
pub use refresh::{Client, DAY, First, Refresh};
pub use site::{Builder, Perennial};
#[cfg(feature = "_sql")]
pub use sql::claims::{Claim, Claims};
