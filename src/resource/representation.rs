//! A representation of a version (RFC 9110 §8): its content, plain or in a content coding.

use std::{
    borrow::Cow,
    cell::RefCell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use crate::policy::BrowserCache;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// The number of representations whose headers a thread caches, each in the place given by its
/// number.
const RECENT: usize = 64;

/// The number of headers that a hit may add.
const ADDED: usize = 5;

/// The number of a representation and, from its second hit on, the headers of its last hits.
type CachedHeaders = (u64, Option<(HitHeaders, HeaderMap)>);

thread_local! {
    /// Each thread has its own cache, so that no thread waits for a lock or for another core's
    /// counter.
    static CACHED_HEADERS: RefCell<[CachedHeaders; RECENT]> = const { RefCell::new([const { (0, None) }; RECENT]) };
}

pub(crate) struct Representation {
    pub(crate) content: Response<Bytes>,
    /// A number that no other representation has.
    number: u64,
}

/// The values in a hit's headers that change each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HitHeaders {
    /// In seconds.
    pub(crate) age: u64,
    pub(crate) ttl: i64,
    pub(crate) browser_cache: BrowserCache,
}

impl Representation {
    pub(crate) fn new(mut content: Response<Bytes>) -> Self {
        let body = std::mem::take(content.body_mut());
        *content.body_mut() = share(content.headers_mut(), body);
        Self {
            content,
            number: NEXT.fetch_add(1, Relaxed),
        }
    }

    /// Returns `take` of the headers of a hit with these values. A thread makes the headers once a
    /// second for repeated hits of a representation.
    pub(crate) fn headers_of_hit(
        &self,
        hit: HitHeaders,
        make: impl Fn() -> HeaderMap,
        take: impl Fn(Cow<'_, HeaderMap>) -> HeaderMap,
    ) -> HeaderMap {
        let cached = CACHED_HEADERS.try_with(|cached| {
            let mut cached = cached.borrow_mut();
            let (number, last) = &mut cached[self.number as usize % RECENT];
            if *number != self.number {
                (*number, *last) = (self.number, None);
                return take(Cow::Owned(make()));
            }
            let headers = match last {
                Some((of, headers)) if *of == hit => headers,
                _ => {
                    let (_, headers) = last.insert((hit, make()));
                    share(headers, Bytes::new());
                    headers
                }
            };
            take(Cow::Borrowed(headers))
        });
        // The thread is ending.
        cached.unwrap_or_else(|_| take(Cow::Owned(make())))
    }

    /// Returns a copy of the stored headers with room for those of a hit, which a clone does not
    /// leave.
    pub(crate) fn headers_with_room(&self) -> HeaderMap {
        let stored = self.content.headers();
        let mut headers = HeaderMap::with_capacity(stored.len() + ADDED);
        for (name, value) in stored {
            headers.append(name, value.clone());
        }
        headers
    }

    /// Returns the approximate size in memory, in bytes.
    pub(super) fn weight(&self) -> usize {
        let lines =
            self.content.headers().iter().map(|(name, value)| {
                name.as_str().len() + value.len() + size_of::<HeaderValue>() * 3
            });
        self.content.body().len() + lines.sum::<usize>()
    }
}

/// Frequent values of headers.
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

/// The longest body that is copied beside the values of the headers.
const COPIED: usize = 16 << 10;

/// Makes header values cheap to clone, as each hit clones the values: frequent values are static
/// and count no references; the other values of a response share one counter. A short body shares
/// the counter, too, as each counter of a page that is not in the processor's cache costs a hit a
/// fetch. Returns the body.
fn share(headers: &mut HeaderMap, body: Bytes) -> Bytes {
    let is_copied = (1..=COPIED).contains(&body.len());
    let values = headers.values().map(HeaderValue::as_bytes);
    let parts: Vec<_> = values.chain(is_copied.then_some(&*body)).collect();
    let mut buffer = Bytes::from(parts.concat());
    for value in headers.values_mut() {
        let own = buffer.split_to(value.len());
        let shared = match COMMON.iter().find(|common| *value == **common) {
            Some(common) => Ok(HeaderValue::from_static(common)),
            None => HeaderValue::from_maybe_shared(own),
        };
        // Always valid: the bytes were a header value before.
        if let Ok(shared) = shared {
            *value = shared;
        }
    }
    match is_copied {
        true => buffer,
        false => body,
    }
}
