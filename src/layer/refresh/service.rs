//! The service.

use std::{
    borrow::Cow,
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, request::Parts};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::{
    clock::Tick,
    error::BoxError,
    extensions::{RefreshAfter, Tags},
    http::conditional::{self, Outcome},
    layer::{
        RefreshLayer, ResponseBody, ResponseFuture,
        future::oneshot as call,
        invalidate::{Change, is_safe},
        refresh::{
            cache_status::{CACHE_STATUS, Detail, Forward, How, Why},
            keying::Resource,
            request,
            response::{self, Kind, Read},
            target::Asked,
        },
    },
    policy::Refresh,
    resource::{
        Answer, Failure, Generated, Generator, Look, Pass, Said, Seed, Target, Version, Visited,
        Work,
    },
    timing::SYNC,
};

/// A service whose responses are kept, as [`RefreshLayer`] describes.
pub struct RefreshService<S>(Arc<Shared<S>>);

/// What all clones of a service have in common, so that cloning it, as servers do for each request, is cheap.
struct Shared<S> {
    layer: RefreshLayer,
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
    fn inner(&self) -> S {
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
                let response = response::unavailable(retry_in);
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

/// What only the visitor that started a regeneration can be given, as it can't be copied.
enum Direct<B, E> {
    /// A response that is too large to be kept.
    TooLarge(Response<ResponseBody<B>>),
    /// The service's error, or its answer in failure: too large, or somebody's own.
    Failed(Result<Response<ResponseBody<B>>, E>),
}

impl RefreshLayer {
    /// A version, for one request; `made`: generated for it.
    fn give<B>(
        &self,
        version: &Arc<Version>,
        parts: &Parts,
        now: Tick,
        made: Option<How>,
    ) -> Response<ResponseBody<B>> {
        #[cfg(feature = "compression")]
        let representation = self.engine.represent(version, &parts.headers);
        #[cfg(not(feature = "compression"))]
        let representation = &version.plain;
        let kept = &representation.content;
        let head = parts.method == Method::HEAD;
        let age = Duration::from_secs(version.age_before).saturating_add(version.age(now));
        let said = Said {
            age: age.as_secs(),
            ttl: version.ttl(now, &self.policy, &self.engine.known),
            client: self.policy.client,
        };
        let how = made.unwrap_or(How::Hit { ttl: said.ttl });
        let make = || {
            let mut headers = kept.headers().clone();
            response::say_age(&mut headers, said, age);
            self.say(&mut headers, how);
            headers
        };
        let headers = |take: fn(Cow<'_, HeaderMap>) -> HeaderMap| match made {
            Some(_) => take(Cow::Owned(make())),
            None => representation.given(said, make, take),
        };
        match conditional::evaluate(&parts.headers, kept, head) {
            Outcome::Whole => response::give(kept, headers(|whole| whole.into_owned()), head),
            Outcome::Part(part) => response::part(kept, headers(|whole| whole.into_owned()), part),
            Outcome::NotModified => {
                response::not_modified(headers(|whole| response::validating(&whole)))
            }
            Outcome::PreconditionFailed => {
                let mut response = response::precondition_failed();
                self.say(response.headers_mut(), how);
                response
            }
        }
    }

    /// A response that is no version.
    fn give_other<B>(
        &self,
        response: &Response<Bytes>,
        head: bool,
        how: How,
    ) -> Response<ResponseBody<B>> {
        let mut response = response::give(response, response.headers().clone(), head);
        self.say(response.headers_mut(), how);
        response
    }

    /// Says how a response came about.
    fn say(&self, headers: &mut HeaderMap, how: How) {
        if self.engine.settings.cache_status {
            headers.append(CACHE_STATUS, how.value());
        }
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
    let response = pass(layer.clone(), service, request, Forward::METHOD).await;
    let (status, others) = match &response {
        Ok(response) => {
            let others = asked.names_in(response.headers(), &layer.key);
            (Some(response.status()), others)
        }
        Err(_) => (None, Vec::new()),
    };
    change.settle(status, others).await;
    response
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
                response::unavailable(failure.retry_in).into(),
                How::Unavailable,
            ),
        },
        (Answer::Unavailable { retry_in }, _) => {
            (response::unavailable(retry_in).into(), How::Unavailable)
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

/// What makes the content of a key: the request that the service is given. Memory holds on to it, and so must not to the service, which
/// may hold on to the site.
struct RouteSeed<S, ReqBody> {
    shared: Weak<Shared<S>>,
    policy: Refresh,
    request: Request<()>,
    body: PhantomData<fn() -> ReqBody>,
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
async fn generate<S, ReqBody, ResBody>(
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
            let response = response::failed(response::keepable(&head, body), retry_in);
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
