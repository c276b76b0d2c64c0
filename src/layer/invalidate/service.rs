use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    InvalidateLayer,
    change::{Change, is_safe, names},
};
use crate::extensions::Tags;

/// A service whose changes invalidate tags, as [`InvalidateLayer`] describes.
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
    S::Error: Send,
    ResBody: Send,
{
    type Response = Response<ResBody>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResBody>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let safe = is_safe(request.method());
        let response = self.inner.call(request);
        if safe {
            return Box::pin(response);
        }
        // This is made before the future is polled: the service may have begun in `call`, and the
        // future may be dropped without a poll.
        let change = Change::of(&self.layer.pages, names(&self.layer.tags.0));
        let named = |response: &Response<ResBody>| {
            let named = response.extensions().get();
            named.map_or_else(Vec::new, |Tags(tags)| names(tags))
        };
        Box::pin(async move { change.settle(response, named).await })
    }
}
