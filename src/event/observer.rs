//! The one path of events: they are counted first, then logged, and then sent to subscribers.
//!
//! Invariant: an event is emitted only while none of Perennial's locks is held, because its subscriber may call
//! the site. A debug build panics where that is not so (`ordered.rs`).

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use futures_util::Stream;
use perennial_store::{LockName, StoreEvent};
use tokio::sync::broadcast::{self, Receiver, error::RecvError};
use tokio_util::sync::ReusableBoxFuture;

use super::{
    Event,
    counters::Counters,
    failures::{FAILURES, FailedRegeneration, Failures},
    log::{is_logged, log},
};
use crate::ordered::assert_no_lock_is_held;

/// The number of events that a slow subscriber may be behind.
const BUFFER: usize = 1024;

/// The observer of a site. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observer(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counters: Counters,
    failures: Failures,
    /// Created for the first subscriber.
    subscribers: OnceLock<broadcast::Sender<Event>>,
}

impl Observer {
    pub(crate) fn emit(&self, event: Event) {
        assert_no_lock_is_held();
        match &event {
            Event::Regenerated(ended) => {
                self.0.counters.regenerated(ended.outcome);
                if FAILURES.contains(&ended.outcome) {
                    self.0.failures.add(ended);
                }
            }
            Event::NotRegenerated { outcome, .. } => self.0.counters.regenerated(*outcome),
            Event::MissedInvalidation(_) => self.0.counters.missed_invalidation(),
            _ => {}
        }
        log(&event);
        self.send(event);
    }

    /// Records an event of the store, which has logged it already.
    pub(crate) fn on_store_event(&self, event: &StoreEvent<'_>) {
        assert_no_lock_is_held();
        #[cfg(feature = "metrics")]
        super::metrics::on_store_event(event);
        let subscribers = self.0.subscribers.get();
        if subscribers.is_some_and(|it| it.receiver_count() > 0)
            && let Some(event) = of_store_event(event)
        {
            self.send(event);
        }
    }

    fn send(&self, event: Event) {
        #[cfg(feature = "metrics")]
        super::metrics::record(&event);
        if let Some(subscribers) = self.0.subscribers.get() {
            // An error means that no subscriber is left.
            let _ = subscribers.send(event);
        }
    }

    /// Emits an event of a frequent kind, which is created only for a subscriber or for the log.
    pub(crate) fn emit_if_watched(&self, target: Frequent, event: impl FnOnce() -> Event) {
        let subscribers = self.0.subscribers.get();
        if subscribers.is_some_and(|it| it.receiver_count() > 0) || is_logged(target) {
            self.emit(event());
        }
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Returns the latest failures, the latest one first.
    pub(crate) fn failures(&self) -> Vec<FailedRegeneration> {
        self.0.failures.latest()
    }

    /// Counts a key that had to leave memory.
    pub(crate) fn evicted(&self, key: &str) {
        self.0.counters.evicted();
        self.emit_if_watched(Frequent::Memory, || Event::MemoryEvicted {
            key: key.into(),
        });
    }

    /// Records a stale response in the metrics.
    pub(crate) fn stale(&self, _since: Duration) {
        #[cfg(feature = "metrics")]
        super::metrics::stale(_since);
    }

    pub(crate) fn subscribe(&self) -> Events {
        let subscribers = &self.0.subscribers;
        let sender = subscribers.get_or_init(|| broadcast::Sender::new(BUFFER));
        Events::new(sender.subscribe())
    }
}

/// Returns the public event for an event of the store, or `None` if only metrics are interested in it.
fn of_store_event(event: &StoreEvent<'_>) -> Option<Event> {
    let lock = |name: &LockName| (name.kind(), Arc::from(name.as_str()));
    Some(match *event {
        StoreEvent::Operation { .. } => return None,
        StoreEvent::DatabaseUnavailable { operation, error } => Event::DatabaseUnavailable {
            operation,
            error: error.into(),
        },
        StoreEvent::DatabaseBack { operation } => Event::DatabaseBack { operation },
        StoreEvent::LockAcquired { name, fence } => {
            let (kind, name) = lock(name);
            Event::LockAcquired { kind, name, fence }
        }
        StoreEvent::LockContended { name } => {
            let (kind, name) = lock(name);
            Event::LockContended { kind, name }
        }
        StoreEvent::LockLost {
            name,
            fence,
            reason,
        } => {
            let (kind, name) = lock(name);
            Event::LockLost {
                kind,
                name,
                fence,
                reason,
            }
        }
        StoreEvent::LockBroken { name } => {
            let (kind, name) = lock(name);
            Event::LockBroken { kind, name }
        }
        StoreEvent::Replayed { name } => Event::IdempotentReplay { name: name.into() },
    })
}

/// The frequent kinds of events, by the target of their log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frequent {
    Memory,
    Request,
}

/// A subscription to the events of a site in this process; from
/// [`Perennial::subscribe`](crate::Perennial::subscribe).
///
/// It is also a [`Stream`], which ends when the site is dropped. A subscriber that falls more than 1,024 events
/// behind gets [`Event::Missed`] instead of the oldest ones.
///
#[derive(Debug)]
pub struct Events(ReusableBoxFuture<'static, (Result<Event, RecvError>, Receiver<Event>)>);

impl Events {
    fn new(receiver: Receiver<Event>) -> Self {
        Self(ReusableBoxFuture::new(receive(receiver)))
    }

    /// Waits for the next event. `None` means that the site is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Returns the next event if there is one, without waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(self).poll_next(&mut context) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let (received, receiver) = ready!(self.0.poll(cx));
        self.0.set(receive(receiver));
        Poll::Ready(match received {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(events)) => Some(Event::Missed { events }),
            Err(RecvError::Closed) => None,
        })
    }
}

async fn receive(mut receiver: Receiver<Event>) -> (Result<Event, RecvError>, Receiver<Event>) {
    (receiver.recv().await, receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purged(n: usize) -> Event {
        Event::Purged {
            key: format!("/{n}").into(),
        }
    }

    #[tokio::test]
    async fn slow_subscriber_learns_how_many_events_it_has_missed() {
        let observer = Observer::default();
        observer.emit(purged(0));
        let (mut slow, mut quick) = (observer.subscribe(), observer.subscribe());
        for n in 1..=BUFFER + 7 {
            observer.emit(purged(n));
            assert_eq!(quick.next().await, Some(purged(n)));
        }
        assert_eq!(slow.next().await, Some(Event::Missed { events: 7 }));
        assert_eq!(slow.next().await, Some(purged(8)));
        drop(observer);
        assert_eq!(quick.next().await, None);
        assert_eq!(quick.try_next(), None);
    }

    #[test]
    fn frequent_event_without_a_watcher_is_not_created() {
        let observer = Observer::default();
        observer.emit_if_watched(Frequent::Request, || panic!("has no watcher"));
        drop(observer.subscribe());
        observer.emit_if_watched(Frequent::Memory, || panic!("has no watcher"));
        let mut events = observer.subscribe();
        observer.emit_if_watched(Frequent::Request, || purged(1));
        assert_eq!(events.try_next(), Some(purged(1)));
    }
}
