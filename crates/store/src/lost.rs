//! Lost replies: calls that the database may carry out after their callers have given up.

use std::sync::Arc;

use tokio::{
    runtime::Handle,
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tracing::Instrument;

use crate::timing::UNDO_AFTER;

/// The most lost replies that are remembered at a time. Calls beyond this number are not undone.
const MOST: usize = 1_000;

/// The lost replies that are remembered.
#[derive(Clone)]
pub struct LostReplies(Arc<Semaphore>);

impl Default for LostReplies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

impl LostReplies {
    /// Runs `undo` at each time of [`UNDO_AFTER`] until it returns `None`.
    pub fn repeat<F>(&self, undo: impl Fn() -> Option<F> + Send + 'static)
    where
        F: Future<Output: Send> + Send,
    {
        let permit = Arc::clone(&self.0).try_acquire_owned();
        let (Ok(runtime), Ok(permit)) = (Handle::try_current(), permit) else {
            return;
        };
        let lost = Instant::now();
        let task = async move {
            let _permit = permit;
            for after in UNDO_AFTER {
                sleep_until(lost + after).await;
                let Some(undone) = undo() else { return };
                // A failure is followed by the next time.
                undone.await;
            }
        };
        runtime.spawn(task.in_current_span());
    }
}
