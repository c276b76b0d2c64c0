//! Stacks of middleware in real use, with the real crates: cached or bypassed, and no visitor gets
//! another visitor's page.

use std::time::Duration;

use axum::{
    Extension, Router,
    extract::{MatchedPath, OriginalUri, Request},
    http::{HeaderMap, StatusCode, header},
    middleware::{Next, from_fn},
    response::Response,
    routing::get as route,
};
use perennial::{Refresh, layer::RefreshLayer};
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::CorsLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};
use tower_sessions::{MemoryStore, Session, SessionManagerLayer};

use crate::support::{Folder, HANG, get, request, serve};

const POLICY: Refresh = Refresh::every(Duration::from_secs(3600));

/// The logged-in visitor.
#[derive(Clone, Debug)]
struct User(String);

/// A pool, say.
#[derive(Clone, Debug)]
struct Pool(&'static str);

/// A typical middleware of applications.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let cookie = request.headers().get(header::COOKIE).cloned();
    if let Some(user) = cookie
        .as_ref()
        .and_then(|it| it.to_str().ok()?.strip_prefix("user="))
    {
        let user = User(user.to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

async fn basket(session: Session, headers: HeaderMap) -> String {
    if let Some(add) = headers.get("x-add") {
        let add = add.to_str().expect("text").to_owned();
        session.insert("basket", add).await.expect("is stored");
    }
    let basket: Option<String> = session.get("basket").await.expect("is read");
    format!("for {}", basket.unwrap_or("nobody".into()))
}

/// Answers for whom the page is, as far as the handler can tell.
async fn page(user: Option<Extension<User>>, request: Request) -> String {
    let pool = request.extensions().get::<Pool>().map_or("", |pool| pool.0);
    let id = request.extensions().get::<RequestId>().is_some();
    let user = user.map_or("nobody".to_owned(), |Extension(User(name))| name);
    format!("{pool}{} for {user}", if id { "id" } else { "" })
}

/// The visitors whose requests are cached.
#[derive(Clone, Copy, PartialEq)]
enum Cached {
    Nothing,
    Anonymous,
    All,
}

/// Makes requests as three visitors in turn. A visitor without a cached page gets a page of their
/// own.
async fn visit(name: &str, app: Router, cached: Cached, sees: &str) {
    let address = serve(app).await;
    for round in 0..3 {
        for visitor in ["ann", "", "bob"] {
            let cookie = format!("user={visitor}");
            let headers: &[_] = match visitor {
                "" => &[],
                _ => &[("cookie", &*cookie)],
            };
            let reply = request(address, "GET", "/page", headers).await;
            // The outermost layer's, where there are two.
            let mut statuses = reply.headers.get_all("cache-status").iter();
            let status = statuses
                .next_back()
                .expect("is there")
                .to_str()
                .expect("text");
            let cached =
                cached == Cached::All || (cached == Cached::Anonymous && visitor.is_empty());
            assert_eq!(
                cached,
                !status.contains("bypass"),
                "{name}, {visitor}: {status}"
            );
            assert!(
                round == 0 || !cached || status.contains("hit"),
                "{name}, {visitor}: {status}"
            );
            let whose = if cached || visitor.is_empty() {
                "nobody"
            } else {
                visitor
            };
            // A request that bypasses the cache keeps the extension that is ignored for the
            // generator.
            let shown = if cached { sees } else { "" };
            let shown = format!("{shown} for {whose}");
            let text = reply.text();
            assert!(
                text == shown || (!cached && text.ends_with(&shown)),
                "{name}, {visitor}: {text}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_stack_of_middleware_gives_a_visitor_the_page_of_another() {
    let folder = Folder::new();
    let site = folder.site().await;
    let layer = || site.layer(POLICY);
    let user = |parts: &http::request::Parts| parts.extensions.get::<User>().is_some();
    let app = |layer: RefreshLayer| Router::new().route("/page", route(page).layer(layer));
    let auth = || from_fn(authenticate);
    let timeout = || TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, HANG);
    let check = async |name, app, cached, sees| {
        site.purge("/page").await.expect("purges");
        visit(name, app, cached, sees).await;
    };
    let inner = || route(page);
    let (set_id, keep_id) = (
        SetRequestIdLayer::x_request_id(MakeRequestUuid),
        PropagateRequestIdLayer::x_request_id(),
    );
    let ids = || {
        ServiceBuilder::new()
            .layer(set_id.clone())
            .layer(keep_id.clone())
    };
    let pool = || Extension(Pool("db"));
    let common = || {
        ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(CorsLayer::permissive())
            .layer(timeout())
            .layer(CatchPanicLayer::new())
            .layer(CompressionLayer::new())
    };
    // The application, and the generator's view of everything except the user.
    check("auth", app(layer()).layer(auth()), Cached::Anonymous, "").await;
    let it = app(layer().bypass_if(user)).layer(auth());
    check("auth, bypass_if", it, Cached::Anonymous, "").await;
    let it = app(layer().ignore_extension::<User>()).layer(auth());
    check("auth, ignored", it, Cached::All, "").await;
    let it = Router::new()
        .route("/page", inner().layer(auth()))
        .layer(layer());
    check("auth beneath", it, Cached::All, "").await;
    let it = app(layer()).layer(pool()).layer(auth());
    check("a pool", it, Cached::Nothing, "db").await;
    let it = app(layer().share_extension::<Pool>())
        .layer(pool())
        .layer(auth());
    check("a pool, shared", it, Cached::Anonymous, "db").await;
    let it = app(layer().ignore_extension::<Pool>())
        .layer(pool())
        .layer(auth());
    check("a pool, ignored", it, Cached::Anonymous, "").await;
    let it = app(layer().ignore_extension::<Pool>().share_extension::<Pool>())
        .layer(pool())
        .layer(auth());
    check("a pool, ignored, then shared", it, Cached::Anonymous, "db").await;
    let it = app(layer()
        .ignore_extension::<Pool>()
        .ignore_extension::<Pool>())
    .layer(pool())
    .layer(auth());
    check("a type that is declared twice", it, Cached::Anonymous, "").await;
    let it = app(layer()
        .share_extension::<MatchedPath>()
        .ignore_extension::<OriginalUri>())
    .layer(auth());
    check("a known type that is declared", it, Cached::Anonymous, "").await;
    let it = app(layer()).layer(common());
    check("common middleware", it, Cached::All, "").await;
    let it = app(layer()).layer(auth()).layer(common());
    check("common middleware and auth", it, Cached::Anonymous, "").await;
    let it = app(layer()).layer(ids()).layer(auth());
    check("ids", it, Cached::Nothing, "id").await;
    let it = app(layer().ignore_extension::<RequestId>())
        .layer(ids())
        .layer(auth());
    check("ids, ignored", it, Cached::Anonymous, "").await;
    let it = app(layer().share_extension::<RequestId>())
        .layer(ids())
        .layer(auth());
    check("ids, shared", it, Cached::Anonymous, "id").await;
    let it = Router::new().route(
        "/page",
        inner().layer(
            ServiceBuilder::new()
                .layer(auth())
                .layer(ids())
                .layer(layer()),
        ),
    );
    check("a stack on the route", it, Cached::Nothing, "id").await;
    let it = Router::new().route(
        "/page",
        inner().layer(
            ServiceBuilder::new()
                .layer(TraceLayer::new_for_http())
                .layer(layer())
                .layer(auth())
                .layer(ids()),
        ),
    );
    check("a stack beneath", it, Cached::All, "id").await;
    let it = Router::new().route("/page", inner()).layer(
        ServiceBuilder::new()
            .layer(auth())
            .layer(CorsLayer::permissive())
            .layer(layer())
            .layer(timeout()),
    );
    check("a stack around the router", it, Cached::Anonymous, "").await;
    let it = Router::new()
        .nest("/n", Router::new().route("/b", inner()))
        .merge(app(layer()))
        .layer(auth());
    check("nested and merged", it, Cached::Anonymous, "").await;
    let it = Router::new()
        .route("/page", inner().layer(layer()))
        .layer(layer())
        .layer(auth());
    check("two layers", it, Cached::Anonymous, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_bypass_the_cache_until_they_are_declared() {
    let folder = Folder::new();
    let site = folder.site().await;
    let shop = |layer| {
        let routes = Router::new().route("/basket", route(basket).layer(layer));
        let app = Router::new().nest("/shop", routes);
        app.layer(SessionManagerLayer::new(MemoryStore::default()).with_secure(false))
    };
    let address = serve(shop(site.layer(POLICY))).await;
    let ann = request(address, "GET", "/shop/basket", &[("x-add", "ann")]).await;
    let cookie = ann.headers["set-cookie"].to_str().expect("text").to_owned();
    for _ in 0..2 {
        let reply = request(address, "GET", "/shop/basket", &[("cookie", &cookie)]).await;
        assert_eq!(reply.text(), "for ann");
        assert_eq!(
            reply.headers["cache-status"],
            "perennial; fwd=bypass; detail=undeclared-extension"
        );
        let reply = get(address, "/shop/basket").await;
        assert_eq!(reply.text(), "for nobody");
    }
}
