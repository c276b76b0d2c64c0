//! The layer of routes that change what others show.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Method, Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::{engine::Engine, extensions::Tags};

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
    engine: Arc<Engine>,
    tags: Tags,
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

/// A service whose changes invalidate tags, as [`InvalidateLayer`] describes.
#[derive(Clone, Debug)]
pub struct InvalidateService<S> {
    inner: S,
    layer: InvalidateLayer,
}

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
        let safe = matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
        );
        let response = self.inner.call(request);
        if safe {
            return Box::pin(response);
        }
        // Now, as the future may be dropped before it has begun, and the service have begun by itself.
        let mut unknown = Unknown(Some(self.layer.clone()));
        Box::pin(async move {
            let response = response.await;
            if let Some(mut layer) = unknown.0.take()
                && let Ok(response) = &response
                && (response.status().is_success() || response.status().is_redirection())
            {
                if let Some(Tags(others)) = response.extensions().get() {
                    layer.tags = layer.tags.and(others);
                }
                layer.engine.invalidate_tags(layer.tags).await;
            }
            response
        })
    }
}

/// Invalidates when it is dropped before it is known what has come of the request.
struct Unknown(Option<InvalidateLayer>);

impl Drop for Unknown {
    fn drop(&mut self) {
        if let Some(InvalidateLayer { engine, tags }) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { engine.invalidate_tags(tags).await });
        }
    }
}
