//! The demonstration's side of a shop: a page whose generator can be slowed down or broken, behind
//! Perennial and behind a cache of this process's own.

use std::{
    io::Read,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::Query,
    http::StatusCode,
    routing::{get, post},
};
use perennial::{Perennial, Refresh};
use serde::Deserialize;

/// The interval of the page, behind both caches.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);

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

#[derive(Default)]
struct Controls {
    delay_ms: AtomicU64,
    fails: AtomicBool,
    generated: AtomicU64,
    own: Mutex<Option<(Instant, String)>>,
}

#[derive(Deserialize)]
pub(super) struct Settings {
    pub(super) delay_ms: u64,
    pub(super) fails: bool,
    /// Makes the own cache forget its page.
    #[serde(default)]
    pub(super) forget: bool,
}

impl Controls {
    /// The generator: a text that no other run returns.
    async fn generate(&self) -> Result<String, StatusCode> {
        let number = self.generated.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Relaxed))).await;
        match self.fails.load(Relaxed) {
            true => Err(StatusCode::INTERNAL_SERVER_ERROR),
            false => Ok(format!("{}.{number}", std::process::id())),
        }
    }

    fn own(&self) -> std::sync::MutexGuard<'_, Option<(Instant, String)>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The usual cache of a process: a map with an age, which each request checks.
    async fn cached_by_itself(&self) -> Result<String, StatusCode> {
        let cached = self.own().clone();
        if let Some((made, text)) = cached
            && made.elapsed() < INTERVAL
        {
            return Ok(text);
        }
        let text = self.generate().await?;
        *self.own() = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    fn set(&self, settings: &Settings) {
        self.delay_ms.store(settings.delay_ms, Relaxed);
        self.fails.store(settings.fails, Relaxed);
        if settings.forget {
            *self.own() = None;
        }
    }
}

/// Returns the routes of the demonstration.
pub(crate) fn router(site: &Perennial) -> Router {
    let controls = Arc::new(Controls::default());
    let policy = Refresh::every(INTERVAL)
        .in_background()
        .cooldown(COOLDOWN)
        .lease(LEASE);
    let (with, without) = (Arc::clone(&controls), Arc::clone(&controls));
    let with = get(async move || with.generate().await);
    let without = get(async move || without.cached_by_itself().await);
    let set = post(async move |Query(settings): Query<Settings>| controls.set(&settings));
    Router::new()
        .route("/demo", with.layer(site.layer(policy).tag("demo")))
        .route("/own", without)
        .route("/set", set)
}
