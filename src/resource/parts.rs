//! The parts of generated content: calls for content within a generator.

use std::cell::Cell;

tokio::task_local! {
    /// True: a part was stale, or a placeholder.
    static IS_PROVISIONAL: Cell<bool>;
}

/// Runs a generator. The result's second value is true if a part was stale or a placeholder, so that
/// the content must not last as long as its policy says.
pub(super) async fn watched<T>(generator: impl Future<Output = T>) -> (T, bool) {
    let run = async {
        let generated = generator.await;
        (generated, IS_PROVISIONAL.with(Cell::get))
    };
    IS_PROVISIONAL.scope(Cell::new(false), run).await
}

/// Tells the generator that this task runs, if there is one, that a part is stale or a placeholder.
pub(crate) fn provisional(is_provisional: impl FnOnce() -> bool) {
    let _ = IS_PROVISIONAL.try_with(|cell| {
        if is_provisional() {
            cell.set(true);
        }
    });
}
