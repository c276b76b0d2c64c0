//! The mode of a site: as in production, without a cache, or for development.

use std::{env, fs, time::SystemTime};

use sha2::{Digest, Sha256};

use crate::{error::Error, key::hex};

/// The mode of a site; see [`Builder::mode`](crate::Builder::mode).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Content is stored and served, as in production.
    #[default]
    On,
    /// Each request goes to the service, and each call for content to its generator. Nothing is
    /// stored, and stored content is not served. Locks, invalidations and idempotent requests work
    /// as usual.
    Off,
    /// Content is stored and served, with two differences for the person who changes the program:
    ///
    /// - All content is stale once the executable has changed, by its time of modification: a
    ///   template that is compiled in shows at the next reload.
    /// - The visitor whose request regenerates waits for the new version as long as the policy's
    ///   [`timeout`](crate::Refresh::timeout), and gets the failure of a generator even if there is
    ///   an old version. There is no cooldown.
    Development,
}

impl Mode {
    /// Returns the mode in the environment variable `PERENNIAL_MODE`. `None`: it is not set.
    pub(crate) fn from_environment() -> Result<Option<Self>, Error> {
        let text = env::var_os("PERENNIAL_MODE");
        text.map(|text| Self::named(&text.to_string_lossy()))
            .transpose()
    }

    fn named(text: &str) -> Result<Self, Error> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "development" => Ok(Self::Development),
            _ => Err(Error::invalid(format!(
                "PERENNIAL_MODE={text:?} is no mode: write `on`, `off` or `development`"
            ))),
        }
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
    fn a_mode_is_written_in_lowercase() {
        for (text, mode) in [
            ("on", Mode::On),
            ("off", Mode::Off),
            ("development", Mode::Development),
        ] {
            assert_eq!(Mode::named(text).expect("a mode"), mode);
        }
        for wrong in ["", "On", "dev"] {
            let error = Mode::named(wrong).expect_err("no mode").to_string();
            assert!(
                error.contains("write `on`, `off` or `development`"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_executable_has_a_digest_and_a_time() {
        assert_eq!(digest().expect("is read").len(), 32);
        assert_eq!(digest().expect("is read"), digest().expect("is read"));
        assert!(modified().is_some());
    }
}
