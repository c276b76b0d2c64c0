//! The invalidation list of a process, and how the process learns of others' invalidations.

mod commands;
mod list;
mod names;
mod outbox;
mod sync;

pub(crate) use commands::{UNKNOWN, written};
pub(crate) use list::{Invalidations, KEPT, Target};
pub(crate) use outbox::Outbox;
pub(crate) use sync::Schedule;
