//! A store in memory that keeps the contract of [`Backend`], on Tokio's clock. The same contract tests run on
//! it as on the real databases, so that a test on it says something about them.

use std::{
    sync::Mutex,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::Response;
use tokio::time::Instant;

use super::rows::{PageRow, Rows, id};
use perennial_store::{
    Backend, Call, CallFuture, Epoch, Fence, LockKind, LockName, Reply,
    clock::{self, FOREVER},
    locked,
};

/// The database's clock when a store is made, in microseconds since 1970: the year 2020.
/// `Last-Modified` goes by this clock, and is not to be later than `Date`, which goes by the
/// machine's clock.
const EPOCH: i64 = 1_577_836_800_000_000;

/// The rows of the store.
pub struct Memory {
    start: Instant,
    rows: Mutex<Rows>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            rows: Mutex::default(),
        }
    }
}

impl Memory {
    /// Moves the database's clock.
    pub fn move_clock(&self, by: i64) {
        locked(&self.rows).moved += by;
    }

    /// The latest epoch.
    pub fn epoch(&self) -> Epoch {
        locked(&self.rows).epoch
    }

    /// The fence of the entry with this name.
    pub fn fence_of(&self, name: &LockName) -> Fence {
        let rows = locked(&self.rows);
        rows.entries
            .get(&id(name).1)
            .map_or(Fence::NONE, |page| page.fence)
    }

    /// Counts the rows of page locks, expired ones included.
    pub fn page_locks(&self) -> usize {
        let rows = locked(&self.rows);
        let of_pages = rows.locks.keys().filter(|id| id.0 == LockKind::Page);
        of_pages.count()
    }

    /// Counts the stored requests.
    pub fn requests(&self) -> usize {
        locked(&self.rows).requests.len()
    }

    /// Returns how many times the page of `key`, or a variant of it, was stored.
    pub fn generations(&self, key: &str) -> u64 {
        let rows = locked(&self.rows);
        let (variants, end) = (format!("{key}#"), format!("{key}$"));
        let variants = rows
            .generations
            .range(variants..end)
            .map(|(_, times)| times);
        variants.sum::<u64>() + rows.generations.get(key).copied().unwrap_or(0)
    }

    /// Stores a page of this age, as if it had been published in the past.
    pub fn fill(&self, key: &str, age: Duration, content: Response<Bytes>) {
        let generated = self.now(&locked(&self.rows)) - micros(age);
        let page = PageRow {
            fence: Fence(1),
            generated,
            regenerated: false,
            stale_at: i64::MAX,
            retain_until: i64::MAX,
            epoch: Epoch::NONE,
            content,
            metadata: "{}".to_owned(),
            history: String::new(),
        };
        let name = LockName::of(LockKind::Page, key);
        locked(&self.rows).entries.insert(id(&name).1, page);
    }

    /// Writes an invalidation into the outbox, like a transaction that commits now.
    pub fn commit_invalidation(&self, id: &str, name: &str) {
        let mut rows = locked(&self.rows);
        rows.outbox.insert(id.to_owned(), name.to_owned());
    }

    /// Carries out a call as one atomic step.
    pub fn apply(&self, call: &Call) -> Reply {
        let mut rows = locked(&self.rows);
        let now = self.now(&rows);
        rows.apply(call, now)
    }

    /// Returns the time of a wall clock that [`move_clock`](Self::move_clock) does not move. A process with
    /// this clock and the store agree only until the store's clock is moved.
    pub fn simulated_wall_clock(&self) -> SystemTime {
        let start = Duration::from_micros(EPOCH.unsigned_abs());
        SystemTime::UNIX_EPOCH + start + self.start.elapsed()
    }

    fn now(&self, rows: &Rows) -> i64 {
        EPOCH + micros(self.start.elapsed()) + rows.moved
    }
}

impl Backend for Memory {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(std::future::ready(Ok(self.apply(&call))))
    }
}

/// Returns whole microseconds, with an upper limit.
pub fn micros(time: Duration) -> i64 {
    clock::micros(time.min(FOREVER))
}
