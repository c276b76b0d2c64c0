mod change;
mod layer;
mod service;

pub(super) use change::{Change, is_safe};
pub use layer::InvalidateLayer;
pub use service::InvalidateService;
