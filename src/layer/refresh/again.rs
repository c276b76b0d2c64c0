//! The generator of a page for regenerations without a visitor.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::{
    generate::generate,
    kept::Place,
    keying::Key,
    request::{self, Generating},
    service::Shared,
};
use crate::{
    error::BoxError,
    resource::{Finder, Generator, GeneratorSource},
};

/// Returns the route in axum, and the variant, of a generator's request.
pub(super) fn place(key: &Key, generating: &Request<()>) -> Option<Place> {
    let route = request::matched(generating.extensions())?.into();
    let variant = key.variant(generating.uri(), generating.headers())?;
    Some(Place { route, variant })
}

/// Returns the generator that repeats this request.
pub(super) fn source<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    generating: &Request<()>,
    place: Option<Place>,
) -> Arc<GeneratorSource>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    // Memory holds the generator. A strong reference would be a cycle, as the service may hold the
    // site.
    let (weak, kept) = (Arc::downgrade(shared), shared.kept.clone());
    let (policy, layer) = (
        shared.layer.policy,
        shared.layer.name_in(generating.extensions()),
    );
    let again = generating.clone();
    let generator = move || {
        let request = again.clone().map(|()| ReqBody::default());
        let (direct, _) = oneshot::channel();
        let kept = || kept.upgrade()?.get(place.as_ref()?);
        let shared: Arc<Shared<S>> = weak.upgrade().or_else(kept)?;
        let run: Generator = Box::pin(generate(shared, request, direct));
        Some(run)
    };
    Arc::new(GeneratorSource {
        policy,
        layer,
        generator: Box::new(generator),
    })
}

/// Keeps the service of a place, unless the layer has one, with the means to generate the place's
/// other pages: a request like this one, with the path and the path's parameters of the other page.
pub(super) fn keep<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    generating: &Request<()>,
    place: &Place,
) where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let Some(kept) = shared.kept.upgrade() else {
        return;
    };
    let make = || -> Arc<Finder> {
        let (kept, place) = (shared.kept.clone(), place.clone());
        let mut extensions = generating.extensions().clone();
        extensions.remove::<Generating>();
        Arc::new(move |key: &str| {
            let shared: Arc<Shared<S>> = kept.upgrade()?.get(&place)?;
            // A name may be that of several routes.
            if shared.layer.name.is_some() {
                return None;
            }
            let mut parts = routed(&place.route, key)?;
            let mut extensions = extensions.clone();
            extensions.extend(parts.extensions);
            parts.extensions = extensions;
            let resource = shared.layer.key.of(&parts)?;
            if resource.key != key {
                return None;
            }
            let generating = request::to_generate(&parts, &resource, &shared.layer).ok()?;
            let found = self::place(&shared.layer.key, &generating);
            (found.as_ref() == Some(&place)).then(|| source(&shared, &generating, found))
        })
    };
    if let Some(finder) = kept.keep(place, shared, make) {
        shared.layer.pages.add_finder(&finder);
    }
}

/// Returns the request for a page as the route gets it. `None`: the path is not of this route.
#[cfg(feature = "axum")]
fn routed(route: &str, key: &str) -> Option<http::request::Parts> {
    super::routing::routed(route, key)
}

#[cfg(not(feature = "axum"))]
fn routed(_: &str, _: &str) -> Option<http::request::Parts> {
    None
}
