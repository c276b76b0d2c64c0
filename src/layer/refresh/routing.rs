//! The extensions that axum's routing adds to a request, as the linked axum does.

use std::{
    any::{TypeId, type_name},
    convert::Infallible,
    pin::pin,
    sync::{Arc, LazyLock, Mutex},
    task::{Context, Poll, Waker},
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{MatchedPath, OriginalUri},
    routing::{MethodRouter, Route, get},
};
use http::{Extensions, Request, request::Parts};
use tower_service::Service;

use super::declared::{KNOWN, names};

/// The private types among the extensions of axum's router: path parameters, and the path of a
/// nested service. Code cannot name these types, so a router that runs once in this process reveals
/// the names.
#[derive(Debug)]
pub(super) struct Routing {
    /// The number of private extensions that every match of a route adds, counted on a route
    /// without parameters.
    beside_match: usize,
    pub(super) names: Vec<String>,
}

impl Routing {
    pub(super) fn of_axum() -> &'static Self {
        static ROUTING: LazyLock<Routing> = LazyLock::new(Routing::probe);
        &ROUTING
    }

    fn probe() -> Self {
        let tell = |request: Request<Body>| {
            let mut private = names(request.extensions());
            private.retain(|name| !KNOWN.iter().any(|it| it.name == name));
            async { Extension(private) }
        };
        let mut router = Router::new()
            .route("/route", get(tell))
            .route("/with/{parameter}", get(tell))
            .nest_service("/service", get(tell));
        let mut ask = |path| answer::<Vec<String>>(&mut router, path).unwrap_or_default();
        let mut names = ask("/route");
        let beside_match = names.len();
        names.extend(ask("/with/parameter"));
        names.extend(ask("/service/below"));
        names.sort();
        names.dedup();
        Self {
            beside_match,
            names,
        }
    }

    /// Returns the number of private extensions that come with a `MatchedPath`. The router adds all
    /// of them in one call, and no other code can name their types to remove one.
    pub(super) fn beside_match(&self, extensions: &Extensions) -> usize {
        match extensions.get::<MatchedPath>() {
            Some(_) => self.beside_match,
            None => 0,
        }
    }

    /// Returns the number of private extensions, by their names. Zero in two cases: the request has
    /// no `OriginalUri`, which the router adds first, or two types have one name, as with two
    /// versions of axum.
    pub(super) fn private_in(&self, extensions: &Extensions) -> usize {
        if extensions.get::<OriginalUri>().is_none() {
            return 0;
        }
        let mut private = names(extensions);
        private.retain(|name| self.names.contains(name));
        let all = private.len();
        private.sort();
        private.dedup();
        if private.len() == all { all } else { 0 }
    }
}

/// Returns the request for a page as a route gets it from axum's router, with the parameters of its
/// path. `None`: the path is not of this route, or the route is one of axum's own.
pub(super) fn routed(route: &str, path: &str) -> Option<Parts> {
    // The name of a parameter that a nested service adds.
    if route.contains("__private") {
        return None;
    }
    let tell = |request: Request<Body>| {
        let parts = Arc::new(Mutex::new(Some(request.into_parts().0)));
        async { Extension(parts) }
    };
    let told: Arc<Mutex<Option<Parts>>> = answer(&mut Router::new().route(route, get(tell)), path)?;
    told.lock().ok()?.take()
}

/// Returns the extension of this type in the router's response.
fn answer<T: Clone + Send + Sync + 'static>(router: &mut Router, path: &str) -> Option<T> {
    let request = Request::get(path).body(Body::empty()).ok()?;
    // Nothing in the router waits.
    match pin!(router.call(request)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(mut response)) => response.extensions_mut().remove(),
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}

/// Refuses a service of an axum whose routing is unknown.
///
/// # Panics
///
/// If `S` has the name of axum's `Router`, `MethodRouter` or `Route`, and is of another axum.
pub(super) fn refuse_other_axum<S: 'static>() {
    let name = type_name::<S>();
    let known = [
        (TypeId::of::<Router>(), type_name::<Router>()),
        (TypeId::of::<MethodRouter>(), type_name::<MethodRouter>()),
        (
            TypeId::of::<Route<Infallible>>(),
            type_name::<Route<Infallible>>(),
        ),
    ];
    let other = known
        .iter()
        .any(|(id, known)| *known == name && *id != TypeId::of::<S>());
    assert!(
        !other,
        "Perennial's layer was applied to `{name}` of another axum than 0.8, the one whose routing it knows (of axum 0.7 perhaps; \
         `cargo tree -i axum` shows which are there): depend on axum = \"0.8\", or put the layer around a service that is not axum's"
    );
}
