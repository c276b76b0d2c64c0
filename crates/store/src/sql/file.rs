//! The file of an SQLite database while this process has it open. SQLite does not notice that somebody
//! deletes or replaces it: this process would go on in a file that no other process sees.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

use crate::locked;

/// The shortest time between two checks of the file.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A database file that this process has opened.
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// Which file was opened by this path.
    #[cfg(unix)]
    opened: Option<(u64, u64)>,
    /// The time of the latest check.
    checked_at: Mutex<Instant>,
    /// The write-ahead log that the latest check of this process's descriptors has found.
    #[cfg(target_os = "linux")]
    log: Mutex<Option<(u64, u64)>>,
    lost: OnceLock<String>,
}

impl DatabaseFile {
    /// Remembers which file `path` stands for, so that a replacement is noticed. The file has to be open
    /// already.
    pub(super) fn new(path: &Path) -> Self {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Self {
            #[cfg(unix)]
            opened: identity(&path).ok(),
            path,
            checked_at: Mutex::new(Instant::now()),
            #[cfg(target_os = "linux")]
            log: Mutex::new(None),
            lost: OnceLock::new(),
        }
    }

    /// Returns what has happened to the file, if this process no longer shares it with others.
    pub(super) fn lost(&self) -> Option<&str> {
        if self.lost.get().is_none() {
            {
                let mut checked_at = locked(&self.checked_at);
                if checked_at.elapsed() < CHECK_INTERVAL {
                    return None;
                }
                *checked_at = Instant::now();
            }
            if let Some(what) = self.deleted_or_replaced() {
                let path = self.path.display();
                let text = format!(
                    "{what} of the database {path} was deleted or replaced while this process has it open, so that no other process \
                     sees what is stored now: stop all processes of the site, look after the file, and start them again"
                );
                tracing::error!(target: "perennial::database", "{text}");
                let _ = self.lost.set(text);
            }
        }
        self.lost.get().map(String::as_str)
    }

    fn deleted_or_replaced(&self) -> Option<&'static str> {
        #[cfg(unix)]
        match identity(&self.path) {
            Ok(found) if Some(found) == self.opened => {}
            // A file system that fails for a moment says nothing about the file.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
            _ => return Some("the file"),
        }
        // While no connection is open, the log file may be recreated at any time, so a new log file proves
        // nothing. But if a connection still has a log file open that has been deleted, the database was
        // replaced.
        #[cfg(target_os = "linux")]
        {
            let log = format!("{}-wal", self.path.display());
            let found = identity(Path::new(&log)).ok();
            let before = std::mem::replace(&mut *locked(&self.log), found);
            if found.is_some() && before == found {
                // This is the same log as at the last check. Reading all descriptors takes a while, so it is
                // not done again.
                return None;
            }
            let log = format!("{log} (deleted)");
            let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
            let mut open = open
                .flatten()
                .filter_map(|open| std::fs::read_link(open.path()).ok());
            if open.any(|open| open.to_str() == Some(&log)) {
                return Some("the write-ahead log");
            }
        }
        None
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;

    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
