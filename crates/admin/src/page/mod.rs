//! The status page: a router of HTML pages, JSON and an event stream over one site. `access` decides who may
//! see the page and who may act, `pages` renders it, `actions` carries out what operators ask for, and `live`
//! holds the report that all viewers share.

mod access;
mod actions;
mod done;
mod explain;
mod figures;
mod glance;
mod html;
mod live;
mod pages;

use std::{fmt, sync::Arc};

use axum::{
    Router,
    http::{HeaderValue, header, request::Parts},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use perennial::Perennial;
use tower_http::csrf::CsrfLayer;

pub use access::Access;
pub use tokio_util::sync::CancellationToken;

/// A status page, to nest in an application.
pub struct Admin {
    site: Perennial,
    shutdown: CancellationToken,
    access: Box<dyn Fn(&Parts) -> Access + Send + Sync>,
    pages: Option<Router>,
    latest: live::Latest,
    report: live::SharedReport,
}

impl Admin {
    /// Creates the status page of a site. `access` decides for each request what its user may do. When `shutdown` is
    /// cancelled, the streams of open pages end: cancel it when the server begins its graceful shutdown.
    pub fn new(
        site: Perennial,
        shutdown: CancellationToken,
        access: impl Fn(&Parts) -> Access + Send + Sync + 'static,
    ) -> Self {
        Self {
            site,
            shutdown,
            access: Box::new(access),
            pages: None,
            latest: live::Latest::default(),
            report: live::SharedReport::default(),
        }
    }

    /// Gives the status page the application's router with its layers. The button "Regenerate now" and the page
    /// "Explain", which only users with full access have, send requests for pages through it. On a route without a
    /// layer, such a request runs the handler. Default: the button only invalidates the page.
    pub fn pages(mut self, pages: Router) -> Self {
        self.pages = Some(pages);
        self
    }

    /// Returns the router, to [nest](Router::nest) under a path of an application with any state.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        self.site.share_stats();
        live::watch(&self.site, &self.shutdown, &self.latest);
        routes(Arc::new(self))
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

fn routes<S: Clone + Send + Sync + 'static>(admin: Arc<Admin>) -> Router<S> {
    Router::new()
        .route("/", get(pages::overview))
        .route("/entries", get(pages::entries))
        .route("/entry", get(pages::entry))
        .route("/preview", get(pages::preview))
        .route("/locks", get(pages::locks))
        .route("/explain", get(explain::explain))
        .route("/live", get(live::stream))
        .route("/overview.json", get(figures::overview))
        .route("/entries.json", get(figures::entries))
        .route("/locks.json", get(figures::locks))
        .route("/act/entry", post(actions::on_entry))
        .route("/many", get(actions::ask_many))
        .route("/act/many", post(actions::on_many))
        .route("/act/lock", post(actions::on_lock))
        .route(
            "/admin.css",
            get(async || asset("text/css", include_str!("admin.css"))),
        )
        .route(
            "/icon.svg",
            get(async || asset("image/svg+xml", include_str!("icon.svg"))),
        )
        .route(
            "/admin.js",
            get(async || asset("text/javascript", include_str!("admin.js"))),
        )
        .layer(CsrfLayer::new())
        .layer(middleware::map_response(safe_headers))
        .with_state(admin)
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}

/// The policy of every page. A preview sets a stricter one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

async fn safe_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let fixed = [
        (header::CACHE_CONTROL, "private, no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = headers.entry(header::CONTENT_SECURITY_POLICY);
    policy.or_insert(HeaderValue::from_static(POLICY));
    response
}
