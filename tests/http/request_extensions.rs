//! Extensions of a request: unknown ones bypass the cache, declared ones are ignored or shared, and
//! no visitor gets another visitor's page.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::{
        ConnectInfo, DefaultBodyLimit, FromRequestParts, MatchedPath, NestedPath, OriginalUri,
        Path, RawPathParams, Request, connect_info::MockConnectInfo,
    },
    middleware::{Next, from_extractor, from_fn, map_request, map_response},
    response::Response,
    routing::{any_service, get as route, get_service},
};
use perennial::{Refresh, layer::RefreshLayer};
use tower::{Layer, ServiceExt};

use crate::{middleware::User, panicking_extensions};
use perennial_testkit::{Folder, Reply, get, request, serve};

const POLICY: Refresh = Refresh::every(Duration::from_secs(3600));

/// A handler that prints the routing and the visitor and, after a `;`, the rest of the request.
pub(crate) async fn show(request: Request) -> String {
    let (mut parts, body) = request.into_parts();
    let count = parts.extensions.len();
    let from = &mut parts;
    let parameters = RawPathParams::from_request_parts(from, &()).await;
    let parameters = parameters.map_or("none".into(), |parameters| {
        let parameters = parameters.iter();
        let parameters = parameters.map(|(name, value)| format!("{name}={value}"));
        parameters.collect::<Vec<_>>().join(" ")
    });
    let values = Path::<Vec<String>>::from_request_parts(from, &()).await;
    let values = values.map_or(Vec::new(), |Path(values)| values);
    let named = Path::<BTreeMap<String, String>>::from_request_parts(from, &()).await;
    let named = named.map_or(BTreeMap::new(), |Path(named)| named);
    let (method, uri, extensions) = (&parts.method, &parts.uri, &parts.extensions);
    let original = extensions.get().map(|OriginalUri(uri)| uri);
    let matched = extensions.get().map(MatchedPath::as_str);
    let nested = extensions.get().map(NestedPath::as_str);
    let connected = extensions.get::<ConnectInfo<SocketAddr>>().is_some();
    let user = extensions.get().map_or("nobody", |User(name)| name);
    let poisons = panicking_extensions::seen(extensions);
    let routed = format!(
        "{method} {uri} of {original:?}, {matched:?}, {nested:?}, {parameters:?} {values:?} {named:?}, {connected}"
    );
    let body = to_bytes(body, usize::MAX).await.expect("is read").len();
    let headers = &parts.headers;
    format!("{routed}, for {user}{poisons}; {count} extensions, {headers:?}, {body} bytes")
}

/// Returns the routing and the visitor.
fn shown(reply: &Reply) -> String {
    let text = reply.text();
    text.split(';').next().expect("is there").to_owned()
}

/// Puts the layer somewhere.
pub(crate) type Place = fn(RefreshLayer) -> Router;

/// Each way in which axum routes a request to the layer, with a path for it.
pub(crate) const PLACES: &[(&str, Place, &str)] = &[
    (
        "a method router",
        |it| Router::new().route("/a", route(show).layer(it)),
        "/a",
    ),
    (
        "parameters",
        |it| Router::new().route("/a/{b}/{c}", route(show).layer(it)),
        "/a/1/2%20x",
    ),
    (
        "a wildcard",
        |it| Router::new().route("/a/{*rest}", route(show).layer(it)),
        "/a/b/c",
    ),
    (
        "a parameter that is not UTF-8",
        |it| Router::new().route("/a/{b}", route(show).layer(it)),
        "/a/%FF",
    ),
    (
        "a route layer",
        |it| Router::new().route("/a/{b}", route(show)).route_layer(it),
        "/a/b",
    ),
    (
        "a router's layer",
        |it| Router::new().route("/a/{b}", route(show)).layer(it),
        "/a/b",
    ),
    (
        "merged routers",
        |it| {
            let other = Router::new().route("/a/{b}", route(show).layer(it));
            Router::new().route("/b", route(show)).merge(other)
        },
        "/a/b",
    ),
    (
        "a nested route",
        |it| Router::new().nest("/n", Router::new().route("/a", route(show).layer(it))),
        "/n/a",
    ),
    (
        "a nested route with parameters",
        |it| {
            Router::new().nest(
                "/n/{x}",
                Router::new().route("/a/{b}", route(show).layer(it)),
            )
        },
        "/n/1/a/2",
    ),
    (
        "a nested router's layer",
        |it| Router::new().nest("/n", Router::new().route("/a/{b}", route(show)).layer(it)),
        "/n/a/b",
    ),
    (
        "a layer around nested routers",
        |it| {
            let inner = Router::new().nest("/m", Router::new().route("/a/{b}", route(show)));
            Router::new().nest("/n", inner).layer(it)
        },
        "/n/m/a/b",
    ),
    (
        "routers nested twice",
        |it| {
            let inner = Router::new().route("/a/{b}", route(show).layer(it));
            Router::new().nest("/n", Router::new().nest("/m/{x}", inner))
        },
        "/n/m/1/a/b",
    ),
    (
        "a fallback",
        |it| {
            Router::new()
                .route("/a", route(show))
                .fallback(show)
                .layer(it)
        },
        "/else",
    ),
    (
        "a nested fallback",
        |it| Router::new().nest("/n", Router::new().fallback(show).layer(it)),
        "/n/else",
    ),
    (
        "a fallback service",
        |it| Router::new().fallback_service(it.layer(route(show))),
        "/else",
    ),
    (
        "a nested service",
        |it| Router::new().nest_service("/n", it.layer(route(show))),
        "/n/a",
    ),
    (
        "the root of a nested service",
        |it| Router::new().nest_service("/n", it.layer(route(show))),
        "/n",
    ),
    (
        "a layer around a nested service",
        |it| Router::new().nest_service("/n", route(show)).layer(it),
        "/n/a",
    ),
    (
        "a router as a nested service, with one name for two parameters",
        |it| {
            let inner = Router::new().route("/{x}/{{b}}", route(show).layer(it));
            Router::new().nest_service("/{x}", inner)
        },
        "/n/a/{b}",
    ),
    (
        "a router as a nested service",
        |it| Router::new().nest_service("/n", Router::new().route("/a/{b}", route(show).layer(it))),
        "/n/a/b",
    ),
    (
        "the fallback of a nested service",
        |it| Router::new().nest_service("/n", Router::new().fallback(show).layer(it)),
        "/n/a/b",
    ),
    (
        "a parameter of a nested service",
        |it| Router::new().nest_service("/n/{x}", it.layer(route(show))),
        "/n/1/a",
    ),
    (
        "a parameter of a nested fallback",
        |it| Router::new().nest("/n/{x}", Router::new().fallback(show).layer(it)),
        "/n/1/else",
    ),
    (
        "a layer between nested routers",
        |it| {
            let inner = Router::new().nest("/m/{x}", Router::new().route("/a", route(show)));
            Router::new().nest("/n", inner.layer(it))
        },
        "/n/m/1/a",
    ),
    (
        "the root of a nested router",
        |it| Router::new().nest("/n", Router::new().route("/", route(show).layer(it))),
        "/n",
    ),
    (
        "names that axum 0.7 took for parameters",
        |it| {
            Router::new()
                .without_v07_checks()
                .route("/:a", route(show).layer(it))
        },
        "/:a",
    ),
    (
        "a route's service",
        |it| Router::new().route_service("/a/{b}", it.layer(get_service(route(show)))),
        "/a/b",
    ),
];

async fn with_addresses(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Nobody's page is stored, as the bypassed route shows it, and no page of a visitor.
#[tokio::test(flavor = "multi_thread")]
async fn an_undeclared_extension_bypasses_the_cache_on_routes_of_every_kind() {
    let folder = Folder::new();
    let site = folder.site().await;
    // The headers of a client that offers to upgrade to HTTP/2; hyper then adds an extension.
    let h2c = [
        ("connection", "upgrade, http2-settings"),
        ("upgrade", "h2c"),
        ("http2-settings", ""),
    ];
    for (n, (name, place, path)) in PLACES.iter().enumerate() {
        let bare = place(site.layer(POLICY).bypass_if(|_| true));
        let bare = get(serve(bare).await, path).await;
        let status = bare.header("cache-status");
        assert_eq!(status, "perennial; fwd=bypass; detail=bypass-if");
        for connects in [false, true] {
            let query = format!("?{n}-{connects}");
            let path = format!("{path}{query}");
            let served = async |app: Router| {
                if connects {
                    with_addresses(app).await
                } else {
                    serve(app).await
                }
            };
            let app = || place(site.layer(POLICY));
            let ann = served(app().layer(Extension(User("ann".into())))).await;
            let nobody = served(app()).await;
            let is_anns = async || {
                let reply = get(ann, &path).await;
                let bypass = "perennial; fwd=bypass; detail=undeclared-extension";
                assert_eq!(reply.header("cache-status"), bypass, "{name}");
                assert!(shown(&reply).ends_with("for ann"), "{name}: {reply:?}");
            };
            is_anns().await;
            let reply = get(nobody, &path).await;
            let miss = "perennial; fwd=miss; stored";
            assert_eq!(reply.header("cache-status"), miss, "{name}");
            assert_eq!(shown(&reply).replace(&query, ""), shown(&bare), "{name}");
            // The same after the page is stored.
            is_anns().await;
            let reply = request(nobody, "GET", &path, &h2c).await;
            assert!(reply.header("cache-status").contains("hit"), "{name}");
            let reply = request(nobody, "GET", &format!("{path}=h2c"), &h2c).await;
            assert_eq!(reply.header("cache-status"), miss, "{name}");
            let declared = place(site.layer(POLICY).ignore_extension::<User>());
            let declared = serve(declared.layer(Extension(User("ann".into())))).await;
            let reply = get(declared, &path).await;
            assert!(reply.header("cache-status").contains("hit"), "{name}");
        }
    }
}

fn copy_one<T: Clone + Send + Sync + 'static>(from: &Request, to: &mut Request) {
    let it = from.extensions().get::<T>().expect("is there").clone();
    to.extensions_mut().insert(it);
}

/// Where a copied part of the routing stands for the routing's private extensions, the count takes the
/// visitor's extension for one of them: the visitor gets the page of all visitors.
#[tokio::test]
async fn no_generator_sees_an_extension_that_the_count_misses() {
    let folder = Folder::new();
    let site = folder.site().await;
    type Copy = fn(&Request, &mut Request);
    let copies: [(&str, Copy, bool); 4] = [
        ("matched path", copy_one::<MatchedPath>, false),
        ("original URI", copy_one::<OriginalUri>, true),
        (
            "both",
            |from, to| {
                copy_one::<MatchedPath>(from, to);
                to.extensions_mut()
                    .insert(OriginalUri("/a".parse().expect("a URI")));
            },
            true,
        ),
        (
            "all",
            |from, to| to.extensions_mut().clone_from(from.extensions()),
            false,
        ),
    ];
    for (name, copy, misses) in copies {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let users = Arc::clone(&seen);
        let inner = site
            .layer(POLICY)
            .layer(tower::service_fn(move |request: Request| {
                let user = request.extensions().get::<User>().cloned();
                users.lock().expect("not poisoned").push(user.is_some());
                async { Ok::<_, Infallible>(Response::new(Body::from("a page"))) }
            }));
        let app = Router::new().route(
            "/{a}",
            route(async move |request: Request| {
                let mut copied = Request::new(Body::empty());
                copy(&request, &mut copied);
                copied.extensions_mut().insert(User("ann".into()));
                *copied.uri_mut() = format!("/{}", name.replace(' ', "-"))
                    .parse()
                    .expect("a URI");
                inner
                    .clone()
                    .oneshot(copied)
                    .await
                    .expect("infallible")
                    .map(Body::new)
            }),
        );
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/a".parse().expect("a URI");
        let response = app.oneshot(request).await.expect("infallible");
        let expected = if misses {
            "perennial; fwd=miss; stored"
        } else {
            "perennial; fwd=bypass; detail=undeclared-extension"
        };
        assert_eq!(response.headers()["cache-status"], expected, "{name}");
        assert_eq!(*seen.lock().expect("not poisoned"), [!misses], "{name}");
    }
}

/// No router of one route gives its `MatchedPath`, which is put together of two routes.
#[tokio::test]
async fn a_router_that_is_the_service_of_a_route_is_not_cached() {
    let folder = Folder::new();
    let site = folder.site().await;
    let inner = Router::new().route("/r/{a}", route(show).layer(site.layer(POLICY)));
    let app = Router::new().route("/r/{*rest}", any_service(inner));
    let address = serve(app).await;
    for _ in 0..2 {
        let reply = get(address, "/r/a").await;
        let bypass = "perennial; fwd=bypass; detail=undeclared-extension";
        assert_eq!(reply.header("cache-status"), bypass);
        assert!(shown(&reply).ends_with("for nobody"), "{reply:?}");
    }
}

/// A layer of axum's own around a router.
type AxumLayer = (&'static str, fn(Router) -> Router);

const AXUM_LAYERS: [AxumLayer; 9] = [
    ("none", |app| app),
    ("a body limit", |app| app.layer(DefaultBodyLimit::max(10))),
    ("no body limit", |app| {
        app.layer(DefaultBodyLimit::disable())
    }),
    ("two body limits", |app| {
        app.layer(DefaultBodyLimit::max(10))
            .layer(DefaultBodyLimit::disable())
    }),
    ("an address in a test", |app| {
        app.layer(MockConnectInfo(SocketAddr::from(([127, 0, 0, 1], 7))))
    }),
    ("from_fn", |app| {
        app.layer(from_fn(|request: Request, next: Next| next.run(request)))
    }),
    ("from_extractor", |app| {
        app.layer(from_extractor::<MatchedPath>())
    }),
    ("map_request", |app| {
        app.layer(map_request(async |request: Request| request))
    }),
    ("map_response", |app| {
        app.layer(map_response(async |response: Response| response))
    }),
];

/// What axum itself puts into a request says nothing of the visitor.
#[tokio::test(start_paused = true)]
async fn each_layer_of_axum_around_the_layer_leaves_the_cache_on() {
    for (name, around) in AXUM_LAYERS {
        for (place, app, path) in PLACES {
            // An extractor of a matched path refuses a request without one.
            if name == "from_extractor" && !path.starts_with("/a") {
                continue;
            }
            let site = perennial_testkit::virtual_time::Shared::new().site();
            let app = around(app(site.layer(POLICY)));
            for expected in ["perennial; fwd=miss; stored", "perennial; hit; ttl=3600"] {
                let reply = get(&app, path).await;
                let status = reply.header("cache-status");
                assert_eq!(status, expected, "{name} around {place}: {reply:?}");
            }
            // A visitor's extension beside axum's is still noticed.
            let app = app.layer(Extension(User("ann".into())));
            let status = get(&app, path).await.header("cache-status").to_owned();
            assert!(
                status.contains("undeclared-extension"),
                "{name} around {place}: {status}"
            );
        }
    }
}
