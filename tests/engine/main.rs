//! The engine, almost always in virtual time over the store in memory: when a version is generated, who waits
//! for it, and what is served meanwhile. No test here is about SQL; the few that need a file have an SQLite
//! one.

mod capacity;
mod content;
mod database_patience;
mod epochs;
mod events;
mod expiry;
mod failures;
mod invalidation;
#[cfg(feature = "metrics")]
mod metrics;
mod missed_invalidations;
mod modes;
mod nested_layers;
mod other_processes;
mod own_writes;
mod panics;
mod parts;
mod public_api;
mod reentrancy;
mod regeneration;
mod shared_stats;
mod storage_bounds;
mod typed_values;
mod warming;

use perennial_testkit::log::{Log, listen_with};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, dynamic_filter_fn},
};

/// Listens to the log for all tests of this program.
fn listen() {
    let is_calling = dynamic_filter_fn(|_, _| reentrancy::is_calling());
    let is_calling = is_calling.with_max_level_hint(LevelFilter::DEBUG);
    listen_with(reentrancy::CallsTheSite.with_filter(is_calling));
}

/// Returns the log of this thread from now on.
fn log_of_this_thread() -> Log {
    listen();
    Log::of_this_thread()
}
