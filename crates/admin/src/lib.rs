//! A status page for a [`Perennial`] site: an axum router to nest in the application.
//!
//! The pages show the site's checks and figures, the stored entries with their history, and the
//! locks with their holders. Operators can regenerate, invalidate and purge entries and break locks.
//!
//! The router cannot be built without a decision about access, which the application makes for each
//! request. Put the application's own login in front, and let it pass the user on in an extension:
//!
//! ```
//! use axum::{Router, extract::State, http::request::Parts, middleware, routing::get};
//! use perennial::Perennial;
//! use perennial_admin::{Access, Admin, CancellationToken};
//!
//! #[derive(Clone)]
//! struct User { name: String, is_operator: bool }
//!
//! fn access(request: &Parts) -> Access {
//!     match request.extensions.get::<User>() {
//!         Some(user) if user.is_operator => Access::full(&user.name),
//!         Some(user) => Access::read_only(&user.name),
//!         None => Access::Forbidden,
//!     }
//! }
//!
//! fn app(site: Perennial, shutdown: CancellationToken) -> Router {
//!     let pages = Router::new()
//!         .route("/", get(async |State(name): State<&'static str>| name))
//!         .with_state("the application's own state");
//!     let status = Admin::new(site, shutdown, access).regenerating(pages.clone());
//!     // A layer of the application (a session, an identity proxy) sets the extension `User`.
//!     pages.nest("/admin/cache", status.router())
//! }
//! ```
//!
//! # Safety
//!
//! - Each handler checks the access, also those of the figures as JSON and of the stream of events.
//! - Only POST changes anything, and a request from another origin is refused
//!   ([`CsrfLayer`]). A proxy in front has to keep the `Host` header.
//! - Each button acts on what the operator saw: the form carries the fence, and the action is refused
//!   if the entry or the lock has another one by then.
//! - Keys, tags and labels may come from visitors. The pages escape them, show control and
//!   bidirectional characters as `\u{…}`, and run no inline script (Content-Security-Policy). A stored
//!   page is shown as source, or in a frame without any rights.
//! - Each action is a log line at INFO with the target `perennial_admin` and the user's name.
//!
//! # Cost
//!
//! A page reads at most a few hundred rows and counts none. The open overview costs no statement: its
//! stream sends this process's figures once a second. A process with the router holds one lock, by
//! which all processes are listed, and extends the lock once in 10 s.

mod access;
mod actions;
mod checks;
mod done;
mod figures;
mod html;
mod live;
mod pages;

use std::{fmt, pin::Pin, sync::Arc};

use axum::{
    Router,
    http::{HeaderValue, header, request::Parts},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use perennial::{Perennial, event::Served};
use tower_http::csrf::CsrfLayer;

pub use access::Access;
pub use tokio_util::sync::CancellationToken;

/// A status page, to nest in an application.
pub struct Admin {
    site: Perennial,
    shutdown: CancellationToken,
    access: Box<dyn Fn(&Parts) -> Access + Send + Sync>,
    regenerate: Option<Box<Regenerate>>,
    latest: live::Latest,
}

/// Regenerates the page of a path.
type Regenerate =
    dyn Fn(String) -> Pin<Box<dyn Future<Output = Option<Served>> + Send>> + Send + Sync;

impl Admin {
    /// Creates the status page of a site.
    ///
    /// `access` decides for each request what its user may do. `shutdown` ends the streams of open
    /// pages: cancel it when the server begins its graceful shutdown, which waits for them otherwise.
    pub fn new(
        site: Perennial,
        shutdown: CancellationToken,
        access: impl Fn(&Parts) -> Access + Send + Sync + 'static,
    ) -> Self {
        Self {
            site,
            shutdown,
            access: Box::new(access),
            regenerate: None,
            latest: live::Latest::default(),
        }
    }

    /// Lets the button "Regenerate now" send a request for a page through this router, the
    /// application's own with its layers. Default: the button invalidates the page, and the next
    /// request regenerates it. So it does for the pages of which the key alone does not give the
    /// request: content, and variants by header or host.
    pub fn regenerating(mut self, pages: Router) -> Self {
        let site = self.site.clone();
        self.regenerate = Some(Box::new(move |path| {
            let (site, pages) = (site.clone(), pages.clone());
            Box::pin(async move {
                let mut visited = site.regenerate(pages, [path]).await;
                visited.pop().and_then(|(_, served)| served)
            })
        }));
        self
    }

    /// Returns the router, to [nest](Router::nest) under a path of an application with any state.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
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
