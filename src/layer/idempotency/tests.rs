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
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    error::Unfit,
    layer::IdempotencyLayer,
    locks::Locks,
    store::{
        Edition, Entry, Guarded, LeaseRow, LockRow, LockState, Probe, Pruned, Store, StoreFuture,
    },
};

const MINUTE: Duration = Duration::from_mins(1);
/// The limit of a statement.
const LIMIT: Duration = Duration::from_secs(5);
/// Longer than the pause between two tries.
const SOON: Duration = Duration::from_secs(3);

/// A database with one lock and one entry.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lock: Option<(LeaseRow, bool, Instant)>,
    entry: Option<(i64, Response<Bytes>, String, Instant)>,
    away_until: Option<Instant>,
    /// The publishes that are refused though the lease holds.
    lags: usize,
    /// The responses that the store does not take.
    rejects: Option<Rejects>,
}

#[derive(Clone, Copy, PartialEq)]
enum Rejects {
    ByAnswer,
    /// The connection breaks.
    Silently,
}

impl Memory {
    fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().expect("not poisoned"));
    }

    fn away_for(&self, time: Duration) {
        self.tell(|state| state.away_until = Some(Instant::now() + time));
    }

    fn is_owned(&self) -> bool {
        let state = self.0.lock().expect("not poisoned");
        state.lock.as_ref().is_some_and(|(_, owned, _)| *owned)
    }

    fn call<'a, T: Send + 'a>(
        &self,
        step: impl FnOnce(&mut State) -> Result<T, crate::error::BoxError>,
    ) -> StoreFuture<'a, T> {
        let mut state = self.0.lock().expect("not poisoned");
        let away = state.away_until.is_some_and(|until| Instant::now() < until);
        let answer = if away {
            Err("is away".into())
        } else {
            step(&mut state)
        };
        Box::pin(std::future::ready(answer))
    }
}

impl State {
    /// The lock, if this lease has it.
    fn of(&mut self, lease: &LeaseRow) -> Option<&mut (LeaseRow, bool, Instant)> {
        self.lock
            .as_mut()
            .filter(|(row, owned, _)| row == lease && *owned)
    }
}

impl Store for Memory {
    fn probe<'a>(&'a self, _: &'a str, _: &'a str, _: i64) -> StoreFuture<'a, Probe> {
        self.call(|state| {
            let lock = state.lock.as_ref();
            let lock = lock.map(|(row, owned, expires)| LockState {
                fence: row.fence,
                owned: *owned,
                remaining: expires.saturating_duration_since(Instant::now()),
            });
            let entry = state.entry.as_ref();
            let entry = entry.map(|(fence, content, notes, at)| Entry {
                fence: *fence,
                age: at.elapsed(),
                undated: false,
                content: content.clone(),
                notes: notes.clone(),
            });
            Ok(Probe {
                entry,
                lock: lock.unwrap_or_default(),
                ..Probe::default()
            })
        })
    }

    fn try_lock<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        length: Duration,
        seen: Option<i64>,
    ) -> StoreFuture<'a, Option<i64>> {
        self.call(|state| {
            let now = Instant::now();
            let fence = match &state.lock {
                // The housekeeping's.
                _ if name.starts_with("perennial/") => return Ok(None),
                Some((row, _, expires)) => {
                    if *expires > now || seen.is_some_and(|seen| seen != row.fence) {
                        return Ok(None);
                    }
                    row.fence + 1
                }
                None => 1,
            };
            let [name, owner] = [name, owner].map(str::to_owned);
            state.lock = Some((LeaseRow { name, owner, fence }, true, now + length));
            Ok(Some(fence))
        })
    }

    fn extend<'a>(&'a self, lease: &'a LeaseRow, length: Duration) -> StoreFuture<'a, bool> {
        self.call(|state| {
            let now = Instant::now();
            Ok(match state.of(lease) {
                Some((_, _, expires)) if *expires > now => {
                    *expires = now + length;
                    true
                }
                _ => false,
            })
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseRow, cooldown: Duration) -> StoreFuture<'a, bool> {
        self.call(|state| {
            Ok(match state.of(lease) {
                Some((_, owned, expires)) => {
                    (*owned, *expires) = (false, Instant::now() + cooldown);
                    true
                }
                None => false,
            })
        })
    }

    fn publish<'a>(
        &'a self,
        _: &'a str,
        lease: &'a LeaseRow,
        edition: &'a Edition<'a>,
    ) -> StoreFuture<'a, bool> {
        self.call(|state| {
            match state.rejects {
                Some(_) if edition.content.body().is_empty() => {}
                Some(Rejects::ByAnswer) => return Err(Unfit("is too large".into()).into()),
                Some(Rejects::Silently) => return Err("the connection is reset".into()),
                None => {}
            }
            if state.lags > 0 || state.of(lease).is_none() {
                state.lags = state.lags.saturating_sub(1);
                return Ok(false);
            }
            let (content, notes) = (edition.content.clone(), edition.notes.to_owned());
            state.entry = Some((lease.fence, content, notes, Instant::now()));
            Ok(true)
        })
    }

    fn renew<'a>(
        &'a self,
        _: &'a str,
        _: &'a LeaseRow,
        _: &'a Edition<'a>,
        _: i64,
    ) -> StoreFuture<'a, bool> {
        unused()
    }

    fn remove<'a>(&'a self, _: &'a str, _: &'a LeaseRow) -> StoreFuture<'a, bool> {
        unused()
    }

    fn invalidate<'a>(&'a self, _: &'a str) -> StoreFuture<'a, i64> {
        unused()
    }

    fn invalidated(&self, _: i64, _: usize) -> StoreFuture<'_, Vec<(String, i64)>> {
        unused()
    }

    fn purge<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, ()> {
        unused()
    }

    fn reclaim<'a>(&'a self, _: &'a [&'a LeaseRow]) -> StoreFuture<'a, ()> {
        self.call(|_| Ok(()))
    }

    fn prune_entries<'a>(&'a self, _: Option<&'a str>) -> StoreFuture<'a, Option<Pruned>> {
        unused()
    }

    fn inspect<'a>(&'a self, _: &'a str) -> StoreFuture<'a, Option<LockRow>> {
        unused()
    }

    fn held(&self) -> StoreFuture<'_, Vec<LockRow>> {
        unused()
    }

    fn break_lock<'a>(&'a self, _: &'a str) -> StoreFuture<'a, bool> {
        unused()
    }

    fn prune_locks<'a>(
        &'a self,
        _: Duration,
        _: Option<&'a str>,
    ) -> StoreFuture<'a, Option<String>> {
        unused()
    }

    fn forget_invalidated(
        &self,
        _: i64,
        _: Duration,
        _: i64,
        _: Option<i64>,
    ) -> StoreFuture<'_, Option<i64>> {
        unused()
    }

    fn invalidated_for_long<'a>(
        &'a self,
        _: &'a str,
        _: usize,
    ) -> StoreFuture<'a, Vec<(String, i64)>> {
        unused()
    }
}

fn unused<'a, T>() -> StoreFuture<'a, T> {
    unreachable!("the layer does not call it")
}

/// A site that charges, over a database to which something happens while it does.
struct Site {
    database: Memory,
    locks: Locks,
    layer: IdempotencyLayer,
    charges: Arc<AtomicUsize>,
    fault: fn(&Memory),
}

impl Site {
    fn new(fault: fn(&Memory)) -> Self {
        let database = Memory::default();
        let store = Guarded::new(Box::new(database.clone()), LIMIT, LIMIT, None);
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
    let site = Site::new(|database| database.tell(|state| state.rejects = Some(Rejects::Silently)));
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
    let site = Site::new(|database| database.tell(|state| state.lags = 1));
    site.first().await;
    assert!(site.database.is_owned());
    sleep(SOON).await;
    site.again("charge 1").await;
}

#[tokio::test(start_paused = true)]
async fn key_is_not_new_when_each_publish_is_refused() {
    let site = Site::new(|database| database.tell(|state| state.lags = usize::MAX));
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
    let site = Site::new(|database| database.tell(|state| state.rejects = Some(Rejects::ByAnswer)));
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
async fn run_again_after_a_crash_replays_the_latest_run() {
    let mut site = Site::new(|database| {
        // The first run's publishes are refused until its lease has expired.
        database.tell(|state| state.lags = if state.lags == 0 { 100 } else { 0 });
    });
    site.layer = site.layer.run_again_after_crash();
    site.first().await;
    sleep(MINUTE).await;
    for _ in 0..2 {
        assert_eq!(site.pay().await, (200, "charge 2".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_the_response_to_be_stored_but_not_for_ever() {
    let brief: fn(&Memory) = |database| database.away_for(SOON);
    let long: fn(&Memory) = |database| database.away_for(5 * MINUTE);
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
