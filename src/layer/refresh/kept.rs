//! One service for each route of a layer, kept for regenerations without a visitor.
//!
//! axum's server makes the services of a router anew for each connection, and drops them with the
//! connection. The layer itself lives as long as the router.

use std::{
    any::Any,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use http::Extensions;

use crate::resource::Finder;

/// The first service of each route that has generated.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<Arc<str>, Route>>);

struct Route {
    service: Arc<dyn Any + Send + Sync>,
    /// The engine refers to it weakly.
    _finder: Arc<Finder>,
}

impl Kept {
    /// Keeps a service of the route with its finder, unless there is one. Returns a finder that is
    /// new.
    pub(super) fn keep<S: Send + Sync + 'static>(
        &self,
        route: &Arc<str>,
        service: &Arc<S>,
        finder: impl FnOnce() -> Arc<Finder>,
    ) -> Option<Arc<Finder>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.contains_key(route) {
            return None;
        }
        let finder = finder();
        let service = Arc::clone(service) as _;
        let keeps = Route {
            service,
            _finder: Arc::clone(&finder),
        };
        kept.insert(Arc::clone(route), keeps);
        Some(finder)
    }

    /// Returns the kept service of the route. `None`: there is none, or it is of another type, as
    /// one layer was applied to two kinds of services.
    pub(super) fn get<S: Send + Sync + 'static>(&self, route: &str) -> Option<Arc<S>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&kept.get(route)?.service).downcast().ok()
    }
}

/// Returns the path of the route in axum, such as `/books/{id}`.
pub(super) fn route(extensions: &Extensions) -> Option<Arc<str>> {
    #[cfg(feature = "axum")]
    return Some(
        extensions
            .get::<axum::extract::MatchedPath>()?
            .as_str()
            .into(),
    );
    #[cfg(not(feature = "axum"))]
    {
        let _ = extensions;
        None
    }
}
