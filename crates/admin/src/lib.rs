//! The state of a [`perennial`] site for its operators: a [report](Report) as data, and a status page (an axum
//! router to nest in the application). Operators see checks, entries with their history, and locks; they can
//! regenerate, invalidate and purge entries, and break locks.
//!
//! ```
//! use axum::{Router, http::request::Parts};
//! use perennial::Perennial;
//! use perennial_admin::{Access, Admin, CancellationToken};
//!
//! #[derive(Clone)]
//! struct Operator(String);
//!
//! fn access(request: &Parts) -> Access {
//!     // A layer of the application (a session, an identity proxy) sets the extension.
//!     match request.extensions.get::<Operator>() {
//!         Some(Operator(name)) => Access::full(name),
//!         None => Access::Forbidden,
//!     }
//! }
//!
//! fn app(site: Perennial, shutdown: CancellationToken, pages: Router) -> Router {
//!     let status = Admin::new(site, shutdown, access).pages(pages.clone());
//!     pages.nest("/admin/cache", status.router())
//! }
//! ```
//!
//! - Each page and each action checks whether the user has access. Only POST changes anything, and a POST from
//!   another origin is refused by tower-http's `CsrfLayer`. It compares the origin with the `Host` header, so
//!   a proxy in front has to pass that header on.
//! - An action on one entry or lock is refused if the entry or the lock has changed since the operator saw it.
//!   The page sends the fence that it showed, and it must still be the current one. Actions are logged at INFO
//!   with the target `perennial_admin` and the user's name.
//!
//! A process with a status page [shares its figures](perennial::Perennial::share_stats), so each status
//! page shows the sums of all processes that have a status page. A process without one can share its
//! figures by calling `site.share_stats()`.
//!
//! The feature `page` is on by default. Without it, the crate consists of the report and of the [texts of
//! explanations](reason), and does not need axum.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::missing_errors_doc)]

mod explanation;
mod hour;
#[cfg(feature = "page")]
mod page;
mod report;

pub use explanation::{reason, remedy};
pub use hour::LastHour;
#[doc(hidden)]
pub use hour::rate;
#[cfg(feature = "page")]
pub use page::{Access, Admin, CancellationToken};
pub use report::{Check, Failed, Generated, Memory, Report, Verdict};
#[doc(hidden)]
pub use report::{runs, size, time};
