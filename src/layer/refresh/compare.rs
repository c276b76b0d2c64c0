//! Does a page depend on something that its key does not have? In development, and where an operator asks, the
//! handler runs for a visitor's own request as well, and the two pages are compared.
//!
//! A page may depend on `Accept-Language`, on a cookie with a theme, or on a header of a proxy. The generator's
//! request has none of these headers, so everybody is served one form of such a page, and nobody sees why. The
//! layer finds out by running the handler again with the visitor's headers, and then without each of them in
//! turn.
//!
//! Nothing here is stored or served, and nothing is compared in production unless an operator asks for it with
//! `perennial explain --compare`.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, Request, StatusCode, header, request::Parts};
use http_body::Body;
use perennial_store::{error::BoxError, locked};
use tower_service::Service;

use super::{generate::generate, request, service::Shared};
use crate::{
    cache::{Answer, listing::explain::Comparison},
    generation::Generation,
    layer::{Holes, body::read, future::oneshot as call},
};

/// The number of keys for which a layer remembers that they have been compared.
const MOST_KEYS: usize = 10_000;

/// At most this many headers of a request are left out one by one.
const MOST_HEADERS: usize = 40;

/// The headers that choose a form of a page: a part of it, a coding, or no content if it is unchanged.
const FORM_HEADERS: [HeaderName; 7] = [
    header::ACCEPT_ENCODING,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::RANGE,
];

/// The keys whose pages a layer has compared in this process.
pub(super) type Compared = std::sync::Mutex<HashSet<String>>;

/// A page as a visitor sees it, without what fills its holes.
#[derive(PartialEq)]
struct Page {
    status: StatusCode,
    body: Bytes,
}

/// Compares the page of this key in a task of its own, once in this process, and logs how it differs for the
/// visitor. `visitor` is a request that has been answered with a new version.
pub(super) fn compare_once<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    key: &str,
    visitor: impl FnOnce() -> Parts,
) where
    S: Service<Request<ReqBody>, Response = http::Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let is_new = {
        let mut compared = locked(&shared.layer.compared);
        compared.len() < MOST_KEYS && compared.insert(key.to_owned())
    };
    if !is_new {
        return;
    }
    let (shared, visitor) = (Arc::clone(shared), visitor());
    tokio::spawn(async move {
        let path = visitor.uri.path().to_owned();
        match compare(&shared, &visitor).await {
            Comparison::DiffersByHeader(name) => shared.layer.hints.differs_by_header(&path, &name),
            Comparison::DiffersByRequest => shared.layer.hints.differs_by_request(&path),
            Comparison::DiffersEachTime => tracing::debug!(
                path,
                "two generations of this page differ, so it is not compared with the page for a visitor's own request"
            ),
            Comparison::Same | Comparison::NotCompared => {}
        }
    });
}

/// Runs the handler twice with the request that all visitors share. If both pages are the same, it runs the
/// handler with the visitor's own request. If that page differs, it runs the handler again without one header
/// at a time. All runs together have the time limit of one generator.
pub(super) async fn compare<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    visitor: &Parts,
) -> Comparison
where
    S: Service<Request<ReqBody>, Response = http::Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let compared = async {
        let [Some(page), Some(again)] = [
            for_everybody(shared, visitor).await,
            for_everybody(shared, visitor).await,
        ] else {
            return Comparison::NotCompared;
        };
        if page != again {
            return Comparison::DiffersEachTime;
        }
        let Some(own) = for_visitor(shared, visitor, None).await else {
            return Comparison::NotCompared;
        };
        if own == page {
            return Comparison::Same;
        }
        let names: HashSet<_> = visitor.headers.keys().collect();
        let names = names
            .into_iter()
            .filter(|name| !shared.layer.key.has(name) && !FORM_HEADERS.contains(name));
        for name in names.take(MOST_HEADERS) {
            if for_visitor(shared, visitor, Some(name)).await.as_ref() == Some(&page) {
                return Comparison::DiffersByHeader(name.to_string());
            }
        }
        Comparison::DiffersByRequest
    };
    let limit = shared.layer.policy.generator_timeout;
    let compared = tokio::time::timeout(limit, compared).await;
    compared.unwrap_or(Comparison::NotCompared)
}

/// Returns the page that the generator makes for everybody. `None` means that the response is not one that is
/// stored.
async fn for_everybody<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    visitor: &Parts,
) -> Option<Page>
where
    S: Service<Request<ReqBody>, Response = http::Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send + 'static,
    ReqBody: Default + Send + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let resource = request::resource(visitor, &shared.layer).ok()?;
    let request = request::to_generate(visitor, &resource, &shared.layer).ok()?;
    let request = request.map(|()| ReqBody::default());
    let generator = Box::pin(generate(Arc::clone(shared), request));
    match shared.layer.cache.unstored(&resource.key, generator).await {
        Answer::Version(version) => {
            let page = &version.page;
            Some(Page {
                status: page.status(),
                body: page.content().clone(),
            })
        }
        _ => None,
    }
}

/// Returns the page that the handler makes for the visitor's request. If `without` names a header, the request
/// is sent without that header.
async fn for_visitor<S, ReqBody, ResBody>(
    shared: &Arc<Shared<S>>,
    visitor: &Parts,
    without: Option<&HeaderName>,
) -> Option<Page>
where
    S: Service<Request<ReqBody>, Response = http::Response<ResBody>> + Clone,
    ReqBody: Default,
    ResBody: Body<Data = Bytes>,
{
    let layer = &shared.layer;
    let mut parts = visitor.clone();
    if layer.key.derives_values() {
        // The generator's URI has only what is in the key. The parts of the visitor's URI that are
        // not in the key must not count as a difference.
        let resource = request::resource(visitor, layer).ok()?;
        let generator = request::to_generate(visitor, &resource, layer).ok()?;
        parts.uri = generator.uri().clone();
    }
    // They choose a form of the page.
    for name in FORM_HEADERS.iter().chain(without) {
        parts.headers.remove(name);
    }
    let holes = Holes::new(Arc::clone(layer.holes.names()));
    if !layer.holes.is_empty() {
        parts.extensions.insert(holes.clone());
    }
    parts.extensions.insert(Generation::default());
    let request = Request::from_parts(parts, ReqBody::default());
    let (head, body) = call(shared.inner(), request).await.ok()?.into_parts();
    let body = read(body, layer.cache.settings().max_body).await.ok()??;
    let (body, _) = holes.cut(&head, body).ok()?;
    Some(Page {
        status: head.status,
        body,
    })
}
