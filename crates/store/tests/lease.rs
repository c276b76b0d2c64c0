//! Leases over a store in memory that loses replies, in virtual time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use perennial_store::{Backend, Call, CallFuture, Locks, Reply, Store, error::BoxError};
use perennial_testing::Memory;

const NAME: &str = "a";

const SECOND: Duration = Duration::from_secs(1);

/// A store that sends the first try twice, as after a lost connection. The second sending is
/// answered, and the first one is still under way.
#[derive(Default)]
struct Repeats {
    memory: Memory,
    late: Mutex<Option<Call>>,
}

impl Repeats {
    fn locks(self: &Arc<Self>) -> Locks {
        let store = Box::new(Arc::clone(self));
        let store = Store::new(store, SECOND, SECOND, None, |_| {});
        Locks::with_store(store).lease_duration(600 * SECOND)
    }

    /// Carries out the first sending.
    fn arrives(&self) {
        let late = self.late.lock().expect("not poisoned");
        self.memory.apply(late.as_ref().expect("was sent"));
    }
}

impl Repeats {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let mut reply = self.memory.apply(&call);
        let mut late = self.late.lock().expect("not poisoned");
        if let Reply::TryLock(tried) = &mut reply
            && late.is_none()
        {
            tried.resent = true;
            *late = Some(call);
        }
        Ok(reply)
    }
}

impl Backend for Repeats {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(self.answer(call))
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_try_whose_first_sending_arrives_after_the_end_of_the_lease_holds_no_lock() {
    for is_released in [true, false] {
        // Before the first check, and after it.
        for arrival in [SECOND / 2, 3 * SECOND] {
            let store = Arc::new(Repeats::default());
            let locks = store.locks();
            let lease = locks.try_lock(NAME).await.expect("answers");
            let lease = lease.expect("is free");
            if is_released {
                lease.release().await.expect("is held");
            } else {
                drop(lease);
            }
            tokio::time::sleep(arrival).await;
            store.arrives();
            let taken = locks.try_lock(NAME).await.expect("answers");
            assert!(taken.is_none(), "the late try has taken the lock");
            tokio::time::sleep(10 * SECOND).await;
            let taken = locks.try_lock(NAME).await.expect("answers");
            assert!(taken.is_some(), "{is_released}, {arrival:?}");
        }
    }
}
