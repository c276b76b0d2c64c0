//! The generator that a request brings.

use std::{pin::Pin, sync::Arc};

use crate::cache::{Generated, Page};

/// A run of the generator.
pub(crate) type Generator = Pin<Box<dyn Future<Output = Generated> + Send>>;

/// The generator that a request brings.
pub(crate) struct Generate {
    /// The run; `None` once it has been started.
    pub(crate) run: Option<Generator>,
    /// The name of the layer, for events.
    pub(crate) layer: Arc<str>,
    /// Returns false for a stored version that the caller cannot read, as the type of its value has
    /// changed.
    pub(crate) readable: Option<fn(&Page) -> bool>,
}
