//! The waits of visitors for a regeneration.

use std::{sync::Arc, time::Duration};

use super::view::{Answer, Content, Facts, Freshness, Version};
use crate::{clock::Tick, resource::PassReason};

/// The progress of a regeneration, for the visitors who wait.
#[derive(Clone, Debug)]
pub(crate) enum Progress<C: Content> {
    /// The process asks the store for a version.
    Looking,
    /// A version that may be served meanwhile. `begun`: the generator runs in this process.
    Stale {
        version: Arc<Version<C>>,
        begun: bool,
    },
    /// No version can be served yet. The generator runs in this process.
    First,
    /// No version can be served yet. Another process holds the lease.
    Elsewhere,
    /// The answer is known. The regeneration may still be publishing or releasing.
    Done(Answer<C>),
}

/// A visitor who waits for a regeneration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Visitor {
    pub(crate) arrived: Tick,
    /// The visitor is the leader, whose request started the regeneration.
    pub(crate) leads: bool,
}

/// The next action of a visitor.
#[derive(Clone, Debug)]
pub(crate) enum Wait<C: Content> {
    Answer(Answer<C>),
    /// Decide again at the next progress, or at this time.
    Until(Tick),
    /// Start again when the regeneration has ended; decide again at this time.
    Restart(Tick),
}

impl<C: Content> Progress<C> {
    /// Decides the next action of a visitor, within the limits of the policy.
    pub(crate) fn wait(&self, visitor: Visitor, facts: &Facts<'_, C>) -> Wait<C> {
        let Facts { policy, limits, .. } = facts;
        let limit = |limit| visitor.arrived + limit;
        let first = limit(policy.on_miss.limit());
        let until = match self {
            Self::Done(Answer::Version(version)) => {
                // The version may have expired or been purged since the answer was known.
                let is_awaited = visitor.leads || version.is_made_since(visitor.arrived);
                return match version.freshness(facts) {
                    Freshness::Purged if visitor.leads || facts.now >= first => {
                        Wait::Answer(Answer::Pass(PassReason::Purged))
                    }
                    Freshness::Purged => Wait::Restart(first),
                    Freshness::Expired if !is_awaited && facts.now >= first => unavailable(facts),
                    Freshness::Expired if !is_awaited => Wait::Restart(first),
                    _ => Wait::Answer(Answer::Version(version.clone())),
                };
            }
            Self::Done(answer) => return Wait::Answer(answer.clone()),
            // The statement's limit ends the probe, unless the runtime of the leader has stopped.
            Self::Looking if visitor.leads => limit(policy.timeout.max(limits.statement)),
            Self::Looking => first.max(limit(limits.statement)),
            Self::Stale { version, begun } => {
                let patience = if *begun {
                    Duration::MAX
                } else {
                    limits.patience
                };
                let soft = limit(policy.soft_timeout.min(patience));
                match (version.freshness(facts), visitor.leads) {
                    (Freshness::Fresh | Freshness::Stale, leads) => {
                        if !leads || facts.now >= soft {
                            return Wait::Answer(Answer::Version(version.clone()));
                        }
                        soft
                    }
                    // The purge applies to the version that is being generated, too.
                    (Freshness::Purged, true) if *begun => {
                        if facts.now >= soft {
                            return Wait::Answer(Answer::Pass(PassReason::Purged));
                        }
                        soft
                    }
                    (Freshness::Expired | Freshness::Purged, true) => Tick(i64::MAX),
                    (Freshness::Expired | Freshness::Purged, false) => first,
                }
            }
            // The policy's timeout bounds the leader's own generator.
            Self::First if visitor.leads => Tick(i64::MAX),
            Self::First | Self::Elsewhere => first,
        };
        if facts.now < until {
            Wait::Until(until)
        } else {
            unavailable(facts)
        }
    }

    /// Returns the answer after a panic of the regeneration's task.
    pub(crate) fn lost(self, facts: &Facts<'_, C>) -> Answer<C> {
        match self {
            Self::Done(answer) => answer,
            Self::Stale { version, .. } if version.freshness(facts).is_servable() => {
                Answer::Version(version)
            }
            _ => Answer::Unavailable {
                retry_in: facts.policy.cooldown_time(),
            },
        }
    }
}

fn unavailable<C: Content>(facts: &Facts<'_, C>) -> Wait<C> {
    Wait::Answer(Answer::Unavailable {
        retry_in: facts.policy.cooldown_time(),
    })
}
