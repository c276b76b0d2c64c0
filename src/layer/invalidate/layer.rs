use std::{fmt, sync::Arc};

use tower_layer::Layer;

use super::InvalidateService;
use crate::{extensions::Tags, page::Pages};

/// Invalidates its tags, and the [`Tags`] in the response's extensions, after each change; from
/// [`Perennial::invalidate_on_success`](crate::Perennial::invalidate_on_success).
///
/// A change is a request by another method than GET, HEAD, OPTIONS and TRACE whose response is 2xx
/// or 3xx (RFC 9111 §4.4): answer a refused change with a 4xx, not with a redirection. The response
/// waits for the invalidation, for at most 5 s; a failed one is tried again for a minute.
///
/// # Cancel safety
///
/// If the client disconnects while the service runs, the tags are invalidated. So put authorization
/// into an outer layer: otherwise any visitor can invalidate.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct InvalidateLayer {
    pub(super) pages: Arc<Pages>,
    pub(super) tags: Tags,
}

impl InvalidateLayer {
    pub(crate) fn with_pages(pages: Arc<Pages>, tags: Tags) -> Self {
        Self { pages, tags }
    }

    /// Lets the author of a change see it also where another process answers the next request.
    /// Default: the author may get the old page for a second, or while it is regenerated.
    ///
    /// The response to a change that this layer or the handler invalidates for sets the cookie
    /// `perennial-epoch` for ten seconds (`HttpOnly`, `SameSite=Lax`). A request with the cookie
    /// waits until its process knows the invalidation, and then for the new version: until its own
    /// generator ends, or for [`first_wait`](crate::Refresh::first_wait) if another request's runs.
    /// Each process needs the setting, which holds for all layers of the site.
    pub fn read_own_writes(self) -> Self {
        self.pages.read_own_writes();
        self
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
