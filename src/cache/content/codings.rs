//! The compressed forms of a content. They are made once and shared by all versions with the same content, so
//! that a renewal of a page's age does not compress it again.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::Response;

use super::Representation;
use crate::{
    cache::metadata::LastModified,
    http::compression::{self, Coding},
};

/// The codings of a content, shared by all versions with the same content.
#[derive(Default)]
pub(crate) struct Codings {
    /// The content in each coding. An inner `None` means that compression would make the content no smaller.
    made: OnceLock<[Option<Representation>; Coding::ALL.len()]>,
}

impl Codings {
    /// Returns the codings of a content, which are still to be made, or `None` if the content is not worth
    /// compressing.
    pub(crate) fn of(content: &Response<Bytes>) -> Option<Arc<Self>> {
        compression::is_compressible(content).then(Arc::default)
    }

    /// Stores the codings of the content. `modified` is the date that their responses have.
    pub(crate) fn put(
        &self,
        made: [Option<Response<Bytes>>; Coding::ALL.len()],
        modified: Option<LastModified>,
    ) {
        // Only one task compresses a content, so the value is set once.
        let made = made.map(|it| it.map(|it| Representation::new(it, modified)));
        let _ = self.made.set(made);
    }

    pub(crate) fn are_made(&self) -> bool {
        self.made.get().is_some()
    }

    /// Returns the content in this coding. The outer `None` means that the codings are not made yet, and the
    /// inner one that compression would make the content no smaller.
    pub(crate) fn get(&self, coding: Coding) -> Option<Option<&Representation>> {
        let made = self.made.get()?;
        Some(made[coding as usize].as_ref())
    }

    pub(crate) fn weight(&self) -> usize {
        let made = self.made.get().into_iter().flatten().flatten();
        size_of::<Self>() + made.map(Representation::weight).sum::<usize>()
    }
}
