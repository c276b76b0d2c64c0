//! A failed regeneration, in the form in which waiting visitors, the log and explanations see it.
//!
//! The error is the application's own value. Its `Display` and its `Drop` run the application's code. If that
//! panics, the panic is caught here, so that no visitor notices.

use std::{
    error::Error as StdError,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Response, header};
use perennial_store::error::with_causes;

use crate::http::fields::seconds;

/// The most bytes of an error that explanations show.
const MAX_ERROR_BYTES: usize = 1000;

/// The error of an application's generator. Whoever drops the last reference to it runs the application's
/// code, and that may be a visitor's task, so a panic there is caught.
#[derive(Clone, Debug)]
pub(crate) struct GeneratorError(Option<Arc<dyn StdError + Send + Sync>>);

impl GeneratorError {
    /// Hands the error to the application.
    pub(crate) fn into_inner(mut self) -> Arc<dyn StdError + Send + Sync> {
        self.0.take().expect("is there until `drop` or this call")
    }

    fn with_causes(&self) -> String {
        self.0
            .as_deref()
            .map_or_else(String::new, |error| with_causes(error))
    }
}

impl Drop for GeneratorError {
    fn drop(&mut self) {
        if let Some(error) = self.0.take()
            && catch_unwind(AssertUnwindSafe(move || drop(error))).is_err()
        {
            tracing::error!("the `Drop` of a generator's error panicked");
        }
    }
}

/// A failed regeneration, for the waiting visitors. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: GeneratorError,
    /// The generator's response, if there is one.
    pub(crate) response: Option<Arc<Response<Bytes>>>,
    /// The time until another attempt, which grows with the number of previous failures.
    pub(crate) retry_in: Duration,
}

impl Failure {
    pub(crate) fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            error: GeneratorError(Some(Arc::from(error.into()))),
            response: None,
            retry_in: Duration::ZERO,
        }
    }

    /// Returns the error with all of its causes.
    pub(crate) fn full_text(&self) -> String {
        self.error.with_causes()
    }

    /// Returns the error with its causes, cut to [`MAX_ERROR_BYTES`]. Memory keeps no more of a failure: its
    /// response may be large, and visitors may ask for many pages that fail.
    pub(crate) fn text(&self) -> Arc<str> {
        let mut text = self.error.with_causes();
        text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
        text.into()
    }

    /// Adds the time until another attempt, and sends it in the response as `Retry-After`.
    pub(crate) fn retrying(mut self, retry_in: Duration) -> Self {
        self.retry_in = retry_in;
        if let Some(response) = &mut self.response {
            let headers = Arc::make_mut(response).headers_mut();
            let retry_after = headers.entry(header::RETRY_AFTER);
            retry_after.or_insert_with(|| seconds(retry_in).into());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_failure_is_bounded() {
        assert_eq!(&*Failure::new("it failed").text(), "it failed");
        // Cut between two characters.
        let long = Failure::new("x".to_owned() + &"ä".repeat(1000)).text();
        assert_eq!(long.len(), MAX_ERROR_BYTES - 1);
    }
}
