//! The limit on the number of keys that a layer stores. A visitor can invent any number of keys, and each
//! would be a row, a lock and an entry in memory.
//!
//! Two sets of hashes count the keys of the last hour: one has those that were asked for once, and the other
//! one those that were asked for again. Keys that a visitor invents and asks for only once cannot fill the
//! second set.

use std::{collections::HashSet, hash::BuildHasher, sync::Mutex};

use foldhash::quality::RandomState;
use perennial_store::locked;

use crate::{
    clock::Tick,
    timing::{KEY_COUNT_PERIOD, TOO_MANY_KEYS_LOG_INTERVAL},
};

/// The keys of recent requests, up to a limit.
pub(super) struct Admission {
    limit: usize,
    hasher: RandomState,
    keys: Mutex<Keys>,
}

/// The hashes of the keys.
#[derive(Default)]
struct Keys {
    /// The keys that were asked for once.
    once: Recent,
    /// The keys that were asked for again. Keys that a visitor invents and asks for once cannot displace them.
    again: Recent,
    /// The keys that were refused lately: a table of groups, indexed by the hash, with the latest
    /// key of a group first. Empty before the first refusal.
    refused: Vec<[u64; 8]>,
    since: Option<Tick>,
    /// The time of the last refusal.
    full: Option<Tick>,
    logged: Option<Tick>,
}

/// The hashes of the current period, and the hashes of the previous period without a request in
/// this one.
#[derive(Default)]
struct Recent {
    current: HashSet<u64>,
    before: HashSet<u64>,
}

impl Recent {
    fn len(&self) -> usize {
        self.current.len() + self.before.len()
    }

    fn remove(&mut self, hash: u64) -> bool {
        self.current.remove(&hash) || self.before.remove(&hash)
    }

    fn pass(&mut self) {
        self.before = std::mem::take(&mut self.current);
    }
}

/// The answer for a key that memory does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// The key is stored.
    Stored,
    /// The key is stored, but its row is pruned soon, because the layer has recently refused keys: it may be
    /// an invented one.
    Briefly,
    /// The key is not stored, and the service itself answers.
    No,
}

impl Admission {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            hasher: RandomState::default(),
            keys: Mutex::default(),
        }
    }

    /// Decides about a request for a key without an entry in memory. A key is forgotten when a
    /// second period begins without a call for it.
    ///
    /// After a refusal, and until two periods have passed without a refusal, a new key is admitted
    /// only at its second request.
    pub(super) fn admits(&self, key: &str, now: Tick) -> Admitted {
        let (admitted, is_told) = self.decide(key, now);
        if is_told {
            tracing::warn!(
                key,
                limit = self.limit,
                "the layer stores no further keys that are asked for only once: the service answers such requests (logged once a minute). \
                 If visitors invent keys, name the parameters of the key by `.key(Key::new().query([\u{2026}]))`; if there are so many pages, \
                 raise `.max_keys(\u{2026})`"
            );
        }
        admitted
    }

    /// Decides whether the key is stored, and whether the log needs a warning.
    fn decide(&self, key: &str, now: Tick) -> (Admitted, bool) {
        let hash = self.hasher.hash_one(key);
        let mut keys = locked(&self.keys);
        let keys = &mut *keys;
        let since = *keys.since.get_or_insert(now);
        if now >= since + KEY_COUNT_PERIOD {
            keys.once.pass();
            keys.again.pass();
            keys.since = Some(now);
        }
        let is_known = keys.again.remove(hash);
        let was_admitted = is_known || keys.once.remove(hash);
        let group = hash as usize % keys.refused.len().max(1);
        let refused = keys.refused.get(group);
        let was_asked = was_admitted || refused.is_some_and(|group| group.contains(&hash));
        let was_full = keys
            .full
            .is_some_and(|full| now < full + 2 * KEY_COUNT_PERIOD);
        let admitted = if was_full {
            Admitted::Briefly
        } else {
            Admitted::Stored
        };
        if was_asked && keys.again.len() < self.limit {
            keys.again.current.insert(hash);
            return (admitted, false);
        }
        if was_admitted || (!was_full && keys.once.len() < self.limit) {
            keys.once.current.insert(hash);
            return (admitted, false);
        }
        keys.full = Some(now);
        if self.limit > 0 {
            let groups = self.limit.clamp(1 << 9, 1 << 17);
            keys.refused.resize(groups, [0; 8]);
            let group = &mut keys.refused[hash as usize % groups];
            group.rotate_right(1);
            group[0] = hash;
        }
        let is_due = keys
            .logged
            .is_none_or(|logged| now >= logged + TOO_MANY_KEYS_LOG_INTERVAL);
        if is_due {
            keys.logged = Some(now);
        }
        (Admitted::No, is_due)
    }

    /// Returns true if a request for this key would be refused. Changes nothing.
    pub(super) fn refuses(&self, key: &str, now: Tick) -> bool {
        let hash = self.hasher.hash_one(key);
        let keys = locked(&self.keys);
        let has = |keys: &Recent| keys.current.contains(&hash) || keys.before.contains(&hash);
        let group = hash as usize % keys.refused.len().max(1);
        let refused = keys.refused.get(group);
        let was_refused = refused.is_some_and(|group| group.contains(&hash));
        let was_full = keys
            .full
            .is_some_and(|full| now < full + 2 * KEY_COUNT_PERIOD);
        let is_admitted = has(&keys.again)
            || has(&keys.once)
            || (was_refused && keys.again.len() < self.limit)
            || (!was_full && keys.once.len() < self.limit);
        !is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: i64 = KEY_COUNT_PERIOD.as_micros() as i64;

    fn many(limit: usize) -> Admission {
        let admission = Admission::new(limit);
        for key in 0..2 * limit {
            admission.admits(&format!("invented {key}"), Tick(0));
        }
        admission
    }

    #[test]
    fn keys_that_are_asked_for_once_are_admitted_up_to_the_limit() {
        let admission = Admission::new(2);
        let admits = |key: &str, now| {
            let refuses = admission.refuses(key, Tick(now));
            let admitted = admission.admits(key, Tick(now));
            assert_eq!(refuses, admitted == Admitted::No);
            admitted
        };
        assert_eq!(admits("a", 0), Admitted::Stored);
        assert_eq!(admits("b", 1), Admitted::Stored);
        assert_eq!(admits("c", 2), Admitted::No);
        assert_eq!(admits("c", 3), Admitted::Briefly);
        assert_eq!(Admission::new(0).admits("a", Tick(0)), Admitted::No);
        assert_eq!(Admission::new(0).admits("a", Tick(1)), Admitted::No);
    }

    #[test]
    fn keys_without_a_request_are_forgotten() {
        let admission = many(100);
        // As long as somebody invents keys, a key that is asked for only once is not stored.
        for period in 1..5 {
            let invented = format!("late {period}");
            assert_eq!(
                admission.admits(&invented, Tick(period * PERIOD)),
                Admitted::No
            );
        }
        assert_eq!(admission.admits("/a", Tick(6 * PERIOD)), Admitted::Stored);
    }
}
