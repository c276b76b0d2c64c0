//! The layer in axum's routers and around any Tower service.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{Method, Response},
    middleware::{Next, from_fn},
    routing::get as route,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use perennial::Refresh;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use perennial_testkit::{Crowd, Folder, HANG, Origin, get, request, serve, until};

const LONG: Duration = Duration::from_secs(3600);
const POLICY: Refresh = Refresh::every(LONG);

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_buffers_beneath_are_honoured_and_hold_back_no_hit() {
    let folder = Folder::new();
    let site = folder.site().await;
    let origin = Origin::default();
    let inner = ServiceBuilder::new()
        .concurrency_limit(1)
        .service(origin.router());
    let limited = site.layer(POLICY.leader_wait(HANG)).layer(inner);
    let address = serve(Router::new().fallback_service(limited)).await;
    get(address, "/warm").await;
    origin.hold();
    let cold = Crowd::visit(20, &[address], "/cold");
    until("it generates", async || origin.begun() == 2).await;
    // The only permit is taken.
    assert!(
        Crowd::visit(20, &[address], "/warm")
            .rest()
            .await
            .iter()
            .all(|reply| reply.run() == 1)
    );
    origin.let_go();
    assert!(cold.rest().await.iter().all(|reply| reply.run() == 2));
    for page in 0..20 {
        assert_eq!(get(address, &format!("/buffer/{page}")).await.status, 200);
    }

    let buffered = ServiceBuilder::new()
        .layer(site.layer(POLICY))
        .map_err(|error: tower::BoxError| panic!("{error}"))
        .buffer(4)
        .service(origin.router());
    for page in 0..20 {
        let reply = get(&buffered, &format!("/buffered/{page}")).await;
        assert_eq!(reply.status, 200);
    }
}

/// A service that panics if called without a prior `poll_ready`.
#[derive(Default)]
struct Strict {
    ready: bool,
}

// A clone starts without readiness.
impl Clone for Strict {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<http::Request<Full<Bytes>>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Full<Bytes>>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without having been polled ready"
        );
        std::future::ready(Ok(Response::new(Full::from(request.uri().to_string()))))
    }
}

#[tokio::test]
async fn any_tower_service_works_and_is_polled_ready_before_each_call() {
    let folder = Folder::new();
    let mut service = folder.site().await.layer(POLICY).layer(Strict::default());
    for method in [Method::GET, Method::POST, Method::GET, Method::HEAD] {
        let request = http::Request::builder()
            .method(method.clone())
            .uri("/x?a=1");
        let request = request.body(Full::default()).expect("a request");
        let response = service
            .ready()
            .await
            .expect("infallible")
            .call(request)
            .await
            .expect("infallible");
        let body = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        assert_eq!(body, if method == Method::HEAD { "" } else { "/x?a=1" });
    }
}

/// A nested router removes the beginning of a path. A path that middleware has rewritten may look
/// like such a rest, and has a key of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_middleware_has_rewritten_has_a_key_of_its_own() {
    async fn rewrite(mut request: Request, next: Next) -> axum::response::Response {
        if !request.headers().contains_key("cookie") {
            *request.uri_mut() = "/".parse().expect("a URI");
        }
        next.run(request).await
    }
    let folder = Folder::new();
    let inner = Router::new()
        .route("/", route(async || "welcome"))
        .route("/members", route(async || "members only"));
    let kept = folder.site().await.layer(POLICY).layer(inner);
    let rewritten = ServiceBuilder::new().layer(from_fn(rewrite)).service(kept);
    let address = serve(Router::new().fallback_service(rewritten)).await;
    for _ in 0..2 {
        let member = request(address, "GET", "/members", &[("cookie", "member")]).await;
        assert_eq!(member.text(), "members only");
        assert_eq!(get(address, "/members").await.text(), "welcome");
    }
}

/// As in axum's documents on middleware: several layers on a route, one of which may fail, and a layer that is there or not.
#[tokio::test(start_paused = true)]
async fn layer_stands_in_a_service_builder_beside_layers_that_fail_or_are_optional() {
    use axum::{
        body::Body, error_handling::HandleErrorLayer, http::StatusCode, response::IntoResponse,
    };
    use tower_http::map_response_body::MapResponseBodyLayer;

    let site = perennial_testkit::virtual_time::Shared::new().site();
    let origin = Origin::default();
    let failed = async |error: tower::BoxError| {
        (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
    };
    let stack = || {
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(failed))
            .layer(site.layer(POLICY))
            .buffer(16)
            .concurrency_limit(4)
            .layer(tower::load_shed::LoadShedLayer::new())
    };
    let page = {
        let origin = origin.clone();
        async move || origin.run("a page").await
    };
    let optional = |is_there: bool| {
        let layer = is_there.then(|| (MapResponseBodyLayer::new(Body::new), site.layer(POLICY)));
        ServiceBuilder::new().option_layer(layer)
    };
    let app: Router = Router::new()
        .route("/route", route(page.clone()).layer(stack()))
        .route("/there", route(page.clone()).layer(optional(true)))
        .route("/missing", route(page).layer(optional(false)))
        .with_state(());
    for (path, is_stored) in [("/route", true), ("/there", true), ("/missing", false)] {
        let before = origin.begun();
        for _ in 0..2 {
            assert_eq!(get(&app, path).await.status, 200, "{path}");
        }
        let expected = if is_stored { 1 } else { 2 };
        assert_eq!(origin.begun() - before, expected, "{path}");
    }
}
