//! The times that are policy or shared, the pauses between tries, and the deadline of a step.

use std::time::Duration;

use crate::error::Error;

/// The default time that a step in the database may take, waits and further tries included.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The default time that a request waits for the database although the request can be answered without the database.
pub(crate) const DATABASE_PATIENCE: Duration = Duration::from_millis(500);

/// The time for which a pool of Perennial's own tries to get a connection.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The time that making or upgrading the tables may take.
#[cfg(feature = "_sql")]
pub(crate) const PREPARE_LIMIT: Duration = Duration::from_secs(60);

/// The default lease of a policy and of a named lock.
pub(crate) const LEASE: Duration = Duration::from_secs(15);

/// The default time that an attempt waits for a named lock.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The default time that a request waits for the lock of an exclusive route.
pub(crate) const EXCLUSIVE_WAIT: Duration = Duration::from_secs(5);

/// The time between two questions of a process for what other processes have invalidated.
pub(crate) const SYNC: Duration = Duration::from_secs(1);

/// The age at which an answer to that question has to be renewed before a process relies on the answer. Longer than [`SYNC`], so that
/// requests that come one after the other do not wait.
pub(crate) const OVERDUE: Duration = Duration::from_millis(1250);

/// The time for which a process asks nothing more about a key that another process is regenerating.
pub(crate) const RECHECK: Duration = Duration::from_secs(1);

/// The longest time for which a publish that fails is tried again.
pub(crate) const PUBLISH_RETRY: Duration = Duration::from_secs(15);

/// The time for which an invalidation by a layer is tried again.
pub(crate) const INVALIDATE_RETRY: Duration = Duration::from_secs(60);

/// The time that a response waits for the invalidation that the request causes.
pub(crate) const INVALIDATE_WAIT: Duration = Duration::from_secs(5);

/// The time for which the response of an idempotent request is tried again to be stored. A failover takes half a minute.
pub(crate) const RESPONSE_RETRY: Duration = Duration::from_mins(10);

/// The same time, counted from the beginning of a shutdown.
pub(crate) const RESPONSE_RETRY_AT_SHUTDOWN: Duration = Duration::from_secs(10);

/// The longest interval of a response whose status says that there is nothing.
pub(crate) const NEGATIVE_INTERVAL: Duration = Duration::from_secs(60);

/// The default time for which stale entries and unused locks are stored.
pub(crate) const RETENTION: Duration = Duration::from_hours(24 * 90);

/// The minimum retention of the lock of a request whose outcome is unknown.
pub(crate) const UNKNOWN_OUTCOME: Duration = Duration::from_hours(24 * 90);

/// The minimum time for which a purge is remembered: longer than a generation that began before the purge.
pub(crate) const PURGE_MEMORY: Duration = Duration::from_hours(1);

/// The longest time between two prunings, in all processes together.
pub(crate) const PRUNE: Duration = Duration::from_hours(24);

/// The shortest time between two prunings.
pub(crate) const PRUNE_LEAST: Duration = Duration::from_secs(10);

/// The time between two foldings of the invalidation list, in all processes together.
pub(crate) const FOLD: Duration = Duration::from_secs(60);

/// Runs a step in the database, and drops the step after `limit`.
///
/// # Errors
///
/// [`Timeout`](crate::ErrorKind::Timeout): the step took longer.
pub(crate) async fn within<T>(
    limit: Duration,
    step: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let done = tokio::time::timeout(limit, work).await;
    done.map_err(|_| Error::timeout(step, limit))
}

/// The pauses between tries: each is twice the one before it, up to a limit.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    /// Returns the next pause.
    fn step(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.longest.min(pause * 2);
        pause
    }

    /// Waits before another try.
    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.step()).await;
    }

    /// Waits for a random part of the pause, half of it at least, so that tries that have met once do not meet again.
    pub(crate) async fn random_pause(&mut self) {
        let pause = self.step();
        tokio::time::sleep(random(pause / 2, pause)).await;
    }
}

/// Returns a random time between the two.
pub(crate) fn random(shortest: Duration, longest: Duration) -> Duration {
    let [random, ..] = uuid::Uuid::new_v4().into_bytes();
    shortest + longest.saturating_sub(shortest) * u32::from(random) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for expected in [100, 200, 350, 350] {
            let begun = tokio::time::Instant::now();
            backoff.pause().await;
            assert_eq!(begun.elapsed(), Duration::from_millis(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn step_that_takes_too_long_is_a_timeout() {
        let second = Duration::from_secs(1);
        let error = within(second, "probe", std::future::pending::<()>()).await;
        let error = error.expect_err("never ends");
        assert_eq!(error.kind(), crate::ErrorKind::Timeout);
        assert_eq!(within(second, "probe", async { 7 }).await.ok(), Some(7));
    }
}
