//! The layer of requests that may be sent twice and are to be done once.

use std::{
    collections::BTreeSet,
    fmt,
    panic::resume_unwind,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
    request::Parts, uri::Authority,
};
use http_body::Body;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use crate::{
    key::hex,
    layer::{
        ResponseBody, ResponseFuture,
        future::oneshot,
        problem::problem,
        request::asked_path,
        response::{self, Read},
    },
    lock::{IDEMPOTENCY_PREFIX, Lease, LockName, Locks},
    refresh::DAY,
    store::{Edition, Entry, Probe},
};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The longest key that a client may send, in bytes.
const LONGEST: usize = 255;

/// How long a repeat may as well wait for what is being done.
const SOON: Duration = Duration::from_secs(1);

/// How long a client may as well wait for a database that fails.
const LATER: Duration = Duration::from_secs(5);

/// Does a request once, however often it is sent with the same `Idempotency-Key`, in all processes together; from [`Locks::idempotency`].
///
/// As the draft of the IETF has it (draft-ietf-httpapi-idempotency-key-header-07), for POST and PATCH; other methods pass straight
/// through. The key is the client's own, new for each thing that it wants done, a UUID say, and not longer than 255 bytes.
///
/// | a request with a key | is answered by |
/// |---|---|
/// | that is new | the service, and its response is stored, whatever its status |
/// | that was done | the stored response, with `Idempotency-Replayed: true` |
/// | that is being done | 409 Conflict with `Retry-After` |
/// | that another request had: by its query, its `Content-Type` or its body | 422 Unprocessable Content |
/// | whose request was begun, and nobody knows what came of it | 409 Conflict |
/// | that was done, but whose response could not be stored, as it was too large or broke off | 409 Conflict |
/// | that is missing, empty, too long, or given twice | 400 Bad Request ([`optional`](Self::optional): a missing one passes) |
///
/// What is no response of the service's has a body that says so (RFC 9457). While the database fails the answer is 503, and nothing is done.
///
/// # Who is asking
///
/// A key counts for one path, and for one caller as [`scope`](Self::scope) tells them apart: say it where you can. Without that, a request is another one
/// if any header is that may tell who is asking (`Authorization`, `Cookie`, `Host` and all that are not known to tell nothing, as `User-Agent`, `Accept` and
/// `traceparent`): so nobody is given a response that was somebody else's, and a client whose cookies have changed since is refused by 422, too. Callers who are told apart
/// by something else, a certificate say, need a scope.
///
/// # Crashes
///
/// The service runs in a task of its own: a client who disconnects cancels nothing, and gets the response when it asks again. That it runs is noted before, by a lock with
/// a lease, and that it has, with the response, by one statement. If its process dies in between, or the service panics or returns an error (not a response), nobody knows whether it was done: repeats are told that it is being done until the
/// lease has expired, and then refused, for as long as the note is kept, 90 days at least. Who has found out that it was not done lets it be done by
/// [`break_lock`](Locks::break_lock), on `idempotency/` and the name that `[scope, path, key]` make. Where doing it twice is better than not at all, see
/// [`run_again_after_crash`](Self::run_again_after_crash). All this is as durable as the database: one that loses its last commits when the power fails (SQLite with `synchronous = NORMAL`, as
/// [`Perennial::open`](crate::Perennial::open) has it) forgets what was done a moment before.
///
/// # What is beneath, and what is not
///
/// All that the service answers is stored, a 401 or a 503 of a layer beneath as well. So authentication, limits of rate and load shedding belong outside this layer, and a timeout
/// beneath it, as nothing outside cancels what is being done. Bodies, of requests and of responses, are held in memory up to [`max_body`](Self::max_body); trailers are not passed on. A form that a browser sends as
/// `multipart/form-data` is another one each time, by its boundary.
///
/// Notes and responses stand in the tables of locks and of entries. Expired responses are removed once a day, when a request comes.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct IdempotencyLayer {
    locks: Locks,
    scope: Option<Arc<Scope>>,
    optional: bool,
    lifetime: Duration,
    max_body: usize,
    again: bool,
}

type Scope = dyn Fn(&Parts) -> String + Send + Sync;

impl IdempotencyLayer {
    pub(crate) fn new(locks: Locks) -> Self {
        Self {
            locks,
            scope: None,
            optional: false,
            lifetime: DAY,
            max_body: 1 << 20,
            again: false,
        }
    }

    /// Who is asking, as an outer layer has found out: keys of two callers are two keys, and a caller may come back with another token or
    /// other cookies.
    ///
    /// ```
    /// # #[derive(Clone)]
    /// # struct User { id: String }
    /// # fn f(site: perennial::Perennial) {
    /// let once = site.idempotency().scope(|parts| {
    ///     let user = parts.extensions.get::<User>();
    ///     user.map(|user| user.id.clone()).unwrap_or_default()
    /// });
    /// # }
    /// ```
    pub fn scope(mut self, caller: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.scope = Some(Arc::new(caller));
        self
    }

    /// Lets requests without a key pass, which are then done as often as they are sent. Otherwise they are refused by 400.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// How long a response is kept, and a repeat given it. Default: a day. After that the key is new.
    pub fn lifetime(mut self, time: Duration) -> Self {
        self.lifetime = time;
        self
    }

    /// How large a body may be, in bytes. Default: 1 MiB. A larger request is refused by 413; a larger response is passed on and not stored, and repeats are
    /// told so.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Does again what was begun and of which nobody knows what has come, as soon as the lease has expired: it is done at least once then,
    /// and not at most once.
    pub fn run_again_after_crash(mut self) -> Self {
        self.again = true;
        self
    }
}

/// What is to be done about a request with a key, by what is known of that.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// It was done, and this is how it was answered.
    Replay,
    /// It was done, and how it was answered is not known.
    Unkept,
    /// It was another request.
    Another,
    InProgress,
    /// It was begun, and who began it is no more.
    Unknown,
    /// It is to be done, provided that the lock's fence still is that.
    Run {
        seen: i64,
    },
}

fn turn(probe: &Probe, fingerprint: &str, layer: &IdempotencyLayer) -> Turn {
    if probe.unreadable {
        return Turn::Unkept;
    }
    let lock = probe.lock;
    let free = match &probe.entry {
        Some(entry) if entry.age <= layer.lifetime => {
            let notes = Notes::of(entry);
            return match notes.kept {
                _ if notes.fingerprint != fingerprint => Turn::Another,
                true => Turn::Replay,
                false => Turn::Unkept,
            };
        }
        // It was done under that very lease, also if that was never released.
        Some(entry) => !lock.owned || entry.fence == lock.fence,
        None => !lock.owned,
    };
    match lock.remaining.is_zero() {
        false => Turn::InProgress,
        true if free || layer.again => Turn::Run { seen: lock.fence },
        true => Turn::Unknown,
    }
}

/// What is noted beside a stored response.
struct Notes {
    fingerprint: String,
    /// The response is the service's; otherwise it stands for one that could not be stored.
    kept: bool,
}

impl Notes {
    fn encode(&self) -> String {
        let mut pairs = Serializer::new(String::new());
        pairs.append_pair("fingerprint", &self.fingerprint);
        if self.kept {
            pairs.append_pair("kept", "");
        }
        pairs.finish()
    }

    fn of(entry: &Entry) -> Self {
        let mut notes = Self {
            fingerprint: String::new(),
            kept: false,
        };
        for (name, value) in form_urlencoded::parse(entry.notes.as_bytes()) {
            match &*name {
                "fingerprint" => notes.fingerprint = value.into_owned(),
                "kept" => notes.kept = true,
                _ => {}
            }
        }
        notes
    }
}

/// The client's key: a string of RFC 9651, or what stands there. `None`: there is none. The error says what is wrong with it.
fn key_of(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(KEY).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err("there are two `Idempotency-Key` headers: send one");
    }
    let Ok(text) = line.to_str() else {
        return Err("the `Idempotency-Key` is not plain ASCII: send a UUID, say");
    };
    let text = text.trim();
    let quoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let key = match quoted {
        Some(string) => string.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => text.to_owned(),
    };
    match key.len() {
        0 => Err("the `Idempotency-Key` is empty: send a UUID, say"),
        1..=LONGEST => Ok(Some(key)),
        _ => Err("the `Idempotency-Key` is longer than 255 bytes: send a UUID, say"),
    }
}

/// Whether a header may tell one caller from another: any, but those of which it is known that they don't, and change with each attempt.
fn may_tell_who(name: &str) -> bool {
    let tells_nothing = [
        "accept",
        "accept-encoding",
        "accept-language",
        "baggage",
        "cache-control",
        "connection",
        "content-length",
        "content-type",
        "date",
        "expect",
        "idempotency-key",
        "keep-alive",
        "pragma",
        "priority",
        "referer",
        "te",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "upgrade-insecure-requests",
        "user-agent",
        "via",
        "x-correlation-id",
        "x-request-id",
    ];
    !tells_nothing.contains(&name) && !name.starts_with("sec-")
}

/// Among the extensions of the request that is being done: the lock under which it is. A layer for the same beneath, which would find that taken, lets it
/// pass.
#[derive(Clone)]
struct Doing(LockName);

/// One request with a key.
struct Keyed {
    layer: IdempotencyLayer,
    name: LockName,
    fingerprint: String,
}

impl IdempotencyLayer {
    async fn run<S, ReqBody, ResBody>(
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
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        add(parts.method.as_str().as_bytes());
        add(parts.uri.query().unwrap_or_default().as_bytes());
        let media_type = parts.headers.get(header::CONTENT_TYPE);
        add(media_type.map_or(&b""[..], HeaderValue::as_bytes));
        add(body);
        let scope = match &self.scope {
            Some(scope) => scope(parts),
            None => {
                let authority = parts.uri.authority().map(Authority::as_str);
                add(authority.unwrap_or_default().as_bytes());
                // Sorted, as the lines of different names may come in any order.
                let names = BTreeSet::from_iter(parts.headers.keys().map(HeaderName::as_str));
                for name in names.into_iter().filter(|name| may_tell_who(name)) {
                    add(name.as_bytes());
                    let lines = parts.headers.get_all(name).iter();
                    let lines: Vec<_> = lines.map(HeaderValue::as_bytes).collect();
                    // HTTP/2 may send the cookies in pieces (RFC 9113 §8.2.3).
                    add(&lines.join(&b"; "[..]));
                }
                String::new()
            }
        };
        let name = LockName::from([&*scope, asked_path(parts), key]);
        Keyed {
            name: LockName::from(format!("{IDEMPOTENCY_PREFIX}{}", name.as_str())),
            fingerprint: hex(&digest.finalize()),
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
        let lease = match (turn(&probe, &self.fingerprint, &self.layer), probe.entry) {
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
                let detail = "this `Idempotency-Key` was another request's: send a new one for each thing to be done";
                return refused(StatusCode::UNPROCESSABLE_ENTITY, detail, None);
            }
            (Turn::InProgress, _) => {
                return refused(StatusCode::CONFLICT, in_progress, Some(SOON));
            }
            (Turn::Unknown, _) => {
                let detail = "the first request with this `Idempotency-Key` was begun, and it is not known what has come of it: it is not done again";
                return refused(StatusCode::CONFLICT, detail, None);
            }
            (Turn::Unkept | Turn::Replay, _) => {
                let detail = "the first request with this `Idempotency-Key` was done, and its response is not kept";
                return refused(StatusCode::CONFLICT, detail, None);
            }
        };
        locks.prune_sometimes();
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

    /// Notes that it was done, and how it was answered if that can be kept. If the database fails it goes on trying after this has returned, for as long
    /// as the lease holds by then, in the end without the response.
    async fn done(self, lease: Lease, kept: Option<Response<Bytes>>) {
        if self.publish(&lease, kept.as_ref()).await {
            return end(lease).await;
        }
        let tasks = self.layer.locks.tasks().clone();
        let give_up = Instant::now() + lease.remaining();
        let again = async move {
            let mut kept = kept;
            while Instant::now() < give_up {
                tokio::time::sleep(SOON).await;
                if self.publish(&lease, kept.as_ref()).await {
                    return end(lease).await;
                }
                // It may be what is not taken.
                kept = None;
            }
        };
        tasks.spawn(again.in_current_span());
    }

    /// `false`: it is to be tried again.
    async fn publish(&self, lease: &Lease, kept: Option<&Response<Bytes>>) -> bool {
        let notes = Notes {
            fingerprint: self.fingerprint.clone(),
            kept: kept.is_some(),
        };
        let nothing = Response::default();
        let edition = Edition {
            content: kept.unwrap_or(&nothing),
            notes: &notes.encode(),
            keep: self.layer.lifetime,
        };
        let (store, name) = (self.layer.locks.store(), self.name.as_str());
        let published = store
            .call("publish", |store| {
                store.publish(name, lease.row(), &edition)
            })
            .await;
        if let Ok(false) = published {
            tracing::warn!(
                name,
                "a response could not be stored, as its lock was taken over: repeats are not given it"
            );
        }
        published.is_ok()
    }
}

/// Releases the lock of what was done, and that is noted.
async fn end(lease: Lease) {
    // If it fails, it is tried once more, and then runs out.
    let _ = lease.released_when_dropped().release().await;
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService {
            inner,
            layer: self.clone(),
        }
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("optional", &self.optional)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

/// A service that does a request once, as [`IdempotencyLayer`] describes.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    inner: S,
    layer: IdempotencyLayer,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for IdempotencyService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<ResBody, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The inner service's readiness matters when it is called.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (layer, inner) = (self.layer.clone(), self.inner.clone());
        if !matches!(*request.method(), Method::POST | Method::PATCH) {
            return ResponseFuture::waiting(async move {
                let response = oneshot(inner, request).await?;
                Ok(response.map(ResponseBody::streamed))
            });
        }
        ResponseFuture::waiting(layer.run(inner, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(keys: &[&str]) -> HeaderMap {
        let keys = keys.iter();
        keys.map(|key| (KEY, HeaderValue::from_str(key).expect("a value")))
            .collect()
    }

    #[test]
    fn a_key_is_a_string_or_what_stands_there() {
        for (sent, key) in [
            ("\"a-b\"", "a-b"),
            ("a-b", "a-b"),
            (" a/b% ", "a/b%"),
            ("\"a\\\"b\\\\\"", "a\"b\\"),
            ("\"a", "\"a"),
        ] {
            let found = key_of(&headers(&[sent]));
            assert_eq!(found, Ok(Some(key.to_owned())), "{sent}");
        }
        assert_eq!(key_of(&headers(&[])), Ok(None));
        let long = "x".repeat(LONGEST + 1);
        for bad in [&["", ""][..1], &["\"\""], &["a", "b"], &["ä"], &[&long]] {
            assert!(key_of(&headers(bad)).is_err(), "{bad:?}");
        }
    }
}
