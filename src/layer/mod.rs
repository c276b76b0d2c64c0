//! The Tower layers and their services.

mod body;
mod exclusive;
mod future;
mod idempotency;
mod invalidate;
mod problem;
pub(crate) mod refresh;

pub use body::ResponseBody;
pub use exclusive::{ExclusiveLayer, ExclusiveService};
pub use future::ResponseFuture;
pub use idempotency::{IdempotencyLayer, IdempotencyService};
pub use invalidate::{InvalidateLayer, InvalidateService};
pub use refresh::{GeneratedKey, RefreshLayer, RefreshService};
