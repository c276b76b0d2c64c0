//! The layer that invalidates pages after a change.
//!
//! [`Change`] is the guard of one request that may change data: it invalidates after a success, and also
//! where nobody learns the outcome. `RefreshLayer::invalidate_on_unsafe` uses it, too.

mod change;
mod future;
mod layer;
mod service;

pub(super) use change::{Change, is_safe};
pub use future::InvalidateFuture;
pub use layer::InvalidateLayer;
pub use service::InvalidateService;
