//! Waiting for a lock.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};

use crate::{
    error::Error,
    lock::{Holder, Lease, LockInfo, LockName, Locks},
    timing::{Backoff, LOCK_PAUSES},
};

/// The number of attempts that try for one name at a time in one process; further attempts queue. A
/// crowd of visitors therefore does not become a crowd of statements.
const AT_ONCE: usize = 8;

/// The queues of this process, by the lock's name, each with the number of its attempts.
#[derive(Default)]
pub(super) struct Queues(Mutex<HashMap<LockName, (usize, Arc<Semaphore>)>>);

impl Queues {
    fn enter<'a>(&'a self, name: &'a LockName) -> Queued<'a> {
        let mut queues = self.queues();
        let queue = queues.entry(name.clone());
        let (attempts, turns) = queue.or_insert_with(|| (0, Arc::new(Semaphore::new(AT_ONCE))));
        *attempts += 1;
        Queued {
            queues: self,
            name,
            turns: Arc::clone(turns),
        }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<LockName, (usize, Arc<Semaphore>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt in a queue. The last attempt to leave removes the queue.
struct Queued<'a> {
    queues: &'a Queues,
    name: &'a LockName,
    turns: Arc<Semaphore>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.queues();
        if let Some((attempts, _)) = queues.get_mut(self.name) {
            *attempts -= 1;
            if *attempts == 0 {
                queues.remove(self.name);
            }
        }
    }
}

/// A lock to be waited for; from [`Locks::lock`]. To be awaited, which gives the [`Lease`].
///
/// The attempts of a process ask the database about 13 times a second each, at irregular times. At
/// most eight attempts for a name ask at a time; further ones queue. Each asking attempt has the
/// same chance, so that none starves.
///
/// # Errors
///
/// [Taken](crate::ErrorKind::Taken): the lock was not free in time. The message names the lock, its holder,
/// the time since the lock was acquired, and the holder's action. Or the database fails.
///
/// # Cancel safety
///
/// An attempt that is dropped may have taken the lock, which is then released.
#[derive(Clone, Debug)]
#[must_use = "a lock is taken when its attempt is awaited"]
pub struct LockAttempt {
    pub(super) locks: Locks,
    pub(super) name: LockName,
    pub(super) wait: Duration,
    pub(super) action: String,
}

impl LockAttempt {
    /// Sets the time that the attempt waits for the lock. Default: 10 s. Zero means a single try,
    /// and no try at all while eight attempts of this process wait for the lock.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Sets the purpose of the lock, which others see. At most 100 bytes are stored.
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into();
        self
    }

    /// Returns the lease; `None`: the lock was not free in time.
    pub(crate) async fn taken(&self) -> Result<Option<Lease>, Error> {
        let mut backoff = pauses().limit(self.wait);
        let queued = self.locks.queues.enter(&self.name);
        let Ok(_turn) = timeout(self.wait, queued.turns.acquire()).await else {
            return Ok(None);
        };
        loop {
            if let Some(lease) = self.locks.take(&self.name, &self.action, None).await? {
                return Ok(Some(lease));
            }
            if !backoff.pause().await {
                return Ok(None);
            }
        }
    }

    async fn run(self) -> Result<Lease, Error> {
        if let Some(lease) = self.taken().await? {
            return Ok(lease);
        }
        // Without an answer the message says less.
        let info = self.locks.inspect(self.name.clone()).await.ok().flatten();
        let name = self.name.as_str();
        let details = format!("{}{}", purpose(&self.action), held(info.as_ref()));
        Err(Error::taken(name, self.wait, &details))
    }
}

/// Describes the purpose of a lock, to continue a message.
fn purpose(action: &str) -> String {
    match action {
        "" => String::new(),
        action => format!(", for {action:?}"),
    }
}

/// Describes the holder of a lock, to continue a message.
fn held(info: Option<&LockInfo>) -> String {
    match info {
        Some(LockInfo {
            holder: Some(Holder { label, action, .. }),
            age,
            ..
        }) => format!(": {label:?} has held it for {age:.1?}{}", purpose(action)),
        Some(LockInfo { remaining, .. }) if !remaining.is_zero() => {
            format!(": it was released, and may be taken again in {remaining:.1?}")
        }
        _ => String::new(),
    }
}

/// Returns the pauses between two tries for a lock.
pub(super) fn pauses() -> Backoff {
    Backoff::new(LOCK_PAUSES).random()
}

impl IntoFuture for LockAttempt {
    type Output = Result<Lease, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_attempt_to_leave_removes_the_queue() {
        let queues = Queues::default();
        let name = LockName::from("a");
        let (first, second) = (queues.enter(&name), queues.enter(&name));
        // A thread that drops its place leaves the queue first, and then drops the semaphore. This
        // is the state in between.
        let leaving = Arc::clone(&first.turns);
        drop(first);
        assert_eq!(queues.queues().len(), 1);
        drop(second);
        assert!(queues.queues().is_empty());
        drop(leaving);
    }
}
