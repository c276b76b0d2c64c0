//! The one error type of all crates. Its [`kind`](Error::kind) is what a program matches on; its message is for
//! a person, and says what to do. All constructors are here, so that an error of one kind always has the same
//! wording.

use std::{
    error::Error as StdError,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

pub mod words;

use crate::{driver::DriverError, words};

/// The error type of stores and generators.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The database itself works, but has rejected the content: it is too large, its text cannot be encoded, or a
/// constraint forbids it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RejectedValue(pub BoxError);

/// The error of every operation, with a [`kind`](Error::kind) to match on. `{error}` is the message
/// alone, and `{error:#}` has the causes, too.
#[derive(Clone)]
pub struct Error(Arc<Repr>);

words! {
    /// The kinds of [`Error`].
    pub enum ErrorKind("kind of error") {
        /// A URL, key, tag, table prefix or setting cannot be used. The message says what to write instead. Change the
        /// code or the configuration; trying again does not help.
        Invalid => "invalid",
        /// The database has refused a statement, or its answer cannot be read. The source is the driver's error.
        /// Often a permission is missing: `perennial doctor` finds that.
        Database => "database",
        /// The database cannot be reached: there was no connection in time, or the connection broke. Trying again later
        /// may help. Pages in memory are still served.
        Unreachable => "unreachable",
        /// The database was not asked, because it failed a moment ago. One request a second still asks it, so this
        /// ends by itself when the database answers again.
        Failing => "failing",
        /// The database did not answer within the statement timeout, or within the limit that the method names. It may
        /// have executed the statement all the same.
        Timeout => "timeout",
        /// The tables in the database belong to another release, or are missing although
        /// [`expect_tables`](https://docs.rs/perennial/latest/perennial/struct.Builder.html#method.expect_tables) says that
        /// they are there. Run the migration, or a release that fits the tables.
        Schema => "schema",
        /// The caller no longer holds the lease: it has expired, or somebody has broken the lock. Stop the work, because
        /// another holder may be doing it.
        Lost => "lost",
        /// The lock was not free in time: another holder has it, or it is in a cooldown. The message names the holder.
        Taken => "taken",
        /// The generator has failed, and no version may be served. The source is the generator's error. The next attempt
        /// is made after the cooldown.
        Generator => "generator",
        /// No version may be served, and none was generated within the policy's limits: a generator is still running or
        /// has just failed, or the site is shutting down. The message says when to try again.
        Unavailable => "unavailable",
        /// The work was cancelled, because the runtime is shutting down.
        Cancelled => "cancelled",
    }
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
}

#[doc(hidden)]
impl Error {
    /// Returns true if the database itself works, but has rejected the content.
    pub fn is_rejected_value(&self) -> bool {
        self.0
            .source
            .as_ref()
            .is_some_and(|source| source.is::<RejectedValue>())
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::with_message(ErrorKind::Invalid, message)
    }

    pub fn with_message(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Repr {
            kind,
            message: message.into(),
            source: None,
        }))
    }

    pub fn caused(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<BoxError>,
    ) -> Self {
        Self(Arc::new(Repr {
            kind,
            message: message.into(),
            source: Some(source.into().into()),
        }))
    }

    /// Returns the error of a database. The kind of the error follows from the cause.
    pub fn database(message: impl Into<String>, source: impl Into<BoxError>) -> Self {
        let source = source.into();
        let kind = match source.downcast_ref::<Self>() {
            Some(error) => error.kind(),
            None if source
                .downcast_ref()
                .is_some_and(DriverError::is_unreachable) =>
            {
                ErrorKind::Unreachable
            }
            None => ErrorKind::Database,
        };
        Self::caused(kind, message, source)
    }

    /// Returns the error of an operation that was not attempted, because the database failed a moment ago.
    pub fn failed_recently(operation: &str) -> Self {
        let message = format!("{operation}: the database failed a moment ago");
        Self::with_message(ErrorKind::Failing, message)
    }

    pub fn operation(operation: &str, source: impl Into<BoxError>) -> Self {
        Self::database(
            format!("the database failed during the operation `{operation}`"),
            source,
        )
    }

    pub fn generator(source: impl Into<BoxError>) -> Self {
        Self::caused(ErrorKind::Generator, "the generator failed", source)
    }

    pub fn timeout(operation: &str, limit: Duration) -> Self {
        let message = format!("{operation}: the database did not answer within {limit:?}");
        Self::with_message(ErrorKind::Timeout, message)
    }

    pub fn lost(name: &str) -> Self {
        let message = format!(
            "the lease on {name:?} is lost: it expired, or another holder has taken the lock over"
        );
        Self::with_message(ErrorKind::Lost, message)
    }

    /// Creates the error for a lock that was not free; `details` continues the message.
    pub fn taken(name: &str, wait: Duration, details: &str) -> Self {
        let within = if wait.is_zero() {
            String::new()
        } else {
            format!(" within {wait:?}")
        };
        let message = format!("the lock {name:?} was not free{within}{details}");
        Self::with_message(ErrorKind::Taken, message)
    }

    pub fn unavailable(retry_in: Duration) -> Self {
        let message = format!(
            "there is no version yet: the generator is running or has failed a moment ago; try again in {retry_in:.0?}"
        );
        Self::with_message(ErrorKind::Unavailable, message)
    }
}

/// Returns the message of an error and the messages of its causes, on one line.
pub fn with_causes(error: &dyn StdError) -> String {
    // The code of an application's error may panic.
    let text = catch_unwind(AssertUnwindSafe(|| text_with_causes(error)));
    text.unwrap_or_else(|_| {
        "an error whose text cannot be read, as its `Display` panicked".to_owned()
    })
}

fn text_with_causes(error: &dyn StdError) -> String {
    let causes = std::iter::successors(error.source(), |error| StdError::source(*error));
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        // Some errors of other crates have their cause in their own message.
        if text.ends_with(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

/// Writes the message and the causes, as `{error:#}` does, and the kind. A program whose `main` returns the error shows
/// this to the person who has started it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", with_causes(self), self.0.kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            f.write_str(&with_causes(self))
        } else {
            f.write_str(&self.0.message)
        }
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
    use crate::driver::ErrorCode;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Caused(&'static str, #[source] Option<Box<Caused>>);

    #[test]
    fn display_has_the_causes_where_asked() {
        let cause = Caused("no route to host", None);
        let cause = Caused("cannot connect", Some(Box::new(cause)));
        let error = Error::operation("publish", cause);
        assert_eq!(
            error.to_string(),
            "the database failed during the operation `publish`"
        );
        assert_eq!(
            format!("{error:#}"),
            "the database failed during the operation `publish`: cannot connect: no route to host"
        );
        let debug = format!("{error:?}");
        assert_eq!(debug, format!("{error:#} (database)"));
    }

    #[test]
    fn kind_says_whether_the_database_was_reached() {
        let refused = |code| DriverError::refused(code, "refused", "refused");
        for (source, kind) in [
            (
                DriverError::late("no connection in time"),
                ErrorKind::Unreachable,
            ),
            (
                DriverError::unreachable("the pool is closed"),
                ErrorKind::Unreachable,
            ),
            (DriverError::broken("reset"), ErrorKind::Unreachable),
            (
                refused(ErrorCode::sql_state("57P01")),
                ErrorKind::Unreachable,
            ),
            (refused(ErrorCode::MySql(1040)), ErrorKind::Unreachable),
            (refused(ErrorCode::Sqlite(1038)), ErrorKind::Unreachable),
            (refused(ErrorCode::sql_state("42P01")), ErrorKind::Database),
            (refused(ErrorCode::MySql(1038)), ErrorKind::Database),
            (DriverError::other("no row"), ErrorKind::Database),
        ] {
            assert_eq!(Error::operation("publish", source).kind(), kind);
        }
        assert_eq!(Error::failed_recently("sync").kind(), ErrorKind::Failing);
        let schema = Error::with_message(ErrorKind::Schema, "of a newer release");
        assert_eq!(Error::operation("sync", schema).kind(), ErrorKind::Schema);
    }
}
