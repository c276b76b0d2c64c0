//! A representation of a version (RFC 9110 §8): its content, plain or in a content coding.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use crate::http::cache_status::CACHE_STATUS;

/// The headers that a hit sets, in the order of their places.
static SET: [HeaderName; 4] = [
    header::AGE,
    CACHE_STATUS,
    header::DATE,
    header::CACHE_CONTROL,
];

#[derive(Clone)]
pub(crate) struct Representation {
    pub(crate) content: Response<Bytes>,
    /// The headers of a hit: first the places of the headers that a hit sets, then the content's. To
    /// copy them and to fill the places takes fewer instructions than to insert headers.
    hit: HeaderMap,
    /// The headers of [`SET`] that have a place. The content's own `Date`, `Cache-Control` and
    /// `Expires` stay, and its `Cache-Status` stays before the layer's.
    has_place: [bool; 4],
}

impl Representation {
    pub(crate) fn new(mut content: Response<Bytes>) -> Self {
        let body = std::mem::take(content.body_mut());
        *content.body_mut() = share(content.headers_mut(), body);
        let own = content.headers();
        let has_place = [
            true,
            !own.contains_key(CACHE_STATUS),
            !own.contains_key(header::DATE),
            !own.contains_key(header::CACHE_CONTROL) && !own.contains_key(header::EXPIRES),
        ];
        let mut hit = HeaderMap::with_capacity(own.len() + SET.len());
        for (name, _) in SET.iter().zip(has_place).filter(|(_, it)| *it) {
            hit.insert(name, HeaderValue::from_static(""));
        }
        for (name, value) in own.iter().filter(|(name, _)| *name != header::AGE) {
            hit.append(name, value.clone());
        }
        Self {
            content,
            hit,
            has_place,
        }
    }

    /// Returns the headers of a hit with these values of [`SET`]. `None`: the header is left out.
    #[inline]
    pub(crate) fn headers_of_hit(&self, values: [Option<&HeaderValue>; 4]) -> HeaderMap {
        let mut headers = self.hit.clone();
        let mut places = headers.values_mut();
        for (value, has_place) in values.iter().zip(&self.has_place) {
            if *has_place && let (Some(place), Some(value)) = (places.next(), value) {
                place.clone_from(value);
            }
        }
        if values.iter().any(Option::is_none) || !self.has_place[1] {
            self.complete(&mut headers, values);
        }
        headers
    }

    /// Removes the places without a value, and adds the status beside the content's own.
    #[cold]
    fn complete(&self, headers: &mut HeaderMap, values: [Option<&HeaderValue>; 4]) {
        for ((name, has_place), value) in SET.iter().zip(self.has_place).zip(values) {
            match value {
                None if has_place => drop(headers.remove(name)),
                Some(status) if *name == CACHE_STATUS && !has_place => {
                    headers.append(name, status.clone());
                }
                _ => {}
            }
        }
    }

    /// Returns the approximate size in memory, in bytes.
    pub(super) fn weight(&self) -> usize {
        let lines =
            self.content.headers().iter().map(|(name, value)| {
                name.as_str().len() + value.len() + size_of::<HeaderValue>() * 6
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
