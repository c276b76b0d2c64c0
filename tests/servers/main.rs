//! A site on a real database, whose files, connections, networks and servers fail: SQLite, and PostgreSQL
//! and MariaDB where `scripts/with-servers` has started them.

#![cfg_attr(
    not(any(feature = "postgres", feature = "mysql")),
    allow(unused_imports, reason = "some tests are for servers alone")
)]

mod cancelled_calls;
#[cfg(all(unix, any(feature = "postgres", feature = "mysql")))]
mod connection_loss;
mod connection_state;
mod forgotten_names;
mod lost_replies;
mod outbox;
mod own_writes;
#[cfg(all(unix, any(feature = "postgres", feature = "mysql")))]
mod server_outages;
mod sqlite_files;
#[cfg(unix)]
mod sqlite_outages;
mod sync;
mod transactions;
mod triggers;
mod typed_values;
