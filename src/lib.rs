//! Site content that regrows by itself: an HTTP response cache for axum and Tower, with
//! stale-while-revalidate, in the site's own SQL database.
//!
//! A list of best-sellers takes two seconds to build. When its cache entry expires at nine in the morning, two
//! hundred visitors come at once, and two hundred requests build it: a cache stampede. With Perennial, one
//! request in one of the processes builds it, and everybody else gets the previous list at once.
//!
//! A Tower layer stores a route's generated response in SQLite, PostgreSQL, MySQL or MariaDB, and
//! serves it from memory. When the response is stale, one request across all processes takes a
//! non-blocking lock in that database and regenerates it; all other requests get the old response.
//! A lock left by a crash is taken over.
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
//! Perennial is for pages that are expensive to build and look the same to many visitors. It is not for pages
//! that are different for each visitor, or that must be current to the second.
//!
//! # Where to go on
//!
//! 1. [`Perennial`] opens the site's database, and makes [layers](Perennial::layer).
//! 2. [`Refresh`] says when a page is stale, and who waits for what.
//! 3. [`RefreshLayer`](layer::RefreshLayer) says what is stored, and what a handler sees.
//! 4. [`invalidate_tag`](Perennial::invalidate_tag) and its family make pages stale when the data change.
//! 5. [`value`](Perennial::value) and [`content`](Perennial::content) store what is smaller than a page, such as the
//!    result of a slow query that several pages show.
//! 6. The [guide](https://docs.rs/perennial/latest/perennial/guide) has all of this in chapters, from the first page to
//!    operating fifty processes. Begin with its quick start.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `sqlite` | yes | the store in an SQLite database |
//! | `postgres` | | the store in PostgreSQL |
//! | `mysql` | | the store in MySQL or MariaDB |
//! | `tls-rustls` | | encrypted connections for [`Perennial::open`] |
//! | `axum` | yes | axum 0.8; without this feature, each request through axum's router bypasses the cache |
//! | `hyper` | with `axum` | a site on hyper that does not use axum; without this feature, a request that offers an upgrade bypasses the cache |
//! | `compression` | | pages in `br` and `gzip`, in each process's memory |
//! | `metrics` | | metrics, through the crate `metrics` |
//!
//! A site whose pool is one of sqlx's needs the feature of its database. Sites that use another driver need none of
//! these features.
//!
//! # Further crates
//!
//! | crate | for |
//! |---|---|
//! | [perennial-calendar](https://docs.rs/perennial-calendar) | intervals by the calendar, such as each day at six or each weekday |
//! | [perennial-jobs](https://docs.rs/perennial-jobs) | jobs that run once, exclusive routes, queues in a table |
//! | [perennial-idempotency](https://docs.rs/perennial-idempotency) | POSTs that may be repeated safely, such as payments |
//! | [perennial-testing](https://docs.rs/perennial-testing) | tests of an application: a site in memory, with a clock that the test moves |
//! | [perennial-admin](https://docs.rs/perennial-admin) | a status page for operators |
//! | [perennial-cli](https://crates.io/crates/perennial-cli) | the command `perennial`: status, doctor, explain, triggers |
//! | [perennial-rusqlite](https://docs.rs/perennial-rusqlite), [perennial-tokio-postgres](https://docs.rs/perennial-tokio-postgres) | the application's own pool of a driver other than sqlx |
//!
//! The items that this crate re-exports from perennial-store follow the version of this crate. perennial-store itself is
//! not for direct use.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::missing_errors_doc)]
#![warn(missing_docs)]
// The modules, in reading order for a newcomer: the public entry points first, then layer by layer
// downward. `tests/structure.rs` fails if two modules use each other. (The blank lines keep rustfmt
// from sorting.)

mod mode; // production, off, development

mod policy; // when a page is stale, and the limits of each wait

mod site; // the entry point

pub mod layer; // the Tower layers

pub mod event; // what a site reports: events, counters

mod cache; // the core: a resource between memory, generator and store

mod http; // the rules of HTTP

mod key; // the key of a URI

mod extensions; // extensions of responses and requests

mod generation; // the handle of code that generates

mod holes; // a page with spots that differ for each visitor, as it is stored

mod timing; // defaults, deadlines, pauses

mod ordered; // mutexes in one order

mod clock; // the monotonic time of this process

pub use extensions::{ExpireAfter, RefreshAfter, Tags};
pub use generation::{Generates, Generation};
pub use layer::refresh::keying::Key;
pub use mode::Mode;
#[doc(inline)]
pub use perennial_store::{Error, ErrorKind, error::BoxError, name::IntoNames};
pub use policy::{DAY, Refresh, Schedule};
pub use site::{Builder, Content, InvalidationSql, PendingInvalidation, Perennial, Visit, Warmed};

pub mod entries {
    //! The list of the stored resources, from [`Perennial::entries`](crate::Perennial::entries), and the latest
    //! 20 generations of each. A failed regeneration does not count as a generation: see
    //! [events](crate::event).

    pub use perennial_store::name::visible;

    pub use crate::cache::{
        history::PastVersion,
        listing::{
            entries::{Entry, EntryFilter, EntryPage, EntryState},
            explain::{Comparison, ExplainedCooldown, ExplainedVersion, Explanation, VersionState},
        },
    };
}

pub mod locks {
    //! Locks by name in the site's database, from [`Perennial::locks`](crate::Perennial::locks),
    //! for any work that must not run twice concurrently.
    //! [perennial-jobs](https://docs.rs/perennial-jobs) has layers and calls for that.

    #[doc(inline)]
    pub use perennial_store::{
        Fence, Holder, Lease, LockAttempt, LockInfo, LockKind, LockName, Locks,
    };
}

pub mod sql {
    //! The database of a site, connections on which the application has begun a transaction, and triggers with
    //! which the database itself invalidates pages.

    #[doc(inline)]
    pub use perennial_store::{
        ColumnType, Connection, Database, IntoDatabase, Trigger, TriggerFault,
    };
}

#[doc(inline)]
pub use perennial_store::driver;

#[doc(hidden)]
pub use key::canonical as canonical_key;

// Its examples use SQLite.
#[cfg(any(all(doc, not(doctest)), all(doctest, feature = "sqlite")))]
pub mod guide;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
