//! What operators of a [`perennial`] site see: a report as data, and a status page, which is an axum
//! router to nest in the application.
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
//!     let status = Admin::new(site, shutdown, access).pages(pages.clone());
//!     // A layer of the application (a session, an identity proxy) sets the extension `User`.
//!     pages.nest("/admin/cache", status.router())
//! }
//! ```
//!
//! # Safety
//!
//! - Each handler checks the access, also those of the figures as JSON and of the stream of events.
//! - Only POST changes anything, and a request from another origin is refused
//!   (`CsrfLayer` of tower-http). A proxy in front has to keep the `Host` header.
//! - Each button acts on what the operator saw: the form carries the fence, and the action is refused
//!   if the entry or the lock has another one by then.
//! - Keys, tags and labels may come from visitors. The pages escape them, show control and
//!   bidirectional characters as `\u{…}`, and run no inline script (Content-Security-Policy). A stored
//!   page is shown as source, or in a frame without any rights.
//! - Each action is a log line at INFO with the target `perennial_admin` and the user's name.
//!
//! # Cost
//!
//! A page reads at most a few hundred rows; the overview also counts all pages. All viewers of a process
//! share one overview for five seconds. A process with the router holds one lock, by
//! which all processes are listed, and extends the lock once in 10 s.
//!
//! Without the feature `page` (default), the crate has the report alone, and no axum.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "page")]
mod page;
mod processes;
mod report;

#[cfg(feature = "page")]
pub use page::{Access, Admin, CancellationToken};
pub use processes::{Process, announce, processes};
#[doc(hidden)]
pub use report::time;
pub use report::{Check, Generated, Report, Verdict};
