//! The one error type.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

/// The error type of stores and generators.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// The error of a database that works and refuses the content: the content is too large, for
/// example. Another try ends the same way.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Unfit(pub(crate) BoxError);

/// The error of every operation: opaque, with a [`kind`](Error::kind) to match on and the cause as
/// [`source`](StdError::source).
#[derive(Clone)]
pub struct Error(Arc<Repr>);

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A URL, key, table prefix or other setting cannot be used; the message says what to write
    /// instead.
    Invalid,
    /// The database refused a statement or cannot be reached.
    Database,
    /// The database did not answer within the [statement
    /// timeout](crate::Builder::statement_timeout), or within the limit that the method names.
    Timeout,
    /// The tables in the database belong to a newer release.
    Schema,
    /// The caller no longer holds the lease.
    Lost,
    /// The lock was not free in time: another holder has the lock, or it is in cooldown.
    Taken,
    /// The generator failed and there is no older version.
    Generator,
    /// There is no version, and no process generated one within the policy's limits: a generator
    /// takes its time, or failed a moment ago, or the site is shutting down. From
    /// [`regenerate_now`](crate::Perennial::regenerate_now): there is no new version.
    Unavailable,
}

struct Repr {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns true if the caller no longer holds the lease.
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Returns true if the lock was not free in time: another holder has the lock, or it is in
    /// cooldown.
    pub fn is_taken(&self) -> bool {
        self.kind() == ErrorKind::Taken
    }

    /// Returns true if the database refused a statement, cannot be reached or did not answer in
    /// time.
    pub fn is_database(&self) -> bool {
        matches!(self.kind(), ErrorKind::Database | ErrorKind::Timeout)
    }

    /// Returns true if the database works and refuses the content.
    pub(crate) fn is_unfit(&self) -> bool {
        self.0
            .source
            .as_ref()
            .is_some_and(|source| source.is::<Unfit>())
    }

    /// Returns true if the generator failed. The source is the generator's error.
    pub fn is_generator(&self) -> bool {
        self.kind() == ErrorKind::Generator
    }

    /// Returns true if no version can be served yet, or if
    /// [`regenerate_now`](crate::Perennial::regenerate_now) found no new version in time.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::with_message(ErrorKind::Invalid, message)
    }

    /// Creates an error without a cause.
    pub(crate) fn with_message(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Repr {
            kind,
            message: message.into(),
            source: None,
        }))
    }

    fn caused(kind: ErrorKind, context: &str, source: impl Into<BoxError>) -> Self {
        let source = source.into();
        Self(Arc::new(Repr {
            kind,
            message: format!("{context}: {source}"),
            source: Some(source.into()),
        }))
    }

    pub(crate) fn database(context: impl AsRef<str>, source: impl Into<BoxError>) -> Self {
        Self::caused(ErrorKind::Database, context.as_ref(), source)
    }

    pub(crate) fn generator(source: impl Into<BoxError>) -> Self {
        Self::caused(ErrorKind::Generator, "the generator failed", source)
    }

    pub(crate) fn timeout(step: &str, limit: Duration) -> Self {
        let message = format!("{step}: the database did not answer within {limit:?}");
        Self::with_message(ErrorKind::Timeout, message)
    }

    pub(crate) fn lost(name: &str) -> Self {
        let message = format!(
            "the lease on {name:?} is lost: it expired, or another holder has taken the lock over"
        );
        Self::with_message(ErrorKind::Lost, message)
    }

    /// Creates the error for a lock that was not free; `details` continues the message.
    pub(crate) fn taken(name: &str, wait: Duration, details: &str) -> Self {
        let message = format!("the lock {name:?} was not free within {wait:?}{details}");
        Self::with_message(ErrorKind::Taken, message)
    }

    pub(crate) fn unavailable(retry_in: Duration) -> Self {
        let message = format!(
            "there is no version yet: the generator is running or has failed a moment ago; try again in {retry_in:.0?}"
        );
        Self::with_message(ErrorKind::Unavailable, message)
    }
}

/// Prints the text of `Display`, and then the causes that the text does not name. (`fn main() ->
/// Result<(), perennial::Error>` shows an error by `Debug`.)
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let words = error.to_string();
            if !text.contains(&words) {
                text = format!("{text}: {words}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Caused(&'static str, #[source] Option<Box<Caused>>);

    #[test]
    fn debug_prints_the_message_and_each_cause_once() {
        let cause = Caused("no route to host", None);
        let cause = Caused("cannot connect", Some(Box::new(cause)));
        let error = Error::database("publish", cause);
        assert_eq!(error.to_string(), "publish: cannot connect");
        assert_eq!(
            format!("{error:?}"),
            "publish: cannot connect: no route to host"
        );
        assert_eq!(format!("{error:#?}"), format!("{error:?}"));
        let error = Error::invalid("the name cannot be used");
        assert_eq!(format!("{error:?}"), "the name cannot be used");
    }
}
