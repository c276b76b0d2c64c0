//! Runs a POST or PATCH with an `Idempotency-Key` once, and answers each repeat with the stored
//! response, in services with an SQL database and any number of processes.
//!
//! Each of the features `sqlite`, `postgres` and `mysql` adds support for one database's pools. The feature
//! `axum` is on by default; with it, the layer knows the whole path of a request behind nested routers:
//!
//! ```toml
//! [dependencies]
//! perennial-idempotency = { version = "0.1", features = ["postgres"] }
//! ```
//!
//! ```
//! # use axum::{Router, http::request::Parts, routing::post};
//! # async fn pay() {}
//! # #[derive(Clone)]
//! # struct Customer { id: String }
//! # fn f(locks: perennial_idempotency::Locks) -> Router {
//! use perennial_idempotency::{IdempotencyLayer, Scope};
//!
//! // As an outer layer has found out.
//! let customer = |request: &Parts| Some(Scope::of(&request.extensions.get::<Customer>()?.id));
//! // From `Locks::with_pool(pool)`, or `site.locks()` of a site.
//! let once = IdempotencyLayer::new(&locks, customer);
//! Router::new().route("/payments", post(pay).layer(once))
//! # }
//! ```
//!
//! One value of [`Locks`] serves this crate, [perennial-jobs](https://docs.rs/perennial-jobs) and a site. For
//! work that is not an HTTP request, see perennial-jobs.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::missing_errors_doc)]

mod answer;
mod body;
#[cfg(test)]
mod check;
mod key;
mod layer;
mod scope;
mod service;
mod state;
mod timing;

pub use layer::IdempotencyLayer;
pub use perennial_store::{Database, Error, ErrorKind, IntoDatabase, Locks};
pub use scope::Scope;
pub use service::IdempotencyService;
