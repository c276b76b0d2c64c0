//! Work that must not run twice, for services with an SQL database and any number of processes.
//!
//! | the work | use |
//! |---|---|
//! | a job or a sync that one process at a time may run | [`Locks::try_lock`], [`Locks::lock`] |
//! | a route that may serve one request at a time for each name | [`ExclusiveLayer`] |
//! | a mail or an import that happens once | [`Once`] |
//! | a table of jobs that several workers share | [`Claims`] |
//! | long work under a lock that ends with a database connection | [`SessionLock`] |
//! | a request that clients may send repeatedly | [perennial-idempotency](https://docs.rs/perennial-idempotency) |
//!
//! Each of the features `sqlite`, `postgres` and `mysql` adds support for one database's pools:
//!
//! ```toml
//! [dependencies]
//! perennial-jobs = { version = "0.1", features = ["postgres"] }
//! ```
//!
//! ```
//! # async fn f(pool: perennial_jobs::Database) -> Result<(), perennial_jobs::Error> {
//! use perennial_jobs::Locks;
//!
//! let locks = Locks::with_pool(pool).await?; // or `site.locks()` of a site
//! if let Some(lease) = locks.try_lock(["sync", "customer-42"]).await? {
//!     // No other process is here.
//!     lease.release().await?;
//! }
//!
//! // When the program ends, after its last piece of work.
//! locks.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! The crate is neither a scheduler, nor a queue with priorities or retries. For a job at three o'clock each
//! night, ask every minute whether the night's [`Once`] has run. If the database is unavailable for a while,
//! that delays the job, but no night is skipped. The [guide of
//! Perennial](https://docs.rs/perennial/latest/perennial/guide/locks/index.html) has this loop.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::missing_errors_doc)]
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(
        dead_code,
        unused,
        reason = "without a database, nothing runs a statement"
    )
)]

mod claims;
mod exclusive;
mod once;
mod session;
mod timing;

pub use claims::{Claim, Claims, Value};
pub use exclusive::{ExclusiveLayer, ExclusiveService};
pub use once::{MarkSql, Once, OnceOutcome};
pub use perennial_store::{
    Connection, Database, Error, ErrorKind, Fence, Holder, IntoDatabase, Lease, LockAttempt,
    LockInfo, LockKind, LockLoss, LockName, Locks,
};
pub use session::SessionLock;

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use perennial_store::sql::statements::Dialect;

    #[test]
    fn protocol_document_has_the_statements_that_run() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (dialect, protocol) in [
            (
                Dialect::Sqlite,
                include_str!("../../../docs/protocol/sqlite.sql"),
            ),
            (
                Dialect::Postgres,
                include_str!("../../../docs/protocol/postgres.sql"),
            ),
            (
                Dialect::MySql,
                include_str!("../../../docs/protocol/mysql.sql"),
            ),
        ] {
            let protocol = words(protocol);
            let [mark, mark_after] = [false, true].map(|is_after| {
                dialect.render(&crate::once::mark(dialect, is_after), "perennial_")
            });
            for statement in [&*mark, &*mark_after, crate::claims::CLAIM.of(dialect)] {
                let statement = words(statement);
                assert!(
                    protocol.contains(&statement),
                    "{dialect:?}: docs/protocol lacks: {statement}"
                );
            }
        }
    }
}
