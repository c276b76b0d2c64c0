//! The log of the test program: one subscriber for all threads, because tracing asks only once, for
//! each place in the code that logs, whether a subscriber is interested.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Mutex, Once},
};

use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, dynamic_filter_fn},
    layer::{Identity, Layered, SubscriberExt},
};

thread_local! {
    static HERE: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// The text of a log.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Returns the log of this thread from now on.
    pub fn of_this_thread() -> Self {
        listen();
        let log = Self::default();
        HERE.set(Some(log.clone()));
        log
    }

    /// The lines so far.
    pub fn text(&self) -> String {
        let log = self.0.lock().expect("not poisoned").clone();
        String::from_utf8(log).expect("text")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = self.0.lock().expect("not poisoned");
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What [`Log`] is made of, beneath a layer of the test program's own.
pub type Lines = Layered<Box<dyn Layer<Registry> + Send + Sync>, Registry>;

/// Listens for all tests.
pub fn listen() {
    // Without the filter, this subscriber would ask for every event.
    listen_with(Identity::new().with_filter(LevelFilter::OFF));
}

/// Listens for all tests, with a layer of the test program's own. The first call in a program decides, so a
/// program with such a layer makes it before each [`Log`].
pub fn listen_with(layer: impl Layer<Lines> + Send + Sync) {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let here = dynamic_filter_fn(|_, _| HERE.with_borrow(Option::is_some));
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(|| HERE.with_borrow(|log| log.clone().unwrap_or_default()))
            .with_filter(here.with_max_level_hint(LevelFilter::DEBUG));
        let subscriber = Registry::default().with(lines.boxed()).with(layer);
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
    });
}
