//! Carries out the decisions of [`state`](super::state) about a request.

use std::panic::resume_unwind;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body::Body;
use tokio::{sync::oneshot as channel, time::Instant};
use tower_service::Service;
use tracing::Instrument;

use crate::{
    error::ErrorKind,
    event::Event,
    http::stored,
    layer::{
        ResponseBody,
        body::{Read, read},
        future::oneshot,
        idempotency::{
            IdempotencyLayer,
            key::{fingerprint, key_of},
            state::{Answer, Attempt, Ending, Finished, Loss, Next, Storing},
        },
        problem::problem,
    },
    store::{Begin, Finish, Forget, undo},
    timing::{BEGIN_TRIES, Backoff, RESPONSE_PAUSES, STATEMENT_PAUSES, UNKNOWN_OUTCOME},
};

/// The name of the row of a request that is being served, in the request's extensions. An inner
/// layer of this kind that computes the same name would find its own request running, and therefore
/// lets the request pass.
#[derive(Clone)]
struct ServedUnder(String);

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
        let Some(scope) = (self.scope)(&parts) else {
            let detail = "the caller of this request is not known, so its `Idempotency-Key` belongs to nobody: log in first";
            return refused(StatusCode::BAD_REQUEST, detail);
        };
        // The body is read before the row is inserted, as the client may send slowly.
        let body = match read(body, self.max_body).await {
            Ok(Read::Whole(body)) => body,
            Ok(Read::TooLarge(_)) => {
                let detail = "the body is larger than this route takes";
                return refused(StatusCode::PAYLOAD_TOO_LARGE, detail);
            }
            Err(_) => return refused(StatusCode::BAD_REQUEST, "the body broke off"),
        };
        let name = Self::row(&scope, &key);
        let outer = parts.extensions.insert(ServedUnder(name.clone()));
        let driver = Driver {
            fingerprint: fingerprint(&parts, &body),
            owner: self.locks.owner(),
            name,
            layer: self,
        };
        let request = Request::from_parts(parts, ReqBody::from(body));
        if outer.is_some_and(|ServedUnder(name)| name == driver.name) {
            return Ok(oneshot(service, request).await?.map(ResponseBody::streamed));
        }
        let tasks = driver.layer.locks.tasks().clone();
        let response = oneshot(service, request);
        let task = tasks.spawn(driver.run(response).in_current_span());
        match task.await {
            Ok(response) => response,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime shuts down.
                Err(_) => {
                    let detail = "the server is shutting down; the outcome is unknown";
                    refused(StatusCode::SERVICE_UNAVAILABLE, detail)
                }
            },
        }
    }
}

/// A request with a key.
struct Driver {
    layer: IdempotencyLayer,
    name: String,
    owner: String,
    fingerprint: String,
}

impl Driver {
    /// Runs the request, unless it was begun before. `response`: of the service, which is called
    /// when the future is polled.
    async fn run<B: Body<Data = Bytes>, E>(
        self,
        response: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<ResponseBody<B>>, E> {
        let attempt = match self.begin().await {
            Ok(attempt) => attempt,
            Err(answer) => {
                if matches!(answer, Answer::Replay(_)) {
                    let name = self.name.as_str().into();
                    let observer = self.layer.locks.observer();
                    observer.emit(Event::IdempotentReplay { name });
                }
                return Ok(answer.into_response(&self.name));
            }
        };
        self.layer.prune();
        let response = response.await?;
        if asks_to_repeat(&response) {
            let forgotten = self.layer.locks.store().call(self.forget()).await;
            if attempt.may_return(forgotten.is_ok()) {
                undo(self.layer.locks.store(), self.forget());
            }
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
        tasks.spawn(self.store(whole, trying).in_current_span());
        // Ends when the sender is dropped.
        let _ = tried.await;
        Ok(match body {
            Ok(body) => Response::from_parts(head, body),
            Err(detail) => problem(StatusCode::INTERNAL_SERVER_ERROR, detail, &[], None)
                .map(ResponseBody::stored),
        })
    }

    /// Begins the request, or returns the answer to give without a run of the service.
    async fn begin(&self) -> Result<Attempt, Answer<Response<Bytes>>> {
        let (layer, store) = (&self.layer, self.layer.locks.store());
        let begin = Begin {
            name: self.name.clone(),
            owner: self.owner.clone(),
            fingerprint: self.fingerprint.clone(),
            length: layer.run_again.unwrap_or(layer.unknown_after),
            retention: layer.lifetime.max(UNKNOWN_OUTCOME),
            again: layer.run_again,
        };
        let mut backoff = Backoff::new(STATEMENT_PAUSES).random().tries(BEGIN_TRIES);
        let mut attempt = Attempt::default();
        loop {
            let begun = match store.call(begin.clone()).await {
                Ok(begun) => Ok(begun),
                // The client has waited for a statement's whole time.
                Err(error) if error.kind() == ErrorKind::Timeout => Err(Loss::Last),
                Err(_) if backoff.pause().await => Err(Loss::Repeatable),
                Err(_) => Err(Loss::Last),
            };
            match attempt.begun(&self.fingerprint, begun) {
                Next::Run => return Ok(attempt),
                Next::Repeat(repeated) => attempt = repeated,
                Next::Answer { answer, forget } => {
                    if forget {
                        undo(store, self.forget());
                    }
                    return Err(answer);
                }
            }
        }
    }

    fn forget(&self) -> Forget {
        Forget::new(&self.name, Some(self.owner.clone()))
    }

    /// Stores the response, or the note that there was one. Drops `trying` after the first try.
    async fn store(self, response: Option<Response<Bytes>>, trying: channel::Sender<()>) {
        let (begun, name, mut trying) = (Instant::now(), &*self.name, Some(trying));
        let mut backoff = Backoff::new(RESPONSE_PAUSES).random();
        let mut storing = Storing::new(response, begun.elapsed());
        loop {
            let (response, retention) = (storing.response.clone(), self.layer.lifetime);
            let has_response = response.is_some();
            let finish = Finish::new(name, &*self.owner, response, retention);
            let finished = self.layer.locks.store().call(finish).await;
            let closing = self.layer.locks.tasks().is_closed();
            let reply = Finished::from(&finished);
            let error = finished.err().map(|error| format!("{error:#}"));
            storing = match storing.finished(begun.elapsed(), reply, closing) {
                Ending::Stored => return,
                Ending::Retry(storing) if storing.response.is_some() == has_response => {
                    drop(trying.take());
                    backoff.pause().await;
                    storing
                }
                Ending::Retry(storing) => {
                    tracing::warn!(
                        name,
                        error,
                        "the database refuses a response: repeats get 409, as the request was done and its response is not stored"
                    );
                    storing
                }
                Ending::Leave => {
                    tracing::error!(
                        name,
                        error,
                        "neither a response nor the note that its request was done could be stored, as the database fails, or as the request was taken over or forgotten"
                    );
                    return;
                }
            }
        }
    }
}

/// Returns true if the service says that it has done nothing, and that the client may repeat the
/// request (RFC 9110 §10.2.3).
fn asks_to_repeat<B>(response: &Response<B>) -> bool {
    let refuses = matches!(response.status().as_u16(), 409 | 429 | 503);
    refuses && response.headers().contains_key(header::RETRY_AFTER)
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
    use tokio::time::{Instant, sleep};
    use tower::{Layer, ServiceExt, service_fn};

    use crate::{
        error::{BoxError, Unfit},
        layer::idempotency::{IdempotencyLayer, Scope},
        lock::Locks,
        store::Store,
        testing::internal::{Backend, Begin, Call, CallFuture, Finish, Memory, Reply},
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
        /// The responses that the store refuses.
        rejects: Option<Rejects>,
        /// The number of calls whose replies are lost.
        loses: usize,
        /// Each `Begin` of a request comes later by this time, and its caller gets an error before.
        late: Duration,
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

        async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
            let faults = *self.0.1.lock().expect("not poisoned");
            if faults
                .away_until
                .is_some_and(|until| Instant::now() < until)
            {
                return Err("is away".into());
            }
            match &call {
                Call::Finish(Finish { response, .. }) => match faults.rejects {
                    Some(_) if response.is_none() => {}
                    Some(Rejects::ByAnswer) => return Err(Unfit("is too large".into()).into()),
                    Some(Rejects::Silently) => return Err("the connection is reset".into()),
                    None => {}
                },
                Call::Begin(Begin { name, .. }) if name != "prune" && !faults.late.is_zero() => {
                    let database = self.clone();
                    tokio::spawn(async move {
                        sleep(faults.late).await;
                        database.0.0.apply(&call);
                    });
                    return Err("no answer".into());
                }
                _ => {}
            }
            let reply = self.0.0.apply(&call);
            if faults.loses > 0 {
                self.tell(|faults| faults.loses -= 1);
                return Err("the reply is lost".into());
            }
            Ok(reply)
        }
    }

    impl Backend for Database {
        fn call(&self, call: Call) -> CallFuture<'_> {
            Box::pin(self.answer(call))
        }
    }

    /// A site that charges once, over a database with faults.
    #[derive(Clone)]
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
                layer: locks.idempotency(|_| Some(Scope::public())),
                locks,
                charges: Arc::default(),
                fault,
            }
        }

        /// Pays; the status and the body of the answer.
        async fn pay(&self) -> (u16, String) {
            self.charge(Duration::ZERO, "k").await
        }

        /// Pays with a charge that takes this time.
        async fn charge(&self, time: Duration, key: &str) -> (u16, String) {
            let (charges, database, fault) =
                (self.charges.clone(), self.database.clone(), self.fault);
            let charge = service_fn(move |_: Request<Full<Bytes>>| {
                let charge = charges.fetch_add(1, SeqCst) + 1;
                let database = database.clone();
                async move {
                    sleep(time).await;
                    fault(&database);
                    let body = Full::from(format!("charge {charge}"));
                    Ok::<_, Infallible>(Response::new(body))
                }
            });
            let request = Request::post("/pay").header("idempotency-key", key);
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
    async fn response_is_stored_after_an_outage() {
        let site = Site::new(|database| database.away_for(3 * MINUTE));
        site.first().await;
        sleep(2 * MINUTE).await;
        site.again("not done").await;
        sleep(MINUTE + SOON).await;
        site.again("charge 1").await;
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_wait_while_the_response_is_tried() {
        let site =
            Site::new(|database| database.tell(|faults| faults.rejects = Some(Rejects::Silently)));
        site.first().await;
        site.again("still being served").await;
        for _ in 0..9 {
            sleep(MINUTE).await;
            site.again("is unknown").await;
        }
        // A short note gets through, as the database is not away.
        sleep(MINUTE + SOON).await;
        site.again("is not stored").await;
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
    async fn request_runs_once_when_replies_are_lost() {
        for losses in 1..=3 {
            let site = Site::new(|database| database.tell(|faults| faults.loses = 1));
            site.database.tell(|faults| faults.loses = losses);
            site.first().await;
            sleep(SOON).await;
            site.again("charge 1").await;
            sleep(30 * MINUTE).await;
            site.again("charge 1").await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_never_ran_is_forgotten() {
        for late in [SOON, 14 * MINUTE] {
            let site = Site::new(|_| {});
            site.database.tell(|faults| faults.late = late);
            let (status, body) = site.pay().await;
            assert!(status == 503 && body.contains("not done"), "{body}");
            site.database.tell(|faults| faults.late = Duration::ZERO);
            sleep(22 * MINUTE).await;
            site.first().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn operator_lets_an_unknown_request_run_again() {
        let site = Site::new(|database| database.away_for(11 * MINUTE));
        site.first().await;
        sleep(12 * MINUTE).await;
        site.again("is unknown").await;
        let forget = async |key| site.layer.forget(&Scope::public(), key).await;
        assert!(!forget("other").await.expect("answers"));
        assert!(forget("k").await.expect("answers"));
        site.charges.store(0, SeqCst);
        site.database.away_for(Duration::ZERO);
        assert_eq!(site.pay().await.0, 200);
        site.database.away_for(Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn request_runs_again_after_its_time_and_not_before() {
        let mut site = Site::new(|_| {});
        site.layer = site.layer.run_again_after(5 * MINUTE);
        let slow = site.clone();
        let charge = tokio::spawn(async move { slow.charge(10 * MINUTE, "k").await });
        for _ in 0..4 {
            sleep(MINUTE).await;
            site.again("still being served").await;
        }
        sleep(MINUTE + SOON).await;
        assert_eq!(site.pay().await, (200, "charge 2".to_owned()));
        assert_eq!(
            charge.await.expect("no panic"),
            (200, "charge 1".to_owned())
        );
        // The later run's response is stored.
        assert_eq!(site.pay().await, (200, "charge 2".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_request_is_unknown_until_it_answers() {
        let site = Site::new(|_| {});
        let slow = site.clone();
        let charge = tokio::spawn(async move { slow.charge(10 * MINUTE, "k").await });
        sleep(SOON).await;
        site.again("still being served").await;
        sleep(9 * MINUTE).await;
        site.again("is unknown").await;
        charge.await.expect("no panic");
        site.again("charge 1").await;
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
    async fn requests_are_pruned_once_a_day() {
        let site = Site::new(|_| {});
        let rows = || site.database.0.0.requests();
        for hour in 0..49 {
            let key = format!("key {hour}");
            site.charge(Duration::ZERO, &key).await;
            sleep(Duration::from_secs(3600)).await;
        }
        // Of the first day, nothing is left; a row of the pruning stays.
        assert!((24..=26).contains(&rows()), "{}", rows());
        assert_eq!(site.charges.load(SeqCst), 49);
    }
}
