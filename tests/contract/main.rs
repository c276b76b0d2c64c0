//! The contract of a [`Store`](perennial_store::Backend): what one statement does, in memory, on SQLite and
//! on each server, for an application that leaves its connections in any state.

/// Makes a test of each function in SQL for each database: as it is, with rare defaults, behind a pooler, and
/// with connections that the application has left in some state.
macro_rules! contract_in_sql {
    ($($test:ident)*) => {
        perennial_testkit::on_each_database! { $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_pooled = perennial_testkit::Db::postgres_pooled(); $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_unusual = perennial_testkit::Db::postgres_unusual(); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_unusual = perennial_testkit::Db::mysql_unusual(); $($test)* }
        perennial_testkit::on_database! { sqlite_in_a_transaction = perennial_testkit::connection_state::sqlite(&["ROLLBACK", "BEGIN"]); $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_in_a_transaction = perennial_testkit::connection_state::postgres(&["ROLLBACK", "BEGIN"]); $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_aborted = perennial_testkit::connection_state::postgres(&["ROLLBACK", "BEGIN", "SELECT 1 / 0"]); $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_of_a_tenant = perennial_testkit::connection_state::postgres(&["SET search_path = tenant"]); $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_with_another_role = perennial_testkit::connection_state::postgres(&["SET ROLE pg_monitor"]); $($test)* }
        #[cfg(feature = "postgres")]
        perennial_testkit::on_database! { postgres_read_only = perennial_testkit::connection_state::postgres(perennial_testkit::connection_state::READ_ONLY); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_in_a_transaction = perennial_testkit::connection_state::mysql(&["ROLLBACK", "BEGIN"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_itself_in_a_transaction = perennial_testkit::connection_state::mysql_itself(&["ROLLBACK", "BEGIN"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_itself_without_autocommit = perennial_testkit::connection_state::mysql_itself(&["ROLLBACK", "SET autocommit = 0"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_itself_of_a_tenant = perennial_testkit::connection_state::mysql_itself(&["USE mysql"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_without_autocommit = perennial_testkit::connection_state::mysql(&["ROLLBACK", "SET autocommit = 0"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_read_only = perennial_testkit::connection_state::mysql(&["SET SESSION TRANSACTION READ ONLY"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_with_locked_tables = perennial_testkit::connection_state::mysql(&["LOCK TABLES other READ"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_of_a_tenant = perennial_testkit::connection_state::mysql(&["USE mysql"]); $($test)* }
        #[cfg(feature = "mysql")]
        perennial_testkit::on_database! { mysql_uncommitted = perennial_testkit::connection_state::mysql(&["SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"]); $($test)* }
    };
}

/// The contract that each driver passes, here on sqlx's pools, and on the store in memory.
macro_rules! contract {
    ($($part:ident: $($test:ident)*;)*) => {
        $(
            mod $part {
                use perennial_driver_tests::$part::*;

                contract_in_sql! { $($test)* }
                perennial_testkit::on_database! { memory = perennial_testkit::Db::in_memory(); $($test)* }
            }
        )*
    };
}

perennial_driver_tests::each_part! { contract }

mod argument_limits;
mod entry_list;
mod expected_tables;
#[cfg(feature = "mysql")]
mod frozen_clock;
mod lock_leases;
mod named_locks;
#[cfg(feature = "postgres")]
mod postgres_literals;
mod rolled_back;
mod sqlx_drivers;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod statement_plans;
mod trigger_migrations;
mod triggers;
