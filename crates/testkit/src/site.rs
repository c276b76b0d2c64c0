//! A site for a test: its settings, its file, and its locks.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use perennial::{
    Builder, Perennial, Refresh,
    locks::{Lease, LockName, Locks},
};
use tempfile::TempDir;

use crate::HANG;

/// Returns true if the database failed, or did not answer in time.
pub fn is_database(error: &perennial::Error) -> bool {
    use perennial::ErrorKind::{Database, Failing, Timeout, Unreachable};
    matches!(error.kind(), Database | Failing | Timeout | Unreachable)
}

/// Takes a lock that is free.
pub async fn taken(locks: &Locks, name: impl Into<LockName>) -> Lease {
    let lease = locks.try_lock(name).await.expect("answers");
    lease.expect("is free")
}

/// The settings of a site in a test that is not about limits: on a slow machine the site waits for
/// its database.
pub fn patient() -> Builder {
    Perennial::builder()
        .database_patience(HANG / 2)
        .statement_timeout(HANG / 2)
}

/// A policy whose regenerating visitor waits for the new version, on a slow machine too.
pub const fn every(interval: Duration) -> Refresh {
    Refresh::every(interval).leader_wait(HANG)
}

/// A folder for a database. It is removed when the value is dropped.
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// A new folder.
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a database in it.
    pub fn file(&self) -> PathBuf {
        self.0.path().join("site.db")
    }

    /// The URL of that database.
    pub fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }

    /// Opens a site on that database.
    pub async fn site(&self) -> Perennial {
        patient().open(&self.url()).await.expect("opens")
    }
}
