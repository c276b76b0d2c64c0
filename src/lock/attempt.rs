//! Waiting for a lock.

use std::{fmt, hash::BuildHasher, pin::Pin, time::Duration};

use foldhash::quality::RandomState;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::{
    error::Error,
    lock::{Lease, LockName, Locks},
};

/// How long an attempt waits unless told otherwise.
const WAIT: Duration = Duration::from_secs(10);

/// Between two tries: at least so long, and up to so much more. The same for all who wait, however long they have, so that of those who wait
/// each has the same chance whenever the lock is released.
const PAUSE: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(100));

/// How many poll for a name in one process; the others wait until it is their turn to. So a crowd of visitors doesn't become one of statements.
const AT_ONCE: usize = 8;

/// Where those who poll in one process queue: by the name's hash, so that there is nothing to be made or forgotten. Two names may share a
/// queue, where they wait for both a little longer.
pub(super) struct Queues {
    queues: [Semaphore; 64],
    hasher: RandomState,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self {
            queues: std::array::from_fn(|_| Semaphore::new(AT_ONCE)),
            hasher: RandomState::default(),
        }
    }

    fn of(&self, name: &str) -> &Semaphore {
        let hash = self.hasher.hash_one(name);
        &self.queues[hash as usize % self.queues.len()]
    }
}

/// A lock to be waited for; from [`Locks::lock`]. To be awaited, which gives the [`Lease`].
///
/// The database is asked about 13 times a second, at irregular times, by at most eight who wait for a name in one process; the others queue.
/// Of those who ask each has the same chance, so that nobody is passed over for long.
///
/// # Errors
///
/// [Taken](Error::is_taken): it was not free in time; the message says what was asked for, by whom it is held, for how long and what
/// for. Or the database fails.
///
/// # Cancel safety
///
/// Dropped before it is done, it may have taken the lock, which is then released.
#[derive(Clone)]
#[must_use = "a lock is taken when its attempt is awaited"]
pub struct LockAttempt {
    locks: Locks,
    name: LockName,
    wait: Duration,
    action: String,
}

impl LockAttempt {
    pub(super) fn new(locks: Locks, name: LockName) -> Self {
        Self {
            locks,
            name,
            wait: WAIT,
            action: String::new(),
        }
    }

    /// How long it is waited for. Default: 10 s. With zero it is tried once.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// What the lock is taken for, as others are told; the first 100 bytes count.
    pub fn action(mut self, action: &str) -> Self {
        self.action = action.to_owned();
        self
    }

    async fn run(self) -> Result<Lease, Error> {
        let begun = Instant::now();
        let name = self.name.as_str();
        let mut turn = None;
        loop {
            if let Some(lease) = self.locks.take(name, &self.action, None).await? {
                return Ok(lease);
            }
            let left = self.wait.saturating_sub(begun.elapsed());
            if left.is_zero() {
                // Without an answer the message says less.
                let info = self.locks.inspect(self.name.clone()).await.ok().flatten();
                return Err(Error::taken(name, &self.action, self.wait, info.as_ref()));
            }
            if turn.is_none() {
                let acquired = self.locks.queues.of(name).acquire();
                turn = timeout(left, acquired).await.ok();
            }
            let left = self.wait.saturating_sub(begun.elapsed());
            tokio::time::sleep(pause().min(left)).await;
        }
    }
}

pub(super) fn pause() -> Duration {
    let [random, ..] = uuid::Uuid::new_v4().into_bytes();
    PAUSE.0 + PAUSE.1 * u32::from(random) / 255
}

impl IntoFuture for LockAttempt {
    type Output = Result<Lease, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for LockAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAttempt")
            .field("name", &self.name)
            .field("wait", &self.wait)
            .field("action", &self.action)
            .finish_non_exhaustive()
    }
}
