//! Declarations of extensions, and places of the layer among middleware: an anonymous visitor's
//! request is cached, and a logged-in visitor gets a page of the visitor's own. `personal.rs` has
//! stacks of real crates.

use std::time::Duration;

use axum::{
    Extension, Router,
    extract::{MatchedPath, OriginalUri, Request},
    middleware::from_fn,
    routing::get as route,
};
use perennial::{Refresh, layer::RefreshLayer};
use tower::ServiceBuilder;
use tower_http::cors::CorsLayer;

use crate::middleware::{User, authenticate};
use perennial_testkit::{request, virtual_time::Shared};

const POLICY: Refresh = Refresh::every(Duration::from_secs(3600));

/// A pool, say.
#[derive(Clone, Debug)]
struct Pool(&'static str);

/// Answers for whom the page is, as far as the handler can tell.
async fn page(user: Option<Extension<User>>, request: Request) -> String {
    let pool = request.extensions().get::<Pool>().map_or("", |pool| pool.0);
    let user = user.map_or("nobody".to_owned(), |Extension(User(name))| name);
    format!("{pool} for {user}")
}

/// Makes requests as three visitors in turn. The generator sees `pool`.
async fn visit(name: &str, app: Router, pool: &str) {
    for round in 0..3 {
        for visitor in ["ann", "", "bob"] {
            let cookie = format!("user={visitor}");
            let headers: &[_] = match visitor {
                "" => &[],
                _ => &[("cookie", &*cookie)],
            };
            let reply = request(&app, "GET", "/page", headers).await;
            // The outermost layer's, where there are two.
            let mut statuses = reply.headers.get_all("cache-status").iter();
            let status = statuses.next_back().expect("is there");
            let (status, text) = (status.to_str().expect("text"), reply.text());
            match visitor {
                "" => {
                    assert!(!status.contains("bypass"), "{name}: {status}");
                    assert!(round == 0 || status.contains("hit"), "{name}: {status}");
                    assert_eq!(text, format!("{pool} for nobody"), "{name}");
                }
                _ => {
                    assert!(status.contains("bypass"), "{name}: {status}");
                    assert!(text.ends_with(&format!(" for {visitor}")), "{name}: {text}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_declaration_and_place_caches_anonymous_visitors_alone() {
    let layer = || Shared::new().site().layer(POLICY);
    let app = |layer: RefreshLayer| Router::new().route("/page", route(page).layer(layer));
    let auth = || from_fn(authenticate);
    let with_pool = |layer| app(layer).layer(Extension(Pool("db"))).layer(auth());

    let it = layer().ignore_extension::<Pool>().share_extension::<Pool>();
    visit("ignored, then shared", with_pool(it), "db").await;
    let it = layer()
        .ignore_extension::<Pool>()
        .ignore_extension::<Pool>();
    visit("declared twice", with_pool(it), "").await;
    let it = layer()
        .share_extension::<MatchedPath>()
        .ignore_extension::<OriginalUri>();
    visit("known, and declared", app(it).layer(auth()), "").await;

    let stack = ServiceBuilder::new().layer(auth()).layer(layer());
    let it = Router::new().route("/page", route(page).layer(stack));
    visit("a stack on the route", it, "").await;
    let stack = ServiceBuilder::new()
        .layer(auth())
        .layer(CorsLayer::permissive())
        .layer(layer());
    let it = Router::new().route("/page", route(page)).layer(stack);
    visit("a stack around the router", it, "").await;
    let it = Router::new()
        .nest("/n", Router::new().route("/b", route(page)))
        .merge(app(layer()))
        .layer(auth());
    visit("nested and merged", it, "").await;
    let it = app(layer()).layer(layer()).layer(auth());
    visit("two layers", it, "").await;
}
