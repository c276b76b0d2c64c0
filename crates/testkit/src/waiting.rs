//! Waits with a limit that no busy machine exceeds.

use std::time::Duration;

use perennial_driver_tests::HANG;
use tokio::time::Instant;

/// Returns a number of rounds: the few that each change has to pass, or all of them if the environment has
/// `PERENNIAL_TEST_ROUNDS=all`, as in `scripts/test-all`.
pub fn rounds(all: usize, few: usize) -> usize {
    match std::env::var_os("PERENNIAL_TEST_ROUNDS") {
        Some(_) => all,
        None => few,
    }
}

/// Waits until the condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < HANG, "never came about: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Polls a future this many times, at each wake-up, and drops it; `None` if it was not done by
/// then.
pub async fn cut_off<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        let poll = future.as_mut().poll(cx).map(Some);
        if left == 0 && poll.is_pending() {
            // The future is dropped without a wake-up.
            return std::task::Poll::Ready(None);
        }
        poll
    })
    .await
}
