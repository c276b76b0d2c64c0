//! The store, the processes, and the history that the properties compare.

use std::time::Duration;

use crate::{
    layer::idempotency::{
        promises::{Promises, Sent},
        state::{Free, Storing},
    },
    timing::RESPONSE_RETRY,
};

use super::process::Action;

/// The unit of time.
pub(super) const TICK: Duration = RESPONSE_RETRY;
/// In ticks, as all times of a [`World`].
pub(super) const LEASE: i8 = 1;
pub(super) const LIFETIME: i8 = 1;
/// The time after which the lock of a request that was done is removed.
const RETENTION: i8 = 1;
/// The present of a process. Instead of it, the times of its state move.
pub(super) const NOW: Duration = Duration::from_secs(24 * 3600);

/// A lease, a run and its response are known by the fence. 0: none.
pub(super) type Fence = i64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub(super) sent: Sent,
    pub(super) phase: Phase,
    /// The lease is extended.
    pub(super) extends: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    Probing,
    /// With the time since the probe.
    Trying(Free, i8),
    /// The lock is acquired, and the service not called.
    Locked(Fence),
    Running(Fence),
    Storing(Storing<Fence, Fence>),
    /// `last`: a release that fails is not tried again.
    Releasing {
        lease: Fence,
        last: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lock {
    pub(super) fence: Fence,
    pub(super) owned: bool,
    pub(super) expires: i8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) fence: Fence,
    pub(super) age: i8,
    pub(super) sent: Sent,
    pub(super) response: Option<Fence>,
}

/// A statement that changes rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    Try { seen: Option<Fence> },
    Publish(Sent, Fence, Option<Fence>),
    Release(Fence),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World<const N: usize> {
    pub(super) processes: [Process; N],
    pub(super) lock: Option<Lock>,
    pub(super) entry: Option<Entry>,
    /// A statement that its process has given up. The database may run the statement later.
    pub(super) late: Option<Statement>,
    /// The lease of a try whose answer was lost.
    pub(super) stray: Fence,
    pub(super) promises: Promises,
    /// The number of faults so far.
    pub(super) faults: u8,
}

impl<const N: usize> Default for World<N> {
    fn default() -> Self {
        Self {
            processes: [Process::default(); N],
            lock: None,
            entry: None,
            late: None,
            stray: 0,
            promises: Promises::default(),
            faults: 0,
        }
    }
}

impl Phase {
    /// Returns the lease that the process holds for the request, until the release.
    fn lease(self) -> Option<Fence> {
        match self {
            Self::Locked(lease) | Self::Running(lease) => Some(lease),
            Self::Storing(storing) => Some(storing.lease),
            Self::Idle | Self::Probing | Self::Trying(..) | Self::Releasing { .. } => None,
        }
    }

    fn fences(&mut self, each: &mut dyn FnMut(&mut Fence)) {
        match self {
            Self::Idle | Self::Probing => {}
            Self::Trying(free, _) => each(&mut free.seen),
            Self::Locked(lease) | Self::Running(lease) | Self::Releasing { lease, .. } => {
                each(lease);
            }
            Self::Storing(storing) => {
                each(&mut storing.lease);
                storing.response.iter_mut().for_each(each);
            }
        }
    }

    /// Returns the next action, if nothing fails.
    pub(super) fn goes_on(self) -> Option<Action> {
        use super::process::Fate::Done;

        Some(match self {
            Self::Idle => return None,
            Self::Probing => Action::Probe(Done),
            Self::Trying(..) => Action::Try(Done),
            Self::Locked(_) => Action::Begin,
            Self::Running(_) => Action::Respond { fits: true },
            Self::Storing(_) => Action::Publish(Done),
            Self::Releasing { .. } => Action::Release(Done),
        })
    }
}

impl<const N: usize> World<N> {
    fn fences(&mut self, each: &mut dyn FnMut(&mut Fence)) {
        for process in &mut self.processes {
            process.phase.fences(each);
        }
        if let Some(lock) = &mut self.lock {
            each(&mut lock.fence);
        }
        if let Some(entry) = &mut self.entry {
            each(&mut entry.fence);
            entry.response.iter_mut().for_each(&mut *each);
        }
        match &mut self.late {
            None => {}
            Some(Statement::Try { seen }) => seen.iter_mut().for_each(&mut *each),
            Some(Statement::Publish(_, lease, response)) => {
                each(lease);
                response.iter_mut().for_each(&mut *each);
            }
            Some(Statement::Release(lease)) => each(lease),
        }
        each(&mut self.stray);
        if let Some((_, Some(response))) = &mut self.promises.stored {
            each(response);
        }
    }

    /// Replaces each fence by its rank, and sorts the processes.
    pub(super) fn normalised(mut self) -> Self {
        let mut used = 0_u64;
        self.fences(&mut |fence| used |= 1 << *fence);
        // Zero stays.
        self.fences(&mut |fence| {
            let smaller = used >> 1 & ((1 << *fence) - 1);
            *fence = smaller.count_ones().into();
        });
        self.processes.sort_unstable();
        self
    }

    /// Returns a fence that is greater than every fence before.
    fn next_fence(&mut self) -> Fence {
        let mut greatest = 0;
        self.fences(&mut |fence| greatest = greatest.max(*fence));
        greatest + 1
    }

    fn held_by(&mut self, lease: Fence) -> Option<&mut Lock> {
        let lock = self.lock.as_mut();
        lock.filter(|lock| lock.owned && lock.fence == lease)
    }

    /// Runs a statement. Returns the new fence of a try, the lease of a publish or a release;
    /// `None`: refused.
    pub(super) fn execute(&mut self, statement: Statement) -> Option<Fence> {
        match statement {
            Statement::Try { seen } => {
                let may =
                    |lock: Lock| lock.expires <= 0 && seen.is_none_or(|seen| seen == lock.fence);
                let fence = self.next_fence();
                self.lock.is_none_or(may).then(|| {
                    self.lock = Some(Lock {
                        fence,
                        owned: true,
                        expires: LEASE,
                    });
                    fence
                })
            }
            Statement::Publish(sent, lease, response) => {
                self.held_by(lease)?;
                if self.entry.is_none_or(|entry| entry.fence < lease) {
                    self.promises.stores(sent, response);
                    self.entry = Some(Entry {
                        fence: lease,
                        age: 0,
                        sent,
                        response,
                    });
                }
                Some(lease)
            }
            Statement::Release(lease) => {
                let lock = self.held_by(lease)?;
                (lock.owned, lock.expires) = (false, 0);
                Some(lease)
            }
        }
    }

    /// Runs a statement whose process gets no answer.
    pub(super) fn run_statement(&mut self, statement: Statement) {
        let done = self.execute(statement);
        if let (Statement::Try { .. }, Some(fence)) = (statement, done) {
            self.stray = fence;
        }
    }

    /// Frees the lock, and moves its fence: the former holder's lease no longer fits.
    fn free(&mut self) {
        let fence = self.next_fence();
        self.lock = Some(Lock {
            fence,
            owned: false,
            expires: 0,
        });
    }

    pub(super) fn free_stray(&mut self) {
        let stray = std::mem::take(&mut self.stray);
        if self.held_by(stray).is_some() {
            self.free();
        }
    }

    /// Frees the lock for an operator, who has found that a request without a note was not done.
    pub(super) fn break_lock(&mut self) {
        let broken = self.lock.map_or(0, |lock| lock.fence);
        self.free();
        for process in &mut self.processes {
            // A process that is about to call its service counts as one that has called it before
            // the lock was freed.
            if process.phase == Phase::Locked(broken) {
                process.phase = Phase::Running(broken);
            }
        }
        if self.promises.stored.is_none() {
            self.promises.permit();
        }
        self.faults += 1;
    }

    pub(super) fn may_prune_lock(&self) -> bool {
        let may = |lock: Lock| !lock.owned && lock.expires == -RETENTION;
        self.lock.is_some_and(may)
    }

    /// A later publish would store the note again.
    pub(super) fn may_prune_entry(&self) -> bool {
        let publishes = |lease: Fence| {
            let storing =
                |phase| matches!(phase, Phase::Storing(storing) if storing.lease == lease);
            let late = matches!(self.late, Some(Statement::Publish(_, late, _)) if late == lease);
            late || self.processes.iter().any(|process| storing(process.phase))
        };
        self.entry
            .is_some_and(|entry| entry.age > LIFETIME && !publishes(entry.fence))
    }

    pub(super) fn tick(&mut self) {
        let mut extended = false;
        for process in &mut self.processes {
            match &mut process.phase {
                Phase::Trying(_, age) => *age = 1,
                Phase::Storing(storing) => {
                    storing.until = storing.until.saturating_sub(TICK).max(NOW - TICK);
                }
                _ => {}
            }
            process.extends &= self.lock.is_some_and(|lock| {
                lock.owned && lock.expires > 0 && process.phase.lease() == Some(lock.fence)
            });
            extended |= process.extends;
        }
        if let Some(lock) = &mut self.lock {
            if extended {
                lock.expires = LEASE;
            } else {
                lock.expires = (lock.expires - 1).max(-RETENTION);
                // A holder without extensions is paused.
                self.faults = self.faults.max((lock.owned && lock.expires == 0).into());
            }
        }
        if let Some(entry) = &mut self.entry {
            if entry.age == LIFETIME {
                self.promises = Promises::default();
            }
            entry.age = (entry.age + 1).min(LIFETIME + 1);
        }
    }
}
