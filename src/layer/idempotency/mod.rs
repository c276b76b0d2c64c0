//! The layer of requests that may be sent twice and are to be done once.

mod answer;
#[cfg(test)]
mod check;
mod driver;
mod fingerprint;
mod layer;
#[cfg(test)]
mod promises;
mod service;
mod state;

pub use layer::IdempotencyLayer;
pub use service::IdempotencyService;
