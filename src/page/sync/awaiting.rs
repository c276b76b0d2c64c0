//! The waits for a sync that is not due yet.

use std::sync::Arc;

use perennial_store::{Epoch, Error, locked};

use super::end_of;
use crate::{
    clock::Tick,
    page::{Pages, UNKNOWN},
    timing::SYNC,
};

impl Pages {
    /// Waits until this process knows all invalidations from before the call.
    pub(crate) async fn caught_up(self: &Arc<Self>) -> Result<(), Arc<Error>> {
        let since = self.now();
        loop {
            let (attempt, begun) = self.attempt(self.now(), |state| state.begun);
            let silence = self.silence();
            let ended = tokio::time::timeout(silence, end_of(attempt)).await;
            if begun >= since {
                return ended.unwrap_or_else(|_| Err(Arc::new(Error::timeout("sync", silence))));
            }
        }
    }

    /// Waits until this process knows the invalidation with this epoch. The next sync begins within
    /// a second, and the wait for the sync's end is bounded by the site's patience. A crowd of such
    /// requests causes one sync a second. Returns the argument; [`Epoch::NONE`]: this process knows no such
    /// invalidation. With [`UNKNOWN`], waits for a sync that begins after the call.
    pub(crate) async fn caught_up_to(self: &Arc<Self>, epoch: Epoch) -> Epoch {
        let arrived = self.now();
        let until = arrived + SYNC + self.store.patience();
        while self.invalidations.seen() < epoch {
            let now = self.now();
            let left = until - now;
            if left.is_zero() {
                break;
            }
            let (running, next) = {
                let mut state = locked(&self.sync.state);
                // There is no such invalidation, or the database fails.
                if state.running.is_none() && state.begun >= arrived {
                    break;
                }
                let next = state.forced + SYNC;
                if state.running.is_none() && now >= next {
                    state.forced = now;
                }
                (state.running.clone(), next)
            };
            let wait = async {
                match running {
                    Some(running) => drop(end_of(running).await),
                    None if now >= next => {
                        drop(end_of(self.attempt(now, |_| ()).0).await);
                    }
                    None => tokio::time::sleep(next - now).await,
                }
            };
            // Without an answer, the author gets the version of all visitors.
            let _ = tokio::time::timeout(left, wait).await;
        }
        match epoch {
            UNKNOWN => UNKNOWN,
            _ if self.invalidations.latest() < epoch => Epoch::NONE,
            _ => epoch,
        }
    }

    /// Returns true if another process still holds the lease on this key, by a sync that began at
    /// `since` or later.
    pub(in crate::page) async fn is_held(self: &Arc<Self>, key: &str, since: Tick) -> bool {
        // The running sync may have begun earlier.
        for _ in 0..2 {
            let (running, begun) = {
                let state = locked(&self.sync.state);
                (state.running.clone(), state.begun)
            };
            let attempt = match running {
                Some(running) => running,
                None if begun >= since => break,
                None => self.attempt(self.now(), |_| ()).0,
            };
            // Without an answer, the flight waits until the lease that it knows has expired.
            let _ = tokio::time::timeout(self.silence(), end_of(attempt)).await;
        }
        self.is_elsewhere(key)
    }
}
