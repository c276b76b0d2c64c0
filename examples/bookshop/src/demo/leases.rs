//! The leases of the demonstration's page, read from the database: the lock's row while a lease is
//! held, and the page's history afterwards.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use perennial::{
    Perennial,
    locks::{LockKind, LockName},
};

use super::{KEY, shops::Shops};

/// The time for which leases are shown.
const SHOWN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Held,
    /// The generation is in the page's history.
    Published,
    /// The generator failed. The lock is in cooldown.
    Failed,
    /// The lease has ended without a release: its process was killed or stood still.
    Lost,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) fence: i64,
    /// The number of the shop. `None` means that it is not known, as the row of a lock in cooldown names no
    /// holder.
    pub(super) shop: Option<usize>,
    /// The time at which the lease was acquired, by this machine's clock.
    pub(super) began: SystemTime,
    pub(super) held_for: Duration,
    pub(super) state: State,
}

impl Lease {
    pub(super) fn holder(&self) -> &'static str {
        self.shop
            .map_or("another process", |shop| ["process A", "process B"][shop])
    }
}

/// The leases since the demonstration's start, by their fences.
#[derive(Default)]
pub(super) struct Leases(Mutex<BTreeMap<i64, Lease>>);

impl Leases {
    fn leases(&self) -> MutexGuard<'_, BTreeMap<i64, Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the lock's row and the page's history.
    pub(super) async fn read(
        &self,
        site: &Perennial,
        shops: &Shops,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let lock = LockName::of(LockKind::Page, KEY);
        // The history is read after the lock. So a lease that has ended, according to the lock's
        // row, is already in the history.
        let Some(lock) = site.locks().inspect(lock).await? else {
            return Ok(());
        };
        let entry = site.entry(KEY).await?;
        // A fence is the time at which its lease began, in microseconds by the database's clock.
        let database_now = SystemTime::UNIX_EPOCH + micros(lock.fence.0) + lock.age;
        let now = SystemTime::now();
        let here = |began: SystemTime| now - database_now.duration_since(began).unwrap_or_default();

        let mut leases = self.leases();
        for lease in leases.values_mut() {
            if lease.state == State::Held && (lease.fence != lock.fence.0 || lock.holder.is_none())
            {
                let cools_down = lease.fence == lock.fence.0 && !lock.remaining.is_zero();
                lease.state = if cools_down {
                    State::Failed
                } else {
                    State::Lost
                };
            }
        }
        let began = here(SystemTime::UNIX_EPOCH + micros(lock.fence.0));
        let cools_down = lock.holder.is_none() && !lock.remaining.is_zero();
        if lock.holder.is_some() || cools_down && began > shops.since() {
            let lease = leases.entry(lock.fence.0).or_insert_with(|| Lease {
                fence: lock.fence.0,
                shop: None,
                began,
                held_for: Duration::ZERO,
                state: State::Failed,
            });
            if let Some(holder) = &lock.holder {
                lease.shop = shops.of_label(&holder.label);
                (lease.held_for, lease.state) = (lock.age, State::Held);
            }
        }
        for generation in entry.into_iter().flat_map(|entry| entry.history) {
            let began = here(generation.began);
            // Longer ago than this demonstration.
            if began < shops.since() {
                continue;
            }
            let lease = leases.entry(generation.fence.0).or_insert_with(|| Lease {
                fence: generation.fence.0,
                shop: shops.of_label(&generation.process),
                began,
                held_for: Duration::ZERO,
                state: State::Held,
            });
            lease.state = State::Published;
            lease.held_for = generation.took;
        }
        leases.retain(|_, lease| lease.state == State::Held || lease.began + SHOWN > now);
        Ok(())
    }

    /// Returns the shop that holds the lease, as read last.
    pub(super) fn holder(&self) -> Option<usize> {
        let leases = self.leases();
        let held = leases.values().find(|lease| lease.state == State::Held);
        held.and_then(|lease| lease.shop)
    }

    /// Returns all leases, the latest first.
    pub(super) fn all(&self) -> Vec<Lease> {
        self.leases().values().rev().cloned().collect()
    }
}

fn micros(fence: i64) -> Duration {
    Duration::from_micros(fence.try_into().unwrap_or_default())
}
