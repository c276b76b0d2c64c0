//! The contract of a [`Store`](perennial_store::Backend): what one statement does, in memory, on SQLite and
//! on each server, for an application that leaves its connections in any state.

use std::time::Duration;

/// Makes a test of each function for each store, and of those in SQL for each database: as it is, with rare
/// defaults, behind a pooler, and with connections that the application has left in some state.
macro_rules! contract {
    ($($test:ident)*) => { contract! { $($test)*; in SQL: } };
    ($($test:ident)*; in SQL: $($sql:ident)*) => {
        perennial_testkit::on_each_database! { $($test)* $($sql)* }
        perennial_testkit::on_database! { memory = perennial_testkit::Db::in_memory(); $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_pooled = perennial_testkit::Db::postgres_pooled(); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_unusual = perennial_testkit::Db::postgres_unusual(); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_unusual = perennial_testkit::Db::mysql_unusual(); $($test)* $($sql)* }
        perennial_testkit::on_database! { sqlite_in_a_transaction = perennial_testkit::connection_state::sqlite(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_in_a_transaction = perennial_testkit::connection_state::postgres(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_aborted = perennial_testkit::connection_state::postgres(&["ROLLBACK", "BEGIN", "SELECT 1 / 0"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_of_a_tenant = perennial_testkit::connection_state::postgres(&["SET search_path = tenant"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_with_another_role = perennial_testkit::connection_state::postgres(&["SET ROLE pg_monitor"]); $($test)* $($sql)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_read_only = perennial_testkit::connection_state::postgres(perennial_testkit::connection_state::READ_ONLY); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_in_a_transaction = perennial_testkit::connection_state::mysql(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_itself_in_a_transaction = perennial_testkit::connection_state::mysql_itself(&["ROLLBACK", "BEGIN"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_itself_without_autocommit = perennial_testkit::connection_state::mysql_itself(&["ROLLBACK", "SET autocommit = 0"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_itself_of_a_tenant = perennial_testkit::connection_state::mysql_itself(&["USE mysql"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_without_autocommit = perennial_testkit::connection_state::mysql(&["ROLLBACK", "SET autocommit = 0"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_read_only = perennial_testkit::connection_state::mysql(&["SET SESSION TRANSACTION READ ONLY"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_with_locked_tables = perennial_testkit::connection_state::mysql(&["LOCK TABLES other READ"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_of_a_tenant = perennial_testkit::connection_state::mysql(&["USE mysql"]); $($test)* $($sql)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_uncommitted = perennial_testkit::connection_state::mysql(&["SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"]); $($test)* $($sql)* }
    };
}

mod argument_limits;
mod changed_clocks;
mod entry_list;
mod invalidations;
mod leases;
mod lock_leases;
mod named_locks;
mod pages;
#[cfg(feature = "postgres")]
mod postgres_literals;
mod requests;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod statement_plans;

/// A lease that no test outlives.
pub(crate) const LEASE: Duration = Duration::from_secs(3600);

/// Of a cooldown or an age.
pub(crate) const NONE: Duration = Duration::ZERO;

/// Of a list, without a limit.
pub(crate) const ALL: usize = usize::MAX;
