//! Reports of the decisions, for events.

use std::time::Duration;

use crate::{event::Outcome, resource::Failure};

/// A report for the log, the counters and the subscribers.
#[derive(Clone, Debug)]
pub(in crate::resource::state) enum Report {
    /// No version can be served, and another process holds the lease for this time.
    Waits(#[expect(dead_code, reason = "the task logs the time")] Duration),
    /// The stale version is served without a regeneration.
    NotBegun(Outcome),
    /// The generator has ended, and its result is stored, served or dropped.
    Ended(Ended),
}

/// The end of a regeneration.
#[derive(Clone, Debug)]
pub(in crate::resource::state) struct Ended {
    pub(in crate::resource::state) outcome: Outcome,
    pub(in crate::resource::state) failure: Option<Failure>,
    pub(in crate::resource::state) serves_old: bool,
    /// The time until another try, after a failure.
    pub(in crate::resource::state) cooldown: Duration,
}

impl Report {
    pub(super) fn ended(outcome: Outcome) -> Self {
        Self::Ended(Ended {
            outcome,
            failure: None,
            serves_old: false,
            cooldown: Duration::ZERO,
        })
    }
}
