//! Carries out what [`state`](super::state) decides about a request.

use std::{panic::resume_unwind, sync::atomic::Ordering::Relaxed, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body::Body;
use tokio::{sync::oneshot as channel, time::Instant};
use tower_service::Service;
use tracing::Instrument;

use crate::{
    clock::Clock,
    error::Error,
    http::stored,
    layer::{
        IdempotencyLayer, ResponseBody,
        body::{Read, read},
        future::oneshot,
        idempotency::{
            fingerprint::{Fingerprint, key_of},
            state::{self, Answer, Found, Next, Published, Stored, Storing},
        },
        problem::problem,
        refresh::request::asked_path,
    },
    locks::{Lease, LockName},
    name::IDEMPOTENCY,
    store::{Edition, Probe},
    timing::Backoff,
};

/// The shortest and the longest pause between two tries to store a response.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The name of the lock under which a request is served, among the request's extensions. An inner layer with the same name, which
/// would find the lock taken, lets the request pass.
#[derive(Clone)]
struct ServedUnder(LockName);

impl IdempotencyLayer {
    pub(super) async fn run<S, ReqBody, ResBody>(
        self,
        service: S,
        request: Request<ReqBody>,
    ) -> Result<Response<ResponseBody<ResBody>>, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        ReqBody: Body<Data = Bytes> + From<Bytes> + Send + 'static,
        ResBody: Body<Data = Bytes> + Send + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let refused = |status, detail| Ok(problem(status, detail, &[], None));
        let key = match key_of(&parts.headers) {
            Ok(Some(key)) => key,
            Ok(None) if self.optional => {
                let request = Request::from_parts(parts, body);
                return Ok(oneshot(service, request).await?.map(ResponseBody::streamed));
            }
            Ok(None) => {
                let detail = "the `Idempotency-Key` header is missing: send one that is new for each thing to be done, a UUID say";
                return refused(StatusCode::BAD_REQUEST, detail);
            }
            Err(detail) => return refused(StatusCode::BAD_REQUEST, detail),
        };
        // Before anything is locked: it comes as slowly as the client sends it.
        let body = match read(body, self.max_body).await {
            Ok(Read::Whole(body)) => body,
            Ok(Read::TooLarge(_)) => {
                let detail = "the body is larger than this route takes";
                return refused(StatusCode::PAYLOAD_TOO_LARGE, detail);
            }
            Err(_) => return refused(StatusCode::BAD_REQUEST, "the body broke off"),
        };
        let driver = Driver::new(self, &parts, &key, &body);
        let outer = parts.extensions.insert(ServedUnder(driver.name.clone()));
        let request = Request::from_parts(parts, ReqBody::from(body));
        if outer.is_some_and(|ServedUnder(name)| name == driver.name) {
            return Ok(oneshot(service, request).await?.map(ResponseBody::streamed));
        }
        let tasks = driver.layer.locks.tasks().clone();
        let task = tasks.spawn(driver.run(service, request).in_current_span());
        match task.await {
            Ok(response) => response,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime shuts down.
                Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "the server shuts down"),
            },
        }
    }
}

/// One request with a key.
struct Driver {
    layer: IdempotencyLayer,
    name: LockName,
    fingerprint: Fingerprint,
}

impl Driver {
    fn new(layer: IdempotencyLayer, parts: &Parts, key: &str, body: &Bytes) -> Self {
        if layer.scope.is_none() && !layer.warned.swap(true, Relaxed) {
            tracing::warn!(
                path = asked_path(parts),
                "an idempotency layer has no `IdempotencyLayer::scope`: callers are told apart by the headers whose names say that they tell who is asking, and by no others (said once; `.scope(|_| None)` leaves it at that)"
            );
        }
        let scope = layer.scope.as_ref().and_then(|scope| scope(parts));
        let fingerprint = Fingerprint::new(parts, body, scope.is_some());
        let name = LockName::from([&*scope.unwrap_or_default(), asked_path(parts), key]);
        Self {
            name: LockName::from(format!("{IDEMPOTENCY}{}", name.as_str())),
            fingerprint,
            layer,
        }
    }

    async fn run<S, ReqBody, ResBody>(
        self,
        service: S,
        request: Request<ReqBody>,
    ) -> Result<Response<ResponseBody<ResBody>>, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes>,
    {
        let lease = match self.acquire().await {
            Ok(lease) => lease.left_when_dropped(),
            Err(answer) => return Ok(answer.into_response(self.name.as_str())),
        };
        self.layer.pruner.prune();
        let (head, body) = oneshot(service, request).await?.into_parts();
        let (whole, body) = match read(body, self.layer.max_body).await {
            Ok(Read::Whole(body)) => {
                let whole = stored::is_well_framed(&head.headers, &body);
                let whole = whole.then(|| stored::keepable(&head, body.clone()));
                (whole, Ok(ResponseBody::stored(body)))
            }
            Ok(Read::TooLarge(body)) => (None, Ok(body)),
            Err(_) => (None, Err("the response broke off")),
        };
        // The client waits for the first try to store the response.
        let (trying, tried) = channel::channel();
        let tasks = self.layer.locks.tasks().clone();
        tasks.spawn(self.store(lease, whole, trying).in_current_span());
        // Ends when the sender is dropped.
        let _ = tried.await;
        Ok(match body {
            Ok(body) => Response::from_parts(head, body),
            Err(detail) => problem(StatusCode::INTERNAL_SERVER_ERROR, detail, &[], None),
        })
    }

    async fn acquire(&self) -> Result<Lease, Answer<Response<Bytes>>> {
        let (locks, name) = (&self.layer.locks, self.name.as_str());
        let request = state::Request {
            fingerprint: &self.fingerprint,
            lifetime: self.layer.lifetime,
            run_again: self.layer.run_again,
        };
        let (store, clock) = (locks.store(), Clock::start());
        let probed = store.call("probe", |store| store.probe(name, name, 0));
        let free = request.probed(probed.await.map(Found::from))?;
        let tried = locks.try_lock_seen(name.to_owned(), free.seen).await;
        free.tried(clock.elapsed(), tried)
    }

    /// Stores the response, or the note that there was one. Drops `trying` after the first try.
    ///
    /// Meanwhile the lease is extended, so that a repeat is told to ask again. A lease that ended while the database was away stays as
    /// it is: the statement that could revive the lease gets through no sooner than the note.
    async fn store(
        self,
        lease: Lease,
        response: Option<Response<Bytes>>,
        trying: channel::Sender<()>,
    ) {
        let (begun, name) = (Instant::now(), self.name.as_str());
        let mut trying = Some(trying);
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1).random();
        let mut storing = Storing::new(lease, response, begun.elapsed());
        loop {
            let published = self.publish(&storing).await;
            let closing = self.layer.locks.tasks().is_closed();
            let answer = Published::from(&published);
            let error = published.err().map(tracing::field::display);
            storing = match storing.published(begun.elapsed(), answer, closing) {
                Next::Retry(storing) => {
                    drop(trying.take());
                    backoff.pause().await;
                    storing
                }
                Next::RetryWithoutResponse(storing) => {
                    tracing::warn!(
                        name,
                        error,
                        "the database does not take a response: repeats are told that the request was done, and do not get the response"
                    );
                    storing
                }
                Next::Release(lease) => {
                    // A release that fails is tried once more; then the lease runs out, which changes nothing for repeats.
                    let _ = lease.released_when_dropped().release().await;
                    return;
                }
                Next::Leave(_) if answer == Published::Refused => {
                    tracing::warn!(
                        name,
                        "a response could not be stored, as the lock of its request was taken over or broken"
                    );
                    return;
                }
                Next::Leave(_) => {
                    tracing::error!(
                        name,
                        error,
                        "a response could not be stored, nor that its request was done: repeats are told that it is not known"
                    );
                    return;
                }
            }
        }
    }

    async fn publish(&self, storing: &Storing<Lease, Response<Bytes>>) -> Result<bool, Error> {
        let nothing = Response::default();
        let edition = Edition {
            content: storing.response.as_ref().unwrap_or(&nothing),
            notes: &self.fingerprint.notes(storing.response.is_some()),
            keep: self.layer.lifetime,
        };
        let (store, name) = (self.layer.locks.store(), self.name.as_str());
        let publish = store.call("publish", |store| {
            store.publish(name, storing.lease.row(), &edition)
        });
        publish.await
    }
}

impl From<Probe> for Found<Response<Bytes>> {
    fn from(probe: Probe) -> Self {
        let stored = probe.entry.map(|entry| {
            let (fingerprint, whole) = Fingerprint::noted(&entry.notes);
            Stored {
                fence: entry.fence,
                age: entry.age,
                fingerprint,
                response: whole.then_some(entry.content),
            }
        });
        Self {
            stored,
            unreadable: probe.unreadable,
            lock: probe.lock,
        }
    }
}
