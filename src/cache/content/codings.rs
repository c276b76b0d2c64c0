//! The compressed forms of the content of a page. They are made once and shared by all versions with the same
//! content, so that a renewal of a page's age does not compress it again.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::Response;

use super::Representation;
use crate::{
    cache::metadata::LastModified,
    holes::HolePlaces,
    http::{
        compression::{self, Coding},
        gzip_pieces::GzipPieces,
    },
};

/// The compressed forms of some content, shared by all versions with the same content.
#[derive(Default)]
pub(crate) struct Codings {
    /// Set once, when the content has been compressed.
    made: OnceLock<Made>,
}

/// The result of compressing some content. `None` means that the compressed form would not be smaller.
enum Made {
    /// The whole content, by its codings.
    Whole(Box<[Option<Representation>; Coding::ALL.len()]>),
    /// The pieces of a content with holes.
    Pieces(Option<Arc<GzipPieces>>),
}

/// What an encoder has returned for some content; see [`Codings::put`].
#[derive(Debug, Default)]
pub(crate) enum Encoded {
    Whole(Box<[Option<Response<Bytes>>; Coding::ALL.len()]>),
    Pieces(Option<GzipPieces>),
    /// The encoder has panicked.
    #[default]
    Nothing,
}

impl Encoded {
    /// Compresses some content, which takes up to a few tenths of a second.
    pub(crate) fn of(content: &Response<Bytes>, holes: Option<&HolePlaces>) -> Self {
        match holes {
            Some(holes) => Self::Pieces(Coding::pieces(content.body(), holes)),
            None => Self::Whole(Coding::ALL.map(|coding| coding.encoded(content)).into()),
        }
    }
}

impl Codings {
    /// Returns a place for the compressed forms of this content, which are still to be made, or `None` if the
    /// content is not worth compressing.
    pub(crate) fn of(content: &Response<Bytes>) -> Option<Arc<Self>> {
        compression::is_compressible(content).then(Arc::default)
    }

    /// Stores the codings of the content. `modified` is the date that their responses have.
    pub(crate) fn put(&self, encoded: Encoded, modified: Option<LastModified>) {
        let made = match encoded {
            Encoded::Whole(codings) => {
                let coded = codings.map(|coded| Some(Representation::new(coded?, modified)));
                Made::Whole(coded.into())
            }
            Encoded::Pieces(pieces) => Made::Pieces(pieces.map(Arc::new)),
            Encoded::Nothing => Made::Pieces(None),
        };
        // Any given content is compressed by one task only, so the value is set once.
        let _ = self.made.set(made);
    }

    /// Returns a copy, or `None` if the codings are still to be made. Whole bodies get buffers of
    /// their own; the pieces of a page with holes are shared.
    pub(crate) fn copied(&self, modified: Option<LastModified>) -> Option<Self> {
        let made = match self.made.get()? {
            Made::Whole(codings) => {
                let copy = |coded: &Option<Representation>| Some(coded.as_ref()?.copied(modified));
                Made::Whole(codings.each_ref().map(copy).into())
            }
            Made::Pieces(pieces) => Made::Pieces(pieces.clone()),
        };
        Some(Self { made: made.into() })
    }

    pub(crate) fn are_made(&self) -> bool {
        self.made.get().is_some()
    }

    /// Returns the content in this coding, or `None` if compression would make the content no smaller.
    pub(crate) fn get(&self, coding: Coding) -> Option<&Representation> {
        match self.made.get()? {
            Made::Whole(codings) => codings[coding as usize].as_ref(),
            Made::Pieces(_) => None,
        }
    }

    /// Returns the compressed pieces of content with holes, or `None` if they would not be smaller.
    pub(crate) fn pieces(&self) -> Option<&Arc<GzipPieces>> {
        match self.made.get()? {
            Made::Pieces(pieces) => pieces.as_ref(),
            Made::Whole(_) => None,
        }
    }

    pub(crate) fn weight(&self) -> usize {
        let made = match self.made.get() {
            Some(Made::Whole(codings)) => {
                codings.iter().flatten().map(Representation::weight).sum()
            }
            Some(Made::Pieces(Some(pieces))) => pieces.weight(),
            Some(Made::Pieces(None)) | None => 0,
        };
        size_of::<Self>() + made
    }
}
