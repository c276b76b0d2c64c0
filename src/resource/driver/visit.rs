//! A request that starts a regeneration or joins one.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::Instrument;

use super::Driver;
use crate::{
    policy::Refresh,
    resource::{
        Answer, Engine, Pass, Progress, Version, View, Work,
        state::{Event, State, Visitor, Wait},
    },
};

impl Engine {
    /// Answers a request that memory alone cannot: starts a regeneration or joins the one that runs, and waits as long as the policy
    /// allows. `generate` makes the generator if this request is the leader. Returns whether it is.
    ///
    /// Cancel safe: what was started goes on.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        generate: impl FnOnce() -> Work,
    ) -> (Answer, bool) {
        let arrived = self.now();
        self.synced().await;
        let mut generate = Some(generate);
        'anew: loop {
            let (mut progress, leads) = match self.join(key, policy, &mut generate) {
                Ok(joined) => joined,
                Err(answer) => return (answer, false),
            };
            let visitor = Visitor { arrived, leads };
            loop {
                let seen = progress.borrow_and_update().clone();
                let facts = self.facts(key, policy);
                match seen.wait(visitor, &facts) {
                    Wait::Answer(answer) => return (answer, leads),
                    Wait::Until(until) => {
                        let changed = tokio::time::timeout(until - facts.now, progress.changed());
                        if let Ok(Err(_)) = changed.await {
                            return (seen.lost(&self.facts(key, policy)), leads);
                        }
                    }
                    Wait::Anew(until) => {
                        let end = async { while progress.changed().await.is_ok() {} };
                        if tokio::time::timeout(until - facts.now, end).await.is_ok() {
                            continue 'anew;
                        }
                    }
                }
            }
        }
    }

    /// Joins the regeneration of this key that runs, or starts one. `Err`: neither is needed, or allowed.
    fn join(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        generate: &mut Option<impl FnOnce() -> Work>,
    ) -> Result<(watch::Receiver<Progress>, bool), Answer> {
        let mut running = self.running();
        if let Some(progress) = running.get(key) {
            return Ok((progress.subscribe(), false));
        }
        // A regeneration may have ended since the first look; it leaves `running` after it has written to memory.
        let view = self.memory.get(key);
        if let Some(view) = view.clone()
            && let Ok(answer) = view.look(&self.facts(key, policy), || false)
        {
            return Err(answer);
        }
        // Before the question: a shutdown that comes afterwards waits for the token.
        let token = self.locks.tasks().token();
        if self.is_closing() {
            return Err(Answer::Pass(Pass::ShuttingDown));
        }
        let Some(generate) = generate.take() else {
            // Only the leader has taken it, and does not come again.
            return Err(Answer::Pass(Pass::Purged));
        };
        let newest = match view {
            Some(View::Version(version)) => Some(Version::clone(&version)),
            _ => None,
        };
        let (sender, progress) = watch::channel(Progress::Looking);
        running.insert(key.to_owned(), sender.clone());
        drop(running);
        // Before a caller's closure is called: if that panics, dropping the driver lets others begin.
        let mut driver = Driver {
            state: State::new(newest, &self.facts(key, policy)),
            engine: Arc::clone(self),
            key: key.to_owned(),
            policy: *policy,
            progress: sender,
            generator: None,
            seed: None,
            permit: None,
            lease: None,
            left: false,
        };
        let first = driver.on(Event::Begun);
        let work = generate();
        driver.state.generator_has_begun(work.begun);
        (driver.generator, driver.seed) = (Some(work.generator), work.seed);
        let run = async move {
            driver.run(first).await;
            drop(token);
        };
        tokio::spawn(run.instrument(tracing::debug_span!("regeneration", key)));
        Ok((progress, true))
    }
}
