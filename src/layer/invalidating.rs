//! The layer of routes that change what others show.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Method, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    engine::{Engine, Target},
    extensions::Tags,
};

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
        let safe = is_safe(request.method());
        let response = self.inner.call(request);
        if safe {
            return Box::pin(response);
        }
        // Now, as the future may be dropped before it has begun, and the service have begun by itself.
        let change = Change::of(&self.layer.engine, names(&self.layer.tags.0));
        Box::pin(async move {
            let response = response.await;
            let (status, others) = match &response {
                Ok(response) => (Some(response.status()), response.extensions().get()),
                Err(_) => (None, None),
            };
            let others = others.map_or_else(Vec::new, |Tags(tags)| names(tags));
            change.settle(status, others).await;
            response
        })
    }
}

/// Whether a request with this method changes nothing (RFC 9110 §9.2.1).
pub(super) fn is_safe(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
    )
}

/// The names by which tags are invalidated.
fn names(tags: &[String]) -> Vec<String> {
    let names = tags.iter().filter_map(|tag| Target::Tag(tag).name().ok());
    names.collect()
}

/// A request that may change what has these names. Dropped before it is known what has come of it, it invalidates them.
pub(super) struct Change {
    engine: Arc<Engine>,
    names: Vec<String>,
}

impl Change {
    pub(super) fn of(engine: &Arc<Engine>, names: Vec<String>) -> Self {
        let engine = Arc::clone(engine);
        Self { engine, names }
    }

    /// The request has ended: invalidates these names, too, if it was answered without an error (RFC 9111 §4.4).
    pub(super) async fn settle(mut self, status: Option<StatusCode>, others: Vec<String>) {
        let mut names = std::mem::take(&mut self.names);
        if status.is_some_and(|status| status.is_success() || status.is_redirection()) {
            names.extend(others);
            self.engine.invalidate_names(names).await;
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        if !names.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let engine = Arc::clone(&self.engine);
            runtime.spawn(async move { engine.invalidate_names(names).await });
        }
    }
}
