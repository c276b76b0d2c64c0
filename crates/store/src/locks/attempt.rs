//! Waiting for a lock that somebody else holds.
//!
//! There is no queue in the database, as it would have to outlive crashes. Waiters poll at random times
//! instead, and [`Queues`] bounds how many of a process's attempts do so at once: a crowd of visitors does not
//! become a crowd of statements.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};

use crate::{
    error::Error,
    locked,
    locks::{Holder, Lease, LockInfo, LockName, Locks},
    timing::Backoff,
};

/// The number of attempts for one name in one process that ask the database at the same time. Further attempts
/// queue, so that a crowd of visitors does not become a crowd of statements.
const AT_ONCE: usize = 8;

/// The queues of this process, by the lock's name. Each attempt holds its queue.
#[derive(Default)]
pub(super) struct Queues(Mutex<HashMap<LockName, Weak<Semaphore>>>);

impl Queues {
    /// Returns the queue of a lock, and forgets the queues that no attempt holds any more.
    fn of(&self, name: &LockName) -> Arc<Semaphore> {
        let mut queues = locked(&self.0);
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = queues.get(name).and_then(Weak::upgrade);
        queue.unwrap_or_else(|| {
            let queue = Arc::new(Semaphore::new(AT_ONCE));
            queues.insert(name.clone(), Arc::downgrade(&queue));
            queue
        })
    }
}

/// A wait for a lock, created by [`Locks::lock`]. When you await it, it returns the [`Lease`].
///
/// While it waits, an attempt asks the database some 13 times a second. At most eight attempts for one name
/// do so in a process at the same time; the others queue in the process.
///
/// # Errors
///
/// [Taken](crate::ErrorKind::Taken): the lock was not free in time; the message names the holder, if there is
/// one. Or the database fails.
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
    /// or none while eight others wait for the same name.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Sets the purpose of the lock, which others see; its first 100 bytes are stored.
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into();
        self
    }

    /// Returns the lease, or `None` if the lock was not free in time.
    #[doc(hidden)]
    pub async fn taken(&self) -> Result<Option<Lease>, Error> {
        let mut backoff = Backoff::for_locks().limit(self.wait);
        let queue = self.locks.queues.of(&self.name);
        let Ok(_turn) = timeout(self.wait, queue.acquire()).await else {
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

/// Describes the purpose of a lock, as the end of a message.
fn purpose(action: &str) -> String {
    match action {
        "" => String::new(),
        action => format!(", for {action:?}"),
    }
}

/// Describes the holder of a lock, as the end of a message.
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
    fn queue_is_shared_by_its_attempts_and_forgotten_after_the_last_one() {
        let queues = Queues::default();
        let [a, b] = ["a", "b"].map(LockName::from);
        let (first, second) = (queues.of(&a), queues.of(&a));
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        assert!(Arc::ptr_eq(&queues.of(&a), &second));
        drop(second);
        let _other = queues.of(&b);
        assert_eq!(queues.0.lock().expect("not poisoned").len(), 1);
    }
}
