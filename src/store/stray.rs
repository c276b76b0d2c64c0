//! Statements whose answer was lost: the database may run such a statement later, without a caller
//! who could undo its effect.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};
use tracing::Instrument;

use crate::timing::{STRAY_AGAIN, STRAY_END, STRAY_PAUSES, STRAY_SILENCE};

/// The most strays that a process remembers. Beyond this number, the stray with the latest next
/// check is given up.
const MOST: usize = 10_000;

/// The most strays in one check.
const BATCH: usize = 50;

/// The strays of one kind, and the task that checks them.
pub(crate) struct Strays<T> {
    state: Mutex<State<T>>,
    added: Notify,
}

struct State<T> {
    /// By the time of the next check, and a number that tells equal times apart.
    due: BTreeMap<(Instant, u64), Stray<T>>,
    next: u64,
    /// The time from which a silent worker counts as ended; `None`: no worker runs.
    worker: Option<Instant>,
}

struct Stray<T> {
    lost: T,
    since: Instant,
    checks: usize,
}

/// Undoes the effects of lost statements.
pub(crate) trait Undo: Send + Sync + 'static {
    /// The identity of a lost statement.
    type Lost: Send + Sync + 'static;

    /// Undoes what these statements have done so far; `false`: the database fails. `lost` has at
    /// most [`BATCH`] statements.
    fn undo(&self, lost: &[&Self::Lost]) -> impl Future<Output = bool> + Send;
}

impl<T> Default for Strays<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                due: BTreeMap::new(),
                next: 0,
                worker: None,
            }),
            added: Notify::new(),
        }
    }
}

impl<T: Send + Sync + 'static> Strays<T> {
    /// Remembers a lost statement, whose first check is due after `pause`, and starts the worker
    /// unless it runs.
    pub(crate) fn add(self: &Arc<Self>, lost: T, pause: Duration, undo: impl Undo<Lost = T>) {
        let now = Instant::now();
        let stray = Stray {
            lost,
            since: now,
            checks: 0,
        };
        let mut state = self.state();
        state.insert(now + pause, stray);
        if state.worker.is_some_and(|back| now < back) {
            self.added.notify_one();
        } else if let Ok(runtime) = Handle::try_current() {
            state.worker = Some(now + STRAY_SILENCE);
            let work = Arc::clone(self).work(undo);
            runtime.spawn(work.in_current_span());
        }
    }

    async fn work(self: Arc<Self>, undo: impl Undo<Lost = T>) {
        loop {
            let (batch, wake) = self.take();
            if !batch.is_empty() {
                let lost: Vec<_> = batch.iter().map(|stray| &stray.lost).collect();
                let done = undo.undo(&lost).await;
                self.put_back(batch, done);
                if !done {
                    tokio::time::sleep(STRAY_AGAIN).await;
                }
                continue;
            }
            let Some(wake) = wake else { return };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(wake) => {}
                () = self.added.notified() => {}
            }
        }
    }

    /// The strays that are due, and when to look again. No time: there are no strays, and the
    /// worker ends.
    fn take(&self) -> (Vec<Stray<T>>, Option<Instant>) {
        let mut state = self.state();
        let now = Instant::now();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(first) = state.due.first_entry()
            && first.key().0 <= now
        {
            batch.push(first.remove());
        }
        let wake = match &*batch {
            [] => state.due.first_key_value().map(|((due, _), _)| *due),
            _ => Some(now),
        };
        state.worker = wake.map(|wake| wake + STRAY_SILENCE);
        (batch, wake)
    }

    fn put_back(&self, batch: Vec<Stray<T>>, done: bool) {
        let mut state = self.state();
        let now = Instant::now();
        for mut stray in batch {
            stray.checks += usize::from(done);
            let pause = match STRAY_PAUSES.get(stray.checks) {
                Some(pause) if done => *pause,
                Some(_) if now < stray.since + STRAY_END => STRAY_AGAIN,
                _ => continue,
            };
            state.insert(now + pause, stray);
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

tokio::task_local! {
    static SENDING: Sending;
}

/// The note on whether a statement without an answer was sent. The store writes the note,
/// and the store's caller reads the note, also when the call was cancelled.
#[derive(Clone, Default)]
pub(crate) struct Sending(Arc<AtomicU8>);

/// The store records nothing, as it is not Perennial's own.
#[cfg(feature = "_sql")]
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const OPEN: u8 = 2;

impl Sending {
    /// Runs a call of the store.
    pub(crate) async fn watch<F: Future>(&self, call: F) -> F::Output {
        SENDING.scope(self.clone(), call).await
    }

    /// A statement without an answer is known to be under way.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Relaxed) == OPEN
    }

    /// All statements were answered, or none was sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.0.load(Relaxed) == NONE
    }
}

/// Records for [`Sending::watch`] that this task waits for a connection, so that no further
/// statement has been sent.
#[cfg(feature = "_sql")]
pub(crate) fn waits() {
    let _ = SENDING.try_with(|Sending(state)| {
        let _ = state.compare_exchange(UNKNOWN, NONE, Relaxed, Relaxed);
    });
}

/// Records that a statement is being sent.
#[cfg(feature = "_sql")]
pub(crate) fn sends() -> Sent {
    let before = SENDING.try_with(|Sending(state)| state.swap(OPEN, Relaxed));
    Sent(before.unwrap_or(UNKNOWN))
}

/// A statement that has been sent.
#[cfg(feature = "_sql")]
pub(crate) struct Sent(u8);

#[cfg(feature = "_sql")]
impl Sent {
    /// Records that the statement's answer is known.
    pub(crate) fn answered(self) {
        let _ = SENDING.try_with(|Sending(state)| state.store(self.0, Relaxed));
    }
}

impl<T> State<T> {
    fn insert(&mut self, due: Instant, stray: Stray<T>) {
        self.next += 1;
        self.due.insert((due, self.next), stray);
        if self.due.len() > MOST {
            // The pauses grow with each check: the stray with the latest next check has usually had
            // the most checks.
            self.due.pop_last();
        }
    }
}
