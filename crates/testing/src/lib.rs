//! Tests of your own application: a site in memory, a clock that the test moves, and faults on
//! demand. The repository has a small site with such a test suite, to copy: `examples/tested-site`.
//!
//! ```toml
//! [dev-dependencies]
//! perennial-testing = "0.1"
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! A function of your application builds the router around a site. `main` opens the site on the
//! real database, and a test opens it on a [`Database`] in memory:
//!
//! ```
//! use axum::{Router, body::Body, http::{Request, StatusCode}, routing::get};
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
//!     let visit = async || {
//!         let request = Request::get("/best-sellers").body(Body::empty()).unwrap();
//!         app.clone().oneshot(request).await.unwrap().status()
//!     };
//!     visit().await;
//!     testing::advance(29 * DAY).await;
//!     visit().await;
//!     assert_eq!(database.generations("/best-sellers"), 1);
//!
//!     testing::advance(2 * DAY).await;
//!     visit().await;
//!     assert_eq!(database.generations("/best-sellers"), 2);
//!
//!     // The list is stale, and the database does not answer: visitors get the old list.
//!     testing::advance(31 * DAY).await;
//!     database.hang();
//!     assert_eq!(visit().await, StatusCode::OK);
//!     Ok(())
//! }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { best_sellers_are_regenerated_after_thirty_days().await.unwrap() }
//! ```
//!
//! Two sites on one database stand for two processes: the other one learns of an invalidation with its
//! first request after a second.
//!
//! # The clock
//!
//! Perennial measures time by Tokio's clock, which `#[tokio::test(start_paused = true)]` pauses, in a
//! runtime with one thread.
//!
//! - [`advance`] moves the clock; regenerations within that time have ended when it returns. When all
//!   tasks wait, the clock jumps to the next timer by itself: a handler that sleeps takes no time.
//! - A socket is no timer. While a task waits for a server, or for the application's own SQL pool, the
//!   clock jumps, and timeouts end. Open pools before `tokio::time::pause()`, or leave the clock
//!   running.
//! - `std::time`, `chrono` and the `Date` header go by the machine's clock.
//!
//! # What else differs
//!
//! [`Perennial::database`](perennial::Perennial::database), and with it claims, session locks and
//! `Once::mark_in`, returns an error. The mode is that of the environment: name
//! [`Builder::mode`](perennial::Builder::mode) in a test that depends on it. A failing generator is tried
//! again after the [cooldown](perennial::Refresh::cooldown).

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
