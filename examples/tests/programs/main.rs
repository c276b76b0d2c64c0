//! The examples as programs: several processes on one database, real signals, and the messages
//! after a wrong use.

mod exclusive;
mod gateway;
mod mailout;
mod metrics;
mod payment;
mod processes;
mod sessions;
