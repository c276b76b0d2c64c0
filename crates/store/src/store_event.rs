//! What a store reports: operations, the state of the database, and locks. `Store::notify` writes the line in
//! the log and hands the event to the site, which turns it into a public event and a metric.

use std::time::Duration;

use crate::{
    fence::{Fence, LockLoss},
    name::LockName,
};

/// An event of a store.
#[derive(Clone, Copy, Debug)]
pub enum StoreEvent<'a> {
    /// An operation has ended.
    Operation {
        /// The name of the operation.
        operation: &'static str,
        /// The time of the operation, with the wait for a connection.
        took: Duration,
        /// The operation has succeeded.
        succeeded: bool,
        /// The latest attempt at every operation has succeeded.
        works: bool,
    },
    /// An operation has failed in the database for the first time since it last worked.
    DatabaseUnavailable {
        /// The name of the operation.
        operation: &'static str,
        /// The error, with its causes.
        error: &'a str,
    },
    /// The operation works again.
    DatabaseBack {
        /// The name of the operation.
        operation: &'static str,
    },
    /// A lock was acquired.
    LockAcquired {
        /// The lock's name.
        name: &'a LockName,
        /// The fence of the lease.
        fence: Fence,
    },
    /// An attempt did not get the lock: another holder has it, or has had it since the caller last read the
    /// lock's fence.
    LockContended {
        /// The lock's name.
        name: &'a LockName,
    },
    /// A lease was lost before its release.
    LockLost {
        /// The lock's name.
        name: &'a LockName,
        /// The fence of the lost lease.
        fence: Fence,
        /// The reason for the loss.
        reason: LockLoss,
    },
    /// This process has broken a lock.
    LockBroken {
        /// The lock's name.
        name: &'a LockName,
    },
    /// A repeated idempotent request was answered with the stored response.
    Replayed {
        /// The name of the request's row.
        name: &'a str,
    },
}

impl StoreEvent<'_> {
    /// Writes the event's line to the log.
    pub(crate) fn log(&self) {
        /// A line about a lock.
        macro_rules! lock {
            ($level:ident, $lock:ident, $($rest:tt)+) => {
                tracing::$level!(
                    target: "perennial::lock",
                    name = $lock.as_str(), kind = $lock.kind().as_str(), $($rest)+
                )
            };
        }
        match self {
            Self::Operation { .. } => {}
            Self::DatabaseUnavailable { operation, error } => tracing::error!(
                target: "perennial::database", operation, error,
                "the database fails; versions in memory are still served (logged once for each kind of call, until it works again)"
            ),
            Self::DatabaseBack { operation } => {
                tracing::info!(target: "perennial::database", operation, "the database works again");
            }
            Self::LockAcquired { name, fence } => lock!(debug, name, fence = fence.0, "acquired"),
            Self::LockContended { name } => lock!(
                debug,
                name,
                "not acquired: another holder has it, or has had it since it was last seen"
            ),
            Self::LockLost {
                name,
                fence,
                reason,
            } => lock!(
                warn,
                name,
                reason = reason.as_str(),
                fence = fence.0,
                "the lease is lost"
            ),
            Self::LockBroken { name } => lock!(info, name, "broken"),
            Self::Replayed { name } => tracing::debug!(
                target: "perennial::request", name,
                "a repeated request gets the stored response"
            ),
        }
    }
}
