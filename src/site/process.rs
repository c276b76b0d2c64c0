//! A process of the site, as it lists itself.

use std::time::{Duration, SystemTime};

use perennial_store::{
    LockInfo, LockKind, LockName,
    error::words::{seconds, unix_time},
};

use crate::{clock::duration, timing::PROCESS_LEASE};

/// The beginning of the names of the locks that list processes.
const PROCESS: &str = "process/";

/// Returns a name for the lock of this process that no other process has.
pub(super) fn lock_name() -> LockName {
    let name = format!("{PROCESS}{}", uuid::Uuid::new_v4().simple());
    LockName::of(LockKind::Housekeeping, name)
}

/// A process that has [announced](crate::Perennial::announce) itself. Times are by the database's
/// clock.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Process {
    /// By [`Locks::label`](crate::locks::Locks::label): by default the host's name and the process's number.
    pub label: String,
    /// Perennial's version, and the [revision](crate::Builder::revision) of the site's code.
    pub runs: String,
    /// The time of the announcement.
    #[serde(serialize_with = "unix_time")]
    pub announced_at: SystemTime,
    /// The time since the announcement.
    #[serde(rename = "age_s", serialize_with = "seconds")]
    pub age: Duration,
    /// The time since the process has extended its lease; at most 30 s.
    #[serde(rename = "silent_for_s", serialize_with = "seconds")]
    pub silent_for: Duration,
}

impl Process {
    /// Returns the process that this lock lists; `None`: the lock is another one.
    pub(crate) fn of(lock: LockInfo) -> Option<Self> {
        let is_process = lock.kind == LockKind::Housekeeping && lock.name.starts_with(PROCESS);
        let holder = lock.holder.filter(|_| is_process)?;
        Some(Self {
            label: holder.label,
            runs: holder.action,
            announced_at: SystemTime::UNIX_EPOCH.checked_add(duration(lock.fence.0))?,
            age: lock.age,
            silent_for: PROCESS_LEASE.saturating_sub(lock.remaining),
        })
    }
}
