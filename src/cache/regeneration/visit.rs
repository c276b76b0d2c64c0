use std::{sync::Arc, time::Duration};

use perennial_store::locked;
use tokio::sync::watch;
use tracing::Instrument;

use super::driver::Task;
use crate::{
    cache::{
        Accepts, Answer, Cache, DecisionContext, Generate, Lookup, Progress, parts,
        regeneration::{Next, Regeneration, Visitor},
    },
    event::{Bypass, Reason},
    policy::Refresh,
};

/// The end of a visit.
pub(crate) struct Visited {
    pub(crate) answer: Answer,
    /// The request was the one that started the regeneration.
    pub(crate) leads: bool,
}

impl Cache {
    fn context_for<'a>(
        &'a self,
        key: &'a str,
        policy: &'a Refresh,
        accepts: Accepts,
    ) -> DecisionContext<'a> {
        DecisionContext {
            min_epoch: accepts.min_epoch,
            ..self.context(key, policy)
        }
    }

    /// Answers a request that memory alone cannot answer: the request starts or joins a
    /// regeneration, and waits within the limits of the policy. `generate` returns the generator if
    /// this request is the leader.
    ///
    /// Cancel safe: a regeneration that has started continues.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        accepts: Accepts,
        generate: impl FnOnce() -> Generate,
    ) -> Visited {
        let arrived = self.now();
        self.synced().await;
        let mut generate = Some(generate);
        'restart: loop {
            let (mut progress, leads) = match self.join(key, policy, accepts, &mut generate) {
                Ok(joined) => joined,
                Err(answer) => {
                    return Visited {
                        answer,
                        leads: false,
                    };
                }
            };
            loop {
                let seen = progress.borrow_and_update().clone();
                let context = self.context_for(key, policy, accepts);
                let waits = !accepts.placeholder || seen.has_servable(&context);
                let visitor = Visitor {
                    arrived,
                    leads: leads && waits,
                };
                match seen.wait(visitor, &context) {
                    Next::Answer(answer) => return Visited { answer, leads },
                    Next::Until(until) => {
                        let changed = tokio::time::timeout(until - context.now, progress.changed());
                        if let Ok(Err(_)) = changed.await {
                            let answer = seen.lost(&self.context(key, policy));
                            return Visited { answer, leads };
                        }
                    }
                    Next::Restart(until) => {
                        // Until the regeneration is over: its channel closes then.
                        let end = async { while progress.changed().await.is_ok() {} };
                        if tokio::time::timeout(until - context.now, end).await.is_ok() {
                            continue 'restart;
                        }
                    }
                }
            }
        }
    }

    /// Joins the running regeneration of this key, or starts one. `Err`: an answer without a
    /// regeneration.
    fn join(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        accepts: Accepts,
        generate: &mut Option<impl FnOnce() -> Generate>,
    ) -> Result<(watch::Receiver<Progress>, bool), Answer> {
        let run = parts::current();
        let lent = run.as_ref().and_then(|run| run.permit(self.address()));
        // What ends with this block does so after the lock: the last reference to a version drops a
        // value of the application's.
        let (view, mut running);
        running = locked(&self.running);
        if let Some(progress) = running.flights.get(key) {
            return Ok((progress.subscribe(), false));
        }
        // A regeneration may have ended since the first look at memory. The task writes to memory
        // before the key leaves the list.
        view = self.memory.get(key);
        let context = DecisionContext {
            permit: lent.is_some(),
            ..self.context_for(key, policy, accepts)
        };
        if let Some(view) = view.clone()
            && let Lookup::Hit(answer) = view.look(&context, || self.is_elsewhere(key))
        {
            return Err(answer);
        }
        // The token is taken before the check below: a shutdown that comes afterwards waits for the
        // token.
        let token = self.locks.tasks().token();
        if self.is_closing() {
            return Err(Answer::Pass(Bypass::ShuttingDown));
        }
        let Some(generate) = generate.take() else {
            // Only a leader has taken the generator, and a leader never returns here.
            return Err(Answer::Pass(Bypass::Purged));
        };
        let context = self.context(key, policy);
        let (mut regeneration, shown) = Regeneration::new(view, &context);
        regeneration.min_epoch = accepts.min_epoch;
        let (sender, progress) = watch::channel(shown);
        running.flights.insert(key.to_owned(), sender.clone());
        let before = running.releasing.get(key).cloned();
        drop(running);
        // The task exists before the caller's closure runs: if the closure panics, the drop of
        // the task lets another request start.
        let mut task = Task {
            regeneration,
            cache: Arc::clone(self),
            key: key.into(),
            policy: *policy,
            shown: Some(sender),
            before,
            releasing: None,
            given: Generate::default(),
            outer: run.and_then(|run| run.chain()),
            lent,
            permit: None,
            held: false,
            lease: None,
            reason: Reason::Requested,
            began: None,
            took: Duration::ZERO,
            bytes: 0,
            found_expired: false,
        };
        task.given = generate();
        let run = async move {
            task.run().await;
            drop(token);
        };
        tokio::spawn(run.instrument(tracing::debug_span!("regeneration", key)));
        Ok((progress, true))
    }
}
