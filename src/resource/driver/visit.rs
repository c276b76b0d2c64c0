//! Requests that start a regeneration or join one.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::Instrument;

use super::{
    Task,
    report::{Measured, reason},
};
use crate::{
    event::{Bypass, Reason},
    policy::Refresh,
    resource::{
        Answer, Pages, Shown, Work, parts,
        state::{Flight, Next, Visitor},
    },
};

impl Pages {
    /// Answers a request that memory alone cannot answer: the request starts or joins a
    /// regeneration, and waits within the limits of the policy. `generate` returns the generator if
    /// this request is the leader. The result is the answer, and true for the leader.
    ///
    /// `has_placeholder`: see [`Visitor`].
    ///
    /// Cancel safe: a regeneration that has started continues.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        has_placeholder: bool,
        generate: impl FnOnce() -> Work,
    ) -> (Answer, bool) {
        let arrived = self.now();
        self.synced().await;
        let mut generate = Some(generate);
        'restart: loop {
            let (mut progress, leads) = match self.join(key, policy, &mut generate) {
                Ok(joined) => joined,
                Err(answer) => return (answer, false),
            };
            let visitor = Visitor {
                arrived,
                leads,
                has_placeholder,
            };
            loop {
                let seen = progress.borrow_and_update().clone();
                let facts = self.facts(key, policy);
                match seen.wait(visitor, &facts) {
                    Next::Answer(answer) => return (answer, leads),
                    Next::Until(until) => {
                        let changed = tokio::time::timeout(until - facts.now, progress.changed());
                        if let Ok(Err(_)) = changed.await {
                            return (seen.lost(&self.facts(key, policy)), leads);
                        }
                    }
                    Next::Restart(until) => {
                        let end = async { while progress.changed().await.is_ok() {} };
                        if tokio::time::timeout(until - facts.now, end).await.is_ok() {
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
        generate: &mut Option<impl FnOnce() -> Work>,
    ) -> Result<(watch::Receiver<Shown>, bool), Answer> {
        let mut running = self.running();
        if let Some(progress) = running.get(key) {
            return Ok((progress.subscribe(), false));
        }
        // A regeneration may have ended since the first look at memory. The task writes to memory
        // before the key leaves `running`.
        let view = self.memory.get(key);
        if let Some(view) = view.clone()
            && let Ok(answer) = view.look(&self.facts(key, policy), || false)
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
        let facts = self.facts(key, policy);
        let (state, shown) = Flight::new(view, &facts);
        let (sender, progress) = watch::channel(shown);
        running.insert(key.to_owned(), sender.clone());
        drop(running);
        // The task exists before the caller's closure runs: if the closure panics, the drop of
        // the task lets another request start.
        let mut driver = Task {
            measured: Measured::new(reason(state.newest(), &facts)),
            state,
            pages: Arc::clone(self),
            key: key.into(),
            layer: Arc::from(""),
            policy: *policy,
            progress: sender,
            generator: None,
            lent: parts::permit(),
            permit: None,
            lease: None,
            readable: None,
            retention: None,
            left: false,
        };
        let work = generate();
        driver.layer = work.layer;
        if work.is_requested {
            driver.measured.reason = Reason::Requested;
        }
        driver.generator = Some(work.generator);
        (driver.readable, driver.retention) = (work.readable, work.retention);
        let run = async move {
            driver.run().await;
            drop(token);
        };
        tokio::spawn(run.instrument(tracing::debug_span!("regeneration", key)));
        Ok((progress, true))
    }
}
