//! Requests of [`Perennial::warm`](crate::Perennial::warm) and
//! [`Perennial::regenerate`](crate::Perennial::regenerate), which the layers tell from visitors'.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{event::Served, policy::Refresh, resource::Generated};

tokio::task_local! {
    /// The request of this task, if the application sends it.
    static OWN: Own;
}

struct Own {
    /// Also a fresh page is regenerated.
    forces: bool,
    /// The last answer of a layer.
    answered: Cell<Option<Served>>,
    /// A generator of the request has failed, panicked, or run out of time.
    failed: Arc<AtomicBool>,
}

/// Runs a request of the application, and returns its result with the layer's answer; `None`: no
/// layer answered.
pub(crate) async fn own<T>(request: impl Future<Output = T>, forces: bool) -> (T, Option<Served>) {
    let own = Own {
        forces,
        answered: Cell::new(None),
        failed: Arc::default(),
    };
    let run = async {
        let result = request.await;
        let answered = OWN.with(|own| own.answered.get());
        // A visitor with an old version gets no failure.
        (
            result,
            if failed() {
                Some(Served::Failed)
            } else {
                answered
            },
        )
    };
    OWN.scope(own, run).await
}

/// Records the answer to a request of the application.
pub(super) fn answered(served: Served) {
    // Visitors' tasks have no such cell.
    let _ = OWN.try_with(|own| own.answered.set(Some(served)));
}

/// Returns true for a request that regenerates a fresh page, too.
pub(super) fn forces() -> bool {
    OWN.try_with(|own| own.forces).unwrap_or(false)
}

/// Returns true if a generator of this request of the application has failed.
pub(super) fn failed() -> bool {
    let failed = OWN.try_with(|own| own.failed.load(Relaxed));
    failed.unwrap_or(false)
}

/// Returns the policy for a request of this task. A request of the application waits for its own
/// generator, and for no other process.
pub(super) fn policy(policy: Refresh) -> Refresh {
    match OWN.try_with(|_| ()) {
        Ok(()) => policy
            .soft_timeout(policy.timeout)
            .first_wait(Duration::ZERO),
        Err(_) => policy,
    }
}

/// Returns a generator that records its failure, if this task runs a request of the application.
pub(super) fn watched(
    generator: impl Future<Output = Generated>,
) -> impl Future<Output = Generated> {
    let failed = OWN.try_with(|own| Arc::clone(&own.failed)).ok();
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
