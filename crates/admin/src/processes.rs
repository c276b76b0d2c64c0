//! The processes of a site, for its operators. A process with a status page holds a named lock, whose holder
//! is its label; the list of such locks is the list of the processes.

use std::time::{Duration, SystemTime};

use perennial::{
    Error, Perennial,
    locks::{Lease, LockInfo, LockKind, LockName},
};
use perennial_store::error::words::{seconds, unix_time};
use serde::Serialize;

/// The beginning of the names of the locks that list processes.
const PROCESS: &str = "process/";

/// The lease of the lock that lists a process.
const LEASE: Duration = Duration::from_secs(30);

/// Lists this process among the [`processes`] of the site, until the lease is dropped or
/// [lost](Lease::lost), or for 30 s after a crash. The status page calls this. Costs one statement
/// in 10 s.
///
/// # Errors
///
/// The database fails.
pub async fn announce(site: &Perennial) -> Result<Lease, Error> {
    let mut action = format!("perennial {}", env!("CARGO_PKG_VERSION"));
    if let Some(revision) = site.revision() {
        action += &format!(", revision {revision}");
    }
    let name = format!("{PROCESS}{}", uuid::Uuid::new_v4().simple());
    let name = LockName::of(LockKind::Housekeeping, name);
    let listed = site.locks().lease_duration(LEASE).lock(name);
    listed.wait(Duration::ZERO).action(action).await
}

/// Returns the processes that have [announced](announce) themselves.
///
/// # Errors
///
/// The database fails.
pub async fn processes(site: &Perennial) -> Result<Vec<Process>, Error> {
    let locks = site.locks().list().await?;
    Ok(locks.into_iter().filter_map(Process::of).collect())
}

/// A process that has [announced](announce) itself. Times are by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Process {
    /// Its [label](perennial::locks::Locks::label).
    pub label: String,
    /// Perennial's version, and the [revision](perennial::Builder::revision) of the site's code.
    pub runs: String,
    /// The time of the announcement.
    #[serde(serialize_with = "unix_time")]
    pub announced_at: SystemTime,
    /// The time since the announcement.
    #[serde(rename = "age_s", serialize_with = "seconds")]
    pub age: Duration,
    /// The time since its last extension; at most 30 s.
    #[serde(rename = "silent_for_s", serialize_with = "seconds")]
    pub silent_for: Duration,
}

impl Process {
    /// Returns the process that this lock lists, or `None` if it is a lock of another kind.
    pub(crate) fn of(lock: LockInfo) -> Option<Self> {
        let is_process = lock.kind == LockKind::Housekeeping && lock.name.starts_with(PROCESS);
        let holder = lock.holder.filter(|_| is_process)?;
        Some(Self {
            label: holder.label,
            runs: holder.action,
            announced_at: SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_micros(u64::try_from(lock.fence.0).ok()?))?,
            age: lock.age,
            silent_for: LEASE.saturating_sub(lock.remaining),
        })
    }
}

#[cfg(test)]
mod tests {
    use perennial_testing::{Database, advance};

    use super::*;

    /// Longer than the pause between two extensions.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn announced_process_is_listed_until_its_lease_ends() {
        let database = Database::new();
        let open = |builder| database.open(builder).expect("opens");
        let [one, other] = ["1", "2"].map(|name| open(Perennial::builder().revision(name)));
        assert!(processes(&one).await.expect("is listed").is_empty());
        let _lease = announce(&one).await.expect("is announced");
        let lease = announce(&other).await.expect("is announced");
        advance(2 * LONG).await;
        let listed = processes(&one).await.expect("is listed");
        let mut actions: Vec<_> = listed.iter().map(|it| &*it.runs).collect();
        actions.sort_unstable();
        let version = env!("CARGO_PKG_VERSION");
        let expected = ["1", "2"].map(|name| format!("perennial {version}, revision {name}"));
        assert_eq!(actions, expected);
        assert!(listed[0].age >= 2 * LONG && listed[0].silent_for <= LEASE);
        lease.release().await.expect("is released");
        assert_eq!(processes(&one).await.expect("is listed").len(), 1);
    }
}
