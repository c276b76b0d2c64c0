//! Extensions of a response: a stored page has none, so a page that an outer middleware makes from
//! one is not stored. In virtual time.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{MatchedPath, Request},
    http::StatusCode,
    middleware::map_response,
    response::{Html, IntoResponse, Response},
    routing::get as route,
};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use perennial::{Content, Perennial, RefreshAfter, Tags, layer::RefreshLayer};
use tower::ServiceBuilder;
use tower_http::request_id::{
    MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer,
};

use perennial_testkit::{every, get, log::Log, serve, virtual_time::Shared};

use crate::log_of_this_thread;

const LONG: Duration = Duration::from_secs(3600);

/// What a handler returns in place of a body, as in docs.rs.
#[derive(Clone)]
struct Template(&'static str);

/// An outer middleware that makes the body from the extension.
async fn render(mut response: Response) -> Response {
    if let Some(Template(text)) = response.extensions_mut().remove() {
        *response.body_mut() = Body::from(text);
        response.headers_mut().remove("content-length");
    }
    response
}

fn site() -> Perennial {
    Shared::new().site()
}

/// The warnings of the layer.
fn warnings(log: &Log) -> Vec<String> {
    let text = log.text();
    let lines = text.lines().filter(|line| line.contains("WARN"));
    lines.map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn page_that_an_outer_middleware_renders_reaches_each_visitor() {
    let log = log_of_this_thread();
    let runs = Arc::new(AtomicUsize::new(0));
    let page = {
        let runs = Arc::clone(&runs);
        async move || {
            runs.fetch_add(1, SeqCst);
            (Extension(Template("<h1>docs</h1>")), Tags::new(["t"]), ())
        }
    };
    let layer = site().layer(every(LONG));
    let app = Router::new()
        .route("/page", route(page).layer(layer))
        .layer(map_response(render));
    for visitor in 0..3 {
        let reply = get(&app, "/page").await;
        assert_eq!((reply.status, reply.text()), (200, "<h1>docs</h1>"));
        let status = reply.header("cache-status");
        assert!(status.ends_with("detail=response-extension"), "{status}");
        assert_eq!(
            runs.load(SeqCst),
            visitor + 2,
            "the first visit runs it twice"
        );
    }
    // Exactly the type that has to be declared, once.
    let warnings = warnings(&log);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let types = format!("types=\"{}\"", std::any::type_name::<Template>());
    assert!(warnings[0].contains(&types), "{warnings:?}");
    assert!(
        warnings[0].contains(".drop_response_extension::<T>()"),
        "{warnings:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn failed_page_that_an_outer_middleware_renders_is_shared_with_nobody() {
    let page = async || {
        let template = Extension(Template("<h1>it failed</h1>"));
        (StatusCode::INTERNAL_SERVER_ERROR, template).into_response()
    };
    let layer = site().layer(every(LONG));
    let app = Router::new()
        .route("/page", route(page).layer(layer))
        .layer(map_response(render));
    for _ in 0..2 {
        let reply = get(&app, "/page").await;
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(!reply.body.is_empty(), "an empty page was shared");
    }
}

#[tokio::test(start_paused = true)]
async fn declared_extension_is_dropped_and_the_page_stored() {
    let shared = Shared::new();
    let builder = Perennial::builder().drop_response_extension::<Template>();
    let by_site = shared.open(builder).layer(every(LONG));
    let by_layer = site()
        .layer(every(LONG))
        .drop_response_extension::<Template>();
    for layer in [by_site, by_layer] {
        let page = async || (Extension(Template("for the log alone")), "page");
        let app = Router::new().route("/page", route(page).layer(layer));
        get(&app, "/page").await;
        assert!(
            get(&app, "/page")
                .await
                .header("cache-status")
                .contains("; hit")
        );
    }
}

/// Returns true if the second request for `/page` is a hit.
async fn is_stored(app: Router) -> bool {
    let log = log_of_this_thread();
    get(&app, "/page").await;
    let is_hit = get(&app, "/page")
        .await
        .header("cache-status")
        .contains("; hit");
    assert_eq!(is_hit, warnings(&log).is_empty(), "{}", log.text());
    is_hit
}

#[tokio::test(start_paused = true)]
async fn known_extensions_need_no_declaration() {
    let routed = |page: axum::routing::MethodRouter, layer: RefreshLayer| {
        Router::new().route("/page", page.layer(layer))
    };
    let page = async || (Tags::new(["t"]), RefreshAfter::new(LONG), "page");
    assert!(is_stored(routed(route(page), site().layer(every(LONG)))).await);
    // An outer middleware for metrics asks for the route.
    let page = async |path: MatchedPath| (Extension(path), "page");
    assert!(is_stored(routed(route(page), site().layer(every(LONG)))).await);
    // The request's name inside of the layer.
    let stack = ServiceBuilder::new()
        .layer(site().layer(every(LONG)))
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id());
    let page = async |Extension(id): Extension<RequestId>| (Extension(id), "page");
    assert!(is_stored(Router::new().route("/page", route(page).layer(stack))).await);
    let page = async || (Extension(Template("not known")), "page");
    assert!(!is_stored(routed(route(page), site().layer(every(LONG)))).await);
    // If the application puts a value of its own into a type of axum or of Perennial, it counts as
    // the application's data.
    let page = async || (Extension(Html("<p>text</p>")), "page");
    assert!(!is_stored(routed(route(page), site().layer(every(LONG)))).await);
    let page = async || (Extension(Content::default()), "page");
    assert!(!is_stored(routed(route(page), site().layer(every(LONG)))).await);
}

/// A response of hyper's client says by which connection it came.
#[tokio::test(flavor = "multi_thread")]
async fn response_of_a_proxied_site_is_stored() {
    let folder = perennial_testkit::Folder::new();
    let origin = serve(Router::new().route("/page", route(async || "page"))).await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let proxy = tower::service_fn(move |_: Request| {
        let client = client.clone();
        async move {
            let uri = format!("http://{origin}/page").parse().expect("a URI");
            let response = client.get(uri).await.expect("answers");
            assert!(!response.extensions().is_empty());
            Ok::<_, Infallible>(response.map(Body::new))
        }
    });
    let layer = folder.site().await.layer(every(LONG));
    let app = Router::new().route_service("/page", tower::Layer::layer(&layer, proxy));
    get(&app, "/page").await;
    assert!(
        get(&app, "/page")
            .await
            .header("cache-status")
            .contains("; hit")
    );
}

#[tokio::test(start_paused = true)]
async fn first_private_response_of_a_layer_says_that_it_ran_twice() {
    for header in [
        ("cache-control", "no-store"),
        ("cache-control", "private"),
        ("set-cookie", "a=b"),
    ] {
        let log = log_of_this_thread();
        let runs = Arc::new(AtomicUsize::new(0));
        let page = {
            let runs = Arc::clone(&runs);
            async move || {
                runs.fetch_add(1, SeqCst);
                ([header], "burned after reading")
            }
        };
        let layer = site().layer(every(LONG));
        let app = Router::new().route("/{id}", route(page).layer(layer));
        get(&app, "/1").await;
        assert_eq!(runs.load(SeqCst), 2);
        get(&app, "/2").await;
        let warnings = warnings(&log);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("this GET has run a second time"),
            "{warnings:?}"
        );
    }
}
