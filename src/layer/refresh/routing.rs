//! The extensions that axum's routing adds to a request, as the linked axum does.

use std::{
    any::{TypeId, type_name},
    convert::Infallible,
    pin::pin,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    task::{Context, Waker},
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, OriginalUri},
    routing::{MethodRouter, Route, get},
};
use http::{Extensions, Request, Uri};
use tower_service::Service;

use super::declared::{KNOWN, for_each_name};

/// The private types among the extensions that axum's router adds: path parameters, and the path of a nested service. They cannot be
/// named in code, so that their names are learned from a router that runs once in this process.
pub(super) struct Routing {
    /// The private extensions of a request that matched a route without parameters, which every match adds.
    beside_match: usize,
    names: Vec<String>,
}

impl Routing {
    pub(super) fn of_axum() -> &'static Self {
        static ROUTING: LazyLock<Routing> = LazyLock::new(Routing::probe);
        &ROUTING
    }

    fn probe() -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = {
            let seen = Arc::clone(&seen);
            move |request: Request<Body>| {
                let names = private(request.extensions());
                seen.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(names);
                async {}
            }
        };
        let mut router = Router::new()
            .route("/route", get(record.clone()))
            .route("/with/{parameter}", get(record.clone()))
            .nest_service("/service", get(record));
        for path in ["/route", "/with/parameter", "/service/below"] {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = Uri::from_static(path);
            // Nothing in it waits.
            let answered = pin!(router.call(request));
            let _ = answered.poll(&mut Context::from_waker(Waker::noop()));
        }
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = seen.concat();
        names.sort();
        names.dedup();
        Self {
            beside_match: seen.first().map_or(0, Vec::len),
            names,
        }
    }

    /// The number of private extensions that came with a `MatchedPath`. The router adds them in the call that adds it, and no other
    /// code can name their types to take one out.
    pub(super) fn beside_match(&self, extensions: &Extensions) -> usize {
        match extensions.get::<MatchedPath>() {
            Some(_) => self.beside_match,
            None => 0,
        }
    }

    /// The number of private extensions, by their names. Zero without an `OriginalUri`, which the router adds first, and where two
    /// types have one name, as those of two axums have.
    pub(super) fn private_in(&self, extensions: &Extensions) -> usize {
        if extensions.get::<OriginalUri>().is_none() {
            return 0;
        }
        let (mut found, mut twice) = (0_u64, false);
        for_each_name(extensions, |name| {
            if let Some(at) = self.names.iter().position(|it| it == name) {
                twice |= found & (1 << at) != 0;
                found |= 1 << at;
            }
        });
        if twice {
            0
        } else {
            found.count_ones() as usize
        }
    }

    pub(super) fn is_private(&self, name: &str) -> bool {
        self.names.iter().any(|it| it == name)
    }
}

/// The names of those extensions that are not known by their types.
fn private(extensions: &Extensions) -> Vec<String> {
    let mut names = Vec::new();
    for_each_name(extensions, |name| {
        if !KNOWN.iter().any(|it| it.name == name) {
            names.push(name.to_owned());
        }
    });
    names
}

/// Refuses a service of an axum that is not the one whose routing is known.
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
