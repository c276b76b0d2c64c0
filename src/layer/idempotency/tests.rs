//! The layer over a store in memory that fails as it is told, in virtual time.

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
    layer::IdempotencyLayer,
    locks::Locks,
    store::Guarded,
    testing::internal::{Call, Link, Linked, Memory, Reply},
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
    /// The publishes that are refused though the lease holds.
    lags: usize,
    /// The responses that the store does not take.
    rejects: Option<Rejects>,
    /// The time for which the process is paused before its next try.
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
        let lock = Call::Inspect("idempotency//%2Fpay/k".to_owned());
        matches!(self.0.0.apply(&lock), Reply::Lock(Some(lock)) if lock.owner.is_some())
    }
}

impl Link for Database {
    async fn send(&self, call: Call) -> Result<Reply, BoxError> {
        let faults = *self.0.1.lock().expect("not poisoned");
        if faults
            .away_until
            .is_some_and(|until| Instant::now() < until)
        {
            return Err("is away".into());
        }
        match &call {
            Call::Publish { edition, .. } => match faults.rejects {
                Some(_) if edition.content.body().is_empty() => {}
                Some(Rejects::ByAnswer) => return Err(Unfit("is too large".into()).into()),
                Some(Rejects::Silently) => return Err("the connection is reset".into()),
                None if faults.lags > 0 => {
                    self.tell(|faults| faults.lags -= 1);
                    return Ok(Reply::Done(false));
                }
                None => {}
            },
            Call::TryLock { .. } => {
                self.tell(|faults| faults.pause = Duration::ZERO);
                advance(faults.pause).await;
            }
            _ => {}
        }
        Ok(self.0.0.apply(&call))
    }
}

/// A site that charges, over a database to which something happens while it does.
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
        let store = Guarded::new(Box::new(Linked(database.clone())), LIMIT, LIMIT, None);
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
        let (charges, database, fault) = (self.charges.clone(), self.database.clone(), self.fault);
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
    async fn again(&self, said: &str) {
        let (status, body) = self.pay().await;
        let expected = match said {
            "charge 1" => 200,
            "not done" => 503,
            _ => 409,
        };
        assert!(
            status == expected && body.contains(said),
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
    site.again("is not kept").await;
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
        site.again("not known").await;
        sleep(30 * MINUTE).await;
    }
    assert!(site.database.is_owned());
}

#[tokio::test(start_paused = true)]
async fn response_that_the_database_does_not_take_is_dropped_at_once() {
    let site =
        Site::new(|database| database.tell(|faults| faults.rejects = Some(Rejects::ByAnswer)));
    site.first().await;
    site.again("is not kept").await;
}

#[tokio::test(start_paused = true)]
async fn response_is_given_up_after_minutes_and_the_key_is_not_new() {
    let site = Site::new(|database| database.away_for(30 * MINUTE));
    site.first().await;
    sleep(31 * MINUTE).await;
    site.again("not known").await;
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
    for (outage, said) in [(brief, "charge 1"), (long, "not known")] {
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
