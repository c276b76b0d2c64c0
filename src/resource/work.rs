//! Generators and their results.

use std::{error::Error as StdError, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;

use crate::{event::Bypass, extensions::Tags, resource::Page};

/// A run of the generator.
pub(crate) type Generator = Pin<Box<dyn Future<Output = Generated> + Send>>;

/// The generator that a request brings.
pub(crate) struct Work {
    pub(crate) generator: Generator,
    /// The name of the layer, for events.
    pub(crate) layer: Arc<str>,
    /// The application has requested the regeneration.
    pub(crate) is_requested: bool,
    /// Returns false for a stored version that counts as missing, as the caller cannot read it.
    pub(crate) readable: Option<fn(&Page) -> bool>,
    /// The time for which the row is retained; `None`: as long as the interval and the site's
    /// retention.
    pub(crate) retention: Option<Duration>,
}

/// The result of a generator.
#[derive(Debug)]
pub(crate) enum Generated {
    /// Content to store and to serve.
    Content(Response<Bytes>),
    /// A response that is not stored: the service answers each visitor itself, as for
    /// [`Bypass::TooLarge`] too.
    Unshareable { why: Bypass, tags: Tags },
    /// Content that is too large to store.
    TooLarge,
    /// The generator failed.
    Failed(Failure),
}

/// A failed regeneration, for the waiting visitors. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Arc<dyn StdError + Send + Sync>,
    /// The generator's response, if there is one.
    pub(crate) response: Option<Arc<Response<Bytes>>>,
    /// The time until another try, which follows from the failures before.
    pub(crate) retry_in: Duration,
}

impl Failure {
    pub(crate) fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            error: Arc::from(error.into()),
            response: None,
            retry_in: Duration::ZERO,
        }
    }
}
