//! The Tower layers and their services: [`RefreshLayer`] stores pages, and [`InvalidateLayer`]
//! makes them stale.

mod body;
pub(crate) mod future;
mod holes;
mod invalidate;
mod own_writes;
pub(crate) mod refresh;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use holes::{Holes, IntoFilling};
pub use invalidate::{InvalidateFuture, InvalidateLayer, InvalidateService};
pub use refresh::{RefreshLayer, RefreshService, extensions::ExtensionTypes, keying::IntoPairs};

pub use crate::http::cdn_tags::CdnTags;
