//! Requests of [`Perennial::warm`](crate::Perennial::warm), which the layers tell from visitors'.

use std::{cell::Cell, time::Duration};

use crate::{
    event::Warmed,
    http::cache_status::{Forward, Handling},
    policy::Refresh,
};

tokio::task_local! {
    /// The last answer of a layer to the request that this task warms.
    static WARMED: Cell<Option<Handling>>;
}

/// Runs a request, and returns its result with the outcome. `NotCached`: no layer has answered.
pub(crate) async fn warming<T>(request: impl Future<Output = T>) -> (T, Warmed) {
    let run = async {
        let result = request.await;
        let outcome = WARMED.with(Cell::get);
        (
            result,
            outcome.map_or(Warmed::NotCached { detail: "no-layer" }, outcome_of),
        )
    };
    WARMED.scope(Cell::new(None), run).await
}

/// Records the answer, if this task warms.
pub(super) fn answered(how: Handling) {
    // Visitors' tasks have no such cell.
    let _ = WARMED.try_with(|warmed| warmed.set(Some(how)));
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

fn outcome_of(how: Handling) -> Warmed {
    match how {
        Handling::Hit { ttl } if ttl < 0 => Warmed::Elsewhere,
        Handling::Hit { .. } => Warmed::Fresh,
        Handling::Unavailable => Warmed::Elsewhere,
        Handling::Forwarded(Forward {
            detail: Some("failed"),
            ..
        }) => Warmed::Failed,
        Handling::Forwarded(Forward {
            detail: Some(detail),
            ..
        }) => Warmed::NotCached { detail },
        Handling::Forwarded(_) => Warmed::Generated,
    }
}
