//! A request that may change what pages show.

use std::sync::Arc;

use http::{Method, StatusCode};

use crate::resource::{Engine, Target};

/// Whether a request with this method changes nothing (RFC 9110 §9.2.1).
pub(in crate::layer) fn is_safe(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
    )
}

/// The names by which tags are invalidated.
pub(super) fn names(tags: &[String]) -> Vec<String> {
    let names = tags.iter().filter_map(|tag| Target::Tag(tag).name().ok());
    names.collect()
}

/// A request that may change what has these names. Dropped before it is known what has come of it, it invalidates them.
pub(in crate::layer) struct Change {
    engine: Arc<Engine>,
    names: Vec<String>,
}

impl Change {
    pub(in crate::layer) fn of(engine: &Arc<Engine>, names: Vec<String>) -> Self {
        let engine = Arc::clone(engine);
        Self { engine, names }
    }

    /// The request has ended: invalidates these names, too, if it was answered without an error (RFC 9111 §4.4).
    pub(in crate::layer) async fn settle(
        mut self,
        status: Option<StatusCode>,
        others: Vec<String>,
    ) {
        let mut names = std::mem::take(&mut self.names);
        if status.is_some_and(|status| status.is_success() || status.is_redirection()) {
            names.extend(others);
            self.engine.invalidate_names(names).await;
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        if !names.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let engine = Arc::clone(&self.engine);
            runtime.spawn(async move { engine.invalidate_names(names).await });
        }
    }
}
