//! How the author of a change learns its epoch. A request that changes data runs inside [`record_writes`].
//! The code that stores an invalidation for it calls [`record_write`] with the epoch. The response then tells
//! the author this epoch, so that the author is shown nothing older.

use std::cell::Cell;

use perennial_store::Epoch;

tokio::task_local! {
    /// The latest epoch that the change of this task has stored so far.
    static LATEST_WRITE: Cell<Epoch>;
}

/// Stands for an epoch that this process does not know, of a change that has none yet or that another process
/// has numbered. Its author gets no page to which any invalidation applies.
pub(crate) const UNKNOWN_EPOCH: Epoch = Epoch::MAX;

/// Runs a change, and returns its output with the latest epoch of the invalidations that it has stored in its
/// own task, or `None` if it has stored none.
pub(crate) async fn record_writes<F: Future>(change: F) -> (F::Output, Option<Epoch>) {
    let change = async {
        let output = change.await;
        (output, LATEST_WRITE.with(Cell::get))
    };
    let (output, epoch) = LATEST_WRITE.scope(Cell::new(Epoch::NONE), change).await;
    (output, (epoch > Epoch::NONE).then_some(epoch))
}

/// Notes the epoch of an invalidation for [`record_writes`].
pub(crate) fn record_write(epoch: Epoch) {
    // Outside of a change that a layer observes, nobody asks for the epoch.
    let _ = LATEST_WRITE.try_with(|latest| latest.set(latest.get().max(epoch)));
}
