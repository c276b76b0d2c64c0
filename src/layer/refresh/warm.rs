//! Requests of [`Perennial::warm`](crate::Perennial::warm), which the layers tell from visitors'.

use std::{cell::Cell, time::Duration};

use crate::{
    event::{Bypass, Served},
    policy::Refresh,
};

tokio::task_local! {
    /// The last answer of a layer to the request that this task warms.
    static WARMED: Cell<Served>;
}

/// Runs a request, and returns its result with the layer's answer.
pub(crate) async fn warming<T>(request: impl Future<Output = T>) -> (T, Served) {
    let run = async { (request.await, WARMED.with(Cell::get)) };
    let none = Cell::new(Served::Bypass(Bypass::NoLayer));
    WARMED.scope(none, run).await
}

/// Records the answer, if this task warms.
pub(super) fn answered(served: Served) {
    // Visitors' tasks have no such cell.
    let _ = WARMED.try_with(|warmed| warmed.set(served));
}

/// Returns the policy for a request of this task. One that warms waits for its own generator, and
/// for no other process.
pub(super) fn policy(policy: Refresh) -> Refresh {
    match WARMED.try_with(|_| ()) {
        Ok(()) => policy
            .soft_timeout(policy.timeout)
            .first_wait(Duration::ZERO),
        Err(_) => policy,
    }
}
