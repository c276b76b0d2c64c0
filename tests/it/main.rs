//! Perennial as its users meet it: real servers, real files, real processes.

#[macro_use]
mod databases;

mod bookshop;
mod cache_status;
mod claims;
#[cfg(feature = "compression")]
mod compression;
mod content;
mod database;
mod epochs;
mod event_stream;
mod examples;
mod exclusive;
mod extensions;
mod failures;
mod foreign;
mod gateway;
mod herd;
mod hooked;
mod http;
mod idempotency;
mod invalidated;
mod invalidation;
mod keys;
mod layer;
mod locks;
mod log;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod loss;
mod named_locks;
mod once;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod own_server;
mod patience;
mod paused;
mod processes;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod proxy;
mod regeneration;
mod rfc9111;
mod safety;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod session_locks;
mod stacks;
mod store;
mod strays;
mod support;
mod sync;
mod testing;
mod wrong_uses;
