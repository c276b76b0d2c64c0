//! The contract between Perennial and a driver of its database, as tests. Each test checks how the driver
//! carries out single statements. A driver should pass all of them before a site uses it.
//!
//! The tests of a driver are one call of [`contract!`], with a function that makes an empty database:
//!
//! ```ignore
//! async fn database() -> Option<OfDriver> {
//!     let folder = tempfile::tempdir().unwrap();
//!     let path = folder.path().join("site.db");
//!     Some(OfDriver::new(move || MyPool::open(&path).into(), folder))
//! }
//!
//! perennial_driver_tests::contract!(crate::database);
//! ```
//!
//! With a server, `database` makes an empty database (`CREATE DATABASE`). It also returns a value that the tests
//! keep, and that removes the database when it is dropped. `open` is called several times for one database, as for
//! several processes. Each pool needs at least two connections and at most about ten; a pool for a database in
//! memory has one. Where there is no server, `database` returns `None`, and the tests pass without having tried
//! anything.
//!
//! Each test gets a database of its own. `contract!` makes a module for each part of the contract, and in it a
//! test for each function, so that `cargo test leases::` runs one part. The tests take a few seconds, and fail if
//! they take more than four minutes. Your package needs `tokio` with the features `macros` and `rt-multi-thread`.
//!
//! Some things the tests cannot see, so the author of a driver has to take care of them: whether an
//! error is [late](perennial_store::driver::DriverError::late) or
//! [unreachable](perennial_store::driver::DriverError::unreachable), notifications, and what is logged.

#![forbid(unsafe_code)]

#[allow(missing_docs, reason = "the name of a test is its claim")]
pub mod clocks;
#[allow(missing_docs, reason = "the name of a test is its claim")]
pub mod driver;
#[allow(missing_docs, reason = "the name of a test is its claim")]
pub mod invalidations;
#[allow(missing_docs, reason = "the name of a test is its claim")]
pub mod leases;
#[allow(missing_docs, reason = "the name of a test is its claim")]
pub mod pages;
#[allow(missing_docs, reason = "the name of a test is its claim")]
pub mod processes;
#[allow(missing_docs, reason = "the name of a test is its claim")]
pub mod requests;
pub mod store;

use std::{any::Any, fmt, sync::Arc, time::Duration};

use perennial_store::{Backend, Database, sql::run::Statement};

/// A lease that no test outlives.
pub const LEASE: Duration = Duration::from_secs(3600);

/// Of a cooldown or an age.
pub const NONE: Duration = Duration::ZERO;

/// Of a list, without a limit.
pub const ALL: usize = usize::MAX;

/// The longest wait of a test for one event. A longer wait means that the test hangs. It is long enough for a
/// database that does not answer for half a minute, and for the cooldown of half a minute that follows.
pub const HANG: Duration = Duration::from_secs(120);

/// A database of one test.
pub trait TestDatabase: Send + Sync + 'static {
    /// Opens the store, with the tables of the prefix `perennial_`.
    fn store(&self) -> impl Future<Output = Arc<dyn Backend>> + Send;

    /// Runs a statement without arguments.
    fn execute(&self, sql: &str) -> impl Future<Output = u64> + Send;

    /// Sets the clock of the database forward, or back for negative `seconds`. By default this
    /// [changes the rows](shift_rows).
    fn shift_clock(&self, seconds: i64) -> impl Future<Output = ()> + Send {
        async move { shift_rows(self, seconds).await }
    }
}

/// Changes the times in the rows, as if the database's clock had been set forward by `seconds`, or back if the
/// number is negative.
pub async fn shift_rows(db: &(impl TestDatabase + ?Sized), seconds: i64) {
    let by = seconds * 1_000_000;
    for table in [
        format!(
            "perennial_lock SET acquired_at = acquired_at - ({by}),
            expires_at = CASE WHEN expires_at = 0 THEN 0 ELSE expires_at - ({by}) END"
        ),
        format!(
            "perennial_entry SET generated_at = generated_at - ({by}), stale_at = stale_at - ({by}), retain_until = retain_until - ({by})"
        ),
        format!(
            "perennial_request SET begun_at = begun_at - ({by}), expires_at = expires_at - ({by}),
            retain_until = retain_until - ({by})"
        ),
        format!("perennial_process SET noted_at = noted_at - ({by})"),
    ] {
        db.execute(&format!("UPDATE {table}")).await;
    }
}

/// A database of a driver under test.
pub struct OfDriver {
    open: Box<dyn Fn() -> Database + Send + Sync>,
    _keep: Box<dyn Any + Send + Sync>,
}

impl OfDriver {
    /// Returns a database that `open` can open as often as needed, as each process of a site would. What the
    /// database needs, such as the folder of its file, is kept and dropped with the test.
    pub fn new(
        open: impl Fn() -> Database + Send + Sync + 'static,
        keep: impl Any + Send + Sync,
    ) -> Self {
        Self {
            open: Box::new(open),
            _keep: Box::new(keep),
        }
    }

    /// Opens the database, with a time limit that a slow machine does not exceed.
    pub fn database(&self) -> Database {
        (self.open)().statement_timeout(HANG / 2)
    }
}

impl fmt::Debug for OfDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfDriver").finish_non_exhaustive()
    }
}

impl TestDatabase for OfDriver {
    async fn store(&self) -> Arc<dyn Backend> {
        let store = self.database().store("perennial_").await;
        Arc::new(store::Patient(store.expect("makes the tables")))
    }

    async fn execute(&self, sql: &str) -> u64 {
        let database = self.database();
        let statement = Statement::new(database.dialect(), "", sql);
        let done = database.connections().run_new(&statement, &[]).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"))
            .changed
    }
}

/// Fails if a test hangs.
#[doc(hidden)]
pub async fn within_the_limit(test: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(2 * HANG, test).await;
    ended.expect("the test hangs: see which call never ends");
}

/// Makes the tests of the contract for a driver. The argument is the path of a function without arguments
/// whose future returns an [`OfDriver`] with an empty database, or `None` where there is no server to test
/// with.
#[macro_export]
macro_rules! contract {
    ($database:path) => {
        $crate::driver_contract! { $database }
        $crate::each_part! { @ [$crate::contract_of!] [$database;] }
    };
}

/// Makes the tests of what a driver itself owes: a part of [`contract!`].
#[macro_export]
macro_rules! driver_contract {
    ($database:path) => {
        $crate::contract_of! {
            $database;
            driver: a_value_comes_back_as_it_was
                calls_that_are_dropped_leave_the_pool_usable
                transaction_that_was_left_open_is_not_written_into
                dropped_table_is_made_again
                value_that_the_database_refuses_is_told_from_a_failure
                invalidation_in_a_transaction_ends_with_it
                one_of_many_holds_the_lock
                callers_wait_for_a_connection
                pool_has_as_many_connections_as_it_says
                dropped_connection_does_not_come_back
                connection_that_is_given_back_comes_again
                connection_that_the_server_ends_is_broken;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! contract_of {
    ($database:path; $($part:ident: $($test:ident)*;)*) => {
        $(
            mod $part {
                $(
                    #[tokio::test(flavor = "multi_thread")]
                    async fn $test() {
                        if let Some(database) = $database().await {
                            $crate::within_the_limit($crate::$part::$test(database)).await;
                        }
                    }
                )*
            }
        )*
    };
}

/// Gives the parts of the contract, each with its tests, to a macro, behind what stands before them.
#[doc(hidden)]
#[macro_export]
macro_rules! each_part {
    ($callback:ident) => { $crate::each_part! { @ [$callback!] [] } };
    (@ [$($callback:tt)*] [$($before:tt)*]) => {
        $($callback)* {
            $($before)*
            leases: a_lock_is_taken_by_one_and_its_fences_only_grow owner_without_an_answer_gets_its_fence_again lock_is_revoked_from_its_owner_alone releases_with_a_cooldown_are_counted a_lock_is_taken_only_while_its_fence_is_the_one_seen only_the_owner_extends_and_releases an_expired_lease_is_not_extended equal_names_of_different_kinds_are_different_locks a_lock_is_inspected_listed_and_broken;
            pages: published_entry_comes_back_unchanged nothing_is_published_after_a_takeover a_repeated_publish_succeeds_again the_same_content_is_renewed_only_over_itself an_entry_is_removed_only_under_the_lease purged_page_is_removed_and_its_running_generation_is_refused only_entries_beyond_their_retention_are_pruned pages_are_listed_in_order_with_their_locks_and_history pages_are_counted_and_the_latest_come_first pages_leave_in_their_order_but_for_those_being_regenerated;
            invalidations: epochs_grow_in_the_order_in_which_they_are_seen invalidations_are_read_in_pages_by_epoch_and_backwards_by_list names_of_one_epoch_are_read_together sync_returns_the_state_of_each_awaited_page a_purge_is_forgotten_only_when_no_entry_is_older purge_distinguishes_keys_with_a_common_beginning;
            requests: request_is_begun_by_one_owner request_is_taken_over_only_after_its_time first_response_of_the_owner_stays request_that_has_not_finished_is_forgotten_by_its_owner requests_are_pruned_in_batches requests_have_any_name_and_any_response;
            processes: figures_of_a_process_are_replaced_listed_and_forgotten figures_of_silent_processes_are_forgotten;
            clocks: a_cooldown_does_not_end_when_the_clock_is_set_back a_holder_whose_clock_is_right_keeps_its_lock entry_from_before_the_clock_was_set_back_has_no_age;
        }
    };
}
