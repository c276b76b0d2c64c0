//! The numbers by which content and invalidations are compared: epochs, the epoch of the code's revision, and
//! the order in which this process has seen committed invalidations that have no epoch yet. They are types of
//! their own, so that the compiler keeps them apart.

use perennial_store::Epoch;
use serde::{Deserialize, Serialize};

/// The number of a sighting: of a sync at which this process saw new rows of the outbox, which have no epoch
/// yet. It orders what this process knows of them, and means nothing to other processes. See
/// [`invalidation_list`](crate::cache::invalidation_list).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sighting(pub(crate) i64);

/// The epoch in which the revision of a process's code was first seen, or was seen again after another one.
/// Content that code of an earlier revision has generated is stale for code of a later one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "i64", into = "i64")]
pub(crate) enum RevisionEpoch {
    /// The site has no revision.
    #[default]
    NoRevision,
    /// The revision has this epoch.
    Announced(Epoch),
    /// The process has not stored its revision yet. This value is greater than any epoch, so that meanwhile
    /// everything that other processes have generated counts as stale. A version that this process stores with
    /// it becomes stale once the revision has an epoch.
    Unannounced,
}

/// The number by which the metadata of a stored version write [`RevisionEpoch::Unannounced`].
const UNANNOUNCED: i64 = i64::MAX;

impl From<i64> for RevisionEpoch {
    fn from(number: i64) -> Self {
        match number {
            UNANNOUNCED => Self::Unannounced,
            ..=0 => Self::NoRevision,
            epoch => Self::Announced(Epoch(epoch)),
        }
    }
}

impl From<RevisionEpoch> for i64 {
    fn from(revision: RevisionEpoch) -> Self {
        match revision {
            RevisionEpoch::NoRevision => 0,
            RevisionEpoch::Announced(epoch) => epoch.0,
            RevisionEpoch::Unannounced => UNANNOUNCED,
        }
    }
}

/// What was known of invalidations before a generator began: by this process, or by the database when it was
/// asked for the lock. Content is never stored with a later epoch than this, because the generator may have
/// read its data before a later invalidation was made.
///
/// The epoch may be later than what this process has heard of. It only says that the *data* that the generator
/// reads are at least as new. It says nothing about parts that come from memory; see
/// [`Inherited::limit_epoch`](crate::cache::parts::Inherited::limit_epoch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    pub(crate) epoch: Epoch,
    pub(crate) revision: RevisionEpoch,
}

/// What the invalidation list says about a version. Where two sources differ, the greater value holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Validity {
    /// No invalidation applies.
    Valid,
    /// The version is stale, and served while a regeneration runs.
    Invalidated,
    /// The version is not served.
    Purged,
}

impl Validity {
    /// All values, by the two bits in which [`Meta`](crate::cache::metadata::Meta) packs one. The fourth
    /// combination of bits is never stored.
    pub(crate) const ALL: [Self; 4] = [Self::Valid, Self::Invalidated, Self::Purged, Self::Purged];
}
