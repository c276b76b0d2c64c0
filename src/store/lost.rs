//! Calls whose reply was lost: the database may carry such a call out later, without a caller who
//! could undo its effect.

use tokio::{runtime::Handle, sync::Semaphore, time::sleep};
use tracing::Instrument;

use super::{Step, Store};
use crate::timing::STRAY_PAUSES;

/// The most effects that a process undoes at the same time. Beyond this number they stay.
static ROOM: Semaphore = Semaphore::const_new(1000);

/// Repeats a call that undoes the effect of a lost one, up to the quarter of an hour for which TCP
/// may resend a message. The call has no effect once there is nothing to undo.
pub(crate) fn undo<S: Step + Clone + Send + 'static>(store: &Store, step: S)
where
    S::Answer: Send,
{
    let (Ok(room), Ok(runtime)) = (ROOM.try_acquire(), Handle::try_current()) else {
        return;
    };
    let store = store.clone();
    let undo = async move {
        for pause in STRAY_PAUSES {
            sleep(pause).await;
            // The store has logged a failure.
            let _ = store.call(step.clone()).await;
        }
        drop(room);
    };
    runtime.spawn(undo.in_current_span());
}
