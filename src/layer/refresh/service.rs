//! The service of the layer: everything that happens to a request, from the check of its method to the
//! response. Start with `call`: a hit leaves it as a ready future, a bypass goes to `pass`, an unsafe request
//! to `change`, and everything else to `visit`.
//!
//! Invariant: the inner service is cloned, and never called in place, so that a hit does not wait for its
//! readiness.

use std::{
    fmt,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, request::Parts};
use http_body::Body;
use perennial_store::{Epoch, error::BoxError, locked};
use tower_service::Service;

use super::{
    admission::Admitted,
    compare,
    disposition::is_failure,
    explain,
    fill::Recipient,
    generate::generate,
    keying::Resource,
    outgoing,
    own_request::{OwnRequest, Purpose},
    request,
    respond::Forwarded,
    target::RequestHost,
};
use crate::{
    cache::{
        Answer, Generate, Lookup, Readable, Reading, Target, Version, VisitOptions, Visited,
        interval_of, parts::RunContext,
    },
    event::{Bypass, Served},
    extensions::{ExpireAfter, Tags},
    generation::Generation,
    http::cache_status::{Forward, Handling},
    layer::{
        Holes, RefreshLayer, ResponseBody, ResponseFuture,
        future::oneshot as call,
        invalidate::{Change, is_safe},
        own_writes::OwnWrites,
    },
    mode::Mode,
};

/// A service with stored responses; see [`RefreshLayer`].
pub struct RefreshService<S>(Arc<Shared<S>>);

/// The shared part of all clones of a service. Servers clone a service for each request, so cloning
/// is cheap.
pub(super) struct Shared<S> {
    pub(super) layer: RefreshLayer,
    /// Cloned, never called. Only a bypass and a generator need a clone.
    inner: Mutex<S>,
}

impl<S> RefreshService<S> {
    /// Wraps a service in a layer.
    pub fn new(inner: S, layer: RefreshLayer) -> Self {
        let inner = Mutex::new(inner);
        Self(Arc::new(Shared { layer, inner }))
    }

    /// All clones of this service share one inner service. Returns a clone of that.
    pub fn into_inner(self) -> S
    where
        S: Clone,
    {
        self.0.inner()
    }
}

impl<S: Clone> Shared<S> {
    pub(super) fn inner(&self) -> S {
        locked(&self.inner).clone()
    }
}

impl<S> Clone for RefreshService<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// What a request asks for, or why it bypasses the cache.
type KnownResource = Result<Resource<'static>, Bypass>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RefreshService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<ResBody, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The inner service's readiness matters only when the inner service is called.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let layer = &self.0.layer;
        if layer.holes.is_empty() {
            return self.answer(request, None);
        }
        let (mut parts, body) = request.into_parts();
        let shared = Arc::clone(&self.0);
        let resource = match self.hit_to_fill(&parts) {
            Ok(version) => {
                let filled = async move { Ok(shared.layer.fill_hit(&version, parts).await) };
                return ResponseFuture::waiting(filled);
            }
            Err(resource) => resource,
        };
        let recipient = Recipient::of(&mut parts, layer);
        let answer = self.answer(Request::from_parts(parts, body), resource);
        ResponseFuture::waiting(
            async move { Ok(shared.layer.fill(answer.await?, recipient).await) },
        )
    }
}

impl<S> RefreshService<S> {
    /// Returns the version with holes that a visitor gets from memory. If there is such a version, which is the
    /// most frequent case, the service does not get the request, so the functions of the holes can have it
    /// without a copy. If there is none, returns the key, so that the application's functions which made it are
    /// not called a second time.
    fn hit_to_fill(&self, parts: &Parts) -> Result<Arc<Version>, Option<KnownResource>> {
        let layer = &self.0.layer;
        let is_visitors = OwnRequest::of(&parts.extensions).is_none()
            && request::run_context_of(parts).is_none()
            && !explain::may_be_asked(parts, layer);
        let is_authors = OwnWrites::of_visitor(&parts.headers, &layer.cache).is_some();
        if !is_visitors || is_authors || layer.cache.is_off() {
            return Err(None);
        }
        let resource = request::resource(parts, layer).map_err(|why| Some(Err(why)))?;
        let now = layer.cache.now();
        let version = layer
            .cache
            .hit_unless_due(&resource.key, &layer.policy, now);
        version
            .filter(|version| version.page.holes().is_some())
            .ok_or_else(|| Some(Ok(resource.into_owned())))
    }
}

impl<S> RefreshService<S> {
    /// Answers a request; holes of the response are not filled yet. `resource` is that of the request, if the caller
    /// knows it.
    #[inline]
    fn answer<ReqBody, ResBody>(
        &self,
        request: Request<ReqBody>,
        resource: Option<KnownResource>,
    ) -> ResponseFuture<ResBody, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError> + Send + 'static,
        ReqBody: Default + Send + 'static,
        ResBody: Body<Data = Bytes> + Send + 'static,
        ResBody::Error: Into<BoxError>,
    {
        let Shared { layer, .. } = &*self.0;
        let (mut parts, body) = request.into_parts();
        // `None` means that the request is a visitor's.
        let purpose = OwnRequest::of(&parts.extensions).map(OwnRequest::purpose);
        if explain::is_asked(&mut parts, layer, purpose) {
            let shared = Arc::clone(&self.0);
            let compared =
                explain::is_to_be_compared(&mut parts).then_some(async move |parts: &Parts| {
                    compare::compare::<S, ReqBody, ResBody>(&shared, parts).await
                });
            return ResponseFuture::waiting(explain::explain(layer.clone(), parts, compared));
        }
        let pass = |parts, body, why| {
            let shared = Arc::clone(&self.0);
            ResponseFuture::waiting(pass(shared, (parts, body), Forward::Bypass, why))
        };
        let resource = match resource.unwrap_or_else(|| request::resource(&parts, layer)) {
            Ok(resource) => resource,
            Err(why) => {
                if why == Bypass::Method && layer.invalidates && !is_safe(&parts.method) {
                    return ResponseFuture::waiting(change(Arc::clone(&self.0), parts, body));
                }
                return pass(parts, body, why);
            }
        };
        if layer.cache.is_off() {
            return pass(parts, body, Bypass::Off);
        }
        let now = layer.cache.now();
        let run = request::run_context_of(&parts);
        if let Some(run) = &run
            && run.is_within(layer.cache.site(), &resource.key)
        {
            layer.hints.waits_for_itself(&resource.key);
            let response = layer.refuse_itself(&resource.key, &parts, now);
            return ResponseFuture::ready(response);
        }
        let run = run.filter(|run| run.is_generator());
        let author = OwnWrites::of_visitor(&parts.headers, &layer.cache);
        let is_usual = run.is_none() && author.is_none() && purpose.is_none();
        match layer.cache.lookup(&resource.key, &layer.policy, now) {
            Lookup::Hit(Answer::Version(version)) if is_usual => {
                ResponseFuture::ready(layer.give(&version, &parts, now, None, None))
            }
            Lookup::Hit(answer)
                if run.is_none()
                    && purpose != Some(Purpose::Regenerate)
                    && (author.is_none() || !matches!(answer, Answer::Version(_))) =>
            {
                let forwarded = Forwarded::leading(Forward::Bypass);
                match layer.respond(answer, &parts, now, forwarded, None) {
                    Ok(response) => ResponseFuture::ready(response),
                    Err(why) => pass(parts, body, why),
                }
            }
            without_answer => {
                request::hint(&parts, layer);
                let forward = match without_answer {
                    Lookup::Hit(_) | Lookup::Stale => Forward::Stale,
                    Lookup::Purged | Lookup::Miss => Forward::Miss,
                };
                let admitted = match without_answer {
                    Lookup::Miss => layer.admission.admits(&resource.key, now),
                    // The page is already stored, so its key counts as known, and the limit on new keys does not
                    // apply.
                    Lookup::Hit(_) | Lookup::Stale | Lookup::Purged => Admitted::Stored,
                };
                if admitted == Admitted::No {
                    return pass(parts, body, Bypass::TooManyKeys);
                }
                let is_kept_briefly = admitted == Admitted::Briefly;
                let resource = resource.into_owned();
                let shared = Arc::clone(&self.0);
                let request = (parts, body, resource);
                let visit = visit(
                    shared,
                    request,
                    forward,
                    is_kept_briefly,
                    author,
                    run.clone(),
                );
                match run {
                    // If the visit starts regenerations, they count as part of the generator's run, whichever task
                    // polls the visit.
                    Some(run) => ResponseFuture::waiting(run.carry_out(visit)),
                    None => ResponseFuture::waiting(visit),
                }
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
    shared: Arc<Shared<S>>,
    (parts, body): (Parts, ReqBody),
    forward: Forward,
    why: Bypass,
) -> Result<Response<ResponseBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    // If the request comes from a generator of other content, that content inherits the tags and
    // the interval of this response, as it does from a stored page.
    let run =
        request::run_context_of(&parts).filter(|run| run.is_generator() && why != Bypass::Method);
    let own_request = OwnRequest::of(&parts.extensions).cloned();
    let mut request = Request::from_parts(parts, body);
    shared.layer.bypassed(&request, why);
    // That of an outer layer's generator stays.
    request
        .extensions_mut()
        .get_or_insert_default::<Generation>();
    let author = OwnWrites::of_visitor(request.headers(), &shared.layer.cache);
    let waits = !matches!(why, Bypass::Method | Bypass::Off) && run.is_none();
    let author = author.filter(|_| waits);
    let called = call(shared.inner(), request);
    let response = match author {
        Some(author) => author.scope(&shared.layer.cache, called).await,
        None => called.await,
    };
    match (run, &response) {
        (Some(run), Ok(response)) if !is_failure(response.status()) => {
            let tags = response.extensions().get::<Tags>().cloned();
            let Tags(tags) = tags.unwrap_or_default().and(&*shared.layer.tags.0);
            let end = response.extensions().get().map(|ExpireAfter(age)| *age);
            run.inherit_passed(&tags, interval_of(response, &shared.layer.policy), end);
        }
        (Some(run), _) => run.inherit_missing(),
        (None, _) => {}
    }
    let mut response = response?;
    if why != Bypass::Method {
        shared.layer.key.add_vary(response.headers_mut());
    }
    if why.is_of_a_visitor() && !shared.layer.leaves_cache_control {
        outgoing::keep_private(response.headers_mut());
    }
    let how = Handling::Forwarded {
        why: forward,
        served: Served::Bypass(why),
        stored: false,
        collapsed: false,
    };
    shared.layer.served(how, own_request.as_ref());
    shared.layer.set_cache_status(response.headers_mut(), how);
    Ok(response.map(ResponseBody::streamed))
}

/// Passes on a request that may change data, and invalidates the changed pages.
async fn change<S, ReqBody, ResBody>(
    shared: Arc<Shared<S>>,
    parts: Parts,
    body: ReqBody,
) -> Result<Response<ResponseBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    let RefreshLayer { cache, key, .. } = shared.layer.clone();
    let host = RequestHost::of(&parts);
    let request_key = key.resource(&parts);
    let name = request_key.and_then(|key| Target::Key(&key).name().ok());
    let change = Change::of(&cache, name.into_iter().collect());
    let response = pass(shared, (parts, body), Forward::Bypass, Bypass::Method);
    let named = |response: &Response<_>| host.names_in(response.headers(), &key);
    change.settle(response, named).await
}

/// Answers a request that memory cannot answer. `is_kept_briefly` is the field of [`VisitOptions`]. `author`
/// says which changes this visitor has made. If the request was sent by a generator and not by a visitor,
/// `run` is that generator.
async fn visit<S, ReqBody, ResBody>(
    shared: Arc<Shared<S>>,
    (parts, body, resource): (Parts, ReqBody, Resource<'static>),
    forward: Forward,
    is_kept_briefly: bool,
    author: Option<OwnWrites>,
    run: Option<Arc<RunContext>>,
) -> Result<Response<ResponseBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let layer = &shared.layer;
    let own_request = OwnRequest::of(&parts.extensions).cloned();
    let is_forced = own_request
        .as_ref()
        .is_some_and(|request| request.purpose() == Purpose::Regenerate);
    // A page is invalidated only if it can be generated.
    let mut prepared = None;
    if is_forced {
        match request::to_generate(&parts, &resource, layer) {
            Ok(request) => prepared = Some(request),
            Err(why) => return pass(shared, (parts, body), Forward::Bypass, why).await,
        }
    }
    let holes = Arc::clone(&layer.holes);
    let readable: Readable = Arc::new(move |page| match page.holes() {
        Some(known) if !known.fit(page.content().len()) => Reading::Damaged,
        Some(known) if !holes.have_all(&known.names) => Reading::OtherCode,
        Some(_) | None => Reading::Readable,
    });
    // Called only for the request that starts the regeneration.
    let generate = || {
        let request = match prepared.take() {
            Some(request) => request,
            None => request::to_generate(&parts, &resource, layer)?,
        };
        let request = request.map(|()| ReqBody::default());
        let generator = generate(Arc::clone(&shared), request);
        Ok(Generate {
            run: Some(match own_request.clone() {
                Some(own_request) => Box::pin(own_request.watch(generator)),
                None => Box::pin(generator),
            }),
            layer: layer.name_in(&parts.extensions),
            readable: Some(readable.clone()),
        })
    };
    let is_own = own_request.is_some();
    let arrived = layer.cache.now();
    let policy = match &own_request {
        Some(own_request) => &own_request.policy(&layer.policy),
        None => &layer.policy,
    };
    let options = VisitOptions {
        is_kept_briefly,
        ..VisitOptions::default()
    };
    let key = &*resource.key;
    let Visited { answer, leads } = match (is_forced, &run) {
        (false, Some(run)) => {
            let visit = layer
                .cache
                .visit_as_part(key, policy, run, options, generate);
            visit.await
        }
        (true, _) => {
            let visit = layer.cache.regenerate(key, policy, options, generate);
            visit.await
        }
        (false, None) => {
            let min_epoch = match author {
                Some(author) => author.wait_until_known(&layer.cache).await,
                None => Epoch::NONE,
            };
            let options = VisitOptions {
                min_epoch,
                ..options
            };
            let visit = layer.cache.visit(key, policy, options, generate);
            let Visited { answer, leads } = visit.await;
            let answer = match author {
                Some(_) => layer.cache.or_servable(answer, key, policy),
                None => answer,
            };
            Visited { answer, leads }
        }
    };
    let now = layer.cache.now();
    if let (Some(_), Answer::Version(version)) = (&run, &answer) {
        return Ok(layer.give_to_generator(version, &parts, now));
    }
    let forwarded = Forwarded {
        why: forward,
        collapsed: !leads,
    };
    let is_new = matches!(&answer, Answer::Version(version) if version.is_made_since(arrived));
    let is_visitors = run.is_none() && parts.method == Method::GET && !is_own;
    if leads && is_new && is_visitors && layer.cache.settings().mode == Mode::Development {
        compare::compare_once(&shared, key, || {
            let mut visitor = parts.clone();
            // The visitor's `Holes` are removed here, because the generator's response counts as a page with marks
            // as long as anybody else holds them.
            visitor.extensions.remove::<Holes>();
            visitor
        });
    }
    match layer.respond(answer, &parts, now, forwarded, Some(arrived)) {
        Ok(response) => Ok(response),
        Err(why) => {
            let forward = match why {
                // This request may not cause the generation of a shared page, whatever the cache has, so that is the
                // reason to report.
                Bypass::UndeclaredExtension | Bypass::NoKey => Forward::Bypass,
                _ => forward,
            };
            pass(Arc::clone(&shared), (parts, body), forward, why).await
        }
    }
}
