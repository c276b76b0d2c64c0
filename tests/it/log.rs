//! The log of the test program: one subscriber for all threads, because tracing asks only once, for
//! each place in the code that logs, whether a subscriber is interested.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Mutex, Once},
};

use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, dynamic_filter_fn},
    layer::SubscriberExt,
    registry,
};

thread_local! {
    static HERE: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// The text of a log.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Returns the log of this thread from now on.
    pub(crate) fn of_this_thread() -> Self {
        listen();
        let log = Self::default();
        HERE.set(Some(log.clone()));
        log
    }

    pub(crate) fn text(&self) -> String {
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

/// Listens for all tests.
pub(crate) fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let here = dynamic_filter_fn(|_, _| HERE.with_borrow(Option::is_some));
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(|| HERE.with_borrow(|log| log.clone().unwrap_or_default()))
            .with_filter(here.with_max_level_hint(LevelFilter::DEBUG));
        let subscriber = registry().with(lines);
        #[cfg(feature = "compression")]
        let subscriber = subscriber.with(crate::compression::listener());
        let is_calling = dynamic_filter_fn(|_, _| crate::reentrancy::is_calling());
        let is_calling = is_calling.with_max_level_hint(LevelFilter::DEBUG);
        let subscriber = subscriber.with(crate::reentrancy::CallsTheSite.with_filter(is_calling));
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
    });
}
