//! The layer that stores the responses of a service and regenerates them.

mod admission;
pub(crate) mod declared;
mod generate;
mod hints;
pub(crate) mod keying;
mod kind;
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
