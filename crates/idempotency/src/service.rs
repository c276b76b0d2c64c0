//! What happens to a request with an `Idempotency-Key`: its row is inserted, the service runs, and the response
//! is stored in the row. [`state`](super::state) decides what follows each answer of the database; this module
//! carries it out.
//!
//! Invariant: the service runs only after a `Begin` that the database has confirmed for this owner.

use std::{
    panic::resume_unwind,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use perennial_store::{
    Begin, Begun, ErrorKind, Finish, Forget,
    timing::{Backoff, STATEMENT_PAUSES},
};
use tokio::{sync::oneshot as channel, time::Instant};
use tower::{Service, ServiceExt};
use tracing::Instrument;

use super::{
    IdempotencyLayer,
    answer::refusal,
    body::{Read, ResponseBody, full_body, read, resumed, storable},
    key::fingerprint,
    layer::ServedUnder,
    state::{self, Ending},
};
use crate::timing::{
    BEGIN_TRIES, RESPONSE_PAUSES, RESPONSE_RETRY_LIMIT, RESPONSE_RETRY_LIMIT_AT_SHUTDOWN,
    UNKNOWN_OUTCOME_RETENTION,
};

/// A service that runs each request once; see [`IdempotencyLayer`].
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    inner: S,
    layer: IdempotencyLayer,
}

perennial_store::of_inner!(IdempotencyService, IdempotencyLayer);

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for IdempotencyService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<UnsyncBoxBody<Bytes, ResBody::Error>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The inner service's readiness matters only when the inner service is called.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (layer, service) = (self.layer.clone(), self.inner.clone());
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let name = match layer.row_of(&parts) {
                Ok(Some(name)) => name,
                Ok(None) => {
                    let request = Request::from_parts(parts, body);
                    return Ok(service.oneshot(request).await?.map(BodyExt::boxed_unsync));
                }
                Err(detail) => return Ok(refusal(StatusCode::BAD_REQUEST, detail)),
            };
            // The body is read before the row is inserted, as the client may send slowly.
            let body = match read(body, layer.max_body).await {
                Ok(Read::Complete(body)) => body,
                Ok(Read::TooLarge(..)) => {
                    let detail = "The body is larger than this route takes.";
                    return Ok(refusal(StatusCode::PAYLOAD_TOO_LARGE, detail));
                }
                Err(_) => {
                    return Ok(refusal(
                        StatusCode::BAD_REQUEST,
                        "The body broke off. Send the request again.",
                    ));
                }
            };
            parts.extensions.insert(ServedUnder(name.clone()));
            let begin = Begin {
                name,
                owner: layer.locks.owner(),
                fingerprint: fingerprint(&parts, &body),
                length: layer.run_again.unwrap_or(layer.unknown_after),
                retention: layer.lifetime.max(UNKNOWN_OUTCOME_RETENTION),
                again: layer.run_again,
            };
            let response = service.oneshot(Request::from_parts(parts, ReqBody::from(body)));
            let tasks = layer.locks.tasks().clone();
            let run = layer.run(begin, response).in_current_span();
            let served = tasks.spawn(run).await;
            match served.map_err(|error| error.try_into_panic()) {
                Ok(response) => response,
                Err(Ok(panic)) => resume_unwind(panic),
                // The runtime shuts down.
                Err(Err(_)) => {
                    let detail = "The server is shutting down, and nobody knows whether the request was done. Repeat it with the same key.";
                    Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, detail))
                }
            }
        })
    }
}

impl IdempotencyLayer {
    /// Runs the request, unless it was begun before. `response` is the future that calls the service when it
    /// is polled.
    async fn run<B: Body<Data = Bytes> + Send + 'static, E>(
        self,
        begin: Begin,
        response: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<ResponseBody<B::Error>>, E> {
        let store = self.locks.store();
        let forget = Forget::new(&begin.name, Some(begin.owner.clone()));
        let (begun, lost) = self.begin(&begin).await;
        if let Some(answer) = state::begun(&begin.fingerprint, begun) {
            if lost {
                store.undo(forget);
            }
            let response = answer.into_response(&begin.name, store, || {
                self.logs_unknown_outcome(&begin.name)
            });
            return Ok(response.map(full_body));
        }
        self.prune();
        let response = response.await?;
        if asks_to_repeat(&response) {
            let forgotten = store.call(forget.clone()).await;
            if lost || forgotten.is_err() {
                store.undo(forget);
            }
            return Ok(response.map(BodyExt::boxed_unsync));
        }
        let (head, body) = response.into_parts();
        let (stored, response) = match read(body, self.max_body).await {
            Ok(Read::Complete(body)) => {
                let stored = storable(&head, body.clone());
                (stored, Response::from_parts(head, full_body(body)))
            }
            Ok(Read::TooLarge(first, rest)) => {
                (None, Response::from_parts(head, resumed(first, rest)))
            }
            Err(_) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                let detail = "The response broke off, and the request may have been done. A repeat with the same key does not run it again.";
                (None, refusal(status, detail))
            }
        };
        let finish = Finish::new(begin.name, begin.owner, stored, self.lifetime);
        // The client waits until the first attempt to store the response has ended.
        let (trying, tried) = channel::channel();
        let tasks = self.locks.tasks().clone();
        tasks.spawn(self.finish(finish, trying).in_current_span());
        // Ends when the sender is dropped.
        let _ = tried.await;
        Ok(response)
    }

    /// Begins the request. Returns the last reply, if there is one, and `true` if any reply was
    /// lost: the store may carry that `Begin` out later.
    async fn begin(&self, begin: &Begin) -> (Option<Begun>, bool) {
        let mut backoff = Backoff::new(STATEMENT_PAUSES).random().tries(BEGIN_TRIES);
        let mut lost = false;
        loop {
            // With the same owner each time, so that the request finds its own row.
            match self.locks.store().call(begin.clone()).await {
                Ok(begun) => return (Some(begun), lost),
                // The client has already waited for the whole statement timeout.
                Err(error) if error.kind() == ErrorKind::Timeout => return (None, true),
                Err(_) if backoff.pause().await => lost = true,
                Err(_) => return (None, true),
            }
        }
    }

    /// Stores the response, or the note that there was one. Drops `trying` after the first try.
    async fn finish(self, mut finish: Finish, trying: channel::Sender<()>) {
        let mut trying = Some(trying);
        let mut until = Instant::now() + RESPONSE_RETRY_LIMIT;
        let mut backoff = Backoff::new(RESPONSE_PAUSES).random();
        loop {
            let reply = self.locks.store().call(finish.clone()).await;
            let now = Instant::now();
            if self.locks.tasks().is_closed() {
                until = until.min(now + RESPONSE_RETRY_LIMIT_AT_SHUTDOWN);
            }
            let next = state::finished(&reply, finish.response.is_some(), now > until);
            let (name, error) = (&finish.name, reply.err().map(|error| format!("{error:#}")));
            match next {
                Ending::Stored => return,
                Ending::Retry => {
                    drop(trying.take());
                    backoff.pause().await;
                }
                Ending::Note => {
                    tracing::warn!(
                        name,
                        error,
                        "the database refuses a response: repeats get 409, as the request was done and its response is not stored"
                    );
                    finish.response = None;
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
    //! Tests of the service in virtual time, over a store in memory that can be made to fail.

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

    use perennial_store::{Backend, Begin, Call, CallFuture, Locks, Reply, Store, error::BoxError};
    use perennial_testing::Memory;

    use crate::{IdempotencyLayer, Scope};

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
        /// The number of calls whose replies are lost.
        loses: usize,
        /// The store carries each `Begin` of a request out after this time, and its caller gets an
        /// error immediately.
        late: Duration,
        /// As `late`, of the next `Begin` alone.
        late_once: Duration,
    }

    impl Database {
        fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
            change(&mut self.0.1.lock().expect("not poisoned"));
        }

        fn away_for(&self, time: Duration) {
            self.set_faults(|faults| faults.away_until = Some(Instant::now() + time));
        }

        async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
            let faults = *self.0.1.lock().expect("not poisoned");
            if faults
                .away_until
                .is_some_and(|until| Instant::now() < until)
            {
                return Err("is unavailable".into());
            }
            match &call {
                Call::Begin(Begin { name, .. })
                    if name != "prune" && faults.late.max(faults.late_once) > Duration::ZERO =>
                {
                    self.set_faults(|faults| faults.late_once = Duration::ZERO);
                    let database = self.clone();
                    tokio::spawn(async move {
                        sleep(faults.late.max(faults.late_once)).await;
                        database.0.0.apply(&call);
                    });
                    return Err("no answer".into());
                }
                _ => {}
            }
            let reply = self.0.0.apply(&call);
            if faults.loses > 0 {
                self.set_faults(|faults| faults.loses -= 1);
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
        /// The service says that it has done nothing.
        refuses: bool,
    }

    impl Site {
        fn new(fault: fn(&Database)) -> Self {
            let database = Database::default();
            let store = Store::new(Box::new(database.clone()), LIMIT, LIMIT, None, |_| {});
            let locks = Locks::with_store(store);
            Self {
                database,
                layer: IdempotencyLayer::new(&locks, |_| Some(Scope::public())),
                locks,
                charges: Arc::default(),
                fault,
                refuses: false,
            }
        }

        /// Sends a payment. Returns the status and the body of the answer.
        async fn pay(&self) -> (u16, String) {
            self.charge(Duration::ZERO, "k").await
        }

        /// Pays with a charge that takes this time.
        async fn charge(&self, time: Duration, key: &str) -> (u16, String) {
            let (charges, database, fault) =
                (self.charges.clone(), self.database.clone(), self.fault);
            let refuses = self.refuses;
            let charge = service_fn(move |_: Request<Full<Bytes>>| {
                let charge = charges.fetch_add(1, SeqCst) + 1;
                let database = database.clone();
                async move {
                    sleep(time).await;
                    fault(&database);
                    let response = if refuses {
                        Response::builder().status(503).header("retry-after", 1)
                    } else {
                        Response::builder()
                    };
                    let body = Full::from(format!("charge {charge}"));
                    Ok::<_, Infallible>(response.body(body).expect("a response"))
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

        /// Sends the first payment, and expects an answer whatever happens to the database.
        async fn first(&self) {
            assert_eq!(self.pay().await, (200, "charge 1".to_owned()));
        }

        /// Sends the payment again, and expects the stored response, or a problem with this text.
        async fn again(&self, expected_text: &str) {
            let (status, body) = self.pay().await;
            let expected = match expected_text {
                "charge 1" => 200,
                "nothing was done" => 503,
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
        site.again("nothing was done").await;
        sleep(MINUTE + SOON).await;
        site.again("charge 1").await;
    }

    #[tokio::test(start_paused = true)]
    async fn response_is_given_up_after_minutes_and_the_key_is_not_new() {
        // Longer than a stored response would last.
        for lifetime in [MINUTE, 60 * MINUTE] {
            let mut site = Site::new(|database| database.away_for(30 * MINUTE));
            site.layer = site.layer.lifetime(lifetime);
            site.first().await;
            sleep(31 * MINUTE).await;
            site.again("nobody knows").await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_runs_once_when_replies_are_lost() {
        for losses in 1..=3 {
            let site = Site::new(|database| database.set_faults(|faults| faults.loses = 1));
            site.database.set_faults(|faults| faults.loses = losses);
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
            site.database.set_faults(|faults| faults.late = late);
            let (status, body) = site.pay().await;
            assert!(status == 503 && body.contains("nothing was done"), "{body}");
            site.database
                .set_faults(|faults| faults.late = Duration::ZERO);
            sleep(22 * MINUTE).await;
            site.first().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn late_copy_of_a_request_that_did_nothing_is_forgotten() {
        for (is_first, is_forget_lost) in [(true, false), (true, true), (false, false)] {
            let mut site = Site::new(|_| {});
            site.refuses = true;
            if is_forget_lost {
                site.fault = |database| database.away_for(SOON);
            }
            let slow = site.clone();
            let other = tokio::spawn(async move {
                if !is_first {
                    assert_eq!(slow.charge(SOON, "k").await.0, 503);
                }
            });
            sleep(SOON / 2).await;
            let late = if is_forget_lost {
                Duration::ZERO
            } else {
                14 * MINUTE
            };
            site.database.set_faults(|faults| faults.late_once = late);
            let (status, body) = site.pay().await;
            assert_eq!(status, if is_first { 503 } else { 409 }, "{body}");
            other.await.expect("no panic");
            // The delayed copy of the statement has arrived meanwhile, and its effect has been undone.
            sleep(22 * MINUTE).await;
            site.refuses = false;
            assert_eq!(site.pay().await, (200, "charge 2".to_owned()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn operator_lets_an_unknown_request_run_again() {
        let site = Site::new(|database| database.away_for(11 * MINUTE));
        site.first().await;
        sleep(12 * MINUTE).await;
        site.again("nobody knows").await;
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
        site.again("nobody knows").await;
        charge.await.expect("no panic");
        site.again("charge 1").await;
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_for_the_response_to_be_stored_but_not_for_ever() {
        let brief: fn(&Database) = |database| database.away_for(SOON);
        let long: fn(&Database) = |database| database.away_for(5 * MINUTE);
        for (outage, said) in [(brief, "charge 1"), (long, "nobody knows")] {
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
        // Nothing of the first day is left, except for the row of the pruning lock.
        assert!((24..=26).contains(&rows()), "{}", rows());
        assert_eq!(site.charges.load(SeqCst), 49);
    }
}
