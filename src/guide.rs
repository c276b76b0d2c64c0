//! The guide, chapter by chapter. rustdoc lists the chapters by their names; this is the order in which to read them.
//!
//! | to begin | about pages | about jobs | your application | operating | reference |
//! |---|---|---|---|---|---|
//! | [quick start](quick_start) | [freshness and failures](freshness) | [locks and jobs](locks) | [your stack](stacks) | [operating] | [defaults and limits](defaults) |
//! | [recipes] | [invalidation] | [idempotency] | [without axum](without_axum) | [log, metrics, alerts](monitoring) | [what is promised](promises) |
//! | | [keys] | | [testing] | [scale] | [the protocol](protocol) |
//! | | [logged-in users](logged_in_users) | | [migrating] | [troubleshooting] | |
//! | | [pages with holes](holes) | | | | |
//! | | [is my page cached?](is_my_page_cached) | | | | |
//!
//! The repository has these chapters as a book, with an introduction, a tutorial in ten steps and concepts with drawings.

/// Makes a module of each file. At its end, each file defines its links as paths in the repository. The
/// definitions here, which lead to rustdoc pages, stand before the file's text. If a link is defined twice,
/// Markdown takes the first definition.
macro_rules! chapters {
    ($($name:ident $file:literal,)*) => {$(
        #[doc = "
[alerts]: https://docs.rs/crate/perennial/latest/source/docs/monitoring/alerts.yml
[author]: crate::guide::invalidation#who-sees-the-change-when
[around-a-router]: crate::layer::RefreshLayer#around-a-router
[cached]: crate::guide::is_my_page_cached
[cdn]: crate::guide::operating#a-cdn-in-front
[crate]: https://docs.rs/perennial-idempotency
[dashboard]: https://docs.rs/crate/perennial/latest/source/docs/monitoring/dashboard.json
[failures]: crate::guide::freshness#failures
[driver]: crate::driver
[freshness]: crate::guide::freshness
[galera-check]: https://docs.rs/crate/perennial/latest/source/docs/failover/galera-check
[haproxy-galera]: https://docs.rs/crate/perennial/latest/source/docs/failover/haproxy-galera.cfg
[haproxy-patroni]: https://docs.rs/crate/perennial/latest/source/docs/failover/haproxy-patroni.cfg
[holes]: crate::guide::holes
[idempotency]: crate::guide::idempotency
[invalidation]: crate::guide::invalidation
[jobs]: https://docs.rs/perennial-jobs
[keys]: crate::guide::keys
[locks]: crate::guide::locks
[logged-in-users]: crate::guide::logged_in_users
[migrating]: crate::guide::migrating#from-nginxs-proxy_cache
[monitoring]: crate::guide::monitoring
[operating]: crate::guide::operating
[parts]: crate::guide::freshness#parts-of-pages-and-values
[pgbouncer-ini]: https://docs.rs/crate/perennial/latest/source/docs/failover/pgbouncer.ini
[protocol-claims]: crate::guide::protocol#claims
[protocol]: crate::guide::protocol
[python-module]: https://docs.rs/crate/perennial/latest/source/docs/foreign/perennial_lock.py
[python]: https://docs.rs/crate/perennial/latest/source/docs/foreign/
[scale]: crate::guide::scale
[stacks]: crate::guide::stacks
[soak]: https://docs.rs/crate/perennial/latest/source/docs/soak.svg
[tested-site]: https://docs.rs/perennial-testing
[testing-crate]: https://docs.rs/perennial-testing
[development]: crate::guide::testing#while-you-develop
[missed]: crate::guide::invalidation#what-was-forgotten
[mysql]: https://docs.rs/crate/perennial/latest/source/docs/protocol/mysql.sql
[postgres]: https://docs.rs/crate/perennial/latest/source/docs/protocol/postgres.sql
[promises]: crate::guide::promises
[reasons]: crate::guide::is_my_page_cached#the-reasons
[record]: https://docs.rs/crate/perennial/latest/source/docs/design/0021-triggers.md
[space]: crate::guide::operating#how-much-space
[sqlite]: https://docs.rs/crate/perennial/latest/source/docs/protocol/sqlite.sql
[testing]: crate::guide::testing
[triggers]: crate::guide::invalidation#by-the-database-itself
[troubleshooting]: crate::guide::troubleshooting
[twice]: https://docs.rs/crate/perennial/latest/source/docs/debugging.md
"]
        #[doc = include_str!($file)]
        pub mod $name {}
    )*};
}

chapters! {
    quick_start "../docs/guide/quick-start.md",
    recipes "../docs/recipes.md",
    freshness "../docs/guide/freshness.md",
    invalidation "../docs/guide/invalidation.md",
    keys "../docs/guide/keys.md",
    logged_in_users "../docs/guide/logged-in-users.md",
    holes "../docs/guide/holes.md",
    is_my_page_cached "../docs/guide/is-my-page-cached.md",
    locks "../docs/guide/locks.md",
    idempotency "../docs/guide/idempotency.md",
    stacks "../docs/guide/stacks.md",
    without_axum "../docs/guide/without-axum.md",
    testing "../docs/guide/testing.md",
    migrating "../docs/guide/migrating.md",
    operating "../docs/guide/operating.md",
    monitoring "../docs/monitoring/README.md",
    scale "../docs/scale.md",
    troubleshooting "../docs/troubleshooting.md",
    defaults "../docs/guide/defaults.md",
    promises "../docs/guide/promises.md",
    protocol "../docs/protocol.md",
}
