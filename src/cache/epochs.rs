//! The numbers that say what content knows of: epochs of invalidations, the revision of the code, and
//! sightings of rows that have no epoch yet.

use perennial_store::Epoch;
use serde::{Deserialize, Serialize};

/// The number of a sighting of rows of the outbox without an epoch, in one process. See `invalidation_list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sighting(pub(crate) i64);

/// When the revision of a process's code was seen first, or again after another one. Code of a later revision
/// regenerates what code of an earlier one has generated.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "i64", into = "i64")]
pub(crate) enum RevisionEpoch {
    /// The site has no revision.
    #[default]
    NoRevision,
    /// In this epoch.
    Announced(Epoch),
    /// The process has yet to store its revision: later than each epoch so far. A version of this process
    /// is stale once the revision has an epoch.
    Unannounced,
}

/// How a stored version's metadata write [`RevisionEpoch::Unannounced`].
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

/// The epoch and the revision that a process knew before a generator began. Content stores these
/// two and nothing later, as the generator may have read data from before a later invalidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    pub(crate) epoch: Epoch,
    pub(crate) revision: RevisionEpoch,
}

/// The effect of the invalidations on a version. Of two verdicts on a version, the greater one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Validity {
    /// None applies.
    Valid,
    /// The version is stale, and served while a regeneration runs.
    Invalidated,
    /// The version is not served.
    Purged,
}

impl Validity {
    /// All, by their discriminants. The fourth one is never stored.
    pub(crate) const ALL: [Self; 4] = [Self::Valid, Self::Invalidated, Self::Purged, Self::Purged];
}
