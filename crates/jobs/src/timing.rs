//! The durations of this crate, each with its reason.

use std::time::Duration;

/// The time between two checks that the connection of a session lock still holds the lock.
pub(crate) const SESSION_CHECK: Duration = Duration::from_secs(2);

/// The shortest time for which a claim holds.
pub(crate) const SHORTEST_CLAIM: Duration = Duration::from_millis(100);

/// The default time that a request waits for the lock of an exclusive route.
pub(crate) const EXCLUSIVE_WAIT: Duration = Duration::from_secs(5);

/// For how long once-only work tries to take a lock that cannot be taken although no holder is visible.
pub(crate) const HIDDEN_HOLDER: Duration = Duration::from_secs(1);
