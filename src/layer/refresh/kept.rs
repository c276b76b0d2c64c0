//! One service for each route of a layer, kept for regenerations without a visitor.
//!
//! axum's server makes the services of a router anew for each connection, and drops them with the
//! connection. The layer itself lives as long as the router.

use std::{
    any::Any,
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};

use crate::resource::Finder;

/// The first service of each route that has generated.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<Arc<str>, Route>>);

/// The service, and its finder, to which the engine refers weakly.
type Route = (Arc<dyn Any + Send + Sync>, Arc<Finder>);

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
        let Entry::Vacant(vacant) = kept.entry(Arc::clone(route)) else {
            return None;
        };
        let finder = finder();
        vacant.insert((Arc::clone(service) as _, Arc::clone(&finder)));
        Some(finder)
    }

    /// Returns the kept service of the route. `None`: there is none, or it is of another type, as
    /// one layer was applied to two kinds of services.
    pub(super) fn get<S: Send + Sync + 'static>(&self, route: &str) -> Option<Arc<S>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&kept.get(route)?.0).downcast().ok()
    }
}
