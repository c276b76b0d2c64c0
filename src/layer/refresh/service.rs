//! The service.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, request::Parts};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::{
    cache_status::{Detail, Forward, How, Why},
    generate::{Direct, RouteSeed, generate},
    keying::Resource,
    outgoing, request,
    target::Asked,
};
use crate::{
    error::BoxError,
    layer::{
        RefreshLayer, ResponseBody, ResponseFuture,
        future::oneshot as call,
        invalidate::{Change, is_safe},
    },
    resource::{Answer, Look, Pass, Target, Visited, Work},
    timing::SYNC,
};

/// A service whose responses are kept, as [`RefreshLayer`] describes.
pub struct RefreshService<S>(Arc<Shared<S>>);

/// What all clones of a service have in common, so that cloning it, as servers do for each request, is cheap.
pub(super) struct Shared<S> {
    pub(super) layer: RefreshLayer,
    /// Is cloned, never called. Only what passes and what generates needs a clone.
    inner: Mutex<S>,
}

impl<S> RefreshService<S> {
    pub(super) fn new(inner: S, layer: RefreshLayer) -> Self {
        let inner = Mutex::new(inner);
        Self(Arc::new(Shared { layer, inner }))
    }
}

impl<S: Clone> Shared<S> {
    pub(super) fn inner(&self) -> S {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clone()
    }
}

impl<S> Clone for RefreshService<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RefreshService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<ResBody, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Whether the inner service is ready matters only when it is called.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let Shared { layer, .. } = &*self.0;
        let (parts, body) = request.into_parts();
        let pass = |parts, body, forward| {
            let request = Request::from_parts(parts, body);
            ResponseFuture::waiting(pass(layer.clone(), self.0.inner(), request, forward))
        };
        let head = parts.method == Method::HEAD;
        let resource = match request::resource(&parts, layer) {
            Ok(resource) => resource,
            Err(forward) => {
                if forward != Forward::METHOD {
                    layer.hints.get();
                } else if layer.invalidates && !is_safe(&parts.method) {
                    let request = Request::from_parts(parts, body);
                    let changing = change(layer.clone(), self.0.inner(), request);
                    return ResponseFuture::waiting(changing);
                }
                return pass(parts, body, forward);
            }
        };
        let now = layer.engine.now();
        match layer.engine.look(&resource.key, &layer.policy, now) {
            Look::Answer(Answer::Version(version)) => {
                ResponseFuture::ready(layer.give(&version, &parts, now, None))
            }
            Look::Answer(Answer::Unavailable { retry_in }) => {
                let response = outgoing::unavailable(retry_in);
                ResponseFuture::ready(layer.give_other(&response, head, How::Unavailable))
            }
            Look::Answer(Answer::Pass(reason)) => {
                pass(parts, body, Forward::bypass(Detail::Pass(reason)))
            }
            Look::Answer(Answer::Failed(_)) => pass(parts, body, Forward::bypass(Detail::Failed)),
            Look::Visit { stale } => {
                layer.hints.get();
                // Never no time at all, in which nothing would count.
                let period = layer.engine.settings.retention.max(SYNC);
                if !stale && !layer.admission.admits(&resource.key, now, period) {
                    return pass(parts, body, Forward::bypass(Detail::TooManyKeys));
                }
                let resource = resource.into_owned();
                let why = if stale { Why::Stale } else { Why::Miss };
                ResponseFuture::waiting(visit(Arc::clone(&self.0), parts, body, resource, why))
            }
        }
    }
}

impl<S> fmt::Debug for RefreshService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshService")
            .field("layer", &self.0.layer)
            .finish_non_exhaustive()
    }
}

async fn pass<S, ReqBody, ResBody>(
    layer: RefreshLayer,
    service: S,
    request: Request<ReqBody>,
    forward: Forward,
) -> Result<Response<ResponseBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    let mut response = call(service, request).await?;
    if forward != Forward::METHOD {
        layer.key.say_vary(response.headers_mut());
    }
    layer.say(response.headers_mut(), How::Passed(forward));
    Ok(response.map(ResponseBody::streamed))
}

/// Passes a request that may change something, and invalidates what it has changed.
async fn change<S, ReqBody, ResBody>(
    layer: RefreshLayer,
    service: S,
    request: Request<ReqBody>,
) -> Result<Response<ResponseBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    let (parts, body) = request.into_parts();
    let (asked, own) = (Asked::of(&parts), layer.key.resource(&parts));
    let request = Request::from_parts(parts, body);
    let own = own.and_then(|key| Target::Key(&key).name().ok());
    let change = Change::of(&layer.engine, own.into_iter().collect());
    let response = pass(layer.clone(), service, request, Forward::METHOD);
    let named = |response: &Response<_>| asked.names_in(response.headers(), &layer.key);
    change.settle(response, named).await
}

async fn visit<S, ReqBody, ResBody>(
    shared: Arc<Shared<S>>,
    parts: Parts,
    body: ReqBody,
    resource: Resource<'static>,
    why: Why,
) -> Result<Response<ResponseBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let (layer, service) = (shared.layer.clone(), shared.inner());
    let head = parts.method == Method::HEAD;
    let generating = match request::to_generate(&parts, &resource, &layer) {
        Ok(generating) => generating,
        Err(forward) => {
            return pass(layer, service, Request::from_parts(parts, body), forward).await;
        }
    };
    let key = resource.key;
    let (direct, mut own) = oneshot::channel();
    let make = || {
        let seed = RouteSeed {
            shared: Arc::downgrade(&shared),
            policy: layer.policy,
            request: generating.clone(),
            body: PhantomData,
        };
        let request = generating.map(|()| ReqBody::default());
        Work {
            generator: Box::pin(generate(shared, request, direct)),
            seed: Some(Arc::new(seed)),
            begun: false,
        }
    };
    let arrived = layer.engine.now();
    let Visited { answer, leads } = layer.engine.visit(&key, &layer.policy, make).await;
    let made = |forward, stored| How::Made {
        forward,
        stored,
        collapsed: !leads,
    };
    let direct = |response, detail| {
        let mut response = without_body_if(head, response);
        let how = made(why.not_stored(detail), false);
        layer.say(response.headers_mut(), how);
        response
    };
    let (given, how) = match (answer, own.try_recv()) {
        (_, Ok(Direct::TooLarge(response))) => {
            return Ok(direct(response, Detail::Pass(Pass::TooLarge)));
        }
        (Answer::Failed(_), Ok(Direct::Failed(result))) => {
            return result.map(|response| direct(response, Detail::Failed));
        }
        (Answer::Version(version), _) => {
            let made = version.is_made_since(arrived).then(|| {
                // Memory may have had nothing of what the database had.
                let why = if version.replaces() { Why::Stale } else { why };
                made(Forward { why, detail: None }, !version.is_unsaved())
            });
            return Ok(layer.give(&version, &parts, layer.engine.now(), made));
        }
        (Answer::Pass(reason), _) => {
            let forward = why.not_stored(Detail::Pass(reason));
            return pass(layer, service, Request::from_parts(parts, body), forward).await;
        }
        (Answer::Failed(failure), _) => match failure.response {
            Some(response) => (response, made(why.not_stored(Detail::Failed), false)),
            None => (
                outgoing::unavailable(failure.retry_in).into(),
                How::Unavailable,
            ),
        },
        (Answer::Unavailable { retry_in }, _) => {
            (outgoing::unavailable(retry_in).into(), How::Unavailable)
        }
    };
    Ok(layer.give_other(&given, head, how))
}

fn without_body_if<B>(
    head: bool,
    response: Response<ResponseBody<B>>,
) -> Response<ResponseBody<B>> {
    if head {
        response.map(|_| ResponseBody::stored(Bytes::new()))
    } else {
        response
    }
}
