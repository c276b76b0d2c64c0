//! What a generator is made from through other layers: an outer layer takes over the tags, the age and
//! the interval of an inner layer's page; a generator that asks for itself gets an error; and what a
//! generator starts runs on its permit. In virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    extract::Request,
    http::{StatusCode, header},
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::get as route,
};
use http_body_util::BodyExt;
use perennial::{Error, ErrorKind, Key, Perennial, RefreshAfter, Tags, layer::RefreshLayer};
use perennial_testing::{self as testing, Database};
use tower::{BoxError, ServiceBuilder, ServiceExt};

use perennial_testkit::{HANG, every, get, request};

use crate::log_of_this_thread;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn open() -> Perennial {
    Database::new().open(Perennial::builder()).expect("opens")
}

/// A page whose body is the number of its run.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    fn page(&self) -> axum::routing::MethodRouter {
        let runs = self.clone();
        route(async move || format!("run {} of it", runs.0.fetch_add(1, SeqCst) + 1))
    }
}

/// Puts a layer around a router with another layer inside.
type Nesting = (&'static str, fn(Runs, RefreshLayer, RefreshLayer) -> Router);

/// A key that is none of the outer layer's.
fn other_key() -> Key {
    Key::by(|_| Some([("inner", "yes")]))
}

const NESTINGS: [Nesting; 6] = [
    ("around a router", |runs, inner, outer| {
        Router::new()
            .route("/p", runs.page().layer(inner))
            .layer(outer)
    }),
    ("another key inside", |runs, inner, outer| {
        let inner = inner.key(other_key());
        Router::new()
            .route("/p", runs.page().layer(inner))
            .layer(outer)
    }),
    ("another key outside", |runs, inner, outer| {
        let outer = outer.key(Key::new().host());
        Router::new()
            .route("/p", runs.page().layer(inner))
            .layer(outer)
    }),
    (
        "with a middleware that has tasks of its own",
        |runs, inner, outer| {
            let buffered = ServiceBuilder::new()
                .layer(HandleErrorLayer::new(async |_: BoxError| {
                    StatusCode::BAD_GATEWAY
                }))
                .buffer(4);
            Router::new()
                .route(
                    "/p",
                    runs.page()
                        .layer::<_, std::convert::Infallible>(inner)
                        .layer(buffered),
                )
                .layer(outer)
        },
    ),
    ("nested router", |runs, inner, outer| {
        let inside = Router::new().route("/p", runs.page()).layer(inner);
        Router::new().fallback_service(inside).layer(outer)
    }),
    ("a request of the handler", |runs, inner, outer| {
        let inside = Router::new().route("/inside", runs.page().layer(inner));
        let page = async move || {
            let request = Request::new(Body::empty());
            let (mut parts, body) = request.into_parts();
            parts.uri = "/inside".parse().expect("a URI");
            let Ok(response) = inside.oneshot(Request::from_parts(parts, body)).await;
            response
        };
        Router::new().route("/p", route(page).layer(outer))
    }),
];

async fn run(app: &Router) -> usize {
    request(app, "GET", "/p", &[("host", "test")]).await.run()
}

#[tokio::test(start_paused = true)]
async fn invalidated_tag_of_an_inner_layer_makes_the_outer_page_stale() {
    for (name, nest) in NESTINGS {
        let site = open();
        let inner = site.layer(every(60 * SECOND)).tag("t");
        let app = nest(Runs::default(), inner, site.layer(every(HOUR)));
        assert_eq!(run(&app).await, 1, "{name}");
        testing::advance(2 * SECOND).await;
        assert_eq!(run(&app).await, 1, "{name}");
        site.invalidate_tag("t").await.expect("is stored");
        assert_eq!(run(&app).await, 2, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn outer_page_is_no_older_than_the_inner_policy_allows() {
    for (name, nest) in NESTINGS {
        let site = open();
        let inner = site.layer(every(60 * SECOND));
        let app = nest(Runs::default(), inner, site.layer(every(HOUR)));
        assert_eq!(run(&app).await, 1, "{name}");
        testing::advance(59 * SECOND).await;
        assert_eq!(run(&app).await, 1, "{name}");
        testing::advance(2 * SECOND).await;
        assert_eq!(run(&app).await, 2, "{name}");
    }
}

/// Under two layers of an hour, a page is an hour old at most.
#[tokio::test(start_paused = true)]
async fn age_of_an_inner_page_counts_for_the_outer_one() {
    for (name, nest) in NESTINGS {
        // In the others, the inner layer stores nothing of its own.
        if !["another key inside", "a request of the handler"].contains(&name) {
            continue;
        }
        let site = open();
        let runs = Runs::default();
        let layered = |key: &str| {
            let outer = site.layer(every(HOUR)).key(Key::name(key));
            nest(runs.clone(), site.layer(every(HOUR)), outer)
        };
        let (first, second) = (layered("first"), layered("second"));
        assert_eq!(run(&first).await, 1, "{name}");
        testing::advance(50 * 60 * SECOND).await;
        assert_eq!(run(&second).await, 1, "{name}: 50 minutes old");
        testing::advance(11 * 60 * SECOND).await;
        assert_eq!(run(&second).await, 2, "{name}: 61 minutes old");
    }
}

/// What an inner layer lets pass counts, too: its tags, and the times that the response declares.
#[tokio::test(start_paused = true)]
async fn response_that_an_inner_layer_does_not_store_hands_on_its_tags_and_times() {
    let site = open();
    let runs = Arc::new(AtomicUsize::new(0));
    let page = {
        let runs = Arc::clone(&runs);
        route(async move || {
            let run = runs.fetch_add(1, SeqCst) + 1;
            let after = RefreshAfter::new(60 * SECOND);
            (Tags::new(["handler"]), after, format!("run {run} of it"))
        })
    };
    for reason in ["the same key", "too many keys"] {
        let inner = site.layer(every(HOUR)).tag("inner");
        let inner = match reason {
            "the same key" => inner,
            _ => inner.key(other_key()).max_keys(0),
        };
        let app = Router::new()
            .route("/p", page.clone().layer(inner))
            .layer(site.layer(every(HOUR)));
        site.purge("/p").await.expect("is purged");
        for tag in ["inner", "handler"] {
            let before = run(&app).await;
            assert_eq!(run(&app).await, before, "{reason}");
            site.invalidate_tag(tag).await.expect("is stored");
            assert_eq!(run(&app).await, before + 1, "{reason}: {tag}");
        }
        let before = run(&app).await;
        testing::advance(61 * SECOND).await;
        assert_eq!(
            run(&app).await,
            before + 1,
            "{reason}: older than the response allows"
        );
    }
}

/// A handler that makes its page from another page of its router, and shows what it may if there is none.
fn composed(inside: axum::routing::MethodRouter) -> axum::routing::MethodRouter {
    let inside = Router::new().route("/inside", inside);
    route(async move || {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/inside".parse().expect("a URI");
        let Ok(response) = inside.oneshot(request).await;
        if response.status().is_success() {
            "with the part"
        } else {
            "without the part"
        }
    })
}

/// A page that was made without its part is made again soon, however the inner layer came to its answer.
#[tokio::test(start_paused = true)]
async fn page_whose_inner_page_fails_is_provisional() {
    for reason in ["it fails", "it is in cooldown", "it passes"] {
        let site = open();
        let is_broken = Arc::new(AtomicBool::new(true));
        let part = {
            let is_broken = Arc::clone(&is_broken);
            route(async move || {
                if is_broken.load(SeqCst) {
                    StatusCode::SERVICE_UNAVAILABLE
                } else {
                    StatusCode::OK
                }
            })
        };
        let inner = site.layer(every(HOUR).cooldown(2 * SECOND));
        let inner = match reason {
            "it passes" => inner.max_keys(0),
            _ => inner,
        };
        let part = part.layer(inner);
        if reason == "it is in cooldown" {
            let app = Router::new().route("/inside", part.clone());
            assert_eq!(get(&app, "/inside").await.status, 503);
        }
        let page = composed(part);
        let app = Router::new().route("/p", page.layer(site.layer(every(HOUR))));
        assert_eq!(get(&app, "/p").await.text(), "without the part", "{reason}");
        is_broken.store(false, SeqCst);
        testing::advance(10 * SECOND).await;
        assert_eq!(get(&app, "/p").await.text(), "with the part", "{reason}");
        let hit = get(&app, "/p").await;
        let status = hit.header("cache-status");
        // Three seconds, if that was provisional, too.
        assert_eq!(status, "perennial; hit; ttl=3600", "{reason}");
    }
}

/// The first response that an inner layer passes counts as the later ones do.
#[tokio::test(start_paused = true)]
async fn passed_part_has_the_same_effect_each_time() {
    let site = open();
    let part = route(async || ([(header::SET_COOKIE, "a=b")], "part"));
    let page = composed(part.layer(site.layer(every(HOUR))));
    let app = Router::new().fallback(page).layer(site.layer(every(HOUR)));
    for path in ["/first", "/second"] {
        get(&app, path).await;
        let reply = get(&app, path).await;
        assert_eq!(reply.header("cache-status"), "perennial; hit; ttl=3600");
    }
}

/// The permit of a regeneration is free when its generator has ended, whoever keeps its request.
#[tokio::test(start_paused = true)]
async fn request_that_outlives_its_generator_keeps_no_permit() {
    let site = Database::new().open(Perennial::builder().max_regenerations(1));
    let site = site.expect("opens");
    let runs = Arc::new(AtomicUsize::new(0));
    let page = {
        let runs = Arc::clone(&runs);
        async move |request: Request| {
            // A task keeps the request for an hour, as a log that is written later would.
            tokio::spawn(async move {
                tokio::time::sleep(HOUR).await;
                drop(request);
            });
            format!("run {} of it", runs.fetch_add(1, SeqCst) + 1)
        }
    };
    let app = Router::new()
        .fallback(page)
        .layer(site.layer(every(10 * SECOND)));
    for run in 1..10 {
        assert_eq!(get(&app, "/").await.run(), run);
        testing::advance(11 * SECOND).await;
    }
}

/// A request that reaches an inner layer only after its generator was cancelled stores nothing there:
/// what lies between the two layers would be missing.
#[tokio::test(start_paused = true)]
async fn late_request_of_a_cancelled_generator_stores_nothing() {
    let site = open();
    let is_slow = Arc::new(AtomicBool::new(true));
    let between = {
        let is_slow = Arc::clone(&is_slow);
        from_fn(move |request: Request, next: Next| {
            let is_slow = is_slow.load(SeqCst);
            async move {
                // A task that nobody cancels.
                let work = tokio::spawn(async move {
                    if is_slow {
                        tokio::time::sleep(30 * SECOND).await;
                    }
                    next.run(request).await
                });
                let mut response = work.await.expect("ends");
                let value = header::HeaderValue::from_static("yes");
                response.headers_mut().insert("x-between", value);
                response
            }
        })
    };
    let outer = site.layer(every(HOUR).generator_timeout(5 * SECOND).cooldown(SECOND));
    let app = Router::new()
        .route("/p", route(async || "page").layer(site.layer(every(HOUR))))
        .layer(between)
        .layer(outer);
    assert_eq!(get(&app, "/p").await.status, 503);
    is_slow.store(false, SeqCst);
    testing::advance(60 * SECOND).await;
    assert_eq!(get(&app, "/p").await.header("x-between"), "yes");
}

/// The headers to the client are the outer layer's.
#[tokio::test(start_paused = true)]
async fn outer_layer_speaks_to_the_client() {
    let site = open();
    let inner = site.layer(every(HOUR)).key(other_key());
    let outer = site.layer(every(HOUR).browser_cache(60 * SECOND));
    let policy = (header::CONTENT_SECURITY_POLICY, "default-src 'self'");
    let between = tower_http::set_header::SetResponseHeaderLayer::overriding(
        policy.0.clone(),
        header::HeaderValue::from_static(policy.1),
    );
    let app = Router::new()
        .route("/p", Runs::default().page().layer(inner))
        .layer(between)
        .layer(outer);
    get(&app, "/p").await;
    let reply = get(&app, "/p").await;
    assert_eq!(reply.header("cache-control"), "max-age=60", "{reply:?}");
    assert_eq!(reply.header("cache-status"), "perennial; hit; ttl=3600");
    assert_eq!(reply.headers.get_all("etag").iter().count(), 1);
    let tag = reply.header("etag").to_owned();
    // A middleware between the two layers adds a header. The entity tag also covers that header.
    let inner = site.layer(every(HOUR)).key(other_key());
    let bare = Router::new()
        .route("/p", Runs::default().page().layer(inner))
        .layer(site.layer(every(HOUR)).key(Key::new().host()));
    assert_ne!(get(&bare, "/p").await.header("etag"), tag);
}

#[tokio::test(start_paused = true)]
async fn content_that_asks_for_itself_is_an_error_at_once_that_names_the_key() {
    let site = open();
    let begun = tokio::time::Instant::now();
    let own = site.clone();
    let direct = site.content("list", HOUR, async move || {
        own.content("list", HOUR, async || Ok::<_, Error>("x"))
            .await
    });
    let error = direct.await.expect_err("asks for itself");
    assert_eq!(error.kind(), ErrorKind::Generator);
    let text = format!(
        "{error:?} {}",
        std::error::Error::source(&error).expect("has one")
    );
    assert!(text.contains("\"list\""), "{text}");
    // Through another content, and as a value.
    let (outer, inner) = (site.clone(), site.clone());
    let indirect = site.content("a", HOUR, async move || {
        let b = outer.value::<String, _, _>("b", HOUR, async move || {
            let a = inner.content("a", HOUR, async || Ok::<_, Error>("x")).await;
            a.map(|a| a.to_string())
        });
        b.await.map(|b| b.to_string())
    });
    assert!(indirect.await.is_err());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // The mode `off` reports the cycle as well. Otherwise, the calls would go on for ever there.
    let off = Database::new()
        .open(Perennial::builder().mode(perennial::Mode::Off))
        .expect("opens");
    let own = off.clone();
    let made = off.content("list", HOUR, async move || {
        own.content("list", HOUR, async || Ok::<_, Error>("x"))
            .await
    });
    assert!(made.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn handler_that_asks_for_its_own_page_is_refused_at_once() {
    for forced in [false, true] {
        let log = log_of_this_thread();
        let site = open();
        let app: Arc<std::sync::OnceLock<Router>> = Arc::default();
        let own = {
            let (app, site) = (Arc::clone(&app), site.clone());
            async move || {
                let app = app.get().expect("is set").clone();
                if forced {
                    let served = site.regenerate(app, ["/p"]).await;
                    return format!("{served:?}").into_response();
                }
                let mut request = Request::new(Body::empty());
                *request.uri_mut() = "/p".parse().expect("a URI");
                let Ok(response) = app.oneshot(request).await;
                let body = response.into_body().collect().await.expect("is read");
                body.to_bytes().into_response()
            }
        };
        let layered = Router::new().route("/p", route(own).layer(site.layer(every(HOUR))));
        app.set(layered.clone()).expect("is set once");
        let begun = tokio::time::Instant::now();
        let reply = get(&layered, "/p").await;
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
        let expected = if forced {
            "Failed"
        } else {
            "/p asks for itself"
        };
        assert!(reply.text().contains(expected), "{reply:?}");
        assert!(
            log.text().contains("asks for its own page"),
            "{}",
            log.text()
        );
        assert!(log.text().contains("/p"), "{}", log.text());
    }
}

/// With as many generators as permits, none waits for one.
#[tokio::test(start_paused = true)]
async fn pages_that_regenerate_or_warm_others_run_on_their_own_permits() {
    for (permits, pages) in [(1, 1), (16, 16), (16, 40)] {
        for forced in [true, false] {
            let site = Database::new()
                .open(Perennial::builder().max_regenerations(permits))
                .expect("opens");
            let lists = {
                let others = Router::new().route("/other/{id}", Runs::default().page());
                others.layer(site.layer(every(SECOND)))
            };
            let page = {
                let site = site.clone();
                async move |uri: axum::http::Uri| {
                    let other = format!("/other{uri}");
                    let served = if forced {
                        site.regenerate(lists.clone(), [other]).await
                    } else {
                        site.warm(lists.clone(), [other]).await
                    };
                    format!("{served:?}")
                }
            };
            let app = Router::new().fallback(page).layer(site.layer(every(HOUR)));
            let mut visits = tokio::task::JoinSet::new();
            for n in 0..pages {
                let app = app.clone();
                visits.spawn(async move { get(&app, &format!("/{n}")).await });
            }
            let begun = tokio::time::Instant::now();
            for reply in visits.join_all().await {
                assert!(reply.text().contains("Generated"), "{permits}: {reply:?}");
            }
            assert!(
                begun.elapsed() < HANG / 2,
                "{permits}, {pages}: {:?}",
                begun.elapsed()
            );
        }
    }
}

/// Regenerations that a generator starts are bounded by its permit; so are others.
#[tokio::test(start_paused = true)]
async fn other_pages_are_regenerated_while_a_generator_regenerates() {
    let site = Database::new()
        .open(Perennial::builder().max_regenerations(2))
        .expect("opens");
    let runs = Runs::default();
    let other = Router::new()
        .route("/p", runs.page())
        .layer(site.layer(every(SECOND)));
    let slow = Router::new()
        .route(
            "/slow",
            route(async || tokio::time::sleep(20 * SECOND).await),
        )
        .layer(site.layer(every(SECOND)));
    let page = {
        let site = site.clone();
        route(async move || format!("{:?}", site.regenerate(slow.clone(), ["/slow"]).await))
    };
    let app = Router::new().route("/all", page.layer(site.layer(every(HOUR))));
    assert_eq!(run(&other).await, 1);
    let all = tokio::spawn(async move { get(&app, "/all").await });
    testing::advance(2 * SECOND).await;
    assert_eq!(run(&other).await, 2, "there is a permit");
    assert_eq!(all.await.expect("answers").status, 200);
}
