//! The content codings of a version, which are made once.

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
    /// The content in each coding; `None`: compression would make the content no smaller.
    made: OnceLock<[Option<Representation>; Coding::ALL.len()]>,
}

impl Codings {
    /// Returns the codings of a content, to be made. `None`: the content is not compressible.
    pub(crate) fn of(content: &Response<Bytes>) -> Option<Arc<Self>> {
        compression::is_compressible(content).then(Arc::default)
    }

    /// Takes the codings of the content with this date.
    pub(crate) fn put(
        &self,
        made: [Option<Response<Bytes>>; Coding::ALL.len()],
        modified: Option<LastModified>,
    ) {
        // The compression runs once.
        let made = made.map(|it| it.map(|it| Representation::new(it, modified)));
        let _ = self.made.set(made);
    }

    pub(crate) fn are_made(&self) -> bool {
        self.made.get().is_some()
    }

    /// Returns the content in this coding; the outer `None`: the codings are not made yet.
    pub(crate) fn get(&self, coding: Coding) -> Option<Option<&Representation>> {
        let made = self.made.get()?;
        Some(made[coding as usize].as_ref())
    }

    pub(crate) fn weight(&self) -> usize {
        let made = self.made.get().into_iter().flatten().flatten();
        size_of::<Self>() + made.map(Representation::weight).sum::<usize>()
    }
}
