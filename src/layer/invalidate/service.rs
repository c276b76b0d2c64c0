//! Calls the inner service and, if the request is a change of data, handles its invalidations through a
//! [`Change`].

use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::task::JoinError;
use tower_service::Service;
use tracing::Instrument;

use super::{
    InvalidateLayer,
    change::{Change, is_safe, names},
    future::InvalidateFuture,
};
use crate::extensions::Tags;

/// A service that invalidates tags after a successful change of data; see [`InvalidateLayer`].
#[derive(Clone, Debug)]
pub struct InvalidateService<S> {
    pub(super) inner: S,
    pub(super) layer: InvalidateLayer,
}

perennial_store::of_inner!(InvalidateService, InvalidateLayer);

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for InvalidateService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: Send + 'static,
{
    type Response = Response<ResBody>;
    type Error = S::Error;
    type Future = InvalidateFuture<S::Future, ResBody, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let safe = is_safe(request.method());
        let response = self.inner.call(request);
        if safe {
            return InvalidateFuture::safe(response);
        }
        // This is made before the future is polled: the service may have begun in `call`, and the
        // future may be dropped without a poll.
        let change = Change::of(&self.layer.cache, names(&self.layer.tags.0));
        let named = |response: &Response<ResBody>| {
            let named = response.extensions().get();
            named.map_or_else(Vec::new, |Tags(tags)| names(tags))
        };
        let settled = change.settle(response, named);
        // The tags are known only from the response, so the service keeps running even if the client
        // leaves.
        if self.layer.tags.0.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let task = runtime.spawn(settled.in_current_span());
            return InvalidateFuture::change(async move {
                match task.await.map_err(JoinError::try_into_panic) {
                    Ok(response) => response,
                    Err(Ok(panic)) => std::panic::resume_unwind(panic),
                    // The runtime ends, and this task, too.
                    Err(Err(_)) => std::future::pending().await,
                }
            });
        }
        InvalidateFuture::change(settled)
    }
}
