//! The layer of requests that may be sent twice and are to be done once.

mod answer;
#[cfg(test)]
mod check;
mod key;
mod layer;
mod scope;
mod service;
mod state;

pub use layer::IdempotencyLayer;
pub use scope::Scope;
pub use service::IdempotencyService;
