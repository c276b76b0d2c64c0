//! The layer of routes that change what others show.

use std::{fmt, sync::Arc};

use tower_layer::Layer;

use super::InvalidateService;
use crate::{extensions::Tags, resource::Engine};

/// Invalidates its tags, and those that the response has among its extensions ([`Tags`]), when a request has changed something; from [`Perennial::invalidates`](crate::Perennial::invalidates).
///
/// That is when its method is not a safe one (RFC 9110 §9.2.1: GET, HEAD, OPTIONS, TRACE) and the response no error (2xx or 3xx, as
/// RFC 9111 §4.4 has it): so a handler answers what was refused by a 4xx, and not by a redirection back to the form. The service's own error
/// invalidates nothing.
///
/// The response is held back until the invalidation is done, for 5 s at most, so that this process knows of it when whoever has changed
/// something asks next; if the database fails it is tried again for a minute.
///
/// # Cancel safety
///
/// If the future is dropped while the service is at it (the client has gone), what it has done is not known, and the tags are invalidated. So whoever may call the
/// service can make what bears the tags regrow: authorization belongs in a layer outside this one, not in the service.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct InvalidateLayer {
    pub(super) engine: Arc<Engine>,
    pub(super) tags: Tags,
}

impl InvalidateLayer {
    pub(crate) fn new(engine: Arc<Engine>, tags: Tags) -> Self {
        Self { engine, tags }
    }
}

impl<S> Layer<S> for InvalidateLayer {
    type Service = InvalidateService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        InvalidateService {
            inner,
            layer: self.clone(),
        }
    }
}

impl fmt::Debug for InvalidateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidateLayer")
            .field("tags", &self.tags)
            .finish_non_exhaustive()
    }
}
