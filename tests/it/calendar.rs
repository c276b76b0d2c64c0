//! Intervals by the calendar, and regenerations before their time.

use std::time::Duration;

use axum::{Router, body::Body, http::Request};
use perennial::{
    DAY, Perennial, Refresh,
    entries::{EntryFilter, EntryState},
    event::{Event, Reason},
};
use perennial_calendar::Calendar;
use perennial_testing::{self, advance};

use crate::{
    paused::{Shared, here, origin_behind},
    support::{Origin, get},
};

const HOUR: Duration = Duration::from_hours(1);

fn daily(time: &str) -> Refresh {
    Refresh::on(Calendar::daily(time, "UTC").expect("a schedule"))
}

/// A router whose every answer takes this time.
fn slow(origin: &Origin, time: Duration) -> Router {
    let origin = origin.clone();
    Router::new().fallback(async move |request: Request<Body>| {
        tokio::time::sleep(time).await;
        origin.run(&request.uri().to_string()).await
    })
}

/// The clock of the store in memory begins at midnight.
#[tokio::test(start_paused = true)]
async fn first_request_after_an_occurrence_regenerates() {
    let shared = Shared::new();
    let site = shared.site();
    let policy = daily("06:00").browser_cache(DAY);
    let (_, address) = origin_behind(&site, policy);
    let first = get(address, "/").await;
    assert_eq!(first.run(), 1);
    assert_eq!(first.header("cache-control"), "max-age=21600");
    advance(5 * HOUR).await;
    let hit = get(address, "/").await;
    assert_eq!(
        (hit.run(), hit.header("cache-control")),
        (1, "max-age=21600")
    );
    assert_eq!(hit.header("cache-status"), "perennial; hit; ttl=3600");
    advance(HOUR - Duration::from_secs(1)).await;
    assert_eq!(get(address, "/").await.run(), 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(get(address, "/").await.run(), 2);
    advance(23 * HOUR).await;
    assert_eq!(get(address, "/").await.run(), 2);

    // Another process reads the moment from the stored version.
    let origin = Origin::default();
    let other = shared.site();
    let there = here(origin.router().layer(other.layer(daily("06:00"))));
    get(there, "/").await;
    assert_eq!(origin.begun(), 0);
    let listed = other.entries(&EntryFilter::new()).await.expect("is listed");
    let entry = &listed.entries[0];
    assert_eq!(entry.state, EntryState::Fresh);
    assert_eq!((entry.interval, entry.next_regeneration), (DAY, HOUR));
    advance(HOUR).await;
    get(there, "/").await;
    assert_eq!(origin.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_generator_that_began_before_the_occurrence_has_made_a_stale_version() {
    let shared = Shared::new();
    let site = shared.site();
    let origin = Origin::default();
    let slow = slow(&origin, Duration::from_secs(20));
    let address = here(slow.layer(site.layer(daily("00:01").in_background())));
    advance(Duration::from_secs(50)).await;
    assert_eq!(get(address, "/").await.run(), 1);
    // At 00:01:10 the version is stale, and the next one is generated.
    get(address, "/").await;
    advance(Duration::from_secs(30)).await;
    assert_eq!(origin.begun(), 2);
    assert_eq!(get(address, "/").await.run(), 2);
    advance(23 * HOUR).await;
    get(address, "/").await;
    assert_eq!(origin.begun(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_hit_near_the_end_of_the_interval_starts_a_regeneration_that_nobody_waits_for() {
    let database = perennial_testing::Database::new();
    let [one, two] = [(), ()].map(|()| database.open(Perennial::builder()).expect("opens"));
    let policy = Refresh::every(100 * HOUR).early(0.9);
    let origin = Origin::default();
    let process =
        |site: &Perennial| here(slow(&origin, Duration::from_secs(30)).layer(site.layer(policy)));
    let (one_visit, two_visit) = (process(&one), process(&two));
    let mut events = one.subscribe();
    assert_eq!(get(one_visit, "/").await.run(), 1);
    assert_eq!(get(two_visit, "/").await.run(), 1);
    // The generator took 30 s, so the random lead is some minutes at most.
    advance(89 * HOUR).await;
    get(one_visit, "/").await;
    advance(HOUR - Duration::from_secs(1)).await;
    assert_eq!(origin.begun(), 1, "it is too early");
    advance(Duration::from_secs(1)).await;
    // A visitor who waited would let the clock move.
    let begun = tokio::time::Instant::now();
    for _ in 0..20 {
        let (hit, other) = tokio::join!(get(one_visit, "/"), get(two_visit, "/"));
        for hit in [hit, other] {
            assert_eq!(hit.run(), 1);
            assert!(
                hit.header("cache-status")
                    .starts_with("perennial; hit; ttl=36000"),
                "{}",
                hit.header("cache-status")
            );
        }
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    advance(Duration::from_secs(31)).await;
    assert_eq!(origin.begun(), 2, "one regeneration for two processes");
    // The other process learns of the new version with its next visitor, who does not wait.
    tokio::join!(get(one_visit, "/"), get(two_visit, "/"));
    advance(Duration::from_secs(1)).await;
    assert_eq!(
        [
            get(one_visit, "/").await.run(),
            get(two_visit, "/").await.run()
        ],
        [2, 2]
    );
    let mut reasons = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::Regenerated(ended) = event {
            reasons.push(ended.reason);
        }
    }
    assert!([Reason::Miss, Reason::Early].starts_with(&reasons) && !reasons.is_empty());
    let history = one.entry("/").await.expect("answers").expect("one").history;
    let history: Vec<_> = history.iter().map(|it| it.reason).collect();
    assert_eq!(history, [Reason::Early, Reason::Miss]);
}
