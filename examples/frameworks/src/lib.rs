//! A stored page without axum. The page is a Tower service, and so is the page with Perennial's
//! layer; hyper serves such a service, and poem takes it as an endpoint.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use perennial::{Perennial, Refresh, layer::ResponseBody};
use poem::{PathPattern, Route, endpoint::TowerCompatExt};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

/// A page with its layer. A body is optional, as the request that generates a page has none.
pub type Page<B> =
    BoxCloneSyncService<Request<Option<B>>, Response<ResponseBody<Full<Bytes>>>, Infallible>;

/// Returns the list of best sellers, stored by this policy. A visitor who is logged in gets a page of
/// the visitor's own.
pub fn best_sellers<B: Send + 'static>(site: &Perennial, policy: &Refresh) -> Page<B> {
    let generate = service_fn(async |request: Request<Option<B>>| {
        let page = match request.headers().get("authorization") {
            Some(_) => "yours",
            None => "generated from the orders, which takes its time",
        };
        Ok::<_, Infallible>(Response::new(Full::from(page)))
    });
    // Poem's router adds the pattern of the path to each request. No visitor chooses this pattern.
    let layer = site.layer(policy).ignore_extension::<PathPattern>();
    let layer = layer.bypass_if(|parts| parts.headers.contains_key("authorization"));
    BoxCloneSyncService::new(layer.layer(generate))
}

/// Serves the page with hyper and tower alone.
///
/// # Errors
///
/// The listener fails.
pub async fn serve_by_hyper(listener: TcpListener, page: Page<Incoming>) -> std::io::Result<()> {
    let service = page.map_request(|request: Request<Incoming>| request.map(Some));
    let service = TowerToHyperService::new(service);
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = http1::Builder::new();
        let connection = connection.serve_connection(TokioIo::new(stream), service.clone());
        tokio::spawn(connection);
    }
}

/// Returns the page as a poem site.
pub fn poem_site(page: Page<BoxBody<Bytes, std::io::Error>>) -> Route {
    let endpoint =
        page.map_request(|request: Request<BoxBody<Bytes, std::io::Error>>| request.map(Some));
    Route::new().at("/best-sellers", endpoint.compat())
}
