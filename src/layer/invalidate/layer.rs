//! The layer for routes that change the data of other pages.

use std::{fmt, sync::Arc};

use tower_layer::Layer;

use super::InvalidateService;
use crate::{extensions::Tags, page::Pages};

/// Invalidates its tags, and the [`Tags`] in the response's extensions, after each change; from
/// [`Perennial::invalidate_on_success`](crate::Perennial::invalidate_on_success).
///
/// A change is a request whose method is not one of the safe ones (GET, HEAD, OPTIONS and TRACE,
/// RFC 9110 §9.2.1) and whose response is no error (2xx or 3xx, RFC 9111 §4.4). A handler therefore
/// answers a refused change with a 4xx, and not with a redirection back to the form. The service's
/// own error invalidates nothing.
///
/// The response waits for the invalidation, for at most 5 s, so that this process knows the
/// invalidation at the visitor's next request. A failed invalidation is tried again for a minute.
///
/// # Cancel safety
///
/// A future that is dropped while the service runs (the client has disconnected) leaves the outcome
/// unknown, and the tags are invalidated. So any caller who disconnects can cause regenerations:
/// put authorization into a layer outside this one.
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

    /// Lets the author of a change see the change at once, also where another process answers the next
    /// request. Default: the author may get the old page for a second, as any visitor.
    ///
    /// The response to a change sets the cookie `perennial-epoch` for ten seconds (`HttpOnly`,
    /// `SameSite=Lax`), which names the invalidation. A process that gets the cookie and does not
    /// know the invalidation asks the database, at most once a second: the request waits a second at most
    /// for its turn, and then as long as [`database_patience`](crate::Builder::database_patience) allows. The
    /// request then waits for the new version, for as long as
    /// [`first_wait`](crate::Refresh::first_wait) allows, and gets the old one afterwards. The setting
    /// applies to all layers of this process, and each process of the site needs it. No key has the
    /// cookie, and an invented one regenerates nothing that was not invalidated.
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
