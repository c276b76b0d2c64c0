//! Perennial from its users' side. Each test stands at the lowest place where its claim can fail:
//!
//! | what decides | where | files |
//! |---|---|---|
//! | the engine | virtual time, a store in memory | `paused.rs` and its users |
//! | a statement, a driver, a pool | each database | `store.rs` (the contract) and the tests in `on_each_database!` |
//! | the network, a server that ends | `wire.rs` and `server.rs` of tests/servers | `loss.rs`, `servers.rs`, `lost_replies.rs` |
//! | processes | processes of this program, and Python's | `herd.rs`, `truth.rs`, `foreign.rs` |
//! | signals, programs | processes of the examples | `examples/tests`, `examples/bookshop/tests` |
//!
//! The simulation (`tests/sim`) has the sequences of events and faults that no test here has.

#[macro_use]
mod databases;

mod api;
mod bounds;
mod cache_status;
mod calendar;
mod cancelled;
mod capacity;
mod claims;
#[cfg(feature = "compression")]
mod compression;
mod content;
mod database;
mod elsewhere;
mod entries;
mod epochs;
mod event_stream;
mod events;
mod exclusive;
mod explain;
mod extensions;
mod failures;
mod files;
mod foreign;
mod fuzz;
mod herd;
mod hooked;
mod http;
mod idempotency;
mod invalidated;
mod invalidation;
mod keys;
mod layer;
mod left_behind;
mod limits;
#[cfg(feature = "postgres")]
mod literals;
mod locks;
mod log;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod loss;
mod lost_replies;
#[cfg(feature = "metrics")]
mod metrics;
mod middleware;
mod mode;
mod named_locks;
mod nested_layers;
mod once;
mod outbox;
mod outer_layers;
mod own_writes;
mod panics;
mod parts;
mod patience;
mod paused;
mod personal;
mod poison;
mod reentrancy;
mod regeneration;
mod response_extensions;
mod rfc9111;
mod routing;
#[cfg(feature = "postgres")]
mod rows;
mod safety;
#[cfg(any(feature = "postgres", feature = "mysql"))]
#[allow(dead_code, reason = "tests/servers uses it, too")]
#[path = "../servers/src/server.rs"]
mod server;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod session_locks;
mod stacks;
mod store;
#[allow(dead_code, reason = "the examples' tests use it, too")]
mod support;
mod sync;
mod testing;
mod transaction;
mod truth;
mod validators;
mod value;
mod warm;
#[cfg(any(feature = "postgres", feature = "mysql"))]
#[path = "../servers/src/wire.rs"]
mod wire;
mod words;
mod wrong_uses;
