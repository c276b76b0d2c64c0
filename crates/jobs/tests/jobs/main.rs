//! Locks, claims and once-only work on each database.

mod claims;
mod exclusive;
mod once;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod session_locks;
