//! The parts of generated content: calls for content within a generator.

use std::{cell::Cell, sync::Arc};

use tokio::sync::OwnedSemaphorePermit;

/// The permit of a regeneration, which the regenerations of its parts share.
pub(super) type Permit = Arc<OwnedSemaphorePermit>;

tokio::task_local! {
    /// The regeneration whose generator this task runs.
    static WHOLE: Whole;
}

struct Whole {
    /// A part was stale, provisional or missing.
    is_provisional: Cell<bool>,
    permit: Option<Permit>,
}

/// Runs a generator on a permit. The result's second value is true if a part was stale, provisional
/// or missing, so that the content must not last as long as its policy says.
pub(super) async fn watched<T>(
    generator: impl Future<Output = T>,
    permit: Option<Permit>,
) -> (T, bool) {
    let run = async {
        let generated = generator.await;
        (generated, WHOLE.with(|whole| whole.is_provisional.get()))
    };
    let whole = Whole {
        is_provisional: Cell::new(false),
        permit,
    };
    WHOLE.scope(whole, run).await
}

/// Tells the generator that this task runs, if there is one, that a part is stale, provisional or
/// missing.
pub(crate) fn provisional(is_provisional: impl FnOnce() -> bool) {
    let _ = WHOLE.try_with(|whole| {
        if is_provisional() {
            whole.is_provisional.set(true);
        }
    });
}

/// Returns the permit of the regeneration whose generator this task runs.
pub(super) fn permit() -> Option<Permit> {
    WHOLE.try_with(|whole| whole.permit.clone()).ok().flatten()
}
