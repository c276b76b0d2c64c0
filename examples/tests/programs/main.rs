//! The examples as programs: several processes on one database, real signals, and the messages
//! after a wrong use.

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[path = "../../../tests/servers/src/clock.rs"]
#[allow(dead_code, reason = "these tests need a part of it")]
mod clock;
#[path = "../../../tests/it/databases.rs"]
#[macro_use]
#[allow(dead_code, unused_macros, reason = "these tests need a part of it")]
mod databases;
#[path = "../../../tests/it/support.rs"]
#[allow(dead_code, reason = "these tests need a part of it")]
mod support;

mod exclusive;
mod gateway;
mod mailout;
mod metrics;
mod payment;
mod processes;
mod program;
mod sessions;
