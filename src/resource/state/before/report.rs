//! Reports of the decisions, for events.

use std::time::Duration;

use super::Content;
use crate::event::Outcome;

/// A report for the log, the counters and the subscribers.
#[derive(Clone, Debug)]
pub(in crate::resource::state) enum Report<C: Content> {
    /// No version can be served, and another process holds the lease for this time.
    Waits(#[expect(dead_code, reason = "the task logs the time")] Duration),
    /// The stale version is served without a regeneration.
    NotBegun(Outcome),
    /// The generator has ended, and its result is stored, served or dropped.
    Ended(Ended<C>),
}

/// The end of a regeneration.
#[derive(Clone, Debug)]
pub(in crate::resource::state) struct Ended<C: Content> {
    pub(in crate::resource::state) outcome: Outcome,
    pub(in crate::resource::state) failure: Option<C::Failure>,
    pub(in crate::resource::state) serves_old: bool,
    /// The time until another try, after a failure.
    pub(in crate::resource::state) cooldown: Duration,
}

impl<C: Content> Report<C> {
    pub(super) fn ended(outcome: Outcome) -> Self {
        Self::Ended(Ended {
            outcome,
            failure: None,
            serves_old: false,
            cooldown: Duration::ZERO,
        })
    }
}
