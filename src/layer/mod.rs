//! The Tower layers and their services.

mod body;
pub(crate) mod exclusive;
mod future;
pub(crate) mod idempotency;
mod invalidate;
mod problem;
pub(crate) mod refresh;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use invalidate::{InvalidateLayer, InvalidateService};
pub use refresh::{GeneratedKey, RefreshLayer, RefreshService};
