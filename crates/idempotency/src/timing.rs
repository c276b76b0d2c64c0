//! The durations of this crate, each with its reason.

use std::time::Duration;

use perennial_store::timing::Pauses;

/// The number of times that a `Begin` without a reply is sent again, after pauses of 1 to 128 ms: a
/// pool may have several connections to a server that was restarted.
pub(crate) const BEGIN_TRIES: u32 = 8;

/// The pauses between two tries to store the response of an idempotent request.
pub(crate) const RESPONSE_PAUSES: Pauses =
    Pauses::growing(Duration::from_millis(250), Duration::from_secs(2));

/// The time after which a client may repeat a request that is in progress.
pub(crate) const RETRY_IN_PROGRESS: Duration = Duration::from_secs(1);

/// The time after which a client may repeat a request for which the database failed.
pub(crate) const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The default time for which an idempotent request without a response counts as running.
pub(crate) const RUNNING_LIMIT: Duration = Duration::from_secs(60);

/// For how long storing the response to an idempotent request is retried. A failover takes half a minute.
pub(crate) const RESPONSE_RETRY_LIMIT: Duration = Duration::from_mins(10);

/// The longest time for which a process that shuts down tries to store a response.
pub(crate) const RESPONSE_RETRY_LIMIT_AT_SHUTDOWN: Duration = Duration::from_secs(10);

/// The minimum retention of the row of a request whose outcome is unknown.
pub(crate) const UNKNOWN_OUTCOME_RETENTION: Duration = Duration::from_hours(24 * 90);

/// The time between two lines of the log about one request of unknown outcome.
pub(crate) const UNKNOWN_OUTCOME_LOG_INTERVAL: Duration = Duration::from_mins(1);
