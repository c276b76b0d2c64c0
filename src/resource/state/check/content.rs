//! The smallest content and invalidation list that the decisions accept.

use std::time::Duration;

use crate::{
    http::terms::Terms,
    policy::Refresh,
    resource::state::{AsOf, Content, Freshness, List},
};

/// The time after the interval for which a version may be served after a failed regeneration.
pub(super) const IF_ERROR: Duration = Duration::from_secs(4);

/// Generated content. Two contents that have read the same data are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::resource::state) struct Text {
    /// The latest epoch in the database when the generator read the data.
    pub(super) read: i64,
    pub(super) as_of: AsOf,
}

impl Content for Text {
    type Metadata = AsOf;
    type Failure = ();
    type List = ModelList;

    fn metadata(&self) -> &AsOf {
        &self.as_of
    }

    fn as_of(&self) -> AsOf {
        self.as_of
    }

    fn terms(&self, policy: &Refresh) -> Terms {
        Terms {
            interval: policy.interval,
            early: policy.early_after(policy.interval, Duration::ZERO),
            stale_while_revalidate: policy.stale_while_revalidate,
            stale_if_error: IF_ERROR,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.read == other.read
    }

    fn metadata_without_content(_: &str, as_of: AsOf) -> AsOf {
        as_of
    }

    fn timed_out(_: &Refresh) {}

    fn retrying((): (), _: Duration) {}
}

/// The epochs of the invalidations of the one key; 0: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Marks {
    pub(super) stale: i64,
    pub(super) purged: i64,
    /// The epoch in which the new revision of the code was first seen.
    pub(super) revision: i64,
    pub(super) latest: i64,
}

impl Marks {
    /// Takes in the epochs of another list.
    pub(super) fn learn(&mut self, other: Self) {
        self.stale = self.stale.max(other.stale);
        self.purged = self.purged.max(other.purged);
        self.revision = self.revision.max(other.revision);
        self.latest = self.latest.max(other.latest);
    }

    pub(super) fn next(&mut self) -> i64 {
        self.latest += 1;
        self.latest
    }
}

/// The invalidation list of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::resource::state) struct ModelList {
    pub(super) marks: Marks,
    /// All invalidations from before the process began are known.
    pub(super) complete: bool,
    /// The process has the new revision of the code.
    pub(super) is_new: bool,
    /// A mutant: purges have no effect.
    pub(super) ignores_purges: bool,
}

impl List<AsOf> for ModelList {
    fn latest(&self) -> i64 {
        self.marks.latest
    }

    fn revision(&self) -> i64 {
        if self.is_new { self.marks.revision } else { 0 }
    }

    fn judge(&self, metadata: &AsOf) -> Freshness {
        let Marks {
            stale,
            purged,
            revision,
            ..
        } = self.marks;
        if purged > metadata.epoch && !self.ignores_purges {
            Freshness::Purged
        } else if stale.max(revision) > metadata.epoch || metadata.revision < self.revision() {
            Freshness::Stale
        } else {
            Freshness::Fresh
        }
    }
}
