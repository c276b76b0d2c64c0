//! Intervals by the calendar.

use std::time::Duration;

use axum::{Router, body::Body, http::Request};
use perennial::{
    DAY, Refresh,
    entries::{EntryFilter, EntryState},
};
use perennial_calendar::Calendar;
use perennial_testing::{self, advance};

use perennial_testkit::{
    Origin, get,
    virtual_time::{Shared, here, origin_behind},
};

const HOUR: Duration = Duration::from_hours(1);

fn daily(time: &str) -> Refresh {
    Refresh::on_schedule(Calendar::daily(time, "UTC").expect("a schedule"))
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

    // Another process reads the scheduled time from the stored version.
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
