//! HTTP: what a client, a browser, a CDN and a middleware see of a page that is served from the store (RFC
//! 9110, 9111, 9211 and 9213), and that no visitor sees another visitor's data.

mod cache_control;
mod cache_status;
mod comparison;
#[cfg(feature = "compression")]
mod compression;
mod conditions_and_ages;
mod event_streams;
mod explanations;
mod holes;
mod isolation;
mod keys;
mod layer_order;
mod layer_settings;
mod middleware;
mod misuse_warnings;
mod outer_layers;
mod panicking_extensions;
mod privacy;
mod public_cache_tests;
mod random_input;
mod recipes;
mod request_extensions;
mod response_extensions;
mod routing;
mod tower_services;
mod validators;
mod vocabulary;

use perennial_testkit::log::{self, Log};

/// Listens to the log for all tests of this program.
fn listen() {
    #[cfg(feature = "compression")]
    log::listen_with(compression::listener());
    #[cfg(not(feature = "compression"))]
    log::listen();
}

/// Returns the log of this thread from now on.
fn log_of_this_thread() -> Log {
    listen();
    Log::of_this_thread()
}
