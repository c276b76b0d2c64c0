//! The generator of a page for regenerations without a visitor.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::{
    generate::generate,
    request::{self, GeneratedKey},
    service::Shared,
};
use crate::{
    error::BoxError,
    resource::{Finder, Generator, GeneratorSource},
};

/// Returns the generator that repeats this request. `route`: the path of the route in axum.
pub(super) fn source<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    generating: &Request<()>,
    route: Option<Arc<str>>,
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
        let kept = || kept.upgrade()?.get(route.as_deref()?);
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

/// Keeps the service of a route, unless the layer has one, with the means to generate the route's
/// other pages: a request like this one, with the path and the path's parameters of the other page.
pub(super) fn keep<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    generating: &Request<()>,
    route: &Arc<str>,
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
        let (kept, route) = (shared.kept.clone(), Arc::clone(route));
        let mut extensions = generating.extensions().clone();
        extensions.remove::<GeneratedKey>();
        Arc::new(move |key: &str| {
            let shared: Arc<Shared<S>> = kept.upgrade()?.get(&route)?;
            // A name may be that of several routes.
            if shared.layer.name.is_some() {
                return None;
            }
            let mut parts = routed(&route, key)?;
            let mut extensions = extensions.clone();
            extensions.extend(parts.extensions);
            parts.extensions = extensions;
            let resource = shared.layer.key.of(&parts)?;
            if resource.key != key {
                return None;
            }
            let generating = request::to_generate(&parts, &resource, &shared.layer).ok()?;
            Some(source(&shared, &generating, Some(Arc::clone(&route))))
        })
    };
    if let Some(finder) = kept.keep(route, shared, make) {
        shared.layer.engine.add_finder(&finder);
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
