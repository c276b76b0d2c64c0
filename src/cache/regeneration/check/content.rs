//! The smallest content and invalidation list that the decisions accept.

use std::sync::Arc;

use perennial_store::Epoch;

use crate::{
    cache::{
        Meta,
        entry::{InvalidationView, Page, SameContent, Version},
        epochs::{RevisionEpoch, Sighting, Snapshot, Validity},
    },
    extensions::Tags,
};

/// Generated content. Two contents that have read the same data are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Text {
    /// The latest epoch in the database when the generator read the data.
    pub(crate) read: Read,
    pub(crate) snapshot: Snapshot,
}

pub(crate) type Read = Epoch;

impl SameContent for Read {
    fn is_same(&self, new: &Self) -> bool {
        self == new
    }
}

impl Text {
    pub(crate) fn page(self) -> Arc<Page<Read>> {
        Arc::new(Page {
            meta: meta(self.snapshot),
            body: self.read,
        })
    }

    pub(crate) fn of(version: &Version<Read>) -> Self {
        Self {
            read: version.page.body,
            snapshot: version.page.meta.snapshot(),
        }
    }
}

pub(crate) fn meta(snapshot: Snapshot) -> Meta {
    Meta::without_version("key", snapshot, Tags::default())
}

/// The epochs of the invalidations of the one key; [`Epoch::NONE`]: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Marks {
    pub(crate) stale: Epoch,
    pub(crate) purged: Epoch,
    /// The epoch in which the new revision of the code was first seen.
    pub(crate) revision: Epoch,
    pub(crate) latest: Epoch,
}

impl Marks {
    /// Takes in the epochs of another list.
    pub(crate) fn learn(&mut self, other: Self) {
        self.stale = self.stale.max(other.stale);
        self.purged = self.purged.max(other.purged);
        self.revision = self.revision.max(other.revision);
        self.latest = self.latest.max(other.latest);
    }

    pub(crate) fn next(&mut self) -> Epoch {
        self.latest = self.latest.next();
        self.latest
    }
}

/// The invalidation list of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelList {
    pub(crate) marks: Marks,
    /// All invalidations from before the process began are known.
    pub(crate) complete: bool,
    /// The process has the new revision of the code.
    pub(crate) is_new: bool,
    /// A mutant: purges have no effect.
    pub(crate) ignores_purges: bool,
}

impl InvalidationView for ModelList {
    fn latest(&self) -> Epoch {
        self.marks.latest
    }

    fn revision(&self) -> RevisionEpoch {
        if self.is_new && self.marks.revision > Epoch::NONE {
            RevisionEpoch::Announced(self.marks.revision)
        } else {
            RevisionEpoch::NoRevision
        }
    }

    fn sightings(&self) -> Sighting {
        // This check does not vary the order in which a sync's answers arrive. The simulation does.
        Sighting::default()
    }

    fn validity(&self, meta: &Meta) -> Validity {
        let metadata = meta.snapshot();
        let Marks {
            stale,
            purged,
            revision,
            ..
        } = self.marks;
        if purged > metadata.epoch && !self.ignores_purges {
            Validity::Purged
        } else if stale.max(revision) > metadata.epoch || metadata.revision < self.revision() {
            Validity::Invalidated
        } else {
            Validity::Valid
        }
    }
}
