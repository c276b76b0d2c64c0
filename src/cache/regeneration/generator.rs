//! The generator that a request brings along, in case it has to start a regeneration.

use std::{pin::Pin, sync::Arc};

use crate::cache::{Generated, Page};

/// One run of the generator, ready to be polled.
pub(crate) type Generator = Pin<Box<dyn Future<Output = Generated> + Send>>;

/// See [`Generate::readable`].
pub(crate) type Readable = Arc<dyn Fn(&Page) -> Reading + Send + Sync>;

/// What a caller makes of a stored version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Readable,
    /// This process cannot read the stored version, because the value has another type here, or the page
    /// has other holes. Processes with another revision of the code can.
    OtherCode,
    /// Nobody can read it.
    Damaged,
}

/// The generator that a request brings.
pub(crate) struct Generate {
    /// The run. `None` once it has been started, as it is moved out.
    pub(crate) run: Option<Generator>,
    /// The name of the layer, for events.
    pub(crate) layer: Arc<str>,
    /// Says whether the caller can read a stored version. `None` means that it can read any.
    pub(crate) readable: Option<Readable>,
}
