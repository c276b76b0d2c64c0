//! The times that are policy, or that several modules share. All defaults stand here.

use std::time::Duration;

/// The default time that a step in the database may take, waits and further tries included.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The default time that a request waits for the database although the request can be answered without the database.
pub(crate) const DATABASE_PATIENCE: Duration = Duration::from_millis(500);

/// The minimum retention of the lock of a request whose outcome is unknown.
pub(crate) const UNKNOWN_OUTCOME: Duration = Duration::from_hours(24 * 90);

/// The most time between two prunings, in all processes together.
pub(crate) const PRUNE: Duration = Duration::from_hours(24);
