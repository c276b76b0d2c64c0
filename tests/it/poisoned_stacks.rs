//! Real middleware outside of the layer, with users whose `Clone` panics: no generator gets the
//! extensions of a middleware, and a logged-in visitor gets a page of the visitor's own.

use std::{
    future::{Ready, ready},
    sync::Arc,
};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{
        HeaderMap,
        header::{AUTHORIZATION, SET_COOKIE},
    },
    middleware::{Next, from_fn_with_state as with_state},
    response::Response,
    routing::{get as route, post},
};
use perennial::layer::RefreshLayer;
use tower::util::MapRequestLayer;
use tower_cookies::{CookieManagerLayer, Cookies};
use tower_http::{
    auth::AsyncRequireAuthorizationLayer,
    request_id::{MakeRequestUuid, RequestId, SetRequestIdLayer},
};
use tower_sessions::{MemoryStore, Session, SessionManagerLayer};

use crate::{
    paused::{Here, Shared, here},
    poison::{self, BYPASS, Clones, HOUR, POISONED, POLICY, Poison, poisoning},
    support::request,
};

/// The logged-in visitor, from an auth middleware.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    _poison: Poison<0>,
}

/// The visitor of a session, logged in or not, as in axum-login.
#[derive(Clone, Debug)]
struct AuthSession {
    name: Option<String>,
    _poison: Poison<0>,
}

/// Logs the visitor in, where there are sessions.
async fn log_in(session: Option<Extension<Session>>, headers: HeaderMap) {
    let name = headers[AUTHORIZATION].to_str().expect("text");
    if let Some(Extension(session)) = session {
        session.insert("name", name).await.expect("is stored");
    }
}

/// Returns the extensions of the middleware that the handler sees, and the visitor's name.
async fn tell(request: Request) -> String {
    let extensions = request.extensions();
    let mut seen = Vec::new();
    seen.extend(extensions.get().map(|_: &Session| "session "));
    seen.extend(extensions.get().map(|_: &Cookies| "cookies "));
    seen.extend(extensions.get().map(|_: &RequestId| "id "));
    let member = extensions.get().map(|it: &Member| &*it.name);
    let in_session = extensions.get::<AuthSession>();
    let name = member.or(in_session.and_then(|it| it.name.as_deref()));
    let poisons = poison::seen(extensions);
    format!("{}for {}{poisons}", seen.concat(), name.unwrap_or("nobody"))
}

async fn with_auth_session(
    State(clones): State<Arc<Clones>>,
    session: Session,
    mut request: Request,
    next: Next,
) -> Response {
    let name = session.get("name").await.expect("is read");
    let _poison = Poison::new(&clones);
    request
        .extensions_mut()
        .insert(AuthSession { name, _poison });
    next.run(request).await
}

async fn with_member_of_session(
    State(clones): State<Arc<Clones>>,
    session: Session,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(name) = session.get("name").await.expect("is read") {
        let _poison = Poison::new(&clones);
        request.extensions_mut().insert(Member { name, _poison });
    }
    next.run(request).await
}

async fn with_member_of_cookie(
    State(clones): State<Arc<Clones>>,
    cookies: Cookies,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(cookie) = cookies.get("name") {
        let (name, _poison) = (cookie.value().to_owned(), Poison::new(&clones));
        request.extensions_mut().insert(Member { name, _poison });
    }
    next.run(request).await
}

/// Inserts the member of `Authorization`, and lets a request without the header pass.
fn authorize(
    clones: &Arc<Clones>,
) -> impl Fn(Request) -> Ready<Result<Request, Response>> + Clone + Send + Sync + 'static {
    let clones = Arc::clone(clones);
    move |mut request| {
        if let Some(name) = request.headers().get(AUTHORIZATION) {
            let name = name.to_str().expect("text").to_owned();
            let _poison = Poison::new(&clones);
            request.extensions_mut().insert(Member { name, _poison });
        }
        ready(Ok(request))
    }
}

fn sessions() -> SessionManagerLayer<MemoryStore> {
    SessionManagerLayer::new(MemoryStore::default()).with_secure(false)
}

fn ids() -> SetRequestIdLayer<MakeRequestUuid> {
    SetRequestIdLayer::x_request_id(MakeRequestUuid)
}

type Around = fn(Router, &Arc<Clones>) -> Router;
type Declare = fn(RefreshLayer) -> RefreshLayer;

/// The page of an anonymous visitor.
enum Anonymous {
    Cached(&'static str),
    Own(&'static str),
}

use Anonymous::{Cached, Own};

/// The middleware outside of the layer, the layer's declarations, the page of the visitor who is
/// logged in, and the page of an anonymous visitor.
const STACKS: &[(&str, Around, Declare, &str, Anonymous)] = &[
    (
        "a session",
        |app, _| app.layer(sessions()),
        |layer| layer,
        "session cookies for nobody",
        Own("session cookies for nobody"),
    ),
    (
        "a login by the session",
        |app, clones| {
            app.layer(with_state(clones.clone(), with_member_of_session))
                .layer(sessions())
        },
        |layer| layer,
        "session cookies for ann",
        Own("session cookies for nobody"),
    ),
    (
        "a login by the session, which is ignored",
        |app, clones| {
            app.layer(with_state(clones.clone(), with_member_of_session))
                .layer(sessions())
        },
        without_session,
        "session cookies for ann",
        Cached("for nobody"),
    ),
    (
        "a login like axum-login's",
        |app, clones| {
            app.layer(with_state(clones.clone(), with_auth_session))
                .layer(sessions())
        },
        without_session,
        "session cookies for ann",
        Own("session cookies for nobody"),
    ),
    (
        "a login by a cookie",
        |app, clones| {
            app.layer(with_state(clones.clone(), with_member_of_cookie))
                .layer(CookieManagerLayer::new())
        },
        |layer| layer,
        "cookies for ann",
        Own("cookies for nobody"),
    ),
    (
        "a login by a cookie, which is ignored",
        |app, clones| {
            app.layer(with_state(clones.clone(), with_member_of_cookie))
                .layer(CookieManagerLayer::new())
        },
        |layer| layer.ignore_extension::<Cookies>(),
        "cookies for ann",
        Cached("for nobody"),
    ),
    (
        "a request id",
        |app, _| app.layer(ids()),
        |layer| layer,
        "id for nobody",
        Own("id for nobody"),
    ),
    (
        "a request id, shared",
        |app, _| app.layer(ids()),
        |layer| layer.share_extension::<RequestId>(),
        "id for nobody",
        Cached("id for nobody"),
    ),
    (
        "authorization",
        |app, clones| app.layer(AsyncRequireAuthorizationLayer::new(authorize(clones))),
        |layer| layer,
        "for ann",
        Cached("for nobody"),
    ),
    (
        "all of them",
        |app, clones| {
            app.layer(AsyncRequireAuthorizationLayer::new(authorize(clones)))
                .layer(with_state(clones.clone(), with_member_of_session))
                .layer(with_state(clones.clone(), with_member_of_cookie))
                .layer(sessions())
                .layer(ids())
        },
        |layer| without_session(layer).ignore_extension::<RequestId>(),
        "session cookies id for ann",
        Cached("for nobody"),
    ),
];

/// Ignores what tower-sessions adds: a session, and the cookies of tower-cookies.
fn without_session(layer: RefreshLayer) -> RefreshLayer {
    layer
        .ignore_extension::<Session>()
        .ignore_extension::<Cookies>()
}

/// Logs ann in, and returns the headers of her requests.
async fn log_in_as_ann(address: Here) -> Vec<(&'static str, String)> {
    let reply = request(address, "POST", "/login", &[("authorization", "ann")]).await;
    assert_eq!(reply.status, 200);
    let set = reply.headers.get(SET_COOKIE);
    let session = set.map_or("", |it| it.to_str().expect("text"));
    let session = session.split(';').next().expect("is there");
    vec![
        ("authorization", "ann".to_owned()),
        ("cookie", format!("name=ann; {session}")),
        (POISONED, "yes".to_owned()),
    ]
}

#[tokio::test(start_paused = true)]
async fn no_generator_gets_the_user_of_a_real_middleware() {
    for (name, around, declare, own, anonymous) in STACKS {
        for numbers in [vec![], vec![7], (1..20).collect()] {
            let site = Shared::new().site();
            let clones = Arc::default();
            let app = Router::new()
                .route("/page", route(tell).layer(declare(site.layer(POLICY))))
                .layer(MapRequestLayer::new(poisoning(&numbers, &clones)))
                .route("/login", post(log_in));
            let address = here(around(app, &clones));
            let ann = log_in_as_ann(address).await;
            let ann: Vec<_> = ann.iter().map(|(name, value)| (*name, &**value)).collect();
            let own = format!("{own}{}", poison::text(&numbers));
            for round in 0..4 {
                let reply = request(address, "GET", "/page", &ann).await;
                // A visitor without an extension of their own gets the page of all visitors.
                let page = match anonymous {
                    Cached(page) if own == *page => *page,
                    _ => {
                        assert_eq!(reply.headers["cache-status"], BYPASS, "{name}");
                        &own
                    }
                };
                assert_eq!(reply.text(), page, "{name}");

                let reply = request(address, "GET", "/page", &[]).await;
                let status = reply.header("cache-status");
                let page = match anonymous {
                    Cached(page) => {
                        assert!(!status.contains("bypass"), "{name}: {status}");
                        page
                    }
                    Own(page) => {
                        assert_eq!(status, BYPASS, "{name}");
                        page
                    }
                };
                assert_eq!(reply.text(), *page, "{name}");
                // The page is stale in the last rounds.
                tokio::time::sleep(HOUR * round / 2).await;
            }
            assert_eq!(clones.count(), 0, "{name}");
        }
    }
}
