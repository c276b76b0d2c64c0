//! The layer that stores the responses of a service and regenerates them.

mod admission;
pub(crate) mod declared;
mod disposition;
mod generate;
mod hints;
pub(crate) mod keying;
mod layer;
mod outgoing;
pub(super) mod request;
mod respond;
#[cfg(feature = "axum")]
mod routing;
mod service;
mod target;

pub use layer::RefreshLayer;
pub use request::GeneratedKey;
pub use service::RefreshService;
