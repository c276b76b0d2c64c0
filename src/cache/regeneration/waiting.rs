//! The waits of visitors for a regeneration.

use std::{sync::Arc, time::Duration};

use perennial_store::Epoch;

use crate::{
    cache::entry::{Answer, DecisionContext, Freshness, Version},
    clock::Tick,
    event::Bypass,
};

/// The progress of a regeneration, for the waiting visitors.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Progress<B> {
    /// The process asks the store for a version.
    Probing,
    /// A version that may be served meanwhile. `generating`: the generator runs in this process.
    Stale {
        version: Arc<Version<B>>,
        generating: bool,
    },
    /// No version can be served yet. The generator runs in this process.
    GeneratingFirst,
    /// No version can be served yet. Another process holds the lease.
    HeldByPeer,
    /// The last response was not stored, for this reason, and the regeneration finds out whether the
    /// next one may be (Varnish: hit-for-miss). The leader waits; the service itself answers the
    /// others, who would otherwise wait for a response that is not shared.
    Passing(Bypass),
    /// The answer is known. The regeneration may still be publishing or releasing.
    Done(Answer<B>),
}

/// A waiting visitor of a regeneration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Visitor {
    pub(crate) arrived: Tick,
    /// The visitor is the leader, whose request started the regeneration.
    pub(crate) leads: bool,
}

/// The wishes of one visitor, beside the policy of the route.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accepts {
    /// The visitor has a placeholder. If no version is servable, the visitor waits for the store
    /// alone.
    pub(crate) placeholder: bool,
    /// See [`DecisionContext::min_epoch`](DecisionContext::min_epoch).
    pub(crate) min_epoch: Epoch,
}

/// The next action of a visitor.
#[derive(Clone, Debug)]
pub(crate) enum Next<B> {
    Answer(Answer<B>),
    /// Decide again at the next progress, or at this time.
    Until(Tick),
    /// Start again when the regeneration has ended. If it has not ended at this time, decide again.
    Restart(Tick),
}

impl<B: Clone + PartialEq> Progress<B> {
    /// Decides the next action of a visitor, within the limits of the policy.
    pub(crate) fn wait(&self, visitor: Visitor, context: &DecisionContext<'_>) -> Next<B> {
        let policy = context.policy;
        let limit = |limit| visitor.arrived + limit;
        let first = limit(policy.first_wait);
        let until = match self {
            Self::Done(Answer::Version(version)) => {
                // The version may have expired or been purged since the generator began.
                let is_awaited = visitor.leads || version.is_made_since(visitor.arrived);
                return match version.freshness(context) {
                    // One visitor runs a generator of its own; the others share the next
                    // regeneration.
                    Freshness::Purged if visitor.leads => {
                        Next::Answer(Answer::Pass(Bypass::Purged))
                    }
                    Freshness::Expired if is_awaited => {
                        Next::Answer(Answer::Version(version.clone()))
                    }
                    Freshness::Purged | Freshness::Expired if context.now >= first => {
                        unavailable(context)
                    }
                    Freshness::Purged | Freshness::Expired => Next::Restart(first),
                    _ => Next::Answer(Answer::Version(version.clone())),
                };
            }
            Self::Done(answer) => return Next::Answer(answer.clone()),
            // The statement's limit ends the probe, unless the runtime of the leader has stopped.
            Self::Probing if visitor.leads => limit(policy.timeout.max(context.statement)),
            // The store may have a version.
            Self::Probing => limit(policy.first_wait.max(context.patience)),
            Self::Stale {
                version,
                generating,
            } => {
                let patience = if *generating {
                    Duration::MAX
                } else {
                    context.patience
                };
                let soft = limit(policy.soft_timeout.min(patience));
                match (version.freshness(context), visitor.leads) {
                    // The promise: only the leader waits while a version may be served.
                    (Freshness::Fresh | Freshness::Stale, leads) => {
                        if !leads || context.now >= soft {
                            return Next::Answer(Answer::Version(version.clone()));
                        }
                        soft
                    }
                    // The purge applies to the version that is being generated, too.
                    (Freshness::Purged, true) if *generating => {
                        if context.now >= soft {
                            return Next::Answer(Answer::Pass(Bypass::Purged));
                        }
                        soft
                    }
                    // Another process may generate the version that this visitor waits for.
                    (Freshness::Expired, true)
                        if context.min_epoch > Epoch::NONE && !*generating =>
                    {
                        first.max(limit(context.statement))
                    }
                    (Freshness::Expired | Freshness::Purged, true) => Tick(i64::MAX),
                    (Freshness::Expired | Freshness::Purged, false) => first,
                }
            }
            Self::Passing(why) if !visitor.leads => return Next::Answer(Answer::Pass(*why)),
            Self::Passing(why) => {
                let until = limit(policy.timeout.max(context.statement));
                return if context.now < until {
                    Next::Until(until)
                } else {
                    Next::Answer(Answer::Pass(*why))
                };
            }
            // The policy's timeout bounds the leader's own generator.
            Self::GeneratingFirst if visitor.leads => Tick(i64::MAX),
            Self::GeneratingFirst | Self::HeldByPeer => first,
        };
        if context.now < until {
            Next::Until(until)
        } else {
            unavailable(context)
        }
    }

    /// Returns true if visitors see a version that may be served.
    pub(crate) fn has_servable(&self, context: &DecisionContext<'_>) -> bool {
        matches!(self, Self::Stale { version, .. } if version.freshness(context).is_servable())
    }

    /// Returns the answer after a panic of the regeneration's task.
    pub(crate) fn lost(self, context: &DecisionContext<'_>) -> Answer<B> {
        match self {
            Self::Done(answer) => answer,
            Self::Passing(why) => Answer::Pass(why),
            Self::Stale { version, .. } if version.freshness(context).is_servable() => {
                Answer::Version(version)
            }
            _ => Answer::Unavailable {
                retry_in: context.policy.cooldown_time(),
            },
        }
    }
}

fn unavailable<B>(context: &DecisionContext<'_>) -> Next<B> {
    Next::Answer(Answer::Unavailable {
        retry_in: context.policy.cooldown_time(),
    })
}
