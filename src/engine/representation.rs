//! What of a version is given to visitors: its content, as it is or in a content coding (RFC 9110 §8).

use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use crate::refresh::Client;

pub(crate) struct Representation {
    pub(crate) content: Response<Bytes>,
    /// The headers that its last hit was given.
    given: RwLock<Option<(Said, HeaderMap)>>,
}

/// What a hit says beside what is kept: another thing each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// In seconds.
    pub(crate) age: u64,
    pub(crate) ttl: i64,
    pub(crate) client: Client,
}

impl Representation {
    pub(crate) fn new(mut content: Response<Bytes>) -> Self {
        share(content.headers_mut());
        Self {
            content,
            given: RwLock::default(),
        }
    }

    /// What is taken of the headers of a hit that says this, which are made once for all of the same second.
    pub(crate) fn given(
        &self,
        said: Said,
        make: impl FnOnce() -> HeaderMap,
        take: impl FnOnce(&HeaderMap) -> HeaderMap,
    ) -> HeaderMap {
        let given = self.given.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, headers)) = &*given
            && *last == said
        {
            return take(headers);
        }
        drop(given);
        let headers = make();
        let taken = take(&headers);
        let mut given = self.given.write().unwrap_or_else(PoisonError::into_inner);
        *given = Some((said, headers));
        taken
    }

    /// What it takes of memory, in bytes.
    pub(super) fn weight(&self) -> usize {
        let lines = self.content.headers().iter().map(|(name, value)| {
            // Twice: also those of the last hit.
            2 * (name.as_str().len() + value.len() + size_of::<HeaderValue>() * 2)
        });
        self.content.body().len() + lines.sum::<usize>()
    }
}

/// Values that many responses have.
const COMMON: [&str; 8] = [
    "bytes",
    "text/html; charset=utf-8",
    "text/html",
    "application/json",
    "text/plain; charset=utf-8",
    "text/css; charset=utf-8",
    "no-cache",
    "nosniff",
];

/// Makes values cheap to clone, which each hit does: the common ones count no uses, the others do so in one place.
fn share(headers: &mut HeaderMap) {
    let mut buffer = Vec::new();
    for value in headers.values() {
        buffer.extend_from_slice(value.as_bytes());
    }
    let mut buffer = Bytes::from(buffer);
    for value in headers.values_mut() {
        let own = buffer.split_to(value.len());
        let shared = match COMMON.iter().find(|common| *value == **common) {
            Some(common) => Ok(HeaderValue::from_static(common)),
            None => HeaderValue::from_maybe_shared(own),
        };
        // Always, as it was one before.
        if let Ok(shared) = shared {
            *value = shared;
        }
    }
}
