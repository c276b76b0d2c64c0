//! A request that is done once.

use std::{panic::resume_unwind, sync::atomic::Ordering::Relaxed, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, request::Parts};
use http_body::Body;
use tower_service::Service;
use tracing::Instrument;

use crate::{
    layer::{
        IdempotencyLayer, ResponseBody,
        future::oneshot,
        idempotency::known::{self, Asked, Turn, key_of, turn},
        problem::problem,
        refresh::{
            request::asked_path,
            response::{self, Read},
        },
    },
    locks::LockName,
    name::IDEMPOTENCY,
    store::Entry,
};

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// How long a repeat may as well wait for what is being done.
const SOON: Duration = Duration::from_secs(1);

/// How long a client may as well wait for a database that fails.
const LATER: Duration = Duration::from_secs(5);

/// Among the extensions of the request that is being done: the lock under which it is. A layer for the same beneath, which would find that taken, lets it
/// pass.
#[derive(Clone)]
struct Doing(LockName);

/// One request with a key.
pub(super) struct Keyed {
    pub(super) layer: IdempotencyLayer,
    pub(super) name: LockName,
    pub(super) asked: Asked,
}

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
        let body = match response::read(body, self.max_body).await {
            Ok(Read::Whole(body)) => body,
            Ok(Read::TooLarge(_)) => {
                let detail = "the body is larger than this route takes";
                return refused(StatusCode::PAYLOAD_TOO_LARGE, detail);
            }
            Err(_) => return refused(StatusCode::BAD_REQUEST, "the body broke off"),
        };
        let keyed = self.keyed(&parts, &key, &body);
        let outer = parts.extensions.insert(Doing(keyed.name.clone()));
        let request = Request::from_parts(parts, ReqBody::from(body));
        if outer.is_some_and(|Doing(name)| name == keyed.name) {
            return Ok(oneshot(service, request).await?.map(ResponseBody::streamed));
        }
        let tasks = keyed.layer.locks.tasks().clone();
        let task = tasks.spawn(keyed.run(service, request).in_current_span());
        match task.await {
            Ok(response) => response,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime shuts down.
                Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "the server shuts down"),
            },
        }
    }

    fn keyed(self, parts: &Parts, key: &str, body: &Bytes) -> Keyed {
        if self.scope.is_none() && !self.warned.swap(true, Relaxed) {
            tracing::warn!(
                path = asked_path(parts),
                "an idempotency layer has no `IdempotencyLayer::scope`: callers are told apart by the headers whose names say that they tell who is asking, and by no others (said once; `.scope(|_| None)` leaves it at that)"
            );
        }
        let scope = self.scope.as_ref().and_then(|scope| scope(parts));
        let asked = Asked {
            what: known::what(parts, body),
            who: known::who(parts, scope.is_some()),
        };
        let name = LockName::from([&*scope.unwrap_or_default(), asked_path(parts), key]);
        Keyed {
            name: LockName::from(format!("{IDEMPOTENCY}{}", name.as_str())),
            asked,
            layer: self,
        }
    }
}

impl Keyed {
    async fn run<S, ReqBody, ResBody>(
        self,
        service: S,
        request: Request<ReqBody>,
    ) -> Result<Response<ResponseBody<ResBody>>, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes>,
    {
        let locks = &self.layer.locks;
        let (store, name) = (locks.store(), self.name.as_str());
        // The store has logged what fails.
        let away = || {
            let detail =
                "it can't be noted at the moment that this is being done, and so it is not done";
            Ok(problem(
                StatusCode::SERVICE_UNAVAILABLE,
                detail,
                &[],
                Some(LATER),
            ))
        };
        let Ok(probe) = store
            .call("probe", |store| store.probe(name, name, 0))
            .await
        else {
            return away();
        };
        let refused = |status, detail, retry_in| Ok(problem(status, detail, &[], retry_in));
        let in_progress =
            "the first request with this `Idempotency-Key` is still being served: ask again";
        let lease = match (
            turn(&probe, &self.asked, self.layer.lifetime, self.layer.again),
            probe.entry,
        ) {
            (Turn::Run { seen }, _) => match locks.try_lock_seen(name.to_owned(), seen).await {
                Ok(Some(lease)) => lease,
                Ok(None) => return refused(StatusCode::CONFLICT, in_progress, Some(SOON)),
                Err(_) => return away(),
            },
            (Turn::Replay, Some(Entry { content, .. })) => {
                let replayed = HeaderValue::from_static("true");
                let mut response = content.map(ResponseBody::stored);
                response.headers_mut().insert(REPLAYED, replayed);
                return Ok(response);
            }
            (Turn::Another, _) => {
                let detail = "this `Idempotency-Key` was another request's, with another body, query or `Content-Type`: send a new one for each thing to be done, and the same request if it is the same thing";
                return refused(StatusCode::UNPROCESSABLE_ENTITY, detail, None);
            }
            (Turn::AnotherCaller, _) => {
                tracing::warn!(
                    name,
                    "an `Idempotency-Key` came again with other credentials or to another host; where credentials may change, tell callers apart by `IdempotencyLayer::scope`"
                );
                let detail = "this `Idempotency-Key` was sent by somebody else, with other credentials or to another host: if it was yours, send it as you did then; a new one would have the thing done again";
                return refused(StatusCode::UNPROCESSABLE_ENTITY, detail, None);
            }
            (Turn::InProgress, _) => {
                return refused(StatusCode::CONFLICT, in_progress, Some(SOON));
            }
            (Turn::Unknown, _) => {
                tracing::warn!(
                    name,
                    "nobody knows what has come of a request with an `Idempotency-Key`, as whoever did it is no more: find out, and if it was not done, `Locks::break_lock` on this name lets it be done"
                );
                let detail = "the first request with this `Idempotency-Key` was begun, and it is not known what has come of it: it is not done again. Ask whoever runs this service; a new key would have it done again";
                return refused(StatusCode::CONFLICT, detail, None);
            }
            (Turn::Unkept | Turn::Replay, _) => {
                let detail = "the first request with this `Idempotency-Key` was done, and its response is not kept";
                return refused(StatusCode::CONFLICT, detail, None);
            }
        };
        self.layer.pruner.prune();
        // From here on it is done, or nobody knows.
        let lease = lease.left_when_dropped();
        let (head, body) = oneshot(service, request).await?.into_parts();
        let (kept, body) = match response::read(body, self.layer.max_body).await {
            Ok(Read::Whole(body)) => {
                let whole = response::is_well_framed(&head.headers, &body);
                let content = whole.then(|| response::keepable(&head, body.clone()));
                (content, Ok(ResponseBody::stored(body)))
            }
            Ok(Read::TooLarge(body)) => (None, Ok(body)),
            Err(_) => (None, Err("the response broke off")),
        };
        self.done(lease, kept).await;
        match body {
            Ok(body) => Ok(Response::from_parts(head, body)),
            Err(detail) => refused(StatusCode::INTERNAL_SERVER_ERROR, detail, None),
        }
    }
}
