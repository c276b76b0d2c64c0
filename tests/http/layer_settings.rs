//! What a layer can be told: which responses it stores, what it adds to them, and what visitors get without one.

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
    extract::Request,
    http::{Response, StatusCode, header},
    middleware::{Next, from_fn},
    response::{Html, IntoResponse},
    routing::get as route,
};
use bytes::Bytes;
use perennial::{Generation, Key, Perennial, Refresh, Tags, layer::CdnTags};
use perennial_testing::advance;
use perennial_testkit::{get, request, virtual_time::Shared};

const HOUR: Refresh = Refresh::every(Duration::from_secs(3600));
const SECOND: Duration = Duration::from_secs(1);

fn site() -> Perennial {
    Shared::new().site()
}

#[tokio::test(start_paused = true)]
async fn response_that_store_if_refuses_is_its_visitors_own_and_a_later_one_is_stored() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let search = async move || {
        let run = counted.fetch_add(1, SeqCst);
        let is_complete = if run < 2 { "no" } else { "yes" };
        ([("x-complete", is_complete)], format!("run {run}"))
    };
    let layer = site()
        .layer(HOUR.cooldown(10 * SECOND))
        .store_if(|head| head.headers["x-complete"] == "yes");
    let app: Router = Router::new()
        .route("/", route(search).layer(layer))
        .with_state(());
    // The handler runs once for the shared page, and once more for the visitor.
    let first = get(&app, "/").await;
    assert_eq!(first.text(), "run 1");
    assert_eq!(first.header("cache-control"), "private");
    let status = first.header("cache-status");
    assert!(status.ends_with("detail=store-if"), "{status}");
    assert_eq!(get(&app, "/").await.text(), "run 2", "passed on");
    advance(11 * SECOND).await;
    for _ in 0..3 {
        assert_eq!(get(&app, "/").await.text(), "run 3", "stored");
    }
    assert_eq!(runs.load(SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn visitors_in_vain_get_the_response_of_the_application() {
    let fails = async || StatusCode::INTERNAL_SERVER_ERROR.into_response();
    let layer = || site().layer(HOUR.cooldown(60 * SECOND));
    let own = layer().unavailable_response(|retry_in| {
        let page = Bytes::from(format!("<h1>Back in {} s</h1>", retry_in.as_secs()));
        let mut response = Response::new(page);
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let html = "text/html".parse().expect("a value");
        response.headers_mut().insert(header::CONTENT_TYPE, html);
        response
    });
    let app: Router = Router::new()
        .route("/own", route(fails).layer(own))
        .route("/usual", route(fails).layer(layer()))
        .with_state(());
    for (path, kind, text) in [
        ("/own", "text/html", "<h1>Back in 1 s</h1>"),
        (
            "/usual",
            "text/plain; charset=utf-8",
            "This page is not ready. Please try again in 1 s.\n",
        ),
    ] {
        assert_eq!(get(&app, path).await.status, 500, "the failure itself");
        let reply = get(&app, path).await;
        assert_eq!((reply.status, reply.text()), (503, text));
        assert_eq!(reply.header("content-type"), kind);
        assert_eq!(reply.header("retry-after"), "1");
        assert_eq!(reply.header("cache-control"), "no-store");
        assert!(reply.header("cache-status").ends_with("detail=unavailable"));
    }
}

#[tokio::test(start_paused = true)]
async fn network_in_front_learns_the_tags_of_the_layer_the_handler_and_the_parts() {
    let site = site();
    let own = site.clone();
    let page = async move |generation: Generation| {
        let part = async |generation: Generation| {
            generation.tag("author 1");
            Ok::<_, Infallible>("a part")
        };
        own.content("part", HOUR, part).await.expect("is made");
        generation.tag("book-8");
        (Tags::new("book-7"), "a page")
    };
    let layer = || site.layer(HOUR);
    let app: Router = Router::new()
        .route(
            "/tagged",
            route(page.clone()).layer(layer().tag("books").cdn_tags(CdnTags::CacheTag)),
        )
        .route(
            "/keys",
            route(page.clone()).layer(layer().cdn_tags(CdnTags::SurrogateKey)),
        )
        .route("/usual", route(page).layer(layer().tag("books")))
        .route(
            "/many",
            route(async |generation: Generation| {
                generation.tag((0..300).map(|n| format!("book-{n}")).collect::<Vec<_>>());
                "depends on everything"
            })
            .layer(layer().tag("books").cdn_tags(CdnTags::CacheTag)),
        )
        .route(
            "/returned",
            route(async || {
                let tags: Tags = (0..300).map(|n| format!("book-{n}")).collect();
                (tags, "depends on everything, too")
            })
            .layer(layer().tag("books").cdn_tags(CdnTags::CacheTag)),
        )
        .route(
            "/long",
            route(async || (Tags::new("x".repeat(17 << 10)), "a page"))
                .layer(layer().cdn_tags(CdnTags::CacheTag)),
        )
        .route(
            "/none",
            route(async || "a page").layer(layer().cdn_tags(CdnTags::CacheTag)),
        )
        .with_state(());
    for _ in 0..2 {
        // The tags always have the same order. Otherwise, an unchanged page would count as changed.
        let tagged = get(&app, "/tagged").await;
        assert_eq!(tagged.header("cache-tag"), "author%201,book-7,book-8,books");
        let keys = get(&app, "/keys").await;
        assert_eq!(keys.header("surrogate-key"), "author%201 book-7 book-8");
        for (path, reply) in [
            ("/usual", get(&app, "/usual").await),
            ("/none", get(&app, "/none").await),
            ("/many", get(&app, "/many").await),
            ("/returned", get(&app, "/returned").await),
            ("/long", get(&app, "/long").await),
        ] {
            assert_eq!(reply.header("cache-tag"), "", "{path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cache_control_can_be_left_to_the_application() {
    let site = site();
    let layer = || site.layer(HOUR).leave_cache_control();
    let own = async || ([(header::CACHE_CONTROL, "public, max-age=5")], "a page");
    let app: Router = Router::new()
        .route("/none", route(async || "a page").layer(layer()))
        .route("/own", route(own).layer(layer()))
        .route(
            "/passed",
            route(async || "a page").layer(layer().bypass_if(|_| true)),
        )
        .with_state(());
    for _ in 0..2 {
        assert_eq!(get(&app, "/none").await.header("cache-control"), "");
        assert_eq!(
            get(&app, "/own").await.header("cache-control"),
            "public, max-age=5"
        );
        assert_eq!(get(&app, "/passed").await.header("cache-control"), "");
    }
    let unchanged = get(&app, "/none").await;
    let tag = unchanged.header("etag");
    let unchanged = request(&app, "GET", "/none", &[("if-none-match", tag)]).await;
    assert_eq!(
        (unchanged.status, unchanged.header("cache-control")),
        (304, "")
    );
}

#[tokio::test(start_paused = true)]
async fn several_extensions_are_ignored_at_once() {
    #[derive(Clone)]
    struct A;
    #[derive(Clone)]
    struct B;
    let shared = Shared::new();
    let by_layer = shared.site();
    let by_site = shared.open(perennial_testkit::patient().ignore_extensions::<(A, B)>());
    for layer in [
        by_layer.layer(HOUR).ignore_extensions::<(A, B)>(),
        by_site.layer(HOUR),
    ] {
        let app: Router = Router::new()
            .route("/", route(async || "a page").layer(layer))
            .layer((Extension(A), Extension(B)))
            .with_state(());
        get(&app, "/").await;
        let status = get(&app, "/").await;
        assert!(status.header("cache-status").contains("hit"), "{status:?}");
    }
}

/// As a store of files does, whose URLs are signed: by the query as it was sent.
#[tokio::test(start_paused = true)]
async fn handler_that_checks_a_signature_sees_the_query_as_it_was_sent() {
    fn signature(query: &str) -> usize {
        query
            .bytes()
            .fold(7, |sum, byte| sum * 31 % 65_521 + usize::from(byte))
    }
    async fn file(request: Request) -> (StatusCode, String) {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let (signed, given) = query.rsplit_once("&signature=").unwrap_or_default();
        if given == signature(signed).to_string() {
            (StatusCode::OK, format!("the file of {signed}"))
        } else {
            (StatusCode::FORBIDDEN, "a wrong signature".to_owned())
        }
    }
    let site = site();
    let app: Router = Router::new()
        .route(
            "/exact",
            route(file).layer(site.layer(HOUR).key(Key::exact_query())),
        )
        .route("/usual", route(file).layer(site.layer(HOUR)))
        .with_state(());
    let spellings = ["z=1&a=%2f+x", "a=%2F%20x&z=1", "z=1&a=%2F%20x", "a=1"];
    let signed = |query: &str| format!("{query}&signature={}", signature(query));
    for _ in 0..2 {
        for query in spellings {
            let reply = get(&app, &format!("/exact?{}", signed(query))).await;
            assert_eq!(
                (reply.status, reply.text()),
                (200, &*format!("the file of {query}"))
            );
        }
    }
    let exact = get(&app, &format!("/exact?{}", signed(spellings[0]))).await;
    assert!(exact.header("cache-status").contains("hit"), "{exact:?}");
    // By default, the handler gets one spelling of the query in place of all of them, and that spelling has
    // another signature. So the handler answers with 403. That is not stored, and each visitor's own request
    // is passed on.
    let usual = get(&app, &format!("/usual?{}", signed(spellings[0]))).await;
    let status = usual.header("cache-status");
    assert!(status.ends_with("detail=status"), "{status}");
    // Any spelling names all of them.
    let invalidated = site.invalidate(&format!("/exact?{}", signed("a=1"))).await;
    invalidated.expect("answers");
    let stale = get(&app, &format!("/exact?{}", signed("a=1"))).await;
    assert!(stale.header("cache-status").contains("stale"), "{stale:?}");
}

#[tokio::test(start_paused = true)]
async fn handler_knows_whether_it_generates_on_every_path() {
    let site = site();
    let told = async |generation: Generation| Html(generation.is_generating().to_string());
    let option = async |generation: Option<Generation>| generation.is_some().to_string();
    let spawned = async |generation: Generation| {
        let task = tokio::spawn(async move {
            generation.tag("from-a-task");
            generation.refresh_after(5 * SECOND);
        });
        task.await.expect("no panic");
        "a page"
    };
    let off = Shared::new().open(perennial_testkit::patient().mode(perennial::Mode::Off));
    let app: Router = Router::new()
        .route("/stored", route(told).layer(site.layer(HOUR)))
        .route(
            "/passed",
            route(told).layer(site.layer(HOUR).bypass_if(|_| true)),
        )
        .route("/off", route(told).layer(off.layer(HOUR)))
        .route("/form", route(told).post(told).layer(site.layer(HOUR)))
        .route("/spawned", route(spawned).layer(site.layer(HOUR)))
        .route("/without", route(told))
        .route("/option", route(option))
        .route("/layered", route(option).layer(site.layer(HOUR)))
        .with_state(());
    for (method, path, text) in [
        ("GET", "/stored", "true"),
        ("GET", "/passed", "false"),
        ("GET", "/off", "false"),
        ("POST", "/form", "false"),
        ("GET", "/option", "false"),
        ("GET", "/layered", "true"),
    ] {
        assert_eq!(
            request(&app, method, path, &[]).await.text(),
            text,
            "{method} {path}"
        );
    }
    let without = get(&app, "/without").await;
    assert_eq!(without.status, 500);
    assert!(without.text().contains(".layer(site.layer("), "{without:?}");
    get(&app, "/spawned").await;
    let entry = site
        .entry("/spawned")
        .await
        .expect("answers")
        .expect("is stored");
    assert_eq!(entry.tags, ["from-a-task"]);
    assert_eq!(entry.interval, 5 * SECOND);
}

/// A middleware between the layer and the handler may make a page of what the handler returns.
#[tokio::test(start_paused = true)]
async fn tags_of_a_handler_and_of_a_middleware_are_joined() {
    let site = site();
    async fn adds(request: Request, next: Next) -> impl IntoResponse {
        (Tags::new(["outer"]), next.run(request).await)
    }
    let page = route(async || (Tags::new("inner"), "a page"));
    let app: Router = Router::new()
        .route(
            "/",
            page.layer::<_, Infallible>(from_fn(adds))
                .layer(site.layer(HOUR)),
        )
        .with_state(());
    get(&app, "/").await;
    let entry = site.entry("/").await.expect("answers").expect("is stored");
    assert_eq!(entry.tags, ["inner", "outer"]);
}
