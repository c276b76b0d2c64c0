use std::time::Duration;

pub(crate) use perennial_store::timing::{
    BRIEF_RETENTION, Backoff, DATABASE_PATIENCE, LEASE, Pauses, RECHECK, STATEMENT_TIMEOUT,
    random_unit,
};

/// The pauses between two questions to the store while visitors wait for another process's
/// generator.
pub(crate) const POLL_PAUSES: Pauses =
    Pauses::growing(Duration::from_millis(20), Duration::from_millis(500));

/// The pauses between two tries to publish.
pub(crate) const PUBLISH_PAUSES: Pauses = Pauses::growing(Duration::from_millis(100), RECHECK);

/// The pauses between two tries of an invalidation.
pub(crate) const INVALIDATE_PAUSES: Pauses =
    Pauses::growing(Duration::from_millis(100), Duration::from_secs(5));

/// The default time that the visitor whose request started a regeneration waits for the new page.
pub(crate) const SOFT_TIMEOUT: Duration = Duration::from_secs(1);

/// The default time that a visitor waits for a first version.
pub(crate) const FIRST_WAIT: Duration = Duration::from_secs(30);

/// The default time after which a regeneration is cancelled.
pub(crate) const GENERATION: Duration = Duration::from_secs(60);

/// The shortest default cooldown after a failure.
pub(crate) const SHORTEST_COOLDOWN: Duration = Duration::from_secs(3);

/// The longest default cooldown after a failure.
pub(crate) const LONGEST_COOLDOWN: Duration = Duration::from_secs(30);

/// The cooldown after the first failure of a generator without a servable version.
pub(crate) const FIRST_COOLDOWN: Duration = Duration::from_secs(1);

/// The longest interval of content with a stale part or a placeholder.
pub(crate) const PROVISIONAL: Duration = Duration::from_secs(3);

/// The time between two syncs of a process with the invalidation list.
pub(crate) const SYNC: Duration = Duration::from_secs(1);

/// If the last sync is older than this, requests wait for a new one. Longer
/// than [`SYNC`], so that requests that follow one another do not wait.
pub(crate) const OVERDUE: Duration = Duration::from_millis(1250);

/// The time limit of the repetitions of a failing publish.
pub(crate) const PUBLISH_RETRY: Duration = Duration::from_secs(15);

/// The time for which a failing invalidation by a layer is tried again.
pub(crate) const INVALIDATE_RETRY: Duration = Duration::from_secs(60);

/// The part of that time that a shutdown waits for.
pub(crate) const INVALIDATE_RETRY_AT_SHUTDOWN: Duration = Duration::from_secs(10);

/// The time after which a row of the outbox that the database refused to number is tried again.
pub(crate) const UNNUMBERED_AGAIN: Duration = Duration::from_secs(60);

/// The time that a response waits for the invalidation that the request causes.
pub(crate) const INVALIDATE_WAIT: Duration = Duration::from_secs(5);

/// The part of a response's age that may come from clocks that differ and from dates in whole
/// seconds.
pub(crate) const CLOCKS_DIFFER: Duration = Duration::from_secs(5);

/// The number of concurrent requests that warm pages.
pub(crate) const WARMING_AT_ONCE: usize = 4;

/// The period in which a layer counts the requested keys that are not in memory. A key is forgotten
/// after a whole period without a request for it.
pub(crate) const KEYS_PERIOD: Duration = Duration::from_mins(30);

/// The shortest time between two warnings that a layer has too many keys.
pub(crate) const TOO_MANY_KEYS_LOG: Duration = Duration::from_secs(60);

/// The longest default interval of a negative response (404, 405, 410, 414).
pub(crate) const NEGATIVE_INTERVAL: Duration = Duration::from_secs(60);

/// The default retention of stale entries and unused locks.
pub(crate) const RETENTION: Duration = Duration::from_hours(24 * 90);

/// The minimum age of the invalidations that pruning removes. A purge of everything takes their
/// place, with the epoch of the newest removed one. The purge also discards the result of a
/// generator that has run since before that epoch: few run for as long as this age.
pub(crate) const INVALIDATION_MEMORY: Duration = Duration::from_hours(1);

/// The time between two checks whether the store is within its ceiling.
pub(crate) const CAPACITY: Duration = Duration::from_secs(60);

/// The longest time between two prunings.
pub(crate) const PRUNE: Duration = Duration::from_hours(1);

/// The shortest time between two prunings.
pub(crate) const PRUNE_LEAST: Duration = Duration::from_secs(10);
