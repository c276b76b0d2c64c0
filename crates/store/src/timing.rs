//! The durations of the store, each with its reason, and the pauses between attempts. Most modules of the
//! crate take their durations from here.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;

/// The default time limit of an operation.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which the failure of an operation says nothing about the database any more, if other
/// operations succeed: a rare operation may not be tried again for days.
pub(crate) const FAILURE_MEMORY: Duration = Duration::from_secs(60);

/// The default of `Builder::database_patience`.
pub const DATABASE_PATIENCE: Duration = Duration::from_millis(500);

/// The time for which a pool of Perennial's own tries to get a connection.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The time after which no further connection is asked for to prepare the tables.
pub(crate) const PREPARE_CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// The time that making or upgrading the tables may take.
pub(crate) const PREPARE_LIMIT: Duration = Duration::from_secs(60);

/// The longest wait of a statement for another writer of the same SQLite file. Shorter than
/// [`STATEMENT_TIMEOUT`], so that SQLite's own message comes first.
#[cfg(feature = "sqlite")]
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a connection may take to answer when the connection is given back to its pool.
pub(crate) const RETURN_LIMIT: Duration = Duration::from_secs(2);

/// The time for which an extension waits for a connection of the pool.
pub(crate) const URGENT_WAIT: Duration = Duration::from_millis(100);

/// The pauses between two attempts to take a lock. All waiters have the same pauses, whatever their limits
/// are, so that each has the same chance when the lock is released.
pub(crate) const LOCK_PAUSES: Pauses = Pauses::equal(Duration::from_millis(100));

/// The pauses before a statement is run again.
pub const STATEMENT_PAUSES: Pauses =
    Pauses::growing(Duration::from_millis(1), Duration::from_millis(200));

/// The approximate time for which a statement may still run on the server after its connection
/// broke.
pub(crate) const SETTLING_TIME: Duration = Duration::from_millis(250);

/// The pauses before the tables are made or upgraded again, when another process got in the way.
pub(crate) const TABLES_PAUSES: Pauses = Pauses::equal(Duration::from_millis(50));

/// The pauses before a new SQLite file is opened again.
#[cfg(feature = "sqlite")]
pub(crate) const OPEN_PAUSES: Pauses = Pauses::equal(Duration::from_millis(20));

/// The pause before a process listens again after its connection was lost.
pub(crate) const LISTEN_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The time between two notifications that are acted on.
pub(crate) const NOTIFICATION_WINDOW: Duration = Duration::from_millis(50);

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
pub const DEFAULT_LEASE: Duration = Duration::from_secs(15);

/// The default time that an attempt waits for a named lock.
pub(crate) const DEFAULT_LOCK_WAIT: Duration = Duration::from_secs(10);

/// The time between two reads of a key that another process is regenerating, and between two attempts while the
/// database fails.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a page is kept that was stored when the layer's limit of keys that are asked for once was reached.
/// A lock without a stored page is kept equally long.
pub const BRIEF_RETENTION: Duration = Duration::from_hours(1);

/// Runs an operation, and drops it after `limit`.
///
/// # Errors
///
/// [`Timeout`](crate::ErrorKind::Timeout).
pub async fn within<T>(
    limit: Duration,
    operation: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let done = timeout(limit, work).await;
    done.map_err(|_| Error::timeout(operation, limit))
}

/// Lengths of the pauses between attempts: each is twice the one before, up to the longest.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    first: Duration,
    longest: Duration,
}

impl Pauses {
    pub const fn growing(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    pub const fn equal(length: Duration) -> Self {
        Self::growing(length, length)
    }

    /// Returns the length of the next pause after this number of pauses.
    pub fn after(self, made: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(made);
        self.first.saturating_mul(doubled).min(self.longest)
    }
}

/// Waits between attempts.
pub struct Backoff {
    pauses: Pauses,
    random: bool,
    /// The number of pauses made so far, and the greatest number of pauses.
    made: u32,
    limit: u32,
    end: Option<Instant>,
}

impl Backoff {
    pub const fn new(pauses: Pauses) -> Self {
        Self {
            pauses,
            random: false,
            made: 0,
            limit: u32::MAX,
            end: None,
        }
    }

    /// Creates the pauses between two attempts to acquire a lock.
    pub const fn for_locks() -> Self {
        Self::new(LOCK_PAUSES).random()
    }

    /// Makes each pause random, between half of its length and its full length.
    pub const fn random(mut self) -> Self {
        self.random = true;
        self
    }

    /// Ends after this number of further attempts.
    pub const fn tries(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Sets a limit on the total time. The last attempt is made when that time is over.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.end = Instant::now().checked_add(limit);
        self
    }

    /// Waits before another attempt. Returns `false` if there is none.
    pub async fn pause(&mut self) -> bool {
        let left = self.end.map(|end| end - Instant::now());
        if self.made == self.limit || left == Some(Duration::ZERO) {
            return false;
        }
        let mut pause = self.pauses.after(self.made);
        self.made += 1;
        if self.random {
            pause = pause.mul_f64(0.5 + random_unit() / 2.0);
        }
        sleep(left.map_or(pause, |left| left.min(pause))).await;
        true
    }
}

/// Seeds the random numbers of this thread, for a simulation.
pub fn seed_pauses(seed: u64) {
    fastrand::seed(seed);
}

/// Returns a random number greater than 0, and at most 1.
pub fn random_unit() -> f64 {
    1.0 - fastrand::f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let pauses = Pauses::growing(Duration::from_millis(100), Duration::from_millis(350));
        let mut backoff = Backoff::new(pauses);
        for expected in [100, 200, 350, 350] {
            let begun = Instant::now();
            assert!(backoff.pause().await);
            assert_eq!(begun.elapsed(), Duration::from_millis(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn random_pause_is_half_as_long_at_least() {
        let mut backoff = Backoff::new(Pauses::equal(RECHECK_INTERVAL)).random();
        for _ in 0..100 {
            let begun = Instant::now();
            assert!(backoff.pause().await);
            assert!((RECHECK_INTERVAL / 2..=RECHECK_INTERVAL).contains(&begun.elapsed()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_end_at_the_time_or_after_the_tries_that_are_set() {
        let begun = Instant::now();
        let mut backoff =
            Backoff::new(Pauses::equal(RECHECK_INTERVAL)).limit(RECHECK_INTERVAL * 5 / 2);
        for expected in [1000, 2000, 2500] {
            assert!(backoff.pause().await);
            assert_eq!(begun.elapsed(), Duration::from_millis(expected));
        }
        assert!(!backoff.pause().await);
        let mut backoff = Backoff::new(Pauses::equal(RECHECK_INTERVAL)).tries(2);
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
