//! The shared times, the pauses between tries, and the deadline of a step.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;

/// The default time limit of a step in the database, with waits and further tries.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which the failure of a step says nothing about the database any more, if other
/// steps succeed: a rare step may not be tried again for days.
pub(crate) const FAILURE_COUNTS: Duration = Duration::from_secs(60);

/// The default time that a request waits for the database although the request can be answered
/// without the database.
pub(crate) const DATABASE_PATIENCE: Duration = Duration::from_millis(500);

/// The time for which a pool of Perennial's own tries to get a connection.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The time that making or upgrading the tables may take.
#[cfg(feature = "_sql")]
pub(crate) const PREPARE_LIMIT: Duration = Duration::from_secs(60);

/// The longest wait of a statement for another writer of the same SQLite file. Shorter than
/// [`STATEMENT_TIMEOUT`], so that SQLite's own message comes first.
#[cfg(feature = "sqlite")]
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a connection may take to answer when the connection is given back to its pool.
#[cfg(feature = "_sql")]
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// The time between two checks that the connection of a session lock still holds the lock.
#[cfg(feature = "_sql")]
pub(crate) const SESSION_CHECK: Duration = Duration::from_secs(2);

/// The pauses between two tries for a lock. All waiters have the same pauses, whatever their limits
/// are, so that each waiter has the same chance when the lock is released.
pub(crate) const LOCK_PAUSES: [Duration; 2] = [Duration::from_millis(100); 2];

/// The pauses before a statement is run again.
pub(crate) const STATEMENT_PAUSES: [Duration; 2] =
    [Duration::from_millis(1), Duration::from_millis(200)];

/// The number of times that a `Begin` without a reply is sent again, within a fifth of a second: a
/// pool may have several connections to a server that was restarted.
pub(crate) const BEGIN_TRIES: u32 = 8;

/// The approximate time for which a statement may still run on the server after its connection
/// broke.
#[cfg(feature = "_sql")]
pub(crate) const SETTLING: Duration = Duration::from_millis(250);

/// The pauses before the tables are made or upgraded again, when another process got in the way.
#[cfg(feature = "_sql")]
pub(crate) const TABLES_PAUSES: [Duration; 2] = [Duration::from_millis(50); 2];

/// The pauses before a new SQLite file is opened again.
#[cfg(feature = "sqlite")]
pub(crate) const OPEN_PAUSES: [Duration; 2] = [Duration::from_millis(20); 2];

/// The pauses between two probes while visitors wait for another process's generator.
pub(crate) const POLL_PAUSES: [Duration; 2] =
    [Duration::from_millis(20), Duration::from_millis(500)];

/// The pauses between two tries to publish.
pub(crate) const PUBLISH_PAUSES: [Duration; 2] = [Duration::from_millis(100), RECHECK];

/// The pauses between two tries of an invalidation.
pub(crate) const INVALIDATE_PAUSES: [Duration; 2] =
    [Duration::from_millis(100), Duration::from_secs(5)];

/// The pauses between two tries to store the response of an idempotent request.
pub(crate) const RESPONSE_PAUSES: [Duration; 2] =
    [Duration::from_millis(250), Duration::from_secs(2)];

/// The pause before a process listens again after its connection was lost.
#[cfg(feature = "postgres")]
pub(crate) const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// The time between two notifications that are acted on.
#[cfg(feature = "postgres")]
pub(crate) const LISTEN_PAUSE: Duration = Duration::from_millis(50);

/// The shortest time for which a claim holds.
#[cfg(feature = "_sql")]
pub(crate) const SHORTEST_CLAIM: Duration = Duration::from_millis(100);

/// The times after the loss of a reply at which the effect of the call is undone: each is three to
/// five times the one before, up to the quarter of an hour for which TCP may resend a message.
pub(crate) const UNDO_AFTER: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(900),
];

/// The default lease of a policy and of a named lock.
pub(crate) const LEASE: Duration = Duration::from_secs(15);

/// The default time that an attempt waits for a named lock.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The default time that a request waits for the lock of an exclusive route.
pub(crate) const EXCLUSIVE_WAIT: Duration = Duration::from_secs(5);

/// The default time that the visitor whose request started a regeneration waits for the new page.
pub(crate) const SOFT_TIMEOUT: Duration = Duration::from_secs(1);

/// The default time that a visitor waits for a first version.
pub(crate) const FIRST_WAIT: Duration = Duration::from_secs(30);

/// The default time after which a regeneration is cancelled.
pub(crate) const GENERATION: Duration = Duration::from_secs(60);

/// The shortest and the longest default cooldown after a failure.
pub(crate) const COOLDOWN: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(30)];

/// The cooldown after the first failure of a generator without a servable version.
pub(crate) const FIRST_COOLDOWN: Duration = Duration::from_secs(1);

/// The age at which content is stale that has a stale part or a placeholder.
pub(crate) const PROVISIONAL: Duration = Duration::from_secs(3);

/// The time after which a client may repeat a request that is in progress.
pub(crate) const RETRY_IN_PROGRESS: Duration = Duration::from_secs(1);

/// The time after which a client may repeat a request for which the database failed.
pub(crate) const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The time between two syncs of a process with the invalidation list.
pub(crate) const SYNC: Duration = Duration::from_secs(1);

/// If the last sync is older than this, requests wait for a new one. Longer
/// than [`SYNC`], so that requests that follow one another do not wait.
pub(crate) const OVERDUE: Duration = Duration::from_millis(1250);

/// The time for which a process asks the store nothing about a key that another process
/// regenerates.
pub(crate) const RECHECK: Duration = Duration::from_secs(1);

/// The longest time for which a failing publish is tried again.
pub(crate) const PUBLISH_RETRY: Duration = Duration::from_secs(15);

/// The time for which a failing invalidation by a layer is tried again.
pub(crate) const INVALIDATE_RETRY: Duration = Duration::from_secs(60);

/// The time that a response waits for the invalidation that the request causes.
pub(crate) const INVALIDATE_WAIT: Duration = Duration::from_secs(5);

/// The default time for which an idempotent request without a response counts as running.
pub(crate) const REQUEST_RUNS: Duration = Duration::from_secs(60);

/// The time for which the storing of an idempotent request's response is tried again. A failover
/// takes half a minute.
pub(crate) const RESPONSE_RETRY: Duration = Duration::from_mins(10);

/// The longest time for which a process that shuts down tries to store a response.
pub(crate) const RESPONSE_RETRY_AT_SHUTDOWN: Duration = Duration::from_secs(10);

/// The part of a response's age that may come from clocks that differ and from dates in whole
/// seconds.
pub(crate) const CLOCKS_DIFFER: Duration = Duration::from_secs(5);

/// The number of requests at once that warm pages.
pub(crate) const WARMING_AT_ONCE: usize = 4;

/// The period in which a layer counts the keys of requests. A key without a request in two of them
/// is forgotten.
pub(crate) const KEYS_PERIOD: Duration = Duration::from_mins(30);

/// The time for which the row of a key is retained that was asked for once, when there are many
/// such keys.
pub(crate) const BRIEF_RETENTION: Duration = Duration::from_hours(1);

/// The shortest time between two warnings that a layer has too many keys.
pub(crate) const TOO_MANY_KEYS_LOG: Duration = Duration::from_secs(60);

/// The longest default interval of a negative response (404, 405, 410, 414).
pub(crate) const NEGATIVE_INTERVAL: Duration = Duration::from_secs(60);

/// The default time for which stale entries and unused locks are stored.
pub(crate) const RETENTION: Duration = Duration::from_hours(24 * 90);

/// The minimum retention of the row of a request whose outcome is unknown.
pub(crate) const UNKNOWN_OUTCOME: Duration = Duration::from_hours(24 * 90);

/// The minimum age of an invalidation that is replaced by a purge of everything: few generations
/// last as long, and their pages are generated again.
pub(crate) const INVALIDATION_MEMORY: Duration = Duration::from_hours(1);

/// The lease of the lock that lists a process.
pub(crate) const PROCESS_LEASE: Duration = Duration::from_secs(30);

/// The longest time between two prunings by all processes together.
pub(crate) const PRUNE: Duration = Duration::from_hours(24);

/// The shortest time between two prunings.
pub(crate) const PRUNE_LEAST: Duration = Duration::from_secs(10);

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
    let done = timeout(limit, work).await;
    done.map_err(|_| Error::timeout(step, limit))
}

/// The pauses between tries: each pause is twice the pause before, up to a limit. With
/// [`random`](Self::random), a pause is between half of that and the whole.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
    random: bool,
    tries: u32,
    end: Option<Instant>,
}

impl Backoff {
    /// Creates the pauses from the first to the longest.
    pub(crate) const fn new([first, longest]: [Duration; 2]) -> Self {
        Self {
            next: first,
            longest,
            random: false,
            tries: u32::MAX,
            end: None,
        }
    }

    /// Randomises each pause between a half and the whole, so that tries that met once do not meet
    /// again.
    pub(crate) const fn random(mut self) -> Self {
        self.random = true;
        self
    }

    /// Ends after this number of further tries.
    pub(crate) const fn tries(mut self, most: u32) -> Self {
        self.tries = most;
        self
    }

    /// Ends after this time from now, with a last try at the end.
    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.end = Instant::now().checked_add(limit);
        self
    }

    /// Waits before another try. Returns `false` at once if there is none.
    pub(crate) async fn pause(&mut self) -> bool {
        let left = self.end.map(|end| end - Instant::now());
        if self.tries == 0 || left == Some(Duration::ZERO) {
            return false;
        }
        self.tries -= 1;
        let mut pause = self.next;
        self.next = self.longest.min(pause * 2);
        if self.random {
            pause = pause / 2 + pause / 2 * u32::from(random()[0]) / 255;
        }
        sleep(left.map_or(pause, |left| left.min(pause))).await;
        true
    }
}

#[cfg(feature = "testing")]
thread_local! {
    static SEED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Derives the random numbers on this thread from a seed, so that a simulation repeats.
#[cfg(feature = "testing")]
pub fn seed_pauses(seed: u64) {
    SEED.set(Some(seed));
}

/// Returns a random number greater than 0, and at most 1.
pub(crate) fn random_unit() -> f64 {
    (f64::from(u32::from_be_bytes(random())) + 1.0) / (f64::from(u32::MAX) + 1.0)
}

fn random() -> [u8; 4] {
    #[cfg(feature = "testing")]
    if let Some(seed) = SEED.get() {
        // A linear congruential generator; its upper bits are the better ones.
        let next = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        SEED.set(Some(next));
        let [a, b, c, d, ..] = next.to_be_bytes();
        return [a, b, c, d];
    }
    let [a, b, c, d, ..] = uuid::Uuid::new_v4().into_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new([100, 350].map(Duration::from_millis));
        for expected in [100, 200, 350, 350] {
            let begun = Instant::now();
            assert!(backoff.pause().await);
            assert_eq!(begun.elapsed(), Duration::from_millis(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn random_pause_is_half_as_long_at_least() {
        let mut backoff = Backoff::new([SYNC; 2]).random();
        for _ in 0..100 {
            let begun = Instant::now();
            assert!(backoff.pause().await);
            assert!((SYNC / 2..=SYNC).contains(&begun.elapsed()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_end_at_the_time_or_after_the_tries_that_are_set() {
        let begun = Instant::now();
        let mut backoff = Backoff::new([SYNC; 2]).limit(SYNC * 5 / 2);
        for expected in [1000, 2000, 2500] {
            assert!(backoff.pause().await);
            assert_eq!(begun.elapsed(), Duration::from_millis(expected));
        }
        assert!(!backoff.pause().await);
        let mut backoff = Backoff::new([SYNC; 2]).tries(2);
        assert!(backoff.pause().await && backoff.pause().await && !backoff.pause().await);
        assert_eq!(begun.elapsed(), Duration::from_millis(4500));
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
