//! A clock of its own for a process or a server, which a test sets: libfaketime.

use std::{
    fs,
    io::Result,
    path::{Path, PathBuf},
};

/// A clock that processes read through libfaketime, from a file that it reads each second. It
/// changes the wall clock alone, and not the monotonic one.
#[derive(Clone)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Returns a clock that tells the machine's time. `None` means that libfaketime is not installed.
    pub fn new(file: &Path) -> Result<Option<Self>> {
        let libraries = fs::read_dir("/usr/lib")?.flatten();
        let mut libraries = libraries.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
        let Some(library) = libraries.find(|library| library.exists()) else {
            return Ok(None);
        };
        let file = file.to_owned();
        let clock = Self { library, file };
        clock.set(0)?;
        Ok(Some(clock))
    }

    /// Sets the clock this number of seconds ahead of the machine's.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // A reader must not see half of it.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        fs::rename(new, &self.file)
    }

    /// Returns the environment variables that give a process this clock, in one line such as `A=1
    /// B=2`, for scripts/server.
    pub fn text(&self) -> String {
        let variables = self.variables();
        let variables = variables.map(|(name, value)| format!("{name}={value}"));
        variables.join(" ")
    }

    /// Returns the environment of a process with this clock.
    pub fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}
