//! Takes the lock of a request, runs the inner service under it, and releases the lock after the response, or
//! after its last byte.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use perennial_store::{Error, ErrorKind, Lease, LockName, http_util::problem};
use tokio::time::timeout;
use tower::{Service, ServiceExt};

use super::ExclusiveLayer;

/// A service that runs one request at a time for each name; see [`ExclusiveLayer`].
#[derive(Clone, Debug)]
pub struct ExclusiveService<S> {
    pub(super) inner: S,
    pub(super) layer: ExclusiveLayer,
}

perennial_store::of_inner!(ExclusiveService, ExclusiveLayer);

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for ExclusiveService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<UnsyncBoxBody<Bytes, ResBody::Error>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The inner service becomes ready later, when the lock is held, so it is not asked here.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (layer, inner) = (self.layer.clone(), self.inner.clone());
        Box::pin(layer.run(inner, request))
    }
}

impl ExclusiveLayer {
    async fn run<S, ReqBody, ResBody>(
        self,
        service: S,
        request: Request<ReqBody>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, ResBody::Error>>, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes> + Send + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let name = (self.name)(&parts);
        let attempt = self.locks.lock(name.clone()).wait(self.wait);
        let lease = match attempt.action(&*self.action).taken().await {
            Ok(Some(lease)) => lease,
            refused => return Ok(self.refused(&name, refused.err())),
        };
        parts.extensions.insert(lease.fence());
        let run = service.oneshot(Request::from_parts(parts, body));
        let response = if self.cancels {
            match lease.guard(run).await {
                Ok(response) => response?,
                Err(lost) => return Ok(self.refused(&name, Some(lost))),
            }
        } else {
            run.await?
        };
        if self.until_sent {
            return Ok(response.map(|body| leased(body, lease)));
        }
        release(lease, self.locks.store().patience()).await;
        Ok(response.map(BodyExt::boxed_unsync))
    }

    /// Returns the response to a request that did not get the lock. With an `error`, that is the
    /// reason; without one, another holder has the lock.
    fn refused<E>(
        &self,
        name: &LockName,
        error: Option<Error>,
    ) -> Response<UnsyncBoxBody<Bytes, E>> {
        let name = name.as_str();
        let (status, detail, retry_in) = match error {
            None => {
                let what = match &*self.action {
                    "" => "This request".to_owned(),
                    action => format!("This request ({action})"),
                };
                let detail = format!(
                    "Another request is already running for {name:?}, and only one may. {what} was not begun. Try again later."
                );
                (self.refusal, detail, Some(self.wait))
            }
            Some(error) if error.kind() == ErrorKind::Lost => {
                let detail = "The lock was lost while the request ran, and nobody knows whether it was done. Look before you repeat it.";
                (StatusCode::INTERNAL_SERVER_ERROR, detail.to_owned(), None)
            }
            // The store has logged the error.
            Some(_) => {
                let detail =
                    "The lock cannot be taken at the moment, so nothing was done. Try again later."
                        .to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, detail, Some(self.wait))
            }
        };
        let members = [("resource", name), ("action", &*self.action)];
        let response = problem(status, &detail, &members, retry_in);
        response.map(|body| {
            Full::new(body)
                .map_err(|never| match never {})
                .boxed_unsync()
        })
    }
}

/// Returns the body, which holds the lease until the body has been sent or dropped.
fn leased<B>(body: B, lease: Lease) -> UnsyncBoxBody<Bytes, B::Error>
where
    B: Body<Data = Bytes> + Send + 'static,
{
    let leased = body.map_frame(move |frame| {
        let _held = &lease;
        frame
    });
    leased.boxed_unsync()
}

/// Releases the lock before the response is returned, so that the next request finds the lock free.
/// A slow release continues after `patience`.
async fn release(lease: Lease, patience: Duration) {
    if let Ok(Err(error)) = timeout(patience, lease.release()).await
        && error.kind() == ErrorKind::Lost
    {
        tracing::warn!(%error, "the service has finished all the same");
    }
}
