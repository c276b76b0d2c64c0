//! Tests of an application: a site in memory, a clock that the test moves, and faults on demand.
//!
//! ```toml
//! [dev-dependencies]
//! perennial-testing = "0.1"
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! tower = { version = "0.5", features = ["util"] }
//! ```
//!
//! A function of the application builds the router around a site, which a test opens on a
//! [`Database`] in memory:
//!
//! ```
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use perennial::{DAY, Perennial, Refresh};
//! use perennial_testing as testing;
//! use tower::ServiceExt;
//!
//! fn app(site: &Perennial) -> Router {
//!     let list = get(|| async { "1. Middlemarch" });
//!     Router::new().route("/best-sellers", list.layer(site.layer(Refresh::every(30 * DAY))))
//! }
//!
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! async fn best_sellers_are_regenerated_after_thirty_days() -> Result<(), perennial::Error> {
//!     let database = testing::Database::new();
//!     let app = app(&database.open(Perennial::builder())?);
//!     for (days, generations) in [(0, 1), (29, 1), (2, 2)] {
//!         testing::advance(days * DAY).await;
//!         let request = Request::get("/best-sellers").body(Body::empty()).unwrap();
//!         app.clone().oneshot(request).await.unwrap();
//!         assert_eq!(database.generations("/best-sellers"), generations);
//!     }
//!     Ok(())
//! }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { best_sellers_are_regenerated_after_thirty_days().await.unwrap() }
//! ```
//!
//! Two sites on one database stand for two processes.
//!
//! Perennial measures time by Tokio's clock. [`advance`] moves the paused clock, and regenerations within that
//! time have ended when it returns. When all tasks wait, even if only for a socket, the paused clock jumps to
//! the next timer. A call to the application's own SQL pool may therefore time out immediately. `std::time`,
//! `chrono` and the `Date` header follow the machine's clock.
//!
//! [`invalidate_in`](perennial::Perennial::invalidate_in), `purge_in`,
//! [`database`](perennial::Perennial::database) and `Once::mark_in` return an error: for a test of
//! these, open the site on a temporary SQLite file.

#![forbid(unsafe_code)]

mod database;
mod invalidations;
mod list;
mod lock;
mod memory;
mod requests;
mod rows;

pub use database::{Database, advance};
#[doc(hidden)]
pub use memory::{Memory, micros};
