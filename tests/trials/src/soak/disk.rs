//! A disk of its own for each database, which a soak fills and freezes.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use tokio::{process::Command, time::sleep};

use crate::Result;

/// How long a slow disk stands still, and how long it then works.
const FROZEN: Duration = Duration::from_millis(250);
const WORKS: Duration = Duration::from_millis(50);

pub(super) struct Disk(PathBuf);

impl Disk {
    /// Returns the disk whose file system is mounted at this folder.
    pub(super) fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Fills the disk to the last block.
    pub(super) fn fill(&self) -> Result {
        let mut ballast = File::create(self.ballast())?;
        let free = statvfs(&self.0)?;
        let most = (free.f_bavail * free.f_frsize).saturating_sub(1 << 20);
        // Others write meanwhile.
        let _ = fallocate(&ballast, FallocateFlags::empty(), 0, most.max(1));
        let mut rest = File::options().append(true).open(self.ballast())?;
        while rest.write_all(&[0; 4096]).is_ok() {}
        ballast.flush()?;
        Ok(())
    }

    pub(super) fn empties(&self) -> Result {
        Ok(fs::remove_file(self.ballast())?)
    }

    /// Lets the disk stand still again and again for this time.
    pub(super) async fn is_slow(&self, time: Duration) -> Result {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.freezes("--freeze").await?;
            sleep(FROZEN).await;
            self.freezes("--unfreeze").await?;
            sleep(WORKS).await;
        }
        Ok(())
    }

    async fn freezes(&self, how: &str) -> Result {
        let status = Command::new("fsfreeze").arg(how).arg(&self.0).status();
        if status.await?.success() {
            Ok(())
        } else {
            Err(format!("fsfreeze {how} {} failed", self.0.display()).into())
        }
    }
}
