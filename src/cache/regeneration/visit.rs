//! What happens to a request that memory cannot answer: a *visit*. It starts a regeneration or joins the
//! running one, and waits for as long as [`Progress::wait`](super::waiting::Progress::wait) says.
//!
//! [`Regenerations::join`] is the only place at which a regeneration starts.

use std::sync::Arc;

use perennial_store::Epoch;
use tokio::{sync::watch, time::timeout};
use tracing::Instrument;

use super::{
    Progress, Regenerations,
    driver::Driver,
    generator::Generate,
    machine::{LeaderRequest, Regeneration},
    waiting::Next,
};
use crate::{
    cache::{
        Answer, Lookup,
        entry::{CacheEntry, Visitor},
        parts,
    },
    event::Bypass,
    policy::Refresh,
};

/// What a request asks for, beyond any version of the page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VisitOptions {
    /// See [`Visitor::has_placeholder`].
    pub(crate) has_placeholder: bool,
    /// See [`Visitor::min_epoch`].
    pub(crate) min_epoch: Epoch,
    /// See [`LeaderRequest::is_requested`].
    pub(crate) is_requested: bool,
    /// See [`LeaderRequest::is_kept_briefly`].
    pub(crate) is_kept_briefly: bool,
}

/// The result of a visit.
pub(crate) struct Visited {
    pub(crate) answer: Answer,
    /// The request was the one that started the regeneration.
    pub(crate) leads: bool,
}

/// A visitor's place at a regeneration.
enum Joined {
    /// The visitor watches this regeneration. With `leads`, the visitor has started it.
    Watches {
        progress: watch::Receiver<Progress>,
        leads: bool,
    },
    /// The visitor has an answer at once.
    Answered(Answer),
}

impl Regenerations {
    /// Answers a request that memory alone cannot answer: the request starts or joins a
    /// regeneration, and waits within the limits of the policy. `generate` returns the generator if
    /// this request is the leader, or the reason why there is none, which is then the answer.
    ///
    /// Cancel safe: a regeneration that has started continues.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        options: VisitOptions,
        generate: impl FnOnce() -> Result<Generate, Bypass>,
    ) -> Visited {
        let mut visitor = Visitor {
            has_placeholder: options.has_placeholder,
            demands: options.is_requested,
            min_epoch: options.min_epoch,
            ..Visitor::arriving_at(self.environment.now())
        };
        self.sync.wait_if_overdue().await;
        visitor.known_epoch = self.environment.list.latest();
        let mut generate = Some(generate);
        'restart: loop {
            let mut progress = match self.join(key, policy, &mut visitor, options, &mut generate) {
                Joined::Watches { progress, leads } => {
                    visitor.leads = leads;
                    progress
                }
                Joined::Answered(answer) => {
                    return Visited {
                        answer,
                        leads: false,
                    };
                }
            };
            let leads = visitor.leads;
            loop {
                let seen = progress.borrow_and_update().clone();
                let context = self.environment.context(key, policy);
                match seen.wait(&visitor, &context) {
                    Next::Answer(answer) => return Visited { answer, leads },
                    Next::Until(until) => {
                        let changed = timeout(until - context.now, progress.changed()).await;
                        if let Ok(Err(_)) = changed {
                            let context = self.environment.context(key, policy);
                            let answer = seen.answer_after_panic(&context);
                            return Visited { answer, leads };
                        }
                    }
                    Next::Restart(until) => {
                        // The channel closes when the regeneration is over.
                        let end = async { while progress.changed().await.is_ok() {} };
                        if timeout(until - context.now, end).await.is_ok() {
                            continue 'restart;
                        }
                    }
                }
            }
        }
    }

    /// Joins the running regeneration of this key, or starts one.
    fn join(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        visitor: &mut Visitor,
        options: VisitOptions,
        generate: &mut Option<impl FnOnce() -> Result<Generate, Bypass>>,
    ) -> Joined {
        let run = parts::current();
        let inherited_permit = run.as_ref().and_then(|run| run.permit(self.site()));
        visitor.has_permit = inherited_permit.is_some();
        // The guard of the lock is declared after `entry`, so it is dropped first. Dropping the last
        // reference to a version drops a value of the application, which must not happen under the lock.
        let (entry, mut running);
        running = self.running.lock();
        if let Some(progress) = running.joinable.get(key) {
            return Joined::Watches {
                progress: progress.subscribe(),
                leads: false,
            };
        }
        // Memory is asked once more, under the lock: a regeneration may have ended since the first lookup, and
        // the driver writes to memory before the key leaves the list of running regenerations.
        entry = self.memory.get(key);
        let context = self.environment.context(key, policy);
        let is_busy = || self.peer_leases.contains(key, context.now);
        if let Some(entry) = entry.clone()
            && let Lookup::Hit(answer) = CacheEntry::lookup(entry, visitor, &context, is_busy)
        {
            return Joined::Answered(answer);
        }
        // The token is taken before the check below: a shutdown that comes afterwards waits for the
        // token.
        let token = self.environment.locks.tasks().token();
        if self.environment.is_shutting_down() {
            return Joined::Answered(Answer::Pass(Bypass::ShuttingDown));
        }
        let Some(generate) = generate.take() else {
            // Only a leader takes the generator, and it has returned before. So this is never reached.
            return Joined::Answered(Answer::Pass(Bypass::Purged));
        };
        let request = LeaderRequest {
            min_epoch: options.min_epoch,
            is_requested: options.is_requested,
            is_kept_briefly: options.is_kept_briefly,
        };
        let (regeneration, first) = Regeneration::new(entry, request, &context);
        let (sender, progress) = watch::channel(first);
        running.joinable.insert(key.to_owned(), sender.clone());
        let previous_release = running.releasing.get(key).cloned();
        drop(running);
        // The driver exists before the caller's closure runs: if the closure panics, dropping the driver lets
        // another request start.
        let mut driver = Driver::new(
            self,
            key,
            policy.clone(),
            regeneration,
            sender,
            previous_release,
        );
        driver.started_by(run.and_then(|run| run.chain()), inherited_permit);
        match generate() {
            Ok(work) => driver.generates_by(work),
            // This drops the driver, and so tells the visitors who have joined meanwhile that the regeneration
            // has ended.
            Err(why) => return Joined::Answered(Answer::Pass(why)),
        }
        let run = async move {
            driver.run().await;
            drop(token);
        };
        tokio::spawn(run.instrument(tracing::debug_span!("regeneration", key)));
        Joined::Watches {
            progress,
            leads: true,
        }
    }
}
