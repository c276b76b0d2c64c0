//! The one error type.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

/// Any error.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// The error of a database that works and refuses the content: the content is too large, for example. Another try ends the same way.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Unfit(pub(crate) BoxError);

/// What went wrong: opaque, with a [`kind`](Error::kind) to match on and the cause kept as [`source`](StdError::source).
#[derive(Clone)]
pub struct Error(Arc<Repr>);

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A URL, key, table prefix or other setting cannot be used; the message says what to write instead.
    Invalid,
    /// The database refused a statement or cannot be reached.
    Database,
    /// The database did not answer within the time that the step may take: the [statement limit](crate::Builder::statement_limit), or what the method says.
    Timeout,
    /// The tables in the database belong to a newer release.
    Schema,
    /// The lease is no longer ours.
    Lost,
    /// Somebody else holds the lock.
    Taken,
    /// The generator failed and there is no older version.
    Generator,
    /// There is no version yet, and nobody made one within the time that the policy allows to wait, or may make one now: after
    /// a failure, or during a shutdown. From [`regenerate_now`](crate::Perennial::regenerate_now): no new one.
    Unavailable,
}

type Source = Arc<dyn StdError + Send + Sync>;

struct Repr {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

impl Error {
    /// Which kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The lease is no longer ours.
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Somebody else holds the lock.
    pub fn is_taken(&self) -> bool {
        self.kind() == ErrorKind::Taken
    }

    /// The database refused a statement, cannot be reached or did not answer in time.
    pub fn is_database(&self) -> bool {
        matches!(self.kind(), ErrorKind::Database | ErrorKind::Timeout)
    }

    /// The database works, and does not take what was to be stored.
    pub(crate) fn is_unfit(&self) -> bool {
        self.0
            .source
            .as_ref()
            .is_some_and(|source| source.is::<Unfit>())
    }

    /// The generator failed; the source is its error.
    pub fn is_generator(&self) -> bool {
        self.kind() == ErrorKind::Generator
    }

    /// There is no version yet.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::said(ErrorKind::Invalid, message)
    }

    /// An error that is all in its message.
    pub(crate) fn said(kind: ErrorKind, message: impl Into<String>) -> Self {
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
        Self::said(ErrorKind::Timeout, message)
    }

    pub(crate) fn lost(name: &str) -> Self {
        let message = format!(
            "the lease on {name:?} is lost: it expired, or someone else has taken the lock over"
        );
        Self::said(ErrorKind::Lost, message)
    }

    /// An error for a lock that was not free; `details` continues its message.
    pub(crate) fn taken(name: &str, wait: Duration, details: &str) -> Self {
        let message = format!("the lock {name:?} was not free within {wait:?}{details}");
        Self::said(ErrorKind::Taken, message)
    }

    pub(crate) fn unavailable(retry_in: Duration) -> Self {
        let message = format!(
            "there is no version yet: making one failed a moment ago, or takes its time; try again in {retry_in:.0?}"
        );
        Self::said(ErrorKind::Unavailable, message)
    }
}

/// Prints what `Display` prints, as `fn main() -> Result<(), perennial::Error>` shows an error by `Debug`; then the causes that
/// `Display` does not name.
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
