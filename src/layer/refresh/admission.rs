//! The limit on the number of keys that a layer stores.

use std::{
    collections::HashSet,
    hash::BuildHasher,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use foldhash::quality::RandomState;

use crate::{clock::Tick, timing::TOO_MANY_KEYS_LOG};

/// The keys of recent requests, up to a limit.
pub(super) struct Admission {
    limit: usize,
    hasher: RandomState,
    keys: Mutex<Keys>,
}

/// The hashes of the keys that were requested in the current period, and of those that were
/// requested in the period before and not since.
#[derive(Default)]
struct Keys {
    current: HashSet<u64>,
    before: HashSet<u64>,
    since: Option<Tick>,
    logged: Option<Tick>,
}

impl Admission {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            hasher: RandomState::default(),
            keys: Mutex::default(),
        }
    }

    /// Returns true if a key without an entry in memory may be stored. A key is forgotten when a
    /// second period begins without a call for it.
    pub(super) fn admits(&self, key: &str, now: Tick, period: Duration) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = &mut *keys;
        let since = *keys.since.get_or_insert(now);
        if now >= since + period {
            keys.before = std::mem::take(&mut keys.current);
            keys.since = Some(now);
        }
        if keys.current.contains(&hash) {
            return true;
        }
        if !keys.before.remove(&hash) && keys.current.len() + keys.before.len() >= self.limit {
            if keys
                .logged
                .is_none_or(|logged| now >= logged + TOO_MANY_KEYS_LOG)
            {
                keys.logged = Some(now);
                tracing::warn!(
                    key,
                    limit = self.limit,
                    "the layer stores no further keys: the service answers requests for others (logged once a minute). If visitors \
                     invent keys, name the parameters of the key by `.key(Key::new().query(&[\u{2026}]))`; if there are so many pages, raise `.max_keys(\u{2026})`"
                );
            }
            return false;
        }
        keys.current.insert(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_admitted_up_to_the_limit_and_forgotten_when_unused() {
        const PERIOD: Duration = Duration::from_micros(100);
        let admission = Admission::new(2);
        let admits = |key, now| admission.admits(key, Tick(now), PERIOD);
        assert!(admits("a", 0) && admits("b", 1) && admits("a", 2));
        assert!(!admits("c", 3));
        // In the second period a is asked for, and b is not.
        assert!(admits("a", 100) && !admits("c", 150));
        assert!(admits("c", 200) && admits("a", 201) && !admits("b", 202));
        assert!(!Admission::new(0).admits("a", Tick(0), PERIOD));
    }
}
