//! The policy, the faults and the mutants of a check.

use std::time::Duration;

use crate::{clock::Tick, policy::Refresh};

/// The time on each clock; all other times are relative to this one.
pub(crate) const NOW: Tick = Tick(0);

/// In the unit of a [`Tick`].
pub(crate) const SECOND: i64 = 1_000_000;

/// The oldest time that decisions tell apart.
pub(crate) const OLDEST: i64 = -7 * SECOND;

pub(crate) const LEASE: Duration = Duration::from_secs(2);

pub(crate) static POLICY: Refresh = usual_policy();

const fn usual_policy() -> Refresh {
    Refresh::every(Duration::from_secs(2))
        .leader_wait(Duration::from_secs(1))
        .follower_wait(Duration::from_secs(3))
        .generator_timeout(Duration::from_secs(2))
        .lease_duration(LEASE)
        .cooldown(Duration::from_secs(1))
        .stale_while_revalidate(Duration::from_secs(2))
        .stale_if_error(IF_ERROR)
}

/// The time after the interval for which a version may be served after a failed regeneration.
pub(crate) const IF_ERROR: Duration = Duration::from_secs(4);

/// An event that a check bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process crashes, and another one starts.
    Crash,
    /// A process ends, and one with a new revision of the code takes its place.
    Deploy,
    /// A process shuts down.
    Close,
    /// A process does nothing while time goes by.
    Pause,
    /// The process is paused, and its clock stands still.
    Suspend,
    /// The answer of a completed statement is lost.
    Lost,
    /// A statement runs after its caller has given up.
    Late,
    /// A statement does not run.
    Refused,
    /// A statement takes a second.
    SlowStore,
    /// A lease is not extended.
    Unextended,
    /// The generator fails.
    Failing,
    /// The generator takes longer than its timeout.
    Slow,
    /// The content may not be shared, or is too large.
    Unshareable,
    /// There is no permit.
    NoPermit,
    /// A process cannot decode a stored value.
    Unreadable,
    /// The application's code panics in the task of a regeneration.
    Panic,
    /// The application demands a regeneration.
    Demand,
    Invalidation,
    Purge,
    /// An operator breaks the lock.
    Break,
    /// The database's clock is set back.
    ClockBack,
    /// A visitor leaves.
    Leave,
}

pub(crate) const FAULTS: usize = Fault::Leave as usize + 1;

/// A defect in the surroundings of the decisions, so that a property has to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    PublishWithoutFence,
    RemoveWithoutFence,
    TryWithoutFence,
    ReleaseWithoutOwner,
    ReleaseWithoutCooldown,
    CooldownIgnored,
    CooldownEndsEarly,
    LeaseCountsFromAnswer,
    AgeCountsFromAnswer,
    EpochRaisedAfterGenerating,
    ExpiredServed,
    PurgedServed,
    EachGeneratesAlone,
    UnsavedRenews,
    LeaseNeverReleased,
    /// The regeneration counts as running until its lease is released. So a request that comes
    /// between the publish and the release gets the published version, even if that has meanwhile
    /// been invalidated.
    ReleasingCountsAsRunning,
    /// When a hit-for-pass ends, visitors wait for the probe as they would wait for a first
    /// version.
    FollowersWaitForTheProbe,
    /// At the end of a hit-for-pass, the first visitor waits for another process.
    LeadersWaitForThePeersProbe,
    /// The driver says that it has a permit, and has none.
    PermitInvented,
    /// The driver says that the peer's lease is over, while the process knows that it is held.
    PeerLeaseForgotten,
    /// The driver says that a visitor waits, while nobody does.
    VisitorInvented,
    /// There is a stored version that the driver cannot decode, and the driver does not tell the
    /// machine.
    UnreadableHidden,
    /// The driver says that a version which it cannot decode is stale, while it is fresh.
    OtherCodeIsStale,
    /// The wait of a caller of `regenerate` does not know that the caller demands a newer version.
    /// The caller then waits only as long as a visitor.
    DemandForgotten,
}

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The number of times that each fault may occur.
    pub(crate) faults: [u8; FAULTS],
    /// The number of faults in all.
    pub(crate) all: u8,
    pub(crate) mutant: Option<Mutant>,
    /// The processes do not know the invalidations at the start.
    pub(crate) cold: bool,
    /// The cooldown is longer than the time after which the store is asked again.
    pub(crate) long_cooldown: bool,
}

impl Setup {
    pub(crate) fn new(faults: &[Fault], each: u8, all: u8) -> Self {
        let mut setup = Self {
            faults: [0; FAULTS],
            all,
            mutant: None,
            cold: false,
            long_cooldown: false,
        };
        for fault in faults {
            setup.faults[*fault as usize] = each;
        }
        setup
    }

    /// Returns the setup in which each fault may occur this often, and this many in all.
    pub(crate) fn with_all_faults(times: u8) -> Self {
        Self {
            faults: [times; FAULTS],
            ..Self::new(&[], 0, times)
        }
    }

    /// Returns the policy of all decisions.
    pub(crate) fn policy(&self) -> &'static Refresh {
        static WITHOUT_END: Refresh = usual_policy().stale_while_revalidate(Duration::MAX);
        static LONG_COOLDOWN: Refresh = usual_policy().cooldown(Duration::from_secs(3));
        match self.mutant {
            Some(Mutant::ExpiredServed) => &WITHOUT_END,
            _ if self.long_cooldown => &LONG_COOLDOWN,
            _ => &POLICY,
        }
    }
}
