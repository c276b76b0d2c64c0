//! The layer of requests that may be sent twice and are to be done once.

mod known;
mod layer;
mod note;
mod run;
mod service;
#[cfg(test)]
mod tests;

pub use layer::IdempotencyLayer;
pub use service::IdempotencyService;
