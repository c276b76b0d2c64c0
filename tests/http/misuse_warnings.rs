//! Wrong uses of the layer: a refusal, or one line in the log.

use std::{convert::Infallible, time::Duration};

use axum::{
    Extension, Router,
    extract::Request,
    http::{HeaderMap, header},
    response::IntoResponse,
    routing::{get as route, post},
};
use http_body_util::BodyExt;
use perennial::{Key, Perennial, Refresh, layer::RefreshLayer};
use tower::ServiceExt;

use perennial_testkit::{Folder, get, request};

use crate::log_of_this_thread;

const POLICY: Refresh = Refresh::every(Duration::from_secs(3600));

#[derive(Clone)]
struct User;

/// The warnings of the run, on the test's own thread.
async fn warnings(run: impl AsyncFn()) -> Vec<String> {
    let log = log_of_this_thread();
    run().await;
    let log = log.text();
    let warned = log
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("perennial::layer"));
    warned.map(str::to_owned).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn an_undeclared_extension_is_warned_of_once_for_each_layer_with_its_remedies() {
    let folder = Folder::new();
    let site = folder.site().await;
    let warned = warnings(async || {
        let page = |layer| Router::new().route("/page/{id}", route(async || "a page").layer(layer));
        for layer in [site.layer(POLICY), site.layer(POLICY)] {
            let app = page(layer).layer(Extension(User));
            for _ in 0..3 {
                let reply = get(&app, "/page/7?a=b").await;
                assert_eq!(
                    reply.header("cache-status"),
                    "perennial; fwd=bypass; detail=undeclared-extension"
                );
            }
        }
        // Declared extensions and intended bypasses cause no warning.
        for layer in [
            site.layer(POLICY).ignore_extension::<User>(),
            site.layer(POLICY).share_extension::<User>(),
            site.layer(POLICY)
                .bypass_if(|parts| parts.extensions.get::<User>().is_some()),
        ] {
            let app = page(layer).layer(Extension(User));
            get(&app, "/page/7?a=b").await;
        }
    })
    .await;
    assert_eq!(warned.len(), 2, "{warned:#?}");
    for said in [
        "/page/{id}",
        ".ignore_extension::<",
        ".share_extension::<",
        ".bypass_if(|parts|",
        // The warning names exactly the type that has to be declared.
        "types=\"http::misuse_warnings::User\"",
    ] {
        assert!(
            warned.iter().all(|line| line.contains(said)),
            "{said}: {warned:#?}"
        );
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_authorization_that_the_handler_does_not_see_is_warned_of_once() {
    let folder = Folder::new();
    let site = folder.site().await;
    let ask = async |layer: RefreshLayer, path: &str| {
        let page =
            route(async |headers: HeaderMap| headers.contains_key("authorization").to_string());
        let app = Router::new().route("/page/{id}", page.layer(layer));
        let authorization = [("authorization", "Bearer t")];
        request(&app, "GET", path, &authorization).await.body
    };
    let warned = warnings(async || {
        let layer = site.layer(POLICY);
        assert_eq!(ask(layer.clone(), "/page/1").await, "false");
        assert_eq!(ask(layer, "/page/2").await, "false");
        let considered = site
            .layer(POLICY)
            .bypass_if(|parts| parts.headers.contains_key("authorization"));
        assert_eq!(ask(considered, "/page/3").await, "true");
        let considered = site.layer(POLICY).bypass_if(|_| false);
        assert_eq!(ask(considered, "/page/4").await, "false");
        let considered = site
            .layer(POLICY)
            .key(Key::new().header(header::AUTHORIZATION));
        assert_eq!(ask(considered, "/page/5").await, "true");
    })
    .await;
    let [warned] = &*warned else {
        panic!("{warned:#?}")
    };
    for said in ["/page/{id}", "`Authorization`", ".bypass_if(|parts|"] {
        assert!(warned.contains(said), "{said}: {warned}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_site_declares_extensions_for_all_its_layers() {
    let folder = Folder::new();
    let builder = Perennial::builder()
        .ignore_extension::<User>()
        .share_extension::<u8>();
    let site = builder.open(&folder.url()).await.expect("opens");
    let sees = async |request: Request| {
        let extensions = request.extensions();
        let user = extensions.get::<User>().is_some();
        format!("{user} {:?}", extensions.get::<u8>())
    };
    for (layer, seen) in [
        (site.layer(POLICY).tag("1"), "false Some(7)"),
        // A layer's own declaration counts.
        (site.layer(POLICY).share_extension::<User>(), "true Some(7)"),
        (site.layer(POLICY).ignore_extension::<u8>(), "false None"),
    ] {
        site.purge("/page").await.expect("purges");
        let app = Router::new().route("/page", route(sees).layer(layer));
        let app = app.layer(Extension(User)).layer(Extension(7_u8));
        let reply = get(&app, "/page").await;
        assert_eq!(reply.header("cache-status"), "perennial; fwd=miss; stored");
        assert_eq!(reply.text(), seen);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_layer_on_a_route_without_get_says_so_once() {
    let folder = Folder::new();
    let site = folder.site().await;
    let app = |layer: RefreshLayer| {
        let both = route(async || "a page")
            .post(async || "done")
            .layer(layer.clone());
        let posted = post(async || "done").layer(layer);
        Router::new()
            .route("/posted/{id}", posted)
            .route("/both", both)
    };
    let asked = async |path: &'static str, methods: &[(&str, usize)]| {
        warnings(async || {
            site.purge(path).await.expect("purges");
            let app = app(site.layer(POLICY));
            for (method, times) in methods {
                for _ in 0..*times {
                    request(&app, method, path, &[]).await;
                }
            }
        })
        .await
    };
    let warned = asked("/posted/1", &[("POST", 3), ("GET", 2)]).await;
    assert_eq!(warned.len(), 1, "{warned:#?}");
    assert!(
        warned[0].contains("without GET") && warned[0].contains("/posted/"),
        "{warned:#?}"
    );
    let warned = asked("/posted/2", &[("POST", 300)]).await;
    assert_eq!(warned.len(), 1, "{warned:#?}");
    assert!(warned[0].contains("/posted/{id}"), "{warned:#?}");
    let warned = asked("/both", &[("POST", 3), ("GET", 2), ("POST", 300)]).await;
    assert!(warned.is_empty(), "{warned:#?}");
}

/// The routing of another axum is not known: nested routers would mix up their pages.
#[tokio::test(flavor = "current_thread")]
async fn routes_of_another_axum_are_not_cached_and_a_warning_says_why() {
    use axum_0_7::{Router as Router07, routing::get as get_0_7};

    let site = perennial_testing::Database::new().open(Perennial::builder());
    let layer = site.expect("opens").layer(POLICY);
    let router = |text: &'static str| {
        let page = get_0_7(async move || text).layer::<_, Infallible>(layer.clone());
        Router07::new().route("/p", page)
    };
    let app = Router07::new().nest("/a", router("a"));
    let app = app.nest("/b", router("b"));
    let warned = warnings(async || {
        for (path, page) in [("/a/p", "a"), ("/b/p", "b"), ("/a/p", "a")] {
            let request = http::Request::get(path).body(axum_0_7::body::Body::empty());
            let response = app.clone().oneshot(request.expect("a request")).await;
            let (head, body) = response.expect("answers").into_parts();
            let bypass = "perennial; fwd=bypass; detail=undeclared-extension";
            assert_eq!(head.headers["cache-status"], bypass);
            assert_eq!(body.collect().await.expect("is read").to_bytes(), page);
        }
    })
    .await;
    assert_eq!(warned.len(), 1, "{warned:#?}");
    assert!(warned[0].contains("another axum"), "{warned:#?}");
}

/// The lines of the layer's log, with those for debugging, of a request with these headers.
async fn lines(app: &Router, headers: &[(&str, &str)]) -> String {
    let log = log_of_this_thread();
    for _ in 0..2 {
        request(app, "GET", "/", headers).await;
    }
    log.text()
}

#[tokio::test(flavor = "current_thread")]
async fn cookies_and_upgrades_that_the_handler_never_sees_are_one_line_for_debugging() {
    let folder = Folder::new();
    let site = folder.site().await;
    let app = |layer| Router::new().route("/", route(async || "a page").layer(layer));
    for (headers, said) in [
        (
            vec![("cookie", "a=b")],
            "the handler does not see the `Cookie`",
        ),
        (
            vec![("connection", "upgrade"), ("upgrade", "websocket")],
            "a request for an upgrade gets the stored page",
        ),
    ] {
        // Each of these layers has a key of its own, so that none finds a page that another one has
        // stored.
        let named = |bypasses: bool| {
            let layer = site
                .layer(POLICY)
                .key(Key::name(format!("{headers:?} {bypasses}")));
            if bypasses {
                layer.bypass_if(|_| false)
            } else {
                layer
            }
        };
        let log = lines(&app(named(false)), &headers).await;
        assert_eq!(log.matches(said).count(), 1, "{log}");
        let log = lines(&app(named(true)), &headers).await;
        assert_eq!(log.matches(said).count(), 0, "{log}");
    }
}

/// A handler that needs an extension which the layer ignores.
#[tokio::test(flavor = "current_thread")]
async fn a_failure_without_ignored_extensions_names_them_and_the_remedies() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let layer = site
        .expect("opens")
        .layer(POLICY)
        .ignore_extension::<User>();
    let page = async |Extension(_): Extension<User>| "a page";
    let app = Router::new().route("/", route(page).layer(layer));
    let app = app.layer(Extension(User));
    let log = log_of_this_thread();
    assert_eq!(get(&app, "/").await.status, 500);
    let log = log.text();
    for said in ["misuse_warnings::User", "`bypass_if`", "`share_extension`"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_response_that_varies_by_the_origin_is_told_to_put_cors_outside() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let layer = site.expect("opens").layer(POLICY);
    let page = async || ([(header::VARY, "Origin")], "a page");
    let app = Router::new().route("/", route(page).layer(layer));
    let warned = warnings(async || drop(get(&app, "/").await)).await;
    assert_eq!(warned.len(), 1, "{warned:#?}");
    assert!(
        warned[0].contains("Put the CORS layer outside"),
        "{warned:#?}"
    );
    assert!(!warned[0].contains("Key::new"), "{warned:#?}");
}

/// A cache in front of the site shares no more than Perennial does.
#[tokio::test(flavor = "current_thread")]
async fn a_response_that_bypasses_because_of_its_visitor_is_private() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let page = async |headers: HeaderMap| {
        if headers.contains_key("says") {
            ([(header::CACHE_CONTROL, "max-age=7")], "a page").into_response()
        } else {
            "a page".into_response()
        }
    };
    let bypassed = || site.layer(POLICY).bypass_if(|_| true);
    let apps = [
        Router::new().route("/", route(page).layer(bypassed())),
        Router::new()
            .route("/", route(page).layer(site.layer(POLICY)))
            .layer(Extension(User)),
    ];
    for app in apps {
        for (says, expected) in [(false, "private"), (true, "max-age=7")] {
            let headers: &[_] = if says { &[("says", "so")] } else { &[] };
            let reply = request(&app, "GET", "/", headers).await;
            assert_eq!(reply.header("cache-control"), expected);
        }
    }
    // Other bypasses have another reason.
    let app = Router::new().route("/", route(page).layer(site.layer(POLICY).max_keys(0)));
    let reply = get(&app, "/").await;
    assert!(!reply.headers.contains_key(header::CACHE_CONTROL));
}
