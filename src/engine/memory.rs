//! The in-process tier: what this process knows of each key, bounded in bytes.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::Relaxed},
};

use bytes::Bytes;
use http::Response;
use moka::sync::Cache;

use crate::{
    clock::Tick,
    decide::{self, Freshness},
    key,
    refresh::Refresh,
};

/// What a key costs beside its own bytes: map entries, counters, pointers.
const OVERHEAD: usize = 256;

#[derive(Clone)]
pub(crate) struct Memory(Cache<String, Slot>);

/// What is known of a key. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    /// There is a version.
    Version(Arc<Version>),
    /// The service is asked by each request itself until then: its responses cannot be shared.
    Pass { until: Tick },
    /// There is no version that may be served, and after a failure nobody tries before then.
    Cooldown { until: Tick },
}

/// One version of a resource.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) content: Response<Bytes>,
    /// The fence of the lease under which it was published; if it could not be, of the version before it.
    pub(crate) fence: i64,
    unsaved: bool,
    /// When it was published.
    born: Tick,
    /// The key's place in the spread of `Refresh::jitter`.
    unit: f64,
    /// Until when nothing more is to be asked about it.
    rest: AtomicI64,
}

impl Version {
    pub(crate) fn new(key: &str, content: Response<Bytes>, fence: i64, born: Tick) -> Self {
        Self {
            content,
            fence,
            unsaved: false,
            born,
            unit: key::unit(key),
            rest: AtomicI64::new(i64::MIN),
        }
    }

    /// It could not be published, and is to be replaced soon by one that can.
    pub(crate) fn unsaved(mut self) -> Self {
        self.unsaved = true;
        self
    }

    pub(crate) fn age(&self, now: Tick) -> std::time::Duration {
        now - self.born
    }

    pub(crate) fn freshness(&self, now: Tick, policy: &Refresh) -> Freshness {
        let mut interval = policy.interval_at(self.unit);
        if self.unsaved {
            interval = interval.min(policy.cooldown());
        }
        decide::freshness(self.age(now), interval, policy.max_stale)
    }

    pub(crate) fn rest_until(&self, until: Tick) {
        self.rest.store(until.0, Relaxed);
    }

    pub(crate) fn rests(&self, now: Tick) -> bool {
        now.0 < self.rest.load(Relaxed)
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(
            Cache::builder()
                .max_capacity(bytes)
                .weigher(|key: &String, slot: &Slot| weight(key, slot))
                .build(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<Slot> {
        self.0.get(key)
    }

    pub(crate) fn insert(&self, key: &str, slot: Slot) {
        self.0.insert(key.to_owned(), slot);
    }
}

fn weight(key: &str, slot: &Slot) -> u32 {
    let content = match slot {
        Slot::Version(version) => {
            let headers = version.content.headers();
            let lines = headers.iter().map(|(name, value)| {
                name.as_str().len() + value.len() + size_of::<http::HeaderValue>() * 2
            });
            version.content.body().len() + lines.sum::<usize>()
        }
        Slot::Pass { .. } | Slot::Cooldown { .. } => 0,
    };
    u32::try_from(OVERHEAD + key.len() + content).unwrap_or(u32::MAX)
}
