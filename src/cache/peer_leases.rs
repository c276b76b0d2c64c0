//! The leases of other processes that this process has come across. A lease stays in the list until a sync
//! reports that it has ended.
//!
//! While a lease is in the list, requests for its key get the old version and cost no statement of their own:
//! the sync asks about all leases in the list together, in one statement.

use std::collections::BTreeMap;

use perennial_store::PeerLeaseState;

use crate::{
    cache::entry::PeerLease,
    clock::Tick,
    ordered::{Ordered, Place},
};

pub(crate) struct PeerLeases(Ordered<BTreeMap<String, PeerLease>>);

impl PeerLeases {
    pub(crate) fn new() -> Self {
        Self(Ordered::new(Place::PeerLeases, BTreeMap::new()))
    }

    pub(crate) fn insert(&self, key: &str, lease: PeerLease) {
        self.0.lock().insert(key.to_owned(), lease);
    }

    /// Returns true if another process regenerates this key, as far as this process knows.
    pub(crate) fn contains(&self, key: &str, now: Tick) -> bool {
        let leases = self.0.lock();
        leases.get(key).is_some_and(|lease| now < lease.until)
    }

    /// Returns the keys to ask the store about, and forgets those whose leases have expired.
    pub(crate) fn to_ask(&self, now: Tick) -> Vec<String> {
        let mut leases = self.0.lock();
        leases.retain(|_, lease| now < lease.until);
        leases.keys().cloned().collect()
    }

    /// Updates the leases from the answer to a sync that was sent at `asked`, about the keys that
    /// [`to_ask`](Self::to_ask) returned.
    pub(crate) fn on_sync(&self, keys: &[String], pages: &[PeerLeaseState], asked: Tick) {
        let mut leases = self.0.lock();
        for (key, page) in keys.iter().zip(pages) {
            if let Some(lease) = leases.get_mut(key) {
                lease.on_sync(*page, asked);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use perennial_store::Fence;

    use super::*;

    #[test]
    fn lease_is_asked_about_until_a_sync_tells_of_its_end_or_it_expires() {
        let (leases, now) = (PeerLeases::new(), Tick(0));
        let second = Duration::from_secs(1);
        for (key, seconds) in [("/a", 9), ("/b", 9), ("/c", 1)] {
            let until = now + second * seconds;
            let stored_fence = Fence(7);
            leases.insert(
                key,
                PeerLease {
                    stored_fence,
                    until,
                },
            );
        }
        assert_eq!(leases.to_ask(now), ["/a", "/b", "/c"]);
        let later = now + second;
        assert_eq!(leases.to_ask(later), ["/a", "/b"], "the third has expired");
        let page = |fence, remaining| PeerLeaseState {
            fence: Fence(fence),
            remaining,
        };
        let answers = [page(8, 9 * second), page(7, 5 * second)];
        leases.on_sync(&["/a".into(), "/b".into()], &answers, later);
        assert!(!leases.contains("/a", later), "the page was published");
        assert!(leases.contains("/b", later) && !leases.contains("/b", later + 5 * second));
        assert_eq!(leases.to_ask(later), ["/b"]);
    }
}
