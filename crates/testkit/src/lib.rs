//! What the tests of several packages share. It is not published, and no crate depends on it but for tests.
//!
//! | for a test of | there is |
//! |---|---|
//! | the engine, in virtual time | [`virtual_time`], [`Origin`], [`get`] and [`Crowd`] |
//! | each database | [`on_each_database!`], [`Db`], [`connection_state`] |
//! | the store's contract | [`store`] |
//! | two sites on one database | [`peers`] |
//! | a network or a server that fails | [`wire`], [`server`], [`hooked`] |
//! | processes | [`Contender`], [`program`], [`clock`] |
//! | what is logged | [`log`] |
//! | a model, state by state | [`search`] |
//! | random input | [`fuzz`] |
//!
//! A wait ends with [`HANG`], which no busy machine exceeds: [`until`] polls.

#[cfg(feature = "sqlite")]
#[macro_use]
mod databases;

#[cfg(unix)]
pub mod clock;
#[cfg(feature = "sqlite")]
pub mod connection_state;
mod contender;
pub mod fuzz;
pub mod hooked;
pub mod log;
mod origin;
#[cfg(feature = "sqlite")]
pub mod peers;
#[cfg(unix)]
pub mod program;
pub mod search;
#[cfg(unix)]
pub mod server;
mod site;
pub mod virtual_time;
mod visitors;
mod waiting;
pub mod wire;

pub use contender::Contender;
#[cfg(feature = "postgres")]
pub use databases::deadpool_of;
#[cfg(feature = "sqlite")]
pub use databases::{Db, all_of, by_deadpool, four_digits, open, open_site, pool_of};
pub use origin::{Origin, nowhere, serve, serve_origin};
pub use perennial_driver_tests::{HANG, store, store::page};
#[cfg(feature = "postgres")]
pub use perennial_tokio_postgres::Deadpool;
pub use site::{Folder, every, is_database, patient, taken};
#[doc(hidden)]
pub use sqlx;
pub use visitors::{Ask, Crowd, Reply, exchange, get, pay, post, request};
pub use waiting::{cut_off, rounds, until};
