//! What of a version is given to visitors: its content, as it is or in a content coding (RFC 9110 §8).

use std::{
    borrow::Cow,
    cell::RefCell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use crate::policy::Client;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Of how many representations a thread keeps the headers: one whose number has the same rest takes another one's place.
const RECENT: usize = 64;

/// The number of a representation and, if it was asked for again, what its last hits said and were given.
type Given = (u64, Option<(Said, HeaderMap)>);

thread_local! {
    /// Each thread has its own: none waits for another one, whether for a lock or for the count of a value's uses.
    static GIVEN: RefCell<[Given; RECENT]> = const { RefCell::new([const { (0, None) }; RECENT]) };
}

pub(crate) struct Representation {
    pub(crate) content: Response<Bytes>,
    /// Another one for each.
    number: u64,
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
            number: NEXT.fetch_add(1, Relaxed),
        }
    }

    /// What is taken of the headers of a hit that says this, which a thread that is asked again makes once for all of its hits of the
    /// same second.
    pub(crate) fn given(
        &self,
        said: Said,
        make: impl Fn() -> HeaderMap,
        take: impl Fn(Cow<'_, HeaderMap>) -> HeaderMap,
    ) -> HeaderMap {
        let given = GIVEN.try_with(|given| {
            let mut given = given.borrow_mut();
            let (number, last) = &mut given[self.number as usize % RECENT];
            if *number != self.number {
                (*number, *last) = (self.number, None);
                return take(Cow::Owned(make()));
            }
            let headers = match last {
                Some((of, headers)) if *of == said => headers,
                _ => {
                    let (_, headers) = last.insert((said, make()));
                    share(headers);
                    headers
                }
            };
            take(Cow::Borrowed(headers))
        });
        // Not while the thread ends.
        given.unwrap_or_else(|_| take(Cow::Owned(make())))
    }

    /// What it takes of memory, in bytes.
    pub(super) fn weight(&self) -> usize {
        let lines =
            self.content.headers().iter().map(|(name, value)| {
                name.as_str().len() + value.len() + size_of::<HeaderValue>() * 3
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

/// Makes values cheap to clone, which each hit does: the common ones count no uses, the others do so in one place, which is theirs alone.
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
