//! The layer of requests that may be sent twice and are to be done once.

mod answer;
mod driver;
mod fingerprint;
mod layer;
mod service;
mod state;

pub use layer::IdempotencyLayer;
pub use service::IdempotencyService;
