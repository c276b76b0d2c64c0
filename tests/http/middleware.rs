//! Middleware in real use, of the real crates.

use std::{
    fmt,
    future::{Ready, ready},
};

use axum::{
    Extension, Router,
    extract::Request,
    http::{StatusCode, header::AUTHORIZATION, request::Parts},
    middleware::{Next, from_fn},
    response::Response,
};
use axum_extra::extract::CookieJar;
use axum_htmx::AutoVaryLayer;
use perennial::layer::RefreshLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower_cookies::{Cookie, CookieManagerLayer, Cookies};
use tower_http::{
    auth::AsyncRequireAuthorizationLayer,
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::{AllowOrigin, CorsLayer},
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};
use tower_sessions::{MemoryStore, Session, SessionManagerLayer};

use perennial_testkit::HANG;

/// The logged-in visitor.
#[derive(Clone, Debug)]
pub(crate) struct User(pub(crate) String);

/// A pool, say.
#[derive(Clone, Debug)]
struct Pool;

/// A middleware, and the declaration of its extensions.
pub(crate) struct Middleware {
    pub(crate) name: &'static str,
    pub(crate) around: fn(Router, &MemoryStore) -> Router,
    pub(crate) declare: fn(RefreshLayer) -> RefreshLayer,
    /// A handler learns the visitor's name.
    pub(crate) tells: bool,
}

impl fmt::Debug for Middleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const fn of(name: &'static str, around: fn(Router, &MemoryStore) -> Router) -> Middleware {
    let declare = |layer| layer;
    Middleware {
        name,
        around,
        declare,
        tells: false,
    }
}

impl Middleware {
    const fn telling(self) -> Self {
        Self {
            tells: true,
            ..self
        }
    }

    const fn declared(self, declare: fn(RefreshLayer) -> RefreshLayer) -> Self {
        Self { declare, ..self }
    }
}

fn session(app: Router, store: &MemoryStore) -> Router {
    app.layer(SessionManagerLayer::new(store.clone()).with_secure(false))
}

fn cookies(app: Router, _: &MemoryStore) -> Router {
    async fn remember(cookies: Cookies, request: Request, next: Next) -> Response {
        if let Some(user) = cookies.get("user") {
            cookies.add(Cookie::new("last", user.value().to_owned()));
        }
        next.run(request).await
    }
    app.layer(from_fn(remember))
        .layer(CookieManagerLayer::new())
}

/// A typical middleware of applications.
pub(crate) async fn authenticate(jar: CookieJar, mut request: Request, next: Next) -> Response {
    if let Some(user) = jar.get("user") {
        let user = User(user.value().to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

fn login(app: Router, _: &MemoryStore) -> Router {
    app.layer(from_fn(authenticate))
}

fn authorization(app: Router, _: &MemoryStore) -> Router {
    let authorize = |mut request: Request| -> Ready<Result<Request, Response>> {
        if let Some(name) = request.headers().get(AUTHORIZATION) {
            let user = User(name.to_str().expect("text").to_owned());
            request.extensions_mut().insert(user);
        }
        ready(Ok(request))
    };
    app.layer(AsyncRequireAuthorizationLayer::new(authorize))
}

fn id(app: Router, _: &MemoryStore) -> Router {
    app.layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
}

fn cors(app: Router, _: &MemoryStore) -> Router {
    app.layer(CorsLayer::new().allow_origin(AllowOrigin::mirror_request()))
}

fn timeout(app: Router, _: &MemoryStore) -> Router {
    let status = StatusCode::REQUEST_TIMEOUT;
    app.layer(TimeoutLayer::with_status_code(status, HANG))
}

fn is_user(parts: &Parts) -> bool {
    parts.extensions.get::<User>().is_some()
}

pub(crate) const MIDDLEWARE: &[Middleware] = &[
    of("session", session).telling(),
    of("session, ignored", session).telling().declared(|layer| {
        layer
            .ignore_extension::<Session>()
            .ignore_extension::<Cookies>()
    }),
    of("cookies", cookies).telling(),
    of("cookies, ignored", cookies)
        .telling()
        .declared(RefreshLayer::ignore_extension::<Cookies>),
    of("login", login).telling(),
    of("login, ignored", login)
        .telling()
        .declared(RefreshLayer::ignore_extension::<User>),
    of("login, bypass_if", login)
        .telling()
        .declared(|layer| layer.bypass_if(is_user)),
    of("authorization", authorization).telling(),
    of("id", id),
    of("id, ignored", id).declared(RefreshLayer::ignore_extension::<RequestId>),
    of("pool", |app, _| app.layer(Extension(Pool))),
    of("pool, shared", |app, _| app.layer(Extension(Pool)))
        .declared(RefreshLayer::share_extension::<Pool>),
    of("htmx", |app, _| app.layer(AutoVaryLayer)),
    of("cors", cors),
    of("timeout", timeout),
    of("trace", |app, _| app.layer(TraceLayer::new_for_http())),
    of("compression", |app, _| app.layer(CompressionLayer::new())),
    of("panics", |app, _| app.layer(CatchPanicLayer::new())),
    of("limit", |app, _| app.layer(ConcurrencyLimitLayer::new(2))),
];

/// Returns the middleware of this name.
pub(crate) fn named(name: &str) -> &'static Middleware {
    let found = MIDDLEWARE.iter().find(|it| it.name == name);
    found.unwrap_or_else(|| panic!("no middleware {name}"))
}
