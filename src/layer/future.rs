//! The future of a layer's response. A hit is ready when `call` returns: it needs no task and no second poll.

use std::{
    fmt,
    future::{Ready, poll_fn, ready},
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use tokio_util::either::Either;
use tower_service::Service;

use crate::layer::ResponseBody;

/// The future of a response: ready at once for a hit, and a boxed future otherwise.
pub struct ResponseFuture<B, E>(Either<Ready<Result<B, E>>, Waiting<B, E>>);

type Result<B, E> = std::result::Result<Response<ResponseBody<B>>, E>;

type Waiting<B, E> = Pin<Box<dyn Future<Output = Result<B, E>> + Send>>;

impl<B, E> ResponseFuture<B, E> {
    pub(super) fn ready(response: Response<ResponseBody<B>>) -> Self {
        Self(Either::Left(ready(Ok(response))))
    }

    pub(super) fn waiting(future: impl Future<Output = Result<B, E>> + Send + 'static) -> Self {
        Self(Either::Right(Box::pin(future)))
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<B, E>;

    /// # Panics
    ///
    /// Panics if polled again after completion.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Calls the service when it is ready.
pub(crate) async fn oneshot<S: Service<R>, R>(
    mut service: S,
    request: R,
) -> std::result::Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}
