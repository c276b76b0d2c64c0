//! Carries out the decisions of [`state`](super::state) about a request.

use std::{panic::resume_unwind, sync::atomic::Ordering::Relaxed};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header, request::Parts};
use http_body::Body;
use tokio::{sync::oneshot as channel, time::Instant};
use tower_service::Service;
use tracing::Instrument;

use crate::{
    clock::Clock,
    error::Error,
    event::Event,
    http::stored,
    layer::{
        ResponseBody,
        body::{Read, read},
        future::oneshot,
        idempotency::{
            IdempotencyLayer,
            fingerprint::{Fingerprint, key_of},
            state::{self, Answer, Found, Next, Published, Stored, Storing},
        },
        problem::problem,
        refresh::request::original_uri,
    },
    lock::{Lease, LockKind, LockName},
    store::{NewEntry, Probe, Probed, Publish},
    timing::{Backoff, RESPONSE_PAUSES},
};

/// The name of the lock under which a request runs, in the request's extensions. An inner layer of
/// this kind that computes the same name would find the lock taken, and therefore lets the request
/// pass.
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
        let refused =
            |status, detail| Ok(problem(status, detail, &[], None).map(ResponseBody::stored));
        let is_covered = matches!(parts.method, Method::POST | Method::PATCH);
        let key = match key_of(&parts.headers) {
            key if !is_covered || (self.optional && key == Ok(None)) => {
                let request = Request::from_parts(parts, body);
                return Ok(oneshot(service, request).await?.map(ResponseBody::streamed));
            }
            Ok(Some(key)) => key,
            Ok(None) => {
                let detail = "the `Idempotency-Key` header is missing: send a new one for each new request, such as a UUID";
                return refused(StatusCode::BAD_REQUEST, detail);
            }
            Err(detail) => return refused(StatusCode::BAD_REQUEST, detail),
        };
        // The body is read before any lock is taken, as the client may send slowly.
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

/// A request with a key.
struct Driver {
    layer: IdempotencyLayer,
    name: LockName,
    fingerprint: Fingerprint,
}

impl Driver {
    fn new(layer: IdempotencyLayer, parts: &Parts, key: &str, body: &Bytes) -> Self {
        // Without the changes by nested routers.
        let path = original_uri(parts).path();
        if layer.scope.is_none() && !layer.warned.swap(true, Relaxed) {
            tracing::warn!(
                path,
                "an idempotency layer has no `IdempotencyLayer::scope`: callers are identified by the headers whose names say so, and by nothing else (logged once; `.scope(|_| None)` accepts that)"
            );
        }
        let scope = layer.scope.as_ref().and_then(|scope| scope(parts));
        let fingerprint = Fingerprint::new(parts, body, scope.is_some());
        let name = LockName::from([&*scope.unwrap_or_default(), path, key]);
        Self {
            name: LockName::of(LockKind::Request, name),
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
            Err(answer) => {
                if matches!(answer, Answer::Replay(_)) {
                    let name = self.name.as_str().into();
                    let observer = self.layer.locks.observer();
                    observer.emit(Event::IdempotentReplay { name });
                }
                return Ok(answer.into_response(self.name.as_str()));
            }
        };
        self.layer.pruner.prune();
        let response = oneshot(service, request).await?;
        if asks_to_repeat(&response) {
            // After a failed release the outcome counts as unknown.
            let _ = lease.release().await;
            return Ok(response.map(ResponseBody::streamed));
        }
        let (head, body) = response.into_parts();
        let (whole, body) = match read(body, self.layer.max_body).await {
            Ok(Read::Whole(body)) => {
                let whole = stored::is_well_framed(&head.headers, &body);
                let whole = whole.then(|| stored::storable(&head, body.clone()));
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
            Err(detail) => problem(StatusCode::INTERNAL_SERVER_ERROR, detail, &[], None)
                .map(ResponseBody::stored),
        })
    }

    async fn acquire(&self) -> Result<Lease, Answer<Response<Bytes>>> {
        let locks = &self.layer.locks;
        let request = state::Request {
            fingerprint: &self.fingerprint,
            lifetime: self.layer.lifetime,
            run_again: self.layer.run_again,
        };
        let (store, clock) = (locks.store(), Clock::start());
        let probed = store.call(Probe::new(&self.name, 0));
        let free = request.probed(probed.await.map(Found::from))?;
        let tried = locks.take(&self.name, "", Some(free.seen)).await;
        free.tried(clock.elapsed(), tried)
    }

    /// Stores the response, or the note that there was one. Drops `trying` after the first try.
    ///
    /// The lease is extended meanwhile, so that a repeat gets 409 with `Retry-After`. A lease that
    /// has ended is not revived: that statement would need the database as much as the note does.
    async fn store(
        self,
        lease: Lease,
        response: Option<Response<Bytes>>,
        trying: channel::Sender<()>,
    ) {
        let (begun, name) = (Instant::now(), self.name.as_str());
        let mut trying = Some(trying);
        let mut backoff = Backoff::new(RESPONSE_PAUSES).random();
        let mut storing = Storing::new(lease, response, begun.elapsed());
        loop {
            let published = self.publish(&storing).await;
            let closing = self.layer.locks.tasks().is_closed();
            let answer = Published::from(&published);
            let error = published.err().map(|error| format!("{error:#}"));
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
                        "the database refuses a response: repeats get 409, as the request was done and its response is not stored"
                    );
                    storing
                }
                Next::Release(lease) => {
                    // A failed release is tried once more. Without the second release the lease
                    // expires, which changes nothing for repeats.
                    let _ = lease.release().await;
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
                        "neither a response nor the note that its request was done could be stored: repeats get 409, as the outcome is unknown"
                    );
                    return;
                }
            }
        }
    }

    async fn publish(&self, storing: &Storing<Lease, Response<Bytes>>) -> Result<bool, Error> {
        let entry = NewEntry {
            epoch: 0,
            interval: std::time::Duration::ZERO,
            renews: None,
            content: storing.response.clone().unwrap_or_default(),
            metadata: self.fingerprint.metadata(storing.response.is_some()),
            history: String::new(),
            retention: self.layer.lifetime,
        };
        let store = self.layer.locks.store();
        let publish = store.call(Publish::new(storing.lease.row(), entry));
        publish.await
    }
}

/// Returns true if the service says that it has done nothing, and that the client may repeat the
/// request (RFC 9110 §10.2.3).
fn asks_to_repeat<B>(response: &Response<B>) -> bool {
    let refuses = matches!(response.status().as_u16(), 409 | 429 | 503);
    refuses && response.headers().contains_key(header::RETRY_AFTER)
}

impl From<Probed> for Found<Response<Bytes>> {
    fn from(probe: Probed) -> Self {
        let stored = probe.entry.map(|entry| {
            let (fingerprint, whole) = Fingerprint::from_metadata(&entry.metadata);
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

#[cfg(test)]
mod tests {
    //! The driver over a store in memory with faults, in virtual time.

    use std::{
        convert::Infallible,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::Duration,
    };

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use tokio::time::{Instant, advance, sleep};
    use tower::{Layer, ServiceExt, service_fn};

    use crate::{
        error::{BoxError, Unfit},
        layer::idempotency::IdempotencyLayer,
        lock::{LockKind, LockName, Locks},
        store::Store,
        testing::internal::{Backend, Call, CallFuture, Inspect, Memory, Publish, Reply, TryLock},
    };

    const MINUTE: Duration = Duration::from_mins(1);
    /// The limit of a statement.
    const LIMIT: Duration = Duration::from_secs(5);
    /// Longer than the pause between two tries.
    const SOON: Duration = Duration::from_secs(3);

    #[derive(Clone, Default)]
    struct Database(Arc<(Memory, Mutex<Faults>)>);

    #[derive(Clone, Copy, Default)]
    struct Faults {
        away_until: Option<Instant>,
        /// The number of publishes that are refused though the lease holds.
        lags: usize,
        /// The responses that the store refuses.
        rejects: Option<Rejects>,
        /// The pause of the process before its next try.
        pause: Duration,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Rejects {
        ByAnswer,
        /// The connection breaks.
        Silently,
    }

    impl Database {
        fn tell(&self, change: impl FnOnce(&mut Faults)) {
            change(&mut self.0.1.lock().expect("not poisoned"));
        }

        fn away_for(&self, time: Duration) {
            self.tell(|faults| faults.away_until = Some(Instant::now() + time));
        }

        fn is_owned(&self) -> bool {
            let name = LockName::of(LockKind::Request, ["", "/pay", "k"]);
            let lock = Call::Inspect(Inspect { name });
            matches!(self.0.0.apply(&lock), Reply::Inspect(Some(lock)) if lock.owner.is_some())
        }
    }

    impl Database {
        async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
            let faults = *self.0.1.lock().expect("not poisoned");
            if faults
                .away_until
                .is_some_and(|until| Instant::now() < until)
            {
                return Err("is away".into());
            }
            match &call {
                Call::Publish(Publish { entry, .. }) => match faults.rejects {
                    Some(_) if entry.content.body().is_empty() => {}
                    Some(Rejects::ByAnswer) => return Err(Unfit("is too large".into()).into()),
                    Some(Rejects::Silently) => return Err("the connection is reset".into()),
                    None if faults.lags > 0 => {
                        self.tell(|faults| faults.lags -= 1);
                        return Ok(Reply::Publish(false));
                    }
                    None => {}
                },
                Call::TryLock(TryLock { .. }) => {
                    self.tell(|faults| faults.pause = Duration::ZERO);
                    advance(faults.pause).await;
                }
                _ => {}
            }
            Ok(self.0.0.apply(&call))
        }
    }

    impl Backend for Database {
        fn call(&self, call: Call) -> CallFuture<'_> {
            Box::pin(self.answer(call))
        }
    }

    /// A site that charges once, over a database with faults.
    struct Site {
        database: Database,
        locks: Locks,
        layer: IdempotencyLayer,
        charges: Arc<AtomicUsize>,
        fault: fn(&Database),
    }

    impl Site {
        fn new(fault: fn(&Database)) -> Self {
            let database = Database::default();
            let store = Store::new(Box::new(database.clone()), LIMIT, LIMIT, None);
            let locks = Locks::with_store(store);
            Self {
                database,
                layer: locks.idempotency(),
                locks,
                charges: Arc::default(),
                fault,
            }
        }

        /// Pays; the status and the body of the answer.
        async fn pay(&self) -> (u16, String) {
            self.pay_at("shop.example").await
        }

        async fn pay_at(&self, host: &str) -> (u16, String) {
            let (charges, database, fault) =
                (self.charges.clone(), self.database.clone(), self.fault);
            let charge = service_fn(move |_: Request<Full<Bytes>>| {
                let charge = charges.fetch_add(1, SeqCst) + 1;
                fault(&database);
                let body = Full::from(format!("charge {charge}"));
                std::future::ready(Ok::<_, Infallible>(Response::new(body)))
            });
            let request = Request::post("/pay").header("idempotency-key", "k");
            let request = request.header("host", host);
            let request = request.body(Full::default()).expect("a request");
            let Ok(response) = self.layer.layer(charge).oneshot(request).await;
            let status = response.status().as_u16();
            let Ok(body) = response.into_body().collect().await;
            let body = body.to_bytes();
            (status, String::from_utf8(body.to_vec()).expect("text"))
        }

        /// Pays for the first time, which is answered whatever happens to the database.
        async fn first(&self) {
            assert_eq!(self.pay().await, (200, "charge 1".to_owned()));
        }

        /// Pays again, which is answered by the stored response, or by a problem in these words.
        async fn again(&self, expected_text: &str) {
            let (status, body) = self.pay().await;
            let expected = match expected_text {
                "charge 1" => 200,
                "not done" => 503,
                _ => 409,
            };
            assert!(
                status == expected && body.contains(expected_text),
                "{status}: {body}"
            );
            assert_eq!(self.charges.load(SeqCst), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn response_is_stored_after_an_outage_longer_than_the_lease() {
        let site = Site::new(|database| database.away_for(3 * MINUTE));
        site.first().await;
        sleep(2 * MINUTE).await;
        site.again("not done").await;
        sleep(MINUTE + SOON).await;
        site.again("charge 1").await;
        assert!(!site.database.is_owned());
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_are_told_to_ask_again_while_the_response_is_tried() {
        let site =
            Site::new(|database| database.tell(|faults| faults.rejects = Some(Rejects::Silently)));
        site.first().await;
        for _ in 0..9 {
            sleep(MINUTE).await;
            site.again("still being served").await;
        }
        // A short note gets through, as the database is not away.
        sleep(MINUTE + SOON).await;
        site.again("is not stored").await;
    }

    #[tokio::test(start_paused = true)]
    async fn response_is_stored_when_its_publish_was_refused_once() {
        let site = Site::new(|database| database.tell(|faults| faults.lags = 1));
        site.first().await;
        assert!(site.database.is_owned());
        sleep(SOON).await;
        site.again("charge 1").await;
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_not_new_when_each_publish_is_refused() {
        let site = Site::new(|database| database.tell(|faults| faults.lags = usize::MAX));
        site.first().await;
        site.again("still being served").await;
        sleep(MINUTE).await;
        for _ in 0..3 {
            site.again("is unknown").await;
            sleep(30 * MINUTE).await;
        }
        assert!(site.database.is_owned());
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_the_database_does_not_take_is_dropped_at_once() {
        let site =
            Site::new(|database| database.tell(|faults| faults.rejects = Some(Rejects::ByAnswer)));
        site.first().await;
        site.again("is not stored").await;
    }

    #[tokio::test(start_paused = true)]
    async fn response_is_given_up_after_minutes_and_the_key_is_not_new() {
        let site = Site::new(|database| database.away_for(30 * MINUTE));
        site.first().await;
        sleep(31 * MINUTE).await;
        site.again("is unknown").await;
    }

    #[tokio::test(start_paused = true)]
    async fn request_does_not_run_when_its_process_was_paused_before_the_try() {
        let site = Site::new(|_| {});
        site.database.tell(|faults| faults.pause = 2 * 60 * MINUTE);
        let (status, body) = site.pay().await;
        assert!(
            status == 409 && body.contains("still being served"),
            "{body}"
        );
        assert_eq!(site.charges.load(SeqCst), 0);
        sleep(SOON).await;
        site.first().await;
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_for_the_response_to_be_stored_but_not_for_ever() {
        let brief: fn(&Database) = |database| database.away_for(SOON);
        let long: fn(&Database) = |database| database.away_for(5 * MINUTE);
        for (outage, said) in [(brief, "charge 1"), (long, "is unknown")] {
            let site = Site::new(outage);
            site.first().await;
            let asked = Instant::now();
            site.locks.shutdown().await;
            assert!(asked.elapsed() < MINUTE / 2, "{:?}", asked.elapsed());
            site.database.away_for(Duration::ZERO);
            sleep(MINUTE).await;
            site.again(said).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn users_of_two_hosts_are_two_callers_in_one_scope() {
        let mut site = Site::new(|_| {});
        site.layer = site.layer.scope(|_| Some("7".to_owned()));
        site.first().await;
        site.again("charge 1").await;
        let (status, body) = site.pay_at("other.example").await;
        assert!(status == 422 && body.contains("another host"), "{body}");
        assert_eq!(site.charges.load(SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn missing_scope_is_logged_once_for_each_layer() {
        let mut site = Site::new(|_| {});
        let log = tempfile::NamedTempFile::new().expect("a file");
        let writer = Arc::new(log.reopen().expect("opens"));
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        let _logged = tracing::subscriber::set_default(subscriber);
        let warnings = || {
            let log = std::fs::read_to_string(&log).expect("is text");
            log.matches("IdempotencyLayer::scope").count()
        };
        site.first().await;
        site.again("charge 1").await;
        assert_eq!(warnings(), 1);
        site.layer = site.locks.idempotency();
        site.again("charge 1").await;
        assert_eq!(warnings(), 2);
        site.layer = site.locks.idempotency().scope(|_| None);
        site.again("charge 1").await;
        assert_eq!(warnings(), 2);
    }
}
