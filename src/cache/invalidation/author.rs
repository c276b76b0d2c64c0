//! The epoch of a change, for its author: a request that changes data learns the epoch that the change has
//! got, so that its author is shown nothing older.

use std::cell::Cell;

use perennial_store::Epoch;

tokio::task_local! {
    /// The latest epoch that the task's change has stored.
    static LATEST_WRITE: Cell<Epoch>;
}

/// Stands for the epoch of a change that has none yet, or whose epoch this process does not know. Its author
/// gets no page to which any invalidation applies.
pub(crate) const UNKNOWN_EPOCH: Epoch = Epoch::MAX;

/// Runs a change. Returns also the latest epoch of the invalidations that the change itself has stored, in
/// its own task; `None`: it has stored none.
pub(crate) async fn record_writes<F: Future>(change: F) -> (F::Output, Option<Epoch>) {
    let change = async {
        let output = change.await;
        (output, LATEST_WRITE.with(Cell::get))
    };
    let (output, epoch) = LATEST_WRITE.scope(Cell::new(Epoch::NONE), change).await;
    (output, (epoch > Epoch::NONE).then_some(epoch))
}

/// Notes an invalidation for [`record_writes`].
pub(crate) fn record_write(epoch: Epoch) {
    // Outside of a change, nobody asks.
    let _ = LATEST_WRITE.try_with(|latest| latest.set(latest.get().max(epoch)));
}
