//! The demonstration's side of a shop: a page whose generator can be slowed down or broken, behind
//! Perennial and behind a cache of this process's own; and the status page of this process.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    extract::Query,
    http::StatusCode,
    middleware,
    response::IntoResponse,
    routing::{get, post},
};
use perennial::{Perennial, Refresh, RefreshAfter};
use perennial_admin::{Admin, CancellationToken};
use serde::{Deserialize, Serialize};

use super::{login, own::OwnCache};
use example_common as common;

/// The page is stale at each multiple of this time, by the clock, behind both caches.
pub(super) const ROUND: Duration = Duration::from_secs(8);

/// The interval while a story runs: longer than any story.
const HELD: Duration = Duration::from_secs(600);

/// The time in which no process tries again after a failure.
pub(super) const COOLDOWN: Duration = Duration::from_secs(3);

/// The lease: the time after which the lock of a killed process is free.
pub(super) const LEASE: Duration = Duration::from_secs(3);

/// Ends this process when its parent is gone, also after a `kill -9`: the parent's end of the pipe
/// closes.
pub(crate) fn ends_with_its_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

/// The settings of the generator, the same in both shops.
#[derive(Clone, Copy, Deserialize, Serialize)]
pub(super) struct Settings {
    /// The time of the generator.
    pub(super) delay_ms: u64,
    pub(super) fails: bool,
    /// The page becomes stale by an invalidation alone, as a story runs.
    pub(super) held: bool,
}

#[derive(Default)]
struct Controls {
    delay_ms: AtomicU64,
    fails: AtomicBool,
    held: AtomicBool,
    generated: AtomicU64,
}

impl Controls {
    /// The generator: returns a text that no other run returns, and the time for which it is fresh.
    async fn generate(self: Arc<Self>) -> Result<(Duration, String), StatusCode> {
        let number = self.generated.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Relaxed))).await;
        if self.fails.load(Relaxed) {
            return Err(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let fresh_for = if self.held.load(Relaxed) {
            HELD
        } else {
            until_next_round(SystemTime::now())
        };
        Ok((fresh_for, format!("{}.{number}", std::process::id())))
    }

    fn set(&self, settings: Settings) {
        self.delay_ms.store(settings.delay_ms, Relaxed);
        self.fails.store(settings.fails, Relaxed);
        self.held.store(settings.held, Relaxed);
    }
}

/// Returns the number of the round at a time.
pub(super) fn round_at(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / ROUND.as_secs())
}

/// Returns the time from now to the next round, a second at least.
fn until_next_round(now: SystemTime) -> Duration {
    let second = Duration::from_secs(1);
    let next = ROUND * (round_at(now + second) as u32 + 1);
    let next = SystemTime::UNIX_EPOCH + next;
    next.duration_since(now).unwrap_or(ROUND)
}

/// Returns the routes of a shop, with those of the demonstration beside them.
pub(crate) fn router(site: &Perennial, shop: Router) -> Router {
    let (controls, own) = (Arc::new(Controls::default()), OwnCache::default());
    let policy = Refresh::every(ROUND)
        .in_background()
        .cooldown(COOLDOWN)
        .lease_duration(LEASE);
    let with = get({
        let controls = Arc::clone(&controls);
        async move || {
            let (fresh_for, text) = controls.generate().await?;
            Ok::<_, StatusCode>((RefreshAfter::new(fresh_for), text))
        }
    });
    let without = get({
        let (controls, own) = (Arc::clone(&controls), own.clone());
        async move || {
            let (status, text) = own.get(|| controls.generate()).await?;
            Ok::<_, StatusCode>(([("cache-status", status)], text).into_response())
        }
    });
    let set = post(async move |Query(settings): Query<Settings>| controls.set(settings));
    let invalidated = own.clone();
    let shutdown = CancellationToken::new();
    let status = Admin::new(site.clone(), shutdown.clone(), login::access);
    tokio::spawn(async move {
        common::told_to_stop().await;
        // The streams of open status pages end.
        shutdown.cancel();
    });
    let pages = shop.route("/demo", with.layer(site.layer(&policy)));
    let status = status.pages(pages.clone()).router();
    pages
        .route("/own", without)
        .route(
            "/own/invalidate",
            post(async move || invalidated.invalidate()),
        )
        .route("/own/purge", post(async move || own.purge()))
        .route("/set", set)
        .nest("/status", status.layer(middleware::from_fn(login::ask)))
}
