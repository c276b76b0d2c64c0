//! How long a visitor waits for a regeneration, and for what. [`Progress`] is the state of a regeneration as
//! visitors see it, and [`Progress::wait`] decides whether to keep waiting. It is a pure function, like the
//! state machine.
//!
//! The promise that is kept here: while a version may be served, only the leader waits, and no longer than
//! `leader_wait`, or than the store's patience if that is shorter.

use std::{sync::Arc, time::Duration};

use perennial_store::Epoch;

use crate::{
    cache::entry::{Answer, DecisionContext, Freshness, Version, Visitor},
    clock::Tick,
    event::Bypass,
};

/// What waiting visitors observe of a regeneration.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Progress<B> {
    /// The process asks the store for a version.
    Probing,
    /// A version that may be served meanwhile. `generating` says whether the generator runs in this process.
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
    /// The regeneration has not begun, because no page can be generated for the request that started it. The
    /// other visitors start one of their own.
    Withdrawn,
    /// The answer is known. The regeneration may still be publishing or releasing.
    Done(Answer<B>),
}

/// What a visitor does next.
#[derive(Clone, Debug)]
pub(crate) enum Next<B> {
    Answer(Answer<B>),
    /// Decide again when the progress changes, or at this time.
    Until(Tick),
    /// Start again when the regeneration has ended. If it has not ended at this time, decide again.
    Restart(Tick),
}

impl<B: Clone> Progress<B> {
    /// Decides the next action of a visitor, within the limits of the policy.
    pub(crate) fn wait(&self, visitor: &Visitor, context: &DecisionContext<'_>) -> Next<B> {
        let policy = context.policy;
        let limit = |limit| visitor.arrived + limit;
        let first = limit(policy.follower_wait);
        // A request with a placeholder does not wait for a generator, because it can answer with
        // the placeholder at once. Only if there is an old version does its leader wait as usual.
        let waits_as_leader =
            visitor.leads && (!visitor.has_placeholder || self.has_servable_for(visitor, context));
        let until = match self {
            Self::Done(Answer::Version(version)) => {
                return Self::wait_after(version, waits_as_leader, visitor, context);
            }
            // The answer comes from a regeneration that may have begun before this visitor demanded a newer
            // version, so the visitor starts again.
            Self::Done(Answer::Failed(_) | Answer::Unavailable { .. })
                if visitor.demands && !visitor.leads && context.now < first =>
            {
                return Next::Restart(first);
            }
            Self::Done(answer) => return Next::Answer(answer.clone()),
            // The probe ends by its own time limit. This limit matters only if the runtime of the leader has
            // stopped.
            Self::Probing if waits_as_leader => {
                limit(policy.generator_timeout.max(context.statement_timeout))
            }
            // There may be a version in the store, so the wait is at least as long as the store may take.
            Self::Probing => limit(policy.follower_wait.max(context.store_patience)),
            Self::Stale {
                version,
                generating,
            } => {
                let patience = if *generating {
                    Duration::MAX
                } else {
                    context.store_patience
                };
                let leader_wait = if version.is_only_verified(context) {
                    Duration::ZERO
                } else {
                    policy.leader_wait
                };
                let soft = limit(leader_wait.min(patience));
                let freshness = version.freshness_for(context, visitor.min_epoch);
                match (freshness, waits_as_leader) {
                    // This is the promise: while a version may be served, only the leader waits.
                    (Freshness::Fresh | Freshness::Stale, _) => {
                        if !waits_as_leader || context.now >= soft {
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
                    // Another process may be generating the version that this visitor waits for. So the wait is
                    // at least as long as the statement that reads it may take.
                    (Freshness::Expired, true)
                        if visitor.min_epoch > Epoch::NONE && !*generating =>
                    {
                        first.max(limit(context.statement_timeout))
                    }
                    (Freshness::Expired | Freshness::Purged, true) => Tick(i64::MAX),
                    (Freshness::Expired | Freshness::Purged, false) => first,
                }
            }
            Self::Withdrawn => {
                let until = first.max(limit(context.store_patience));
                if context.now < until {
                    return Next::Restart(until);
                }
                until
            }
            Self::Passing(why) if !waits_as_leader => return Next::Answer(Answer::Pass(*why)),
            Self::Passing(why) => {
                let until = limit(policy.generator_timeout.max(context.statement_timeout));
                return if context.now < until {
                    Next::Until(until)
                } else {
                    Next::Answer(Answer::Pass(*why))
                };
            }
            // The policy's timeout bounds the leader's own generator.
            Self::GeneratingFirst if waits_as_leader => Tick(i64::MAX),
            Self::GeneratingFirst | Self::HeldByPeer => first,
        };
        match self {
            _ if context.now < until => Next::Until(until),
            // The time for which the author of a change waits for the new version is over.
            Self::Stale { version, .. } => servable_or_unavailable(version, context),
            _ => unavailable(context),
        }
    }

    /// Decides the next action of a visitor after the regeneration has ended with a version, which may
    /// have expired or been purged since its generator began.
    fn wait_after(
        version: &Arc<Version<B>>,
        waits_as_leader: bool,
        visitor: &Visitor,
        context: &DecisionContext<'_>,
    ) -> Next<B> {
        let answer = || Next::Answer(Answer::Version(version.clone()));
        let first = visitor.arrived + context.policy.follower_wait;
        let restart = || {
            // A leader has brought its generator already.
            if context.now < first && !visitor.leads {
                Next::Restart(first)
            } else {
                servable_or_unavailable(version, context)
            }
        };
        match version.freshness(context) {
            // One visitor runs a generator of its own; the others share the next regeneration.
            Freshness::Purged if waits_as_leader => Next::Answer(Answer::Pass(Bypass::Purged)),
            Freshness::Purged => restart(),
            // The leader gets the outcome of its own regeneration, whatever that is.
            _ if waits_as_leader => answer(),
            // The generator began before the epoch that the visitor has to see. If it began after the visitor's
            // arrival, its result is new enough all the same, whatever has been invalidated since then. Without
            // this exception, visitors who accept no invalidated version at all (parts, and authors of a change
            // that has no epoch yet) would start one regeneration after another.
            _ if version.is_invalidated_before(visitor.min_epoch, context.list)
                && !version.began_after_arrival_of(visitor) =>
            {
                restart()
            }
            // The visitor has waited for this version.
            Freshness::Expired if !version.is_made_since(visitor.arrived) => restart(),
            _ => answer(),
        }
    }

    /// Returns true if there is an old version that this visitor may get.
    fn has_servable_for(&self, visitor: &Visitor, context: &DecisionContext<'_>) -> bool {
        match self {
            Self::Stale { version, .. } => version
                .freshness_for(context, visitor.min_epoch)
                .is_servable(),
            _ => false,
        }
    }

    /// Returns the answer after a panic of the regeneration's task.
    pub(crate) fn answer_after_panic(self, context: &DecisionContext<'_>) -> Answer<B> {
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

/// Returns the answer to a visitor whose wait has ended: the old version if it may be served, or else that
/// there is none.
fn servable_or_unavailable<B>(version: &Arc<Version<B>>, context: &DecisionContext<'_>) -> Next<B> {
    if version.freshness(context).is_servable() {
        Next::Answer(Answer::Version(version.clone()))
    } else {
        unavailable(context)
    }
}

fn unavailable<B>(context: &DecisionContext<'_>) -> Next<B> {
    Next::Answer(Answer::Unavailable {
        retry_in: context.policy.cooldown_time(),
    })
}
