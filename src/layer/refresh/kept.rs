//! One service for each route and variant of a layer, kept for regenerations without a visitor.
//!
//! axum's server makes the services of a router anew for each connection, and drops them with the
//! connection. The layer itself lives as long as the router.
//!
//! Clones of a layer may be on several routers with the same route, told apart by the host or a
//! header. So a service serves only the variants that it has generated.

use std::{
    any::Any,
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};

use crate::resource::Finder;

/// The largest number of places: visitors can invent hosts and headers.
const MOST: usize = 1000;

/// The first service of each place that has generated, up to [`MOST`] places.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<Place, Offered>>);

/// A route of axum, and the variant of the key for the host and the headers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) route: Arc<str>,
    pub(super) variant: String,
}

/// The service, and its finder, to which `Pages` refers weakly.
type Offered = (Arc<dyn Any + Send + Sync>, Arc<Finder>);

impl Kept {
    /// Keeps a service of the place with its finder, unless there is one, or no room for one. Returns
    /// a finder that is new.
    pub(super) fn keep<S: Send + Sync + 'static>(
        &self,
        place: &Place,
        service: &Arc<S>,
        finder: impl FnOnce() -> Arc<Finder>,
    ) -> Option<Arc<Finder>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST {
            return None;
        }
        let Entry::Vacant(vacant) = kept.entry(place.clone()) else {
            return None;
        };
        let finder = finder();
        vacant.insert((Arc::clone(service) as _, Arc::clone(&finder)));
        Some(finder)
    }

    /// Returns the kept service of the place. `None`: there is none, or it is of another type, as
    /// one layer was applied to two kinds of services.
    pub(super) fn get<S: Send + Sync + 'static>(&self, place: &Place) -> Option<Arc<S>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&kept.get(place)?.0).downcast().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_variants_take_a_limited_room() {
        let kept = Kept::default();
        let place = |variant: usize| Place {
            route: "/".into(),
            variant: format!("host={variant}"),
        };
        let finder = || -> Arc<Finder> { Arc::new(|_: &str| None) };
        let new = (0..2 * MOST).filter(|number| {
            let found = kept.keep(&place(*number), &Arc::new(*number), finder);
            found.is_some()
        });
        assert_eq!(new.count(), MOST);
        assert_eq!(kept.get::<usize>(&place(7)).as_deref(), Some(&7));
        assert_eq!(kept.get::<usize>(&place(MOST)), None);
    }
}
