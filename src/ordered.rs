//! Mutexes that have to be locked in a fixed order. A debug build panics if a thread locks two of them in a
//! different order, because that could be a deadlock with another thread. It also panics if an event is emitted
//! or a generator begins while one of them is locked: generators and the subscribers of the log are the
//! application's code, and may call the site.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard},
};

use perennial_store::locked;

/// The places of the locks, in the order in which a thread may take them. A thread never holds two locks of the
/// same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The regenerations of the process.
    Running,
    /// The leases of other processes.
    PeerLeases,
    /// The timeline of the sync.
    Sync,
    /// The locks of three lists: the work that the outbox has to repeat, the work that the housekeeping
    /// has to repeat, and what was logged. A thread that holds one of them takes no other lock.
    Last,
}

/// A mutex with a place in the order.
#[derive(Debug)]
pub(crate) struct Ordered<T> {
    place: Place,
    mutex: Mutex<T>,
}

/// The guard of a locked [`Ordered`].
pub(crate) struct OrderedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Ordered<T> {
    pub(crate) fn new(place: Place, value: T) -> Self {
        let mutex = Mutex::new(value);
        Self { place, mutex }
    }

    /// Locks the mutex, even if another thread has panicked while it held it.
    ///
    /// # Panics
    ///
    /// In a debug build, if this thread holds a lock of this place or of a later one.
    pub(crate) fn lock(&self) -> OrderedGuard<'_, T> {
        let held = Held::new(self.place);
        OrderedGuard {
            guard: locked(&self.mutex),
            _held: held,
        }
    }
}

impl<T> Deref for OrderedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OrderedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::Place;

    thread_local! {
        /// The places of the locks that this thread holds.
        static HELD: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) struct Held(Place);

    impl Held {
        pub(super) fn new(place: Place) -> Self {
            // `try_with` fails while the thread is being destroyed. The check below panics only after the
            // borrow has ended, because a panic hook may take locks itself.
            let latest = HELD.try_with(|held| {
                let latest = held.borrow().iter().max().copied();
                held.borrow_mut().push(place);
                latest
            });
            let held = Self(place);
            let latest = latest.ok().flatten();
            assert!(
                latest.is_none_or(|latest| latest < place),
                "the lock {place:?} is taken under {latest:?}"
            );
            held
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(last) = held.iter().rposition(|place| *place == self.0) {
                    held.remove(last);
                }
            });
        }
    }

    /// Panics if this thread holds a lock.
    pub(crate) fn assert_none() {
        let held = HELD.try_with(|held| held.borrow().clone());
        let held = held.unwrap_or_default();
        assert!(
            held.is_empty(),
            "code of the application runs under {held:?}"
        );
    }
}

#[cfg(not(debug_assertions))]
mod held {
    pub(super) struct Held;

    impl Held {
        pub(super) fn new(_: super::Place) -> Self {
            Self
        }
    }

    pub(crate) fn assert_none() {}
}

use held::Held;
/// Panics if a lock is held. It is called where events are emitted and where generators begin. Does nothing in
/// a release build.
pub(crate) use held::assert_none as assert_no_lock_is_held;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn locks_are_taken_in_one_order_and_foreign_code_runs_under_none() {
        let [running, sync] = [Place::Running, Place::Sync].map(|place| Ordered::new(place, 0));
        assert_no_lock_is_held();
        {
            let first = running.lock();
            *sync.lock() += 1;
            let panics = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
            assert!(panics(&|| assert_no_lock_is_held()));
            assert!(panics(&|| drop(running.lock())), "a second time");
            drop(first);
            let _later = sync.lock();
            assert!(panics(&|| drop(running.lock())), "in the other order");
        }
        assert_no_lock_is_held();
        assert_eq!(*sync.lock(), 1);
    }
}
