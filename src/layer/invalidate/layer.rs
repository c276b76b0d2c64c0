//! The settings of the layer for routes that change data. The service is in [`service`](super::service).

use std::{fmt, sync::Arc};

use tower_layer::Layer;

use super::InvalidateService;
use crate::{cache::Cache, extensions::Tags};

/// A layer that invalidates its tags, and the [`Tags`] in the response's extensions, after each
/// successful change. [`Perennial::invalidate_on_success`](crate::Perennial::invalidate_on_success)
/// and similar methods create it.
///
/// A change is a request with an unsafe method whose response is 2xx or 3xx (RFC 9111 §4.4), so answer a
/// refused change with a 4xx, and not with a redirection. The safe methods are GET, HEAD, OPTIONS, QUERY, TRACE
/// and WebDAV's PROPFIND, REPORT and SEARCH. The response waits for the first attempt to invalidate, for at
/// most 5 s. Failed attempts are repeated for a minute.
///
/// # Cancel safety
///
/// If the client disconnects while the service runs, the given tags are invalidated, as the service may have
/// changed something. So put authorization into an outer layer: otherwise any visitor can invalidate. Where
/// only responses name the tags
/// ([`invalidate_by_response_tags`](crate::Perennial::invalidate_by_response_tags)), the service runs in a task
/// of its own, always to its end: put a timeout inside of the layer. If a layer has tags of its own and the
/// response names more, those of the response are lost when the client disconnects;
/// [`invalidate_in`](crate::Perennial::invalidate_in) loses none.
///
/// A shutdown waits for the running changes and their invalidations. A process that crashes between a
/// change and its invalidation loses the invalidation; `invalidate_in` does not.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct InvalidateLayer {
    pub(super) cache: Arc<Cache>,
    pub(super) tags: Tags,
}

impl InvalidateLayer {
    pub(crate) fn with_cache(cache: Arc<Cache>, tags: Tags) -> Self {
        Self { cache, tags }
    }
}

impl<S> Layer<S> for InvalidateLayer {
    type Service = InvalidateService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        InvalidateService::new(inner, self.clone())
    }
}

impl fmt::Debug for InvalidateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidateLayer")
            .field("tags", &self.tags)
            .finish_non_exhaustive()
    }
}
