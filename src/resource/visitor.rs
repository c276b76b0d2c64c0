//! A request that waits for a regeneration.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{
    policy::Refresh,
    resource::{Answer, Engine, Pass, Version, decide::Freshness, invalidation::Void},
};

/// How far a regeneration has come, for those who wait.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Asking the store whether it has a version.
    Looking,
    /// This version may be served meanwhile. `begun`: a new one is being generated here, and not just asked for.
    Stale { version: Arc<Version>, begun: bool },
    /// Nothing may be served yet; this process generates it.
    First,
    /// Nothing may be served yet; another process is at it.
    Elsewhere,
    /// It has ended with this.
    Done(Answer),
}

/// A request that watches a regeneration.
pub(super) struct Visitor {
    pub(super) stage: watch::Receiver<Stage>,
    /// It started the regeneration.
    pub(super) leads: bool,
}

impl Visitor {
    /// Waits until the regeneration is over.
    pub(super) async fn end(&mut self) {
        while self.stage.changed().await.is_ok() {}
    }

    /// Waits for an answer, as long as the policy allows somebody who arrived then.
    pub(super) async fn wait(
        &mut self,
        engine: &Engine,
        policy: &Refresh,
        arrived: Instant,
    ) -> Answer {
        loop {
            let mut stage = self.stage.borrow_and_update().clone();
            if let Stage::Stale { version, .. } = &stage
                && version.freshness(engine.clock.now(), policy, &engine.known)
                    == Freshness::Expired
            {
                // It has come to `max_stale` meanwhile.
                stage = Stage::First;
            }
            let limit = match &stage {
                Stage::Done(answer) => return answer.clone(),
                // Mostly bounded by the statement limit; not where the runtime that looks is not driven.
                Stage::Looking if self.leads => Some(policy.timeout.max(engine.store.limit())),
                Stage::Looking => Some(policy.first.limit().max(engine.store.limit())),
                Stage::Stale { version, .. } if !self.leads => {
                    return Answer::Version(version.clone());
                }
                Stage::Stale { begun: true, .. } => Some(policy.wait),
                Stage::Stale { begun: false, .. } => Some(policy.wait.min(engine.store.patience())),
                // Its own work: bounded by the policy's timeout.
                Stage::First if self.leads => None,
                Stage::First | Stage::Elsewhere => Some(policy.first.limit()),
            };
            let changed = within(
                arrived,
                limit.unwrap_or(Duration::MAX),
                self.stage.changed(),
            );
            // `None`: not in time. An error: never, as the regeneration itself has panicked.
            let in_time = match changed.await {
                Some(Ok(())) => continue,
                Some(Err(_)) => true,
                None => false,
            };
            let Stage::Stale { version, .. } = stage else {
                return Answer::Unavailable {
                    retry_in: policy.cooldown(),
                };
            };
            match version.freshness(engine.clock.now(), policy, &engine.known) {
                Freshness::Fresh | Freshness::Stale => return Answer::Version(version),
                Freshness::Expired if version.void(&engine.known) == Void::Purged => {
                    return Answer::Pass(Pass::Purged);
                }
                Freshness::Expired if in_time => {
                    return Answer::Unavailable {
                        retry_in: policy.cooldown(),
                    };
                }
                // While it was waited for: from now on as for a first version.
                Freshness::Expired => {}
            }
        }
    }
}

/// What comes of it within the limit, counted from when somebody arrived.
pub(super) async fn within<T>(
    arrived: Instant,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    match arrived.checked_add(limit) {
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}
