//! The service as a generator.

use std::{
    marker::PhantomData,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::{
    outgoing,
    response::{self, Kind, Read},
    service::Shared,
};
use crate::{
    error::BoxError,
    extensions::{RefreshAfter, Tags},
    layer::{ResponseBody, future::oneshot as call},
    policy::Refresh,
    resource::{Failure, Generated, Generator, Seed},
};

/// What only the visitor that started a regeneration can be given, as it can't be copied.
pub(super) enum Direct<B, E> {
    /// A response that is too large to be kept.
    TooLarge(Response<ResponseBody<B>>),
    /// The service's error, or its answer in failure: too large, or somebody's own.
    Failed(Result<Response<ResponseBody<B>>, E>),
}

/// What makes the content of a key: the request that the service is given. Memory holds on to it, and so must not to the service, which
/// may hold on to the site.
pub(super) struct RouteSeed<S, ReqBody> {
    pub(super) shared: Weak<Shared<S>>,
    pub(super) policy: Refresh,
    pub(super) request: Request<()>,
    pub(super) body: PhantomData<fn() -> ReqBody>,
}

impl<S, ReqBody, ResBody> Seed for RouteSeed<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    fn policy(&self) -> &Refresh {
        &self.policy
    }

    fn generator(&self) -> Option<Generator> {
        let shared = self.shared.upgrade()?;
        let request = self.request.clone().map(|()| ReqBody::default());
        let (direct, _) = oneshot::channel();
        Some(Box::pin(generate(shared, request, direct)))
    }
}

/// One run of the service as a generator.
pub(super) async fn generate<S, ReqBody, ResBody>(
    shared: Arc<Shared<S>>,
    request: Request<ReqBody>,
    direct: oneshot::Sender<Direct<ResBody, S::Error>>,
) -> Generated
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    let (layer, service) = (&shared.layer, shared.inner());
    let retry_in = layer.policy.cooldown();
    let failed = |error: BoxError, response| {
        Generated::Failed(Failure {
            error: error.into(),
            response,
            retry_in,
        })
    };
    let uri = request.uri().clone();
    // Nobody may be waiting for what is sent directly.
    let response = match call(service, request).await {
        Ok(response) => response,
        Err(error) => {
            let _ = direct.send(Direct::Failed(Err(error)));
            return failed("the service returned an error".into(), None);
        }
    };
    let (mut head, body) = response.into_parts();
    if head.status == StatusCode::METHOD_NOT_ALLOWED {
        layer.hints.not_allowed(uri.path());
    }
    layer.key.say_vary(&mut head.headers);
    let kind = response::kind(&head, &layer.key, layer.policy.honours);
    let tags = || {
        let own = head.extensions.get::<Tags>().cloned();
        own.unwrap_or_default().and(&layer.tags.0)
    };
    let status = format!("the service answered {}", head.status);
    match kind {
        Kind::Pass(why) => {
            let tags = tags();
            return Generated::Unshareable { why, tags };
        }
        Kind::Failure { shareable: false } => {
            let response = Response::from_parts(head, ResponseBody::streamed(body));
            let _ = direct.send(Direct::Failed(Ok(response)));
            return failed(status.into(), None);
        }
        Kind::Content if response::size(&head.headers) > layer.engine.settings.max_headers => {
            let response = Response::from_parts(head, ResponseBody::streamed(body));
            let _ = direct.send(Direct::TooLarge(response));
            return Generated::TooLarge;
        }
        Kind::Content | Kind::Failure { shareable: true } => {}
    }
    match (
        response::read(body, layer.engine.settings.max_body).await,
        kind,
    ) {
        (Ok(Read::Whole(body)), _) if !response::is_well_framed(&head.headers, &body) => {
            let error = "its Content-Length or Transfer-Encoding is not that of its body";
            failed(error.into(), None)
        }
        (Ok(Read::Whole(body)), Kind::Content) => {
            let mut content = response::validated(response::keepable(&head, body));
            content.extensions_mut().insert(tags());
            if let Some(after) = head.extensions.get::<RefreshAfter>() {
                content.extensions_mut().insert(*after);
            }
            Generated::Content(content)
        }
        (Ok(Read::Whole(body)), _) => {
            let response = outgoing::failed(response::keepable(&head, body), retry_in);
            failed(status.into(), Some(response.into()))
        }
        (Ok(Read::TooLarge(body)), Kind::Content) => {
            let _ = direct.send(Direct::TooLarge(Response::from_parts(head, body)));
            Generated::TooLarge
        }
        (Ok(Read::TooLarge(body)), _) => {
            let _ = direct.send(Direct::Failed(Ok(Response::from_parts(head, body))));
            failed(status.into(), None)
        }
        (Err(error), _) => failed(error.into(), None),
    }
}
