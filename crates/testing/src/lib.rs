//! Tests of your own application: a site in memory, a clock that the test moves, and faults on
//! demand.
//!
//! ```toml
//! [dev-dependencies]
//! perennial-testing = "0.1"
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! The repository has a small site with such a test suite, to copy: `examples/tested-site`.
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
//! Two sites on one database stand for two processes. The other process learns of an invalidation
//! with its first request after the sync interval of a second:
//!
//! ```
//! # use perennial::{DAY, Perennial, Refresh};
//! # use perennial_testing as testing;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), perennial::Error> {
//! use std::{convert::Infallible, time::Duration};
//!
//! let database = testing::Database::new();
//! let (here, there) = (database.open(Perennial::builder())?, database.open(Perennial::builder())?);
//! let policy = Refresh::every(DAY);
//! for site in [&here, &there] {
//!     let old = || async { Ok::<_, Infallible>("old") };
//!     assert_eq!(site.content("price", &policy, old).await?.to_string(), "old");
//! }
//! assert_eq!(database.generations("price"), 1, "the second process read it from the database");
//!
//! here.invalidate("price").await?;
//! testing::advance(Duration::from_secs(2)).await;
//! let new = || async { Ok::<_, Infallible>("new") };
//! assert_eq!(there.content("price", &policy, new).await?.to_string(), "new");
//! # Ok(()) }
//! ```
//!
//! # The clock
//!
//! Perennial measures time by Tokio's clock, which `#[tokio::test(start_paused = true)]` pauses.
//!
//! - The stopped clock moves in two ways: by [`advance`], and by itself when all tasks wait. Then
//!   it jumps to the next timer. A handler that sleeps for a minute takes no time, and a timeout of
//!   a second around the handler still ends first.
//! - A regeneration in the background has ended when [`advance`] returns, if the generator takes
//!   less time than `advance` was given.
//! - A socket is no timer. While a task waits for a server, or for the application's own SQL pool,
//!   the clock jumps, and timeouts end at once. Call the router with `tower::ServiceExt::oneshot`,
//!   as above, and open pools before `tokio::time::pause()`; or leave the clock running in such a
//!   test.
//! - While `spawn_blocking` runs, the clock does not move by itself. [`advance`] waits for a page
//!   that is being compressed, so that the next visitor gets the page compressed.
//! - `std::time`, `chrono` and the `Date` header go by the machine's clock, and do not move with
//!   Tokio's. `Last-Modified` goes by the database's clock, which begins with the year 2020.
//! - A paused clock needs the runtime with one thread, which is the default of `#[tokio::test]`.
//!
//! # What else differs
//!
//! - Locks work as on an SQL database, and so do the layers of perennial-jobs and
//!   perennial-idempotency over them. [`Perennial::database`](perennial::Perennial::database), and
//!   with it claims and session locks, and `Once::mark_in` return an error.
//! - Each test opens a database of its own, so that tests share nothing. Dropping the database and
//!   its sites frees the memory.
//! - The mode is that of the environment, as in production: name
//!   [`Builder::mode`](perennial::Builder::mode) in a test that depends on it. Without a cache, a
//!   test's handlers run each time: [`Mode::Off`](perennial::Mode::Off).
//! - A failing generator is tried again after the [cooldown](perennial::Refresh::cooldown): without a
//!   version after a second at first; with one, by default,
//!   after 3 s at least.

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
