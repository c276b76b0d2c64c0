//! The mode of a site: on, off, or for development. A mode changes the policies (`Cache::applied`).
//! `off` also makes layers pass every request on, and `development` also takes the revision from
//! the executable and compares pages.

use std::{env, fs, time::SystemTime};

use perennial_store::{Error, name::hex, words};
use sha2::{Digest, Sha256};

words! {
    /// The mode of a site; see [`Builder::mode`](crate::Builder::mode).
    #[derive(Default)]
    pub enum Mode("mode") {
        /// Content is stored and served, as in production.
        #[default]
        On => "on",
        /// Each request goes to the service, and each call for content to its generator. Nothing is
        /// stored, and stored content is not served. Locks, invalidations and idempotent requests
        /// work as usual.
        Off => "off",
        /// Content is stored and served, with differences for the person who changes the program:
        ///
        /// - All content is stale once the executable has changed. That is judged by the file's modification
        ///   time.
        /// - The visitor whose request starts a regeneration waits for the new version, and gets
        ///   the error if the generator fails, even if there is an old version. There is no
        ///   cooldown.
        /// - The first version of each page is compared with the response to the visitor's own request, for
        ///   which the handler runs a few times more. If the page depends on a header that is not in its key,
        ///   the log has a warning.
        Development => "development",
    }
}

impl Mode {
    /// Returns the mode in the environment variable `PERENNIAL_MODE`, or `None` if the variable is not set.
    pub(crate) fn from_environment() -> Result<Option<Self>, Error> {
        let text = env::var_os("PERENNIAL_MODE");
        let mode = text.map(|text| text.to_string_lossy().parse::<Self>());
        let mode = mode.transpose();
        mode.map_err(|error| Error::invalid(format!("PERENNIAL_MODE: {error}")))
    }
}

/// Returns the time at which the executable was modified, for development.
pub(crate) fn modified() -> Option<String> {
    let executable = env::current_exe().ok()?;
    let modified = executable.metadata().ok()?.modified().ok()?;
    let since = modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_micros().to_string())
}

/// Returns the digest of the executable: the same on each machine.
pub(crate) fn digest() -> Result<String, Error> {
    let executable = env::current_exe().and_then(fs::read).map_err(|error| {
        Error::invalid(format!(
            "the executable cannot be read ({error}): name the revision by `Builder::revision`"
        ))
    })?;
    Ok(hex(&Sha256::digest(executable)[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_has_a_digest_and_a_time() {
        assert_eq!(digest().expect("is read").len(), 32);
        assert_eq!(digest().expect("is read"), digest().expect("is read"));
        assert!(modified().is_some());
    }
}
