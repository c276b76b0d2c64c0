//! The store of the check: each statement is one atomic step, by the contract of the trait `Store`.
//!
//! Times are relative: the database's clock always shows `Tick(0)`.

use std::time::Duration;

use perennial_store::{Epoch, Fence, LockState, PeerLeaseState};

use crate::{
    cache::regeneration::check::{
        content::{Marks, Text},
        normal::{Part, past},
        setup::{LEASE, Mutant, NOW, OLDEST, SECOND},
    },
    clock::Tick,
};
use perennial_testkit::search::Broken;

/// An entry from further in the future is from before the clock was set back.
const SET_BACK: Duration = Duration::from_secs(5);

/// The expiry of a lock that was released without a cooldown.
pub(crate) const FREE: Tick = Tick(i64::MIN);

#[derive(Clone, Debug, Hash)]
pub(crate) struct Database {
    pub(crate) lock: Lock,
    pub(crate) entry: Option<Entry>,
    pub(crate) marks: Marks,
    /// For the properties: the end of the cooldown.
    pub(crate) cooling: Tick,
    /// For the properties: the fence of the lock when it was last taken from its holder.
    pub(crate) broken: Fence,
    /// For the properties: the number of regenerations under a lease for the present version and
    /// invalidations.
    pub(crate) begun: u8,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Lock {
    pub(crate) fence: Fence,
    /// 0: none.
    pub(crate) owner: u32,
    pub(crate) acquired: Tick,
    pub(crate) expires: Tick,
    pub(crate) failures: u32,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Entry {
    pub(crate) fence: Fence,
    pub(crate) made: Tick,
    pub(crate) text: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) owner: u32,
    pub(crate) fence: Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Statement {
    Learn { is_new: bool },
    Probe { known: Fence },
    Try { seen: Fence, owner: u32 },
    Renew { row: Row, text: Text, known: Fence },
    Publish { row: Row, text: Text },
    Remove { row: Row },
    Release { row: Row, cooldown: Duration },
}

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Reply {
    Learned(Marks),
    Probed {
        entry: Option<Stored>,
        lock: LockState,
        epoch: Epoch,
    },
    TryLock(Option<Fence>),
    Done(bool),
}

/// An entry in the answer to a probe.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Stored {
    pub(crate) fence: Fence,
    pub(crate) age: Duration,
    pub(crate) age_unknown: bool,
    pub(crate) text: Text,
}

impl Database {
    pub(crate) fn new() -> Self {
        Self {
            lock: Lock {
                fence: Fence::NONE,
                owner: 0,
                acquired: NOW,
                expires: FREE,
                failures: 0,
            },
            entry: None,
            marks: Marks::default(),
            cooling: NOW,
            broken: Fence::NONE,
            begun: 0,
        }
    }

    /// Runs a statement. The error is a property that the statement violates.
    pub(crate) fn run(
        &mut self,
        statement: Statement,
        mutant: Option<Mutant>,
    ) -> Result<Reply, Broken> {
        Ok(match statement {
            Statement::Learn { is_new } => {
                if is_new && self.marks.revision == Epoch::NONE {
                    self.marks.revision = self.marks.next();
                    self.begun = 0;
                }
                Reply::Learned(self.marks)
            }
            Statement::Probe { known } => {
                let entry = self.entry.filter(|entry| entry.fence > known);
                let lock = LockState {
                    fence: self.lock.fence,
                    owned: self.lock.owner != 0,
                    remaining: self.remaining(mutant),
                    failures: self.lock.failures,
                };
                let entry = entry.map(|entry| Stored {
                    fence: entry.fence,
                    age: NOW - entry.made,
                    age_unknown: entry.made > NOW + SET_BACK,
                    text: entry.text,
                });
                let epoch = self.marks.latest;
                Reply::Probed { entry, lock, epoch }
            }
            Statement::Try { seen, owner } => Reply::TryLock(self.try_lock(seen, owner, mutant)?),
            Statement::Renew { row, text, known } => {
                let stored = self.entry.map_or(Fence::NONE, |entry| entry.fence);
                let renews = stored == known || stored == row.fence;
                Reply::Done(renews && self.publish(row, text, mutant)?)
            }
            Statement::Publish { row, text } => Reply::Done(self.publish(row, text, mutant)?),
            Statement::Remove { row } => {
                let is_holder = self.is_held_by(row) || mutant == Some(Mutant::RemoveWithoutFence);
                let removes = self.entry.is_some() && is_holder;
                if removes {
                    self.under_the_fence(row)?;
                    self.entry = None;
                    self.begun = 0;
                }
                Reply::Done(removes)
            }
            Statement::Release { row, cooldown } => {
                let Lock { fence, owner, .. } = self.lock;
                let is_owner = owner == row.owner || owner == 0;
                let releases =
                    fence == row.fence && is_owner || mutant == Some(Mutant::ReleaseWithoutOwner);
                if releases {
                    self.cooling = NOW + cooldown;
                    self.lock.failures = if cooldown.is_zero() {
                        0
                    } else {
                        self.lock.failures + u32::from(owner != 0)
                    };
                    self.lock.owner = 0;
                    self.lock.expires = match mutant {
                        Some(Mutant::ReleaseWithoutCooldown) => FREE,
                        _ if cooldown.is_zero() => FREE,
                        _ => NOW + cooldown,
                    };
                }
                Reply::Done(releases)
            }
        })
    }

    /// Returns the state of the page, as a sync reads it.
    pub(crate) fn peer_lease_state(&self) -> PeerLeaseState {
        PeerLeaseState {
            fence: self.entry.map_or(Fence::NONE, |entry| entry.fence),
            remaining: match self.lock.owner {
                0 => Duration::ZERO,
                _ => self.lock.expires - NOW,
            },
        }
    }

    fn remaining(&self, mutant: Option<Mutant>) -> Duration {
        match mutant {
            Some(Mutant::CooldownIgnored) if self.lock.owner == 0 => Duration::ZERO,
            _ => self.lock.expires - NOW,
        }
    }

    fn try_lock(
        &mut self,
        seen: Fence,
        owner: u32,
        mutant: Option<Mutant>,
    ) -> Result<Option<Fence>, Broken> {
        let is_new = self.lock.fence == Fence::NONE;
        let is_free = self.remaining(mutant).is_zero();
        let is_seen = self.lock.fence == seen || mutant == Some(Mutant::TryWithoutFence);
        if !(is_new || is_free && is_seen) {
            return Ok(None);
        }
        let stored = self.entry.map_or(Fence::NONE, |entry| entry.fence);
        if !is_new && stored > seen {
            return Err(
                "S3: an attempt succeeds only for a process that has seen the stored version",
            );
        }
        if self.cooling > NOW {
            return Err("S12: no try succeeds in a cooldown");
        }
        self.lock = Lock {
            fence: self.lock.fence.next(),
            owner,
            acquired: NOW,
            expires: NOW + LEASE,
            ..self.lock
        };
        Ok(Some(self.lock.fence))
    }

    pub(crate) fn is_held_by(&self, row: Row) -> bool {
        self.lock.owner == row.owner && self.lock.fence == row.fence
    }

    fn under_the_fence(&self, row: Row) -> Result<(), Broken> {
        if self.lock.fence == row.fence {
            Ok(())
        } else {
            Err("S2: what is stored changes only while the lock's fence is the lease's")
        }
    }

    fn publish(&mut self, row: Row, text: Text, mutant: Option<Mutant>) -> Result<bool, Broken> {
        let stored = self.entry.map_or(Fence::NONE, |entry| entry.fence);
        let is_holder = self.is_held_by(row) || mutant == Some(Mutant::PublishWithoutFence);
        if stored == row.fence {
            // An earlier try has stored the entry, and the answer was lost.
            return Ok(true);
        }
        if !is_holder || (stored > row.fence && mutant != Some(Mutant::PublishWithoutFence)) {
            return Ok(false);
        }
        if row.fence < stored {
            return Err("S1: fences of what is stored grow");
        }
        self.under_the_fence(row)?;
        let goes_back = self.entry.is_some_and(|entry| text.read < entry.text.read);
        if goes_back {
            return Err("S33: stored content never goes backwards");
        }
        self.entry = Some(Entry {
            fence: row.fence,
            made: NOW,
            text,
        });
        self.begun = 0;
        Ok(true)
    }

    /// Returns true if the statement can do nothing any more, as fences only grow.
    pub(crate) fn is_over(&self, statement: Statement) -> bool {
        match statement {
            Statement::Learn { .. } | Statement::Probe { .. } => true,
            Statement::Try { seen, .. } => {
                self.lock.fence != Fence::NONE && self.lock.fence != seen
            }
            Statement::Renew { row, .. }
            | Statement::Publish { row, .. }
            | Statement::Remove { row }
            | Statement::Release { row, .. } => self.lock.fence != row.fence,
        }
    }

    /// Extends a lease, and returns false if the lease is lost.
    pub(crate) fn extend(&mut self, row: Row) -> bool {
        let extends = self.is_held_by(row) && self.lock.expires > NOW;
        if extends {
            self.lock.acquired = self.lock.acquired.min(NOW);
            self.lock.expires = NOW + LEASE;
        }
        extends
    }

    /// Takes the lock from its holder.
    pub(crate) fn break_lock(&mut self) {
        if self.lock.fence > Fence::NONE {
            self.lock.fence = self.lock.fence.next();
            self.broken = self.lock.fence;
            (self.lock.owner, self.lock.expires, self.cooling) = (0, FREE, NOW);
        }
    }

    pub(crate) fn purge(&mut self) {
        self.break_lock();
        self.entry = None;
        self.begun = 0;
    }

    /// Lets a second go by.
    pub(crate) fn tick(&mut self) {
        self.parts(&mut past);
    }

    /// Sets the clock back by ten seconds.
    pub(crate) fn set_back(&mut self) {
        let is_cooling = self.cooling > NOW;
        self.parts(&mut |part| match part {
            Part::Time(time) | Part::Until(time) | Part::End(time) if *time != FREE => {
                time.0 = time.0.max(OLDEST) + 10 * SECOND;
            }
            _ => {}
        });
        if !is_cooling {
            self.cooling = NOW;
        }
    }
}
