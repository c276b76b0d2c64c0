//! The cache beside which Perennial is shown: a usual single-flight cache of one process.
//!
//! Requests for a first page join one run of the generator; a stale page is served while one task
//! regenerates it. After a failure, the next attempt is [`COOLDOWN`] later. Other processes do not
//! know of this cache, and a restart empties it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::StatusCode;

use super::copy::COOLDOWN;

#[derive(Clone)]
struct Page {
    text: String,
    stale_at: Instant,
}

/// The answer to a request: the text, and its `Cache-Status`.
pub(super) type Answer = Result<(&'static str, String), StatusCode>;

#[derive(Clone, Default)]
pub(super) struct OwnCache {
    page: Arc<Mutex<Option<Page>>>,
    /// Held by the request or the task that runs the generator.
    flight: Arc<tokio::sync::Mutex<()>>,
}

impl OwnCache {
    fn page(&self) -> MutexGuard<'_, Option<Page>> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the page. `generate` returns a new one, with the time for which it is fresh.
    pub(super) async fn get<F>(&self, generate: impl FnOnce() -> F) -> Answer
    where
        F: Future<Output = Result<(Duration, String), StatusCode>> + Send + 'static,
    {
        let cached = self.page().clone();
        match cached {
            Some(page) if Instant::now() < page.stale_at => Ok(("own; hit", page.text)),
            Some(page) => {
                if let Ok(flight) = Arc::clone(&self.flight).try_lock_owned() {
                    let (cache, generated) = (self.clone(), generate());
                    tokio::spawn(async move {
                        if cache.store(generated.await).is_err() {
                            tokio::time::sleep(COOLDOWN).await;
                        }
                        drop(flight);
                    });
                }
                Ok(("own; hit; ttl=-1", page.text))
            }
            None => {
                let _flight = self.flight.lock().await;
                let joined = self.page().clone();
                let text = match joined {
                    Some(page) => page.text,
                    None => self.store(generate().await)?,
                };
                Ok(("own; fwd=miss", text))
            }
        }
    }

    fn store(
        &self,
        generated: Result<(Duration, String), StatusCode>,
    ) -> Result<String, StatusCode> {
        let (fresh_for, text) = generated?;
        *self.page() = Some(Page {
            text: text.clone(),
            stale_at: Instant::now() + fresh_for,
        });
        Ok(text)
    }

    /// Makes the page stale.
    pub(super) fn invalidate(&self) {
        if let Some(page) = &mut *self.page() {
            page.stale_at = Instant::now();
        }
    }

    /// Removes the page.
    pub(super) fn purge(&self) {
        *self.page() = None;
    }
}
