//! The durations of a site, each with its reason. Other modules take their durations from here. Defaults
//! of a policy are written down in the documentation, which `site/builder/tests.rs` compares with these.

use std::time::Duration;

pub(crate) use perennial_store::timing::{
    BRIEF_RETENTION, Backoff, DATABASE_PATIENCE, DEFAULT_LEASE, Pauses, RECHECK_INTERVAL,
    STATEMENT_TIMEOUT, random_unit,
};

/// The pauses between two queries to the store while visitors wait for another process's generator.
pub(crate) const POLL_PAUSES: Pauses =
    Pauses::growing(Duration::from_millis(20), Duration::from_millis(500));

/// The pauses between two tries to publish.
pub(crate) const PUBLISH_PAUSES: Pauses =
    Pauses::growing(Duration::from_millis(100), RECHECK_INTERVAL);

/// The pauses between two attempts to invalidate.
pub(crate) const INVALIDATE_PAUSES: Pauses =
    Pauses::growing(Duration::from_millis(100), Duration::from_secs(5));

/// The age after which a fresh version that this code cannot use is replaced: in most deploys, the processes
/// that could use it have ended long before.
pub(crate) const KEPT_APART_FOR: Duration = Duration::from_secs(3600);

/// The default time that the visitor whose request started a regeneration waits for the new page.
pub(crate) const LEADER_WAIT: Duration = Duration::from_secs(1);

/// The default time that a visitor waits for a first version.
pub(crate) const FOLLOWER_WAIT: Duration = Duration::from_secs(30);

/// The default time after which a regeneration is cancelled.
pub(crate) const GENERATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The shortest default cooldown after a failure.
pub(crate) const SHORTEST_COOLDOWN: Duration = Duration::from_secs(3);

/// The longest default cooldown after a failure.
pub(crate) const LONGEST_COOLDOWN: Duration = Duration::from_secs(30);

/// The cooldown after the first failure of a generator without a servable version.
pub(crate) const FIRST_COOLDOWN: Duration = Duration::from_secs(1);

/// The longest interval of content with a stale part or a placeholder.
pub(crate) const PROVISIONAL_INTERVAL: Duration = Duration::from_secs(3);

/// The time between two syncs of a process with the invalidation list.
pub(crate) const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// If the last sync is older than this, requests wait for a new one. Longer
/// than [`SYNC_INTERVAL`], so that requests that follow one another do not wait.
pub(crate) const SYNC_OVERDUE_AFTER: Duration = Duration::from_millis(1250);

/// The time limit for retrying a publish that fails.
pub(crate) const PUBLISH_RETRY_LIMIT: Duration = Duration::from_secs(15);

/// The time for which a failing invalidation by a layer is tried again.
pub(crate) const INVALIDATE_RETRY_LIMIT: Duration = Duration::from_secs(60);

/// The part of [`INVALIDATE_RETRY_LIMIT`] for which a shutdown waits.
pub(crate) const INVALIDATE_RETRY_LIMIT_AT_SHUTDOWN: Duration = Duration::from_secs(10);

/// The time after which a row of the outbox that the database refused to number is tried again.
pub(crate) const OUTBOX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The time that a response waits for the invalidation that the request causes.
pub(crate) const INVALIDATE_RESPONSE_WAIT: Duration = Duration::from_secs(5);

/// The part of a response's age that may come from clocks that differ and from dates in whole
/// seconds.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);

/// The time after which a page is judged that has changed without an invalidation. It is longer than a handler
/// takes from its commit to its invalidation, and than a process takes to hear of it.
pub(crate) const MISSED_INVALIDATION_WAIT: Duration = Duration::from_secs(5);

/// The time between two writes of the figures that a process shares.
pub(crate) const PROCESS_STATS_INTERVAL: Duration = Duration::from_secs(10);

/// The time after which the figures of a silent process are removed.
pub(crate) const PROCESS_FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// The time that the author of a change waits for new content: shorter than [`HOLE_TIMEOUT`].
pub(crate) const AUTHOR_CONTENT_WAIT: Duration = Duration::from_secs(4);

/// The time that the function of a hole may take for one visitor, who waits for it.
pub(crate) const HOLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for the function of a streamed hole. It is longer, because the visitor already sees the rest
/// of the page.
pub(crate) const STREAMED_HOLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The shortest time between two lines of the log about one hole.
pub(crate) const HOLE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The number of concurrent requests that warm pages.
pub(crate) const WARM_CONCURRENCY: usize = 4;

/// The period in which a layer counts the requested keys that are not in memory. A key is forgotten
/// after a whole period without a request for it.
pub(crate) const KEY_COUNT_PERIOD: Duration = Duration::from_mins(30);

/// The shortest time between two warnings that a layer has too many keys.
pub(crate) const TOO_MANY_KEYS_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The longest default interval of a negative response (404, 405, 410, 414).
pub(crate) const MAX_NEGATIVE_INTERVAL: Duration = Duration::from_secs(60);

/// The default retention of stale entries and unused locks.
pub(crate) const DEFAULT_RETENTION: Duration = Duration::from_hours(24 * 90);

/// The minimum age of the invalidations that pruning removes. A purge of everything takes their place, with the
/// epoch of the newest removed one. That purge also discards the result of a generator that began before that
/// epoch, but hardly any generator runs for so long.
pub(crate) const INVALIDATION_RETENTION: Duration = Duration::from_hours(1);

/// The time between two checks whether the store is within its ceiling.
pub(crate) const CAPACITY_INTERVAL: Duration = Duration::from_secs(60);

/// The longest time between two prunings.
pub(crate) const LONGEST_PRUNE_INTERVAL: Duration = Duration::from_hours(1);

/// The shortest time between two prunings.
pub(crate) const SHORTEST_PRUNE_INTERVAL: Duration = Duration::from_secs(10);
