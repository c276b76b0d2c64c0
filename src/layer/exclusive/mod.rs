//! The layer for routes that run once at a time.

mod layer;
mod service;

pub use layer::ExclusiveLayer;
pub use service::ExclusiveService;
