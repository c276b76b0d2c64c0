//! The Tower layers and their services. For routes whose responses are stored, and for routes that
//! change the data of such pages.
//!
//! | the route | layer |
//! |---|---|
//! | has a page that is the same for many visitors | [`RefreshLayer`], from [`Perennial::layer`](crate::Perennial::layer) |
//! | changes data that pages show | [`InvalidateLayer`], from [`Perennial::invalidate_on_success`](crate::Perennial::invalidate_on_success) |
//! | may run once at a time, or once for each request | the layers of perennial-jobs and perennial-idempotency |

mod body;
pub(crate) mod future;
mod invalidate;
mod own_writes;
pub(crate) mod refresh;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use invalidate::{InvalidateLayer, InvalidateService};
pub use refresh::{RefreshLayer, RefreshService};
