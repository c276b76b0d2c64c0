//! Site content that regrows by itself.
//!
//! A Tower layer stores a route's generated response in the site's own SQL database (SQLite,
//! PostgreSQL, MySQL or MariaDB, through sqlx), serves it from memory, and checks its age on each
//! request. When a request finds the response stale, exactly one request across all processes takes
//! a non-blocking lock in that database and regenerates it. All other requests get the old response
//! at once (stale-while-revalidate). A lock left by a crash is taken over. There is no scheduler,
//! no Redis and no daemon.
//!
//! # Quick start
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # mod shop {
//! use axum::{Router, routing::get};
//! use perennial::{DAY, Perennial, Refresh};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let site = Perennial::open("sqlite://site.db").await?; // or Perennial::with_pool(pool)
//!     let best_sellers = get(best_sellers).layer(site.layer(Refresh::every(30 * DAY)));
//!     let app = Router::new().route("/best-sellers", best_sellers);
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app).await?;
//!     Ok(())
//! }
//!
//! async fn best_sellers() -> String {
//!     "generated from the orders, which takes its time".to_owned()
//! }
//! # }
//! ```
//!
//! The first request generates the page, and every process serves the page from memory from then
//! on. After 30 days one request regenerates the page. The response's `Cache-Status` header shows
//! how each response came about: `perennial; fwd=miss; stored`, then `perennial; hit; ttl=2591999`.
//!
//! # Where to read on
//!
//! | you want to | read |
//! |---|---|
//! | choose when a page is stale, and how long visitors wait | [`Refresh`] |
//! | see which responses are stored, and what the handler sees of a request | [`layer::RefreshLayer`] |
//! | serve logged-in users | [Logged-in users](layer::RefreshLayer#logged-in-users) |
//! | name the query parameters or headers that make a page | [`Key`] |
//! | make pages stale when data changes | [`Perennial::invalidate_tag`], [`Perennial::invalidate_on_success`] |
//! | store a part of a page | [`Perennial::content`] |
//! | set limits and timeouts for the whole site | [`Builder`] |
//! | run a route, a job or a payment once | [`locks`] |
//! | see regenerations, failures and hit counts | [`event`] |
//! | list what is stored, and its history | [`entries`] |
//! | test your application | `testing`, with the feature of that name |
//! | read on, chapter by chapter | the `guide` |
//!
//! # Modules, in reading order
//!
//! - The root: [`Perennial`] and its [`Builder`], the policy [`Refresh`], [`Key`], [`Tags`] and
//!   [`Error`].
//! - [`layer`]: the Tower layers and their services.
//! - `calendar`: schedules such as "on the first of each month at six".
//! - [`event`]: events, counters, and the filters of the log.
//! - [`entries`]: the stored resources, and the history of each.
//! - [`locks`]: locks by name, once-only work, exclusive routes, idempotent requests, claims.
//! - `sql`: the application's own pool and transactions, with a database's feature.
//! - `testing`: a site in memory, a clock that the test moves, faults on demand.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `sqlite` | yes | the store in an SQLite database |
//! | `postgres` | | the store in PostgreSQL |
//! | `mysql` | | the store in MySQL or MariaDB |
//! | `axum` | yes | the extensions of axum 0.8's routing, so that its routes are cached |
//! | `compression` | | pages in `br` and `gzip`, compressed once a version |
//! | `calendar` | | intervals by the calendar: "on the first of each month at six" |
//! | `metrics` | | [metrics](event#metrics) through the facade of the crate `metrics` |
//! | `serde` | | `Serialize` for entries, locks, figures and [events](event), and for their words |
//! | `testing` | | sites in memory for the tests of applications |
//!
//! A site needs the feature of at least one database, except in tests.
//!
//! # Promises
//!
//! One regeneration at a time while leases are honoured; at most one publish for each fence; stored
//! content never goes backwards; a crashed process delays the next regeneration by at most its
//! lease; no request waits for another one's regeneration while a servable version exists. Not
//! promised: that a generator never runs twice, as a crash repeats a run and a paused process
//! overlaps.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// The rooms, in reading order for a newcomer: the public entry points first, then floor by floor
// downward. `tests/structure.rs` fails if two rooms use each other. (The blank lines keep rustfmt
// from sorting.)

mod mode; // production, off, development

mod policy; // when a page is stale, and the limits of each wait

mod site; // the entry point

pub mod layer; // the Tower layers

pub mod event; // what a site reports: events, counters

mod page; // the heart: a resource between memory, generator and store

mod http; // the rules of HTTP

mod key; // the key of a URI

mod extensions; // extensions of responses and requests

mod timing; // defaults, deadlines, pauses

#[cfg(test)]
mod search; // breadth-first search of a model, for the checks

mod clock; // the monotonic time of this process

pub use event::Event;
pub use extensions::{RefreshAfter, Tags};
pub use layer::refresh::keying::Key;
pub use mode::Mode;
pub use perennial_store::{Error, ErrorKind};
pub use policy::{DAY, Refresh, Schedule};
pub use site::{Builder, Content, PendingInvalidation, Perennial};

pub mod entries {
    //! The list of the stored resources, from [`Perennial::entries`](crate::Perennial::entries), and the
    //! history of each resource.
    //!
    //! The history stands beside the stored version and costs no statement: a publish writes one line
    //! before the lines of the versions before, and the latest 20 stay. A failed regeneration stores
    //! nothing and has no line; [events](crate::event) tell of it. A purge removes the history with
    //! the version.

    pub use perennial_store::name::visible;

    pub use crate::page::{
        entries::{Entry, EntryFilter, EntryPage, EntryState},
        explain::Explanation,
        history::PastVersion,
    };
}

pub mod locks {
    //! Locks by name in the site's database, from [`Perennial::locks`](crate::Perennial::locks). For any
    //! work that must not run twice at once.
    //!
    //! | the work | use |
    //! |---|---|
    //! | a job or a sync that one process at a time may run | [`Locks::try_lock`], [`Locks::lock`] |
    //! | a route that may run once at a time, a mail that is sent once, rows as a queue | [perennial-jobs](https://docs.rs/perennial-jobs) |
    //! | a payment that clients may send repeatedly | [perennial-idempotency](https://docs.rs/perennial-idempotency) |
    //!
    //! The lease of a holder that has died expires after its length (15 s by default), and then
    //! another process can take the lock. A write that compares the [fence](Lease::fence) is refused
    //! if it comes late, from a holder that was paused.

    pub use perennial_store::{Fence, Holder, Lease, LockInfo, LockKind, LockName, Locks};
}

pub mod sql {
    //! The database of a site. For an application that shares its own pool with Perennial.
    //!
    //! [`Perennial::with_pool`](crate::Perennial::with_pool) takes an `SqlitePool`, a `PgPool` or a
    //! `MySqlPool` of sqlx 0.9. [`Database`] is any of the three, with a statement timeout.

    pub use perennial_store::Database;
}

#[doc(hidden)]
pub use key::canonical as canonical_key;

// Its examples use SQLite.
#[cfg(any(all(doc, not(doctest)), all(doctest, feature = "sqlite")))]
pub mod guide;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
