//! The guide, chapter by chapter.
//!
//! | you want to | read |
//! |---|---|
//! | see a page regenerate | [`quick_start`] |
//! | serve visitors who log in | [`logged_in_users`] |
//! | choose the parts of a request that make a page | [`keys`] |
//! | choose when a page is stale, and bound each wait | [`freshness`] |
//! | make pages stale when data changes | [`invalidation`] |
//! | run a job, a route or a payment once | [`locks`] |
//! | develop and test an application | [`testing`] |
//! | use SQLite, PostgreSQL, MySQL or MariaDB | [`databases`] |
//! | run a site on several machines | [`deployment`], [`scale`] |
//! | see what a site does | [`operating`] |
//! | know what is promised | [`promises`] |
//! | write a client in another language | [`protocol`] |
//! | come from another cache | [`migrating`] |

/// Makes a module of each file. The links of a file are those of the repository; the first
/// definitions, which win, are those of this documentation.
macro_rules! chapters {
    ($($name:ident $file:literal,)*) => {$(
        #[doc = "
[around-a-router]: crate::layer::RefreshLayer#around-a-router
[benchmarks]: https://docs.rs/crate/perennial/latest/source/docs/benchmarks.md
[costs]: crate::guide::scale#costs
[databases]: crate::guide::databases
[deployment]: crate::guide::deployment
[event]: crate::event
[examples-of-logins]: crate::layer::RefreshLayer#logged-in-users
[failover-in-practice]: crate::guide::scale#failover-in-practice
[failover]: https://docs.rs/crate/perennial/latest/source/docs/failover/
[freshness]: crate::guide::freshness
[galera-check]: https://docs.rs/crate/perennial/latest/source/docs/failover/galera-check
[haproxy-galera]: https://docs.rs/crate/perennial/latest/source/docs/failover/haproxy-galera.cfg
[haproxy-patroni]: https://docs.rs/crate/perennial/latest/source/docs/failover/haproxy-patroni.cfg
[idempotency]: https://docs.rs/perennial-idempotency
[invalidation]: crate::guide::invalidation
[jobs]: https://docs.rs/perennial-jobs
[keys]: crate::guide::keys
[locks]: crate::guide::locks
[logged-in-users]: crate::guide::logged_in_users
[metrics]: crate::event#metrics
[monitoring]: https://docs.rs/crate/perennial/latest/source/docs/monitoring/
[operating]: crate::guide::operating
[pgbouncer-ini]: https://docs.rs/crate/perennial/latest/source/docs/failover/pgbouncer.ini
[parts]: crate::guide::freshness#parts-of-pages-and-values
[protocol-claims]: crate::guide::protocol#claims
[protocol]: crate::guide::protocol
[python-module]: https://docs.rs/crate/perennial/latest/source/docs/foreign/perennial_lock.py
[python]: https://docs.rs/crate/perennial/latest/source/docs/foreign/
[response-headers]: crate::layer::RefreshLayer#response-headers
[scale]: crate::guide::scale
[soak]: https://docs.rs/crate/perennial/latest/source/docs/soak.svg
[tested-site]: https://docs.rs/perennial-testing
[testing-crate]: https://docs.rs/perennial-testing
"]
        #[doc = include_str!($file)]
        pub mod $name {}
    )*};
}

chapters! {
    quick_start "../docs/guide/quick-start.md",
    logged_in_users "../docs/guide/logged-in-users.md",
    keys "../docs/guide/keys.md",
    freshness "../docs/guide/freshness.md",
    invalidation "../docs/guide/invalidation.md",
    locks "../docs/guide/locks.md",
    testing "../docs/guide/testing.md",
    databases "../docs/guide/databases.md",
    deployment "../docs/deployment.md",
    operating "../docs/guide/operating.md",
    scale "../docs/scale.md",
    promises "../docs/guide/promises.md",
    protocol "../docs/protocol.md",
    migrating "../docs/guide/migrating.md",
}
