//! Lost replies: the database may carry out an operation after its caller has given up. The effect of such an
//! operation is undone several times during the following quarter of an hour, because a message may stay in
//! transit for that long.

use std::sync::Arc;

use tokio::{
    runtime::Handle,
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tracing::Instrument;

use crate::timing::UNDO_AFTER;

/// The largest number of lost replies that are remembered at a time. Operations beyond it are not undone.
const MAX_LOST_REPLIES: usize = 1_000;

/// The lost replies that are remembered.
#[derive(Clone)]
pub struct LostReplies(Arc<Semaphore>);

impl Default for LostReplies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_LOST_REPLIES)))
    }
}

impl LostReplies {
    /// Runs `undo` at each of the times in [`UNDO_AFTER`] until it returns `None`.
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
                // If it fails, the loop tries again.
                undone.await;
            }
        };
        runtime.spawn(task.in_current_span());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_than_a_thousand_are_remembered_at_a_time() {
        let (replies, undone) = (LostReplies::default(), Arc::new(AtomicUsize::new(0)));
        let lose = || {
            let undone = Arc::clone(&undone);
            replies.repeat(move || {
                undone.fetch_add(1, SeqCst);
                Some(async {})
            });
        };
        let [first, .., last] = UNDO_AFTER;
        for _ in 0..MAX_LOST_REPLIES {
            lose();
        }
        // Now each has begun.
        tokio::time::sleep(first / 2).await;
        for _ in 0..MAX_LOST_REPLIES {
            lose();
        }
        tokio::time::sleep(2 * last).await;
        assert_eq!(undone.swap(0, SeqCst), MAX_LOST_REPLIES * UNDO_AFTER.len());
        lose();
        tokio::time::sleep(2 * last).await;
        assert_eq!(undone.load(SeqCst), UNDO_AFTER.len());
    }
}
