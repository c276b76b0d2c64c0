//! Events and counters of a site, in virtual time: each regeneration, invalidation and lock once.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::get as route};
use perennial::{
    Perennial, Refresh,
    event::{Bypass, Event, Events, LockLoss, Outcome, Reason},
    locks::LockKind,
};
use perennial_store::Epoch;
use perennial_testing::{self, advance};

use perennial_testkit::{get, taken};

use crate::log_of_this_thread;

const INTERVAL: Duration = Duration::from_secs(60);

/// Returns all events that are waiting.
fn drain(events: &mut Events) -> Vec<Event> {
    std::iter::from_fn(|| events.try_next()).collect()
}

/// Returns outcome and reason of each regeneration that has ended.
fn ended(events: &[Event]) -> Vec<(Outcome, Reason)> {
    let ended = events.iter().filter_map(|event| match event {
        Event::Regenerated(ended) => Some((ended.outcome, ended.reason)),
        _ => None,
    });
    ended.collect()
}

fn app(site: &Perennial, policy: Refresh) -> Router {
    let changing = site.layer(&policy).tag("books");
    let number = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let page = async move || {
        number
            .fetch_add(1, std::sync::atomic::Ordering::SeqCst)
            .to_string()
    };
    let fails = async || (axum::http::StatusCode::INTERNAL_SERVER_ERROR, "no");
    let private = async || ([("cache-control", "private")], "mine");
    Router::new()
        .route("/page/{id}", route(page).layer(changing))
        .route("/same", route(async || "same").layer(site.layer(&policy)))
        .route(
            "/fails",
            route(fails).layer(site.layer(&policy).name("failing")),
        )
        .route("/private", route(private).layer(site.layer(policy)))
        // As `axum::serve` does: otherwise each request creates the layers again.
        .with_state(())
}

#[tokio::test(start_paused = true)]
async fn each_regeneration_is_reported_with_its_reason_and_outcome() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let mut events = site.subscribe();
    let app = app(&site, Refresh::every(INTERVAL));
    get(&app, "/page/1").await;
    let first = drain(&mut events);
    let Some(Event::Regenerating {
        key,
        layer,
        reason,
        fence,
        ..
    }) = first
        .iter()
        .find(|event| matches!(event, Event::Regenerating { .. }))
    else {
        panic!("{first:?}");
    };
    assert_eq!(
        (&**key, &**layer, *reason),
        ("/page/1", "/page/{id}", Reason::Miss)
    );
    assert!(fence.is_some());
    let Some(Event::Regenerated(stored)) = first
        .iter()
        .find(|event| matches!(event, Event::Regenerated(_)))
    else {
        panic!("{first:?}");
    };
    assert_eq!(
        (stored.outcome, stored.bytes, stored.fence),
        (Outcome::Stored, 1, *fence)
    );
    get(&app, "/page/1").await;
    assert_eq!(drain(&mut events), [], "a hit is no event");
    advance(INTERVAL).await;
    get(&app, "/page/1").await;
    assert_eq!(
        ended(&drain(&mut events)),
        [(Outcome::Stored, Reason::Stale)]
    );
    site.invalidate_tag("books").await.expect("answers");
    get(&app, "/page/1").await;
    let invalidated = drain(&mut events);
    assert!(
        matches!(&invalidated[0], Event::Invalidated { name, epoch, .. } if &**name == "tag:books" && *epoch > Epoch::NONE)
    );
    assert_eq!(
        ended(&invalidated),
        [(Outcome::Stored, Reason::Invalidated)]
    );
    site.purge("/page/1").await.expect("answers");
    get(&app, "/page/1").await;
    let purged = drain(&mut events);
    assert!(
        purged
            .iter()
            .any(|event| matches!(event, Event::Purged { key, .. } if &**key == "/page/1"))
    );
    assert_eq!(ended(&purged).len(), 1);
    site.regenerate(app.clone(), ["/page/1"]).await;
    assert_eq!(
        ended(&drain(&mut events)),
        [(Outcome::Stored, Reason::Requested)]
    );
    get(&app, "/same").await;
    advance(INTERVAL).await;
    get(&app, "/same").await;
    let same = ended(&drain(&mut events));
    assert_eq!(
        same,
        [
            (Outcome::Stored, Reason::Miss),
            (Outcome::Renewed, Reason::Stale)
        ]
    );
    get(&app, "/fails").await;
    let failed = drain(&mut events);
    let Some(Event::Regenerated(failed)) = failed.last() else {
        panic!("{failed:?}");
    };
    assert_eq!(
        (failed.outcome, &*failed.layer),
        (Outcome::Failed, "failing")
    );
    assert!(
        failed
            .error
            .as_deref()
            .is_some_and(|error| error.contains("500"))
    );
    get(&app, "/private").await;
    let private = drain(&mut events);
    assert_eq!(
        ended(&private),
        [(Outcome::NotStored(Bypass::Private), Reason::Miss)]
    );
    assert!(
        private.iter().any(|event| matches!(event, Event::Bypassed { path, reason: Bypass::Private, .. } if &**path == "/private"))
    );
    let stats = site.stats();
    assert_eq!(stats.regenerations(Outcome::Stored), 6);
    assert_eq!(stats.regenerations(Outcome::Renewed), 1);
    assert_eq!(stats.regenerations(Outcome::Failed), 1);
    assert_eq!((stats.memory_entries, stats.memory_evictions), (4, 0));
    assert!(stats.memory_bytes > 0 && stats.memory_bytes < stats.memory_capacity);
}

#[tokio::test(start_paused = true)]
async fn database_that_fails_and_returns_is_two_events_and_two_lines() {
    let log = log_of_this_thread();
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let app = app(&site, Refresh::every(INTERVAL).in_background());
    get(&app, "/page/1").await;
    let mut events = site.subscribe();
    advance(INTERVAL).await;
    database.fail();
    get(&app, "/page/1").await;
    advance(Duration::from_secs(2)).await;
    get(&app, "/page/1").await;
    advance(Duration::from_secs(2)).await;
    let away = drain(&mut events);
    let count = |events: &[Event], operation: &str| {
        let of_operation = events.iter().filter(|event| {
            matches!(event, Event::DatabaseUnavailable { operation: it, .. } | Event::DatabaseBack { operation: it, .. } if *it == operation)
        });
        of_operation.count()
    };
    assert_eq!(count(&away, "sync"), 1, "{away:?}");
    assert!(!site.stats().database_available);
    assert!(
        away.iter().any(|event| matches!(
            event,
            Event::NotRegenerated {
                outcome: Outcome::DatabaseUnavailable,
                ..
            }
        )),
        "{away:?}"
    );
    database.recover();
    get(&app, "/page/1").await;
    advance(Duration::from_secs(2)).await;
    assert_eq!(count(&drain(&mut events), "sync"), 1);

    let log = log.text();
    let again = "the database still fails error=\"the database failed during the operation `sync`";
    assert!(log.contains(again), "{log}");
    let told = log
        .lines()
        .filter(|line| line.contains("operation=\"sync\""));
    let told: Vec<_> = told.collect();
    assert_eq!(told.len(), 2, "{log}");
    assert!(
        told[0].contains("ERROR") && told[0].contains("the database fails"),
        "{log}"
    );
    assert!(told[1].contains("works again"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn failure_of_a_rare_step_counts_for_a_minute_while_others_succeed() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let app = app(&site, Refresh::every(INTERVAL));
    get(&app, "/page/1").await;
    database.fail();
    let failed = site.locks().list().await;
    assert!(failed.is_err() && !site.stats().database_available);
    database.recover();
    for (passed, available) in [(50, false), (10, true)] {
        advance(Duration::from_secs(passed)).await;
        site.locks().inspect("another").await.expect("answers");
        assert_eq!(site.stats().database_available, available);
    }
}

#[tokio::test(start_paused = true)]
async fn locks_are_reported_as_acquired_contended_broken_and_lost() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let mut events = site.subscribe();
    let locks = site.locks();
    let lease = taken(&locks, "job").await;
    assert!(locks.try_lock("job").await.expect("answers").is_none());
    let fence = lease.fence();
    let name: Arc<str> = "job".into();
    let kind = LockKind::Lock;
    let taken = drain(&mut events);
    assert!(
        matches!(&taken[0], Event::LockAcquired { name: it, fence: it_fence, .. } if *it == name && *it_fence == fence),
        "{taken:?}"
    );
    assert!(
        matches!(&taken[1], Event::LockContended { name: it, .. } if *it == name),
        "{taken:?}"
    );
    assert!(locks.break_lock("job", None).await.expect("answers"));
    lease.lost().await;
    let lost = drain(&mut events);
    assert!(
        matches!(&lost[0], Event::LockBroken { kind: it, .. } if *it == kind),
        "{lost:?}"
    );
    assert!(
        matches!(&lost[1], Event::LockLost { fence: it, reason: LockLoss::TakenOver, .. } if *it == fence),
        "{lost:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_crashed_process_is_reported_as_taken_over() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let app = app(&site, Refresh::every(INTERVAL));
    let other = database.open(Perennial::builder()).expect("opens");
    let name = perennial::locks::LockName::of(LockKind::Page, "/page/1");
    let lease = other.locks().manual_extension().try_lock(name).await;
    std::mem::forget(lease.expect("answers").expect("is free"));
    advance(Duration::from_secs(16)).await;
    let mut events = site.subscribe();
    get(&app, "/page/1").await;
    let events = drain(&mut events);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::LeaseTakenOver { key, .. } if &**key == "/page/1")),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_name_with_a_line_break_is_one_line_of_the_log() {
    let log = log_of_this_thread();
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let lease = site.locks().lock("a\nFAKE \u{1b}[31m").await;
    lease
        .expect("is free")
        .release()
        .await
        .expect("is released");
    site.invalidate("/b\nFAKE").await.expect("answers");
    let log = log.text();
    assert!(
        log.contains("name=\"a\\nFAKE") && log.contains("key:/b"),
        "{log}"
    );
    assert!(!log.contains("\nFAKE") && !log.contains('\u{1b}'), "{log}");
}
