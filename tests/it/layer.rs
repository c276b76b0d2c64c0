//! The layer in axum's routers and around any Tower service.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{MatchedPath, OriginalUri, Path, Query, Request, State},
    http::{Method, Response, StatusCode, header},
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::{get as route, post},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use perennial::Refresh;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::support::{Crowd, Folder, HANG, Origin, get, request, serve, until};

const LONG: Duration = Duration::from_secs(3600);
const POLICY: Refresh = Refresh::every(LONG);

/// A handler that counts its runs.
fn counting(name: &'static str) -> axum::routing::MethodRouter {
    let runs = Arc::new(AtomicUsize::new(0));
    route(async move || format!("run {} of {name}", runs.fetch_add(1, SeqCst) + 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_works_wherever_axum_takes_a_layer() {
    let folder = Folder::new();
    let site = folder.site().await;
    let app = Router::new()
        .route("/method-router", counting("a").layer(site.layer(POLICY)))
        .route("/route-layer", counting("b"))
        .route_layer(site.layer(POLICY))
        .merge(
            Router::new()
                .route("/router", counting("c"))
                .layer(site.layer(POLICY)),
        )
        .nest_service("/service", site.layer(POLICY).layer(counting("d")))
        .fallback_service(site.layer(POLICY).layer(counting("e")));
    let address = serve(app).await;
    for (path, name) in [
        ("/method-router", "a"),
        ("/route-layer", "b"),
        ("/router", "c"),
        ("/service", "d"),
        ("/else", "e"),
    ] {
        for _ in 0..2 {
            assert_eq!(get(address, path).await.text(), format!("run 1 of {name}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extractors_work_on_the_request_that_generates() {
    async fn everything(
        State(state): State<&'static str>,
        Extension(extension): Extension<u32>,
        Path((id, name)): Path<(u32, String)>,
        Query(query): Query<Vec<(String, String)>>,
        matched: MatchedPath,
        OriginalUri(original): OriginalUri,
        request: Request,
    ) -> String {
        let headers = request.headers().len();
        let uri = request.uri().clone();
        let body = request
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        format!(
            "{state} {extension} {id} {name} {query:?} {} {original} {uri} {headers} {}",
            matched.as_str(),
            body.len()
        )
    }
    let folder = Folder::new();
    let inner = Router::new()
        .route("/{id}/{name}", route(everything))
        .layer(folder.site().await.layer(POLICY).share_extension::<u32>())
        .layer(Extension(7_u32))
        .with_state("state");
    let address = serve(Router::new().nest("/books", inner)).await;
    let headers = [
        ("cookie", "a=b"),
        ("authorization", "Basic x"),
        ("x-forwarded-host", "evil"),
    ];
    for _ in 0..2 {
        let reply = request(
            address,
            "GET",
            "/books/4/ä?z=1&a=%20".replace('ä', "%C3%A4").as_str(),
            &headers,
        )
        .await;
        assert_eq!(
            reply.text(),
            "state 7 4 ä [(\"a\", \" \"), (\"z\", \"1\")] /books/{id}/{name} /books/4/%C3%A4?a=%20&z=1 /4/%C3%A4?a=%20&z=1 0 0"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_routers_with_the_same_inner_path_do_not_share_an_entry() {
    let folder = Folder::new();
    let site = folder.site().await;
    let nested = |name| {
        Router::new()
            .route("/list", counting(name))
            .route("/", counting(name))
            .layer(site.layer(POLICY))
    };
    let deep = Router::new().nest("/deeper", nested("c"));
    let app = Router::new()
        .nest("/a", nested("a"))
        .nest("/b", nested("b"))
        .nest("/deep", deep);
    let address = serve(app).await;
    for _ in 0..2 {
        for (path, name) in [
            ("/a/list", "a"),
            ("/b/list", "b"),
            ("/deep/deeper/list", "c"),
            ("/a", "a"),
            ("/b", "b"),
        ] {
            assert_eq!(
                get(address, path).await.text(),
                format!("run 1 of {name}"),
                "{path}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_layers_have_two_intervals() {
    let folder = Folder::new();
    let site = folder.site().await;
    let short = Refresh::every(Duration::from_millis(100));
    let app = Router::new()
        .route("/short", counting("short").layer(site.layer(short)))
        .route("/long", counting("long").layer(site.layer(POLICY)));
    let address = serve(app).await;
    for run in 1..4 {
        until("it regrows", async || {
            get(address, "/short").await.run() >= run
        })
        .await;
        assert_eq!(get(address, "/long").await.run(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_beneath_another_does_not_wait_for_itself() {
    let folder = Folder::new();
    let site = folder.site().await;
    let short = Refresh::every(Duration::from_millis(100));
    let inner = Router::new().route("/", counting("it").layer(site.layer(POLICY)));
    let address = serve(inner.layer(site.layer(short))).await;
    assert_eq!(get(address, "/").await.run(), 1);
    until("it regrows", async || get(address, "/").await.run() >= 2).await;
}

/// A middleware may choose the page by a cookie; the key distinguishes the pages.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_path_is_a_resource_of_its_own() {
    async fn rewrite(mut request: Request, next: Next) -> axum::response::Response {
        if request.headers().contains_key("cookie") {
            *request.uri_mut() = "/members?secret=1".parse().expect("a URI");
        }
        next.run(request).await
    }
    let folder = Folder::new();
    let shown = route(async |request: Request| request.uri().to_string());
    let app = Router::new()
        .route("/", shown)
        .layer(folder.site().await.layer(POLICY))
        .layer(from_fn(rewrite));
    let address = serve(app).await;
    for _ in 0..2 {
        let member = request(address, "GET", "/", &[("cookie", "member")]).await;
        assert_eq!(member.text(), "/members?secret=1");
        assert_eq!(get(address, "/").await.text(), "/");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn head_is_answered_from_the_entry() {
    let folder = Folder::new();
    let origin = Origin::default();
    let address = serve(origin.router().layer(folder.site().await.layer(POLICY))).await;
    for path in ["/cold-head", "/cold-get"] {
        if path == "/cold-get" {
            get(address, path).await;
        }
        let head = request(address, "HEAD", path, &[]).await;
        let whole = get(address, path).await;
        assert_eq!((head.status, head.body.len()), (200, 0));
        let length = whole.body.len().to_string();
        assert_eq!(head.headers[header::CONTENT_LENGTH], length);
        assert_eq!(whole.headers[header::CONTENT_LENGTH], length);
        assert_eq!(
            head.headers[header::CONTENT_TYPE],
            whole.headers[header::CONTENT_TYPE]
        );
    }
    assert_eq!(origin.begun(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_methods_pass_untouched() {
    async fn echo(request: Request) -> axum::response::Response {
        let (head, body) = request.into_parts();
        let header = head.headers.get("x-own").cloned().expect("is carried");
        (StatusCode::CREATED, [("x-own", header)], body).into_response()
    }
    let folder = Folder::new();
    let app = Router::new().route(
        "/",
        post(echo).put(echo).delete(echo).patch(echo).options(echo),
    );
    let app = app.layer(folder.site().await.layer(POLICY));
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::OPTIONS,
    ] {
        let request = Request::builder()
            .method(method.clone())
            .header("x-own", method.as_str());
        let request = request.body(Body::from("sent")).expect("a request");
        let response = app.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::CREATED);
        assert_eq!(response.headers()["x-own"], method.as_str());
        let body = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        assert_eq!(body, "sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_body_and_no_header_of_a_get_reaches_the_generator() {
    let folder = Folder::new();
    let seen = route(async |request: Request| {
        let headers = request.headers().len();
        let body = request
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        format!("{headers} {}", body.len())
    });
    let app = Router::new()
        .route("/", seen)
        .layer(folder.site().await.layer(POLICY));
    let request = Request::builder()
        .header(header::HOST, "evil")
        .header("x-http-method-override", "DELETE");
    let request = request
        .body(Body::from("a body on GET"))
        .expect("a request");
    let response = app.oneshot(request).await.expect("infallible");
    let body = response
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert_eq!(body, "0 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_buffers_beneath_are_honoured_and_hold_back_no_hit() {
    let folder = Folder::new();
    let site = folder.site().await;
    let origin = Origin::default();
    let inner = ServiceBuilder::new()
        .concurrency_limit(1)
        .service(origin.router());
    let limited = site.layer(POLICY.soft_timeout(HANG)).layer(inner);
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
        let request = Request::builder()
            .uri(format!("/buffered/{page}"))
            .body(Body::empty())
            .expect("a request");
        let response = buffered
            .clone()
            .oneshot(request)
            .await
            .unwrap_or_else(|_: std::convert::Infallible| unreachable!());
        assert_eq!(response.status(), StatusCode::OK);
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
