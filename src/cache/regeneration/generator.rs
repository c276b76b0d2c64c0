//! The generator that a request brings along, in case that it has to start a regeneration.

use std::{pin::Pin, sync::Arc};

use crate::cache::{Generated, Page};

/// One run of the generator, ready to be polled.
pub(crate) type Generator = Pin<Box<dyn Future<Output = Generated> + Send>>;

/// See [`Generate::readable`].
pub(crate) type Readable = Arc<dyn Fn(&Page) -> bool + Send + Sync>;

/// The generator that a request brings.
pub(crate) struct Generate {
    /// The run. `None` once it has been started, as it is moved out.
    pub(crate) run: Option<Generator>,
    /// The name of the layer, for events.
    pub(crate) layer: Arc<str>,
    /// Says whether the caller can read a stored version. It cannot where the type of its value has changed, or
    /// where the layer does not have its holes. `None` means that it can read any.
    pub(crate) readable: Option<Readable>,
}
