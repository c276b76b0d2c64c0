//! The layer that stores the responses of a service and regenerates them.
//!
//! A request passes through these modules in this order: `service` (what happens to it), `request` and `keying`
//! (its key, or why it bypasses the cache), the cache, `generate` and `disposition` (if it has to be
//! generated), and `respond` and `outgoing` (the response). In a layer with holes, `fill` comes last. Start
//! with `service`.

mod admission;
mod compare;
mod disposition;
pub(crate) mod explain;
pub(crate) mod extensions;
mod fill;
mod generate;
mod hints;
mod hit_values;
pub(crate) mod keying;
mod layer;
mod outgoing;
pub(crate) mod own_request;
pub(super) mod request;
mod respond;
pub(crate) mod response_extensions;
#[cfg(feature = "axum")]
mod routing;
mod service;
mod target;
mod type_names;

pub use layer::RefreshLayer;
pub use service::RefreshService;

/// The default limit on the number of keys that a layer stores.
pub(crate) const MAX_KEYS: usize = 10_000;
