//! The future of a response behind the layer that invalidates: for a safe method, it is the service's own future; for a
//! change, it also waits for the invalidation.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use tokio_util::either::Either;

type Settled<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

/// The response future of an [`InvalidateService`](super::InvalidateService). After a change of data, it
/// becomes ready only when the tags have been invalidated.
pub struct InvalidateFuture<F, B, E>(Either<Pin<Box<F>>, Settled<B, E>>);

impl<F, B, E> InvalidateFuture<F, B, E> {
    pub(super) fn safe(response: F) -> Self {
        Self(Either::Left(Box::pin(response)))
    }

    pub(super) fn change(
        settled: impl Future<Output = Result<Response<B>, E>> + Send + 'static,
    ) -> Self {
        Self(Either::Right(Box::pin(settled)))
    }
}

impl<F: Future<Output = Result<Response<B>, E>>, B, E> Future for InvalidateFuture<F, B, E> {
    type Output = Result<Response<B>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<F, B, E> fmt::Debug for InvalidateFuture<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidateFuture").finish_non_exhaustive()
    }
}
