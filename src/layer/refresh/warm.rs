//! Requests of the application itself, which layers tell from visitors'.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use perennial_store::Error;

use crate::{
    event::Served,
    page::{Generated, explain::Explanation},
    policy::Refresh,
};

tokio::task_local! {
    /// The request of this task, if the application sends it.
    static OWN: Own;
}

/// The number of such requests in this process. While there is none, a visitor's request reads no
/// task-local value.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The purpose of a request of the application.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Purpose {
    Warm,
    /// Also a fresh page is regenerated.
    Regenerate,
    Explain,
}

struct Own {
    purpose: Purpose,
    /// The last answer of a layer.
    answered: Cell<Option<Served>>,
    explained: Cell<Option<Result<Explanation, Error>>>,
    /// A generator of the request has failed, panicked, or run out of time.
    failed: Arc<AtomicBool>,
}

impl Own {
    fn new(purpose: Purpose) -> Self {
        RUNNING.fetch_add(1, Relaxed);
        Self {
            purpose,
            answered: Cell::new(None),
            explained: Cell::new(None),
            failed: Arc::default(),
        }
    }

    /// Applies a function to the request of the application that this task runs. `None`: the task
    /// runs a visitor's request.
    #[inline]
    fn with<T>(function: impl FnOnce(&Self) -> T) -> Option<T> {
        if RUNNING.load(Relaxed) == 0 {
            return None;
        }
        OWN.try_with(function).ok()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Relaxed);
    }
}

/// Runs a request of the application, and returns its result with the layer's answer; `None`: no
/// layer answered.
pub(crate) async fn own<T>(
    request: impl Future<Output = T>,
    purpose: Purpose,
) -> (T, Option<Served>) {
    let run = async {
        let result = request.await;
        // A visitor with an old version gets no failure.
        let served = match failed() {
            true => Some(Served::Failed),
            false => Own::with(|own| own.answered.get()).flatten(),
        };
        (result, served)
    };
    OWN.scope(Own::new(purpose), run).await
}

/// Runs a request for an explanation, and returns the layer's; `None`: no layer answered.
pub(crate) async fn explanation_by<T>(
    request: impl Future<Output = T>,
) -> Option<Result<Explanation, Error>> {
    let run = async {
        request.await;
        Own::with(|own| own.explained.take()).flatten()
    };
    OWN.scope(Own::new(Purpose::Explain), run).await
}

/// Records the explanation for a request of the application.
pub(super) fn explained(explanation: Result<Explanation, Error>) {
    Own::with(|own| own.explained.set(Some(explanation)));
}

/// Returns true for a request for an explanation.
#[inline]
pub(super) fn explains() -> bool {
    Own::with(|own| own.purpose == Purpose::Explain).unwrap_or(false)
}

/// Records the answer to a request of the application.
#[inline]
pub(super) fn answered(served: Served) {
    Own::with(|own| own.answered.set(Some(served)));
}

/// Returns true for a request that regenerates a fresh page, too.
#[inline]
pub(super) fn forces() -> bool {
    Own::with(|own| own.purpose == Purpose::Regenerate).unwrap_or(false)
}

/// Returns true if a generator of this request of the application has failed.
pub(super) fn failed() -> bool {
    Own::with(|own| own.failed.load(Relaxed)).unwrap_or(false)
}

/// Returns the policy for a request of this task. A request of the application waits for its own
/// generator, and for no other process.
pub(super) fn policy(policy: Refresh) -> Refresh {
    match Own::with(|_| ()) {
        Some(()) => policy
            .soft_timeout(policy.timeout)
            .first_wait(Duration::ZERO),
        None => policy,
    }
}

/// Returns a generator that records its failure, if this task runs a request of the application.
pub(super) fn watched(
    generator: impl Future<Output = Generated>,
) -> impl Future<Output = Generated> {
    let failed = Own::with(|own| Arc::clone(&own.failed));
    async move {
        let Some(failed) = failed else {
            return generator.await;
        };
        // Until the generator ends: a panic and a timeout end it without a result.
        failed.store(true, Relaxed);
        let generated = generator.await;
        failed.store(matches!(generated, Generated::Failed(_)), Relaxed);
        generated
    }
}
