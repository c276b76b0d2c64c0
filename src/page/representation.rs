//! The representations of a version (RFC 9110 §8): its content, plain or in a content coding.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicI64},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use httpdate::HttpDate;
use perennial_store::Entry;

#[cfg(feature = "compression")]
use crate::page::codings::Codings;
use crate::{
    clock::{Tick, YEAR},
    http::{entity_tag, terms},
    page::{Meta, Metadata, Page, Version, flight::Origin, meta::LastModified},
    policy::Refresh,
};

/// A generated response in its representations.
#[derive(Clone)]
pub(crate) struct Representations {
    /// The response as generated.
    pub(crate) plain: Representation,
    /// The response in content codings; `None`: not compressible.
    #[cfg(feature = "compression")]
    pub(super) codings: Option<Arc<Codings>>,
    /// The `Age` header of the generated response, in seconds.
    pub(crate) age_before: u64,
    /// The header that gave the response another entity tag than the version before, although the
    /// body is the same.
    pub(super) retagged_by: Option<HeaderName>,
    /// The decoded value of the content, for `Perennial::value`.
    decoded: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Page {
    /// Creates a page. The codings of the page `before` are reused if the response is the same.
    pub(crate) fn new(
        key: &str,
        response: Response<Bytes>,
        metadata: Metadata,
        before: Option<&Self>,
    ) -> Self {
        #[cfg(feature = "compression")]
        let codings = match before {
            Some(before) if is_same(before.response(), &response) => before.body.codings.clone(),
            _ => Codings::of(&response),
        };
        let retagged_by =
            before.and_then(|before| entity_tag::changed_by(before.response(), &response).cloned());
        let meta = Meta::new(key, metadata).of_response(response.status(), response.headers());
        let age_before = terms::age(response.headers());
        let plain = Representation::new(response, meta.stored.modified);
        Self {
            meta,
            body: Representations {
                age_before,
                plain,
                #[cfg(feature = "compression")]
                codings,
                retagged_by,
                decoded: OnceLock::new(),
            },
            read_in: AtomicI64::new(i64::MIN),
        }
    }

    pub(crate) fn response(&self) -> &Response<Bytes> {
        &self.body.plain.content
    }

    /// Returns the content as a value. The value of the first requested type stays in memory; calls
    /// for further types decode each time.
    ///
    /// # Errors
    ///
    /// The error of `decode`.
    pub(crate) fn decoded<T: Send + Sync + 'static, E>(
        &self,
        decode: impl FnOnce(&Response<Bytes>) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        if let Some(decoded) = self.body.decoded.get()
            && let Ok(value) = Arc::clone(decoded).downcast()
        {
            return Ok(value);
        }
        let value = Arc::new(decode(self.response())?);
        // Another call may have been faster.
        let _ = self.body.decoded.set(Arc::clone(&value) as _);
        Ok(value)
    }

    /// Returns the date of a response that was generated under the lease with this fence, for
    /// `Last-Modified` (RFC 9110 §8.8.2); `None`: the handler has set one, or the fence is no time.
    ///
    /// It is a second before the lease was acquired, and so earlier than `Date`, which says when
    /// the generator had ended (§8.8.2.1). An unchanged page keeps the date of the page `before`.
    /// `dated_before`: the `Date` of that page, in seconds since 1970.
    ///
    /// A date names one version. If another one has it too, a client that has the one would be told
    /// that the other one is not modified. A client without a date may send `Date` instead.
    pub(super) fn last_modified(
        response: &Response<Bytes>,
        fence: i64,
        before: Option<&Self>,
        dated_before: Option<i64>,
    ) -> Option<LastModified> {
        let headers = response.headers();
        if headers.contains_key(header::LAST_MODIFIED) {
            return None;
        }
        let is_same = |before: &&Self| {
            before.response().status() == response.status()
                && before.response().headers().get(header::ETAG) == headers.get(header::ETAG)
        };
        if let Some(same) = before.filter(is_same)
            && let Some(date) = same.meta.stored.modified
        {
            return Some(date);
        }
        let seconds = fence.div_euclid(1_000_000) - 1;
        http_date(seconds)?;
        let before = before.and_then(|before| before.meta.stored.modified);
        let taken = [before.map(|before| before.seconds), dated_before];
        Some(LastModified {
            seconds,
            is_ambiguous: taken.contains(&Some(seconds)),
        })
    }
}

impl Version {
    /// Returns the version of an entry, which is the answer to a question at `asked`.
    pub(super) fn stored(
        key: &str,
        entry: Entry,
        asked: Tick,
        policy: &Refresh,
        before: Option<&Page>,
    ) -> Self {
        let metadata = Metadata::decode(entry.epoch, &entry.metadata);
        let mut page = Page::new(key, entry.content, metadata, before);
        page.meta.timed(policy, [entry.fence, entry.generated]);
        let born = asked - entry.age;
        let version = Self::new(Arc::new(page), entry.fence, born, Origin::Stored);
        Self {
            undated: entry.undated,
            ..version
        }
    }
}

impl Version {
    /// Returns the time from which `Age` and `Date` count: that of the generation, or earlier if the
    /// generated response had an age.
    pub(crate) fn made_at(&self) -> Tick {
        self.born - Duration::from_secs(self.page.body.age_before)
    }
}

impl PartialEq for Representations {
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.plain.content, &other.plain.content)
    }
}

fn is_same(a: &Response<Bytes>, b: &Response<Bytes>) -> bool {
    a.status() == b.status() && a.headers() == b.headers() && a.body() == b.body()
}

/// Returns the date of seconds since 1970. `None`: the number is no plausible time, as in a store
/// whose fences are no times.
fn http_date(seconds: i64) -> Option<HeaderValue> {
    let since = Duration::from_secs(seconds.try_into().ok()?);
    if since < 30 * YEAR || since > 8000 * YEAR {
        return None;
    }
    let date = HttpDate::from(SystemTime::UNIX_EPOCH.checked_add(since)?);
    HeaderValue::try_from(date.to_string()).ok()
}

impl fmt::Debug for Representations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Representations").finish_non_exhaustive()
    }
}

/// The headers that a hit sets, in their order in [`Representation::hit`].
static SET: [HeaderName; PLACES] = [
    header::AGE,
    header::CACHE_STATUS,
    header::DATE,
    header::CACHE_CONTROL,
    header::LAST_MODIFIED,
    header::ETAG,
];

const PLACES: usize = 6;

/// A content in one coding, with everything that a hit needs.
#[derive(Clone)]
pub(crate) struct Representation {
    pub(crate) content: Response<Bytes>,
    /// The headers of a hit: first the places of the headers that a hit sets, then the content's. To
    /// copy them and to fill the places takes fewer instructions than to insert headers.
    pub(crate) hit: HeaderMap,
    /// The headers of [`SET`] that have a place. The content's own `Date`, `Cache-Control`,
    /// `Expires` and `Last-Modified` stay, and its `Cache-Status` stays before the layer's.
    has_place: [bool; PLACES],
    /// The generated `Last-Modified`, in seconds since 1970 and as a value.
    pub(crate) modified: Option<(i64, HeaderValue)>,
    /// The generated entity tag, strong and weak.
    pub(crate) tags: Option<[HeaderValue; 2]>,
}

impl Representation {
    pub(crate) fn new(mut content: Response<Bytes>, modified: Option<LastModified>) -> Self {
        let body = std::mem::take(content.body_mut());
        *content.body_mut() = share(content.headers_mut(), body);
        let own = content.headers();
        let modified = modified
            .filter(|it| !it.is_ambiguous && !own.contains_key(header::LAST_MODIFIED))
            .and_then(|it| Some((it.seconds, http_date(it.seconds)?)));
        // What a coding's tag names are the bytes of the body, which no outer layer changes.
        let is_plain = !own.contains_key(header::CONTENT_ENCODING);
        let tag = own.get(header::ETAG);
        let tag = tag.filter(|tag| is_plain && entity_tag::is_generated(tag));
        let tags = tag.map(|tag| [tag.clone(), entity_tag::weak(tag)]);
        let has_place = [
            true,
            !own.contains_key(header::CACHE_STATUS),
            !own.contains_key(header::DATE),
            !own.contains_key(header::CACHE_CONTROL) && !own.contains_key(header::EXPIRES),
            modified.is_some(),
            tags.is_some(),
        ];
        let mut hit = HeaderMap::with_capacity(own.len() + SET.len());
        for (name, _) in SET.iter().zip(has_place).filter(|(_, it)| *it) {
            hit.insert(name, HeaderValue::from_static(""));
        }
        let set_or_left =
            |name: &HeaderName| *name == header::AGE || (*name == header::ETAG && tags.is_some());
        for (name, value) in own.iter().filter(|(name, _)| !set_or_left(name)) {
            hit.append(name, value.clone());
        }
        Self {
            content,
            hit,
            has_place,
            modified,
            tags,
        }
    }

    /// Fills the places in a copy of [`hit`](Self::hit) with these values of [`SET`]. `None`: the
    /// header is left out.
    #[inline]
    pub(crate) fn fill(&self, headers: &mut HeaderMap, values: [Option<&HeaderValue>; PLACES]) {
        let mut places = headers.values_mut();
        let mut is_complete = self.has_place[1];
        for (value, has_place) in values.iter().zip(&self.has_place) {
            if *has_place {
                match (places.next(), value) {
                    (Some(place), Some(value)) => place.clone_from(value),
                    _ => is_complete = false,
                }
            }
        }
        if !is_complete {
            self.complete(headers, values);
        }
    }

    /// Removes the places without a value, and adds the status beside the content's own.
    #[cold]
    fn complete(&self, headers: &mut HeaderMap, values: [Option<&HeaderValue>; PLACES]) {
        for ((name, has_place), value) in SET.iter().zip(self.has_place).zip(values) {
            match value {
                None if has_place => drop(headers.remove(name)),
                Some(status) if *name == header::CACHE_STATUS && !has_place => {
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
        // The values that a hit chooses from.
        let tags = self
            .tags
            .iter()
            .flatten()
            .map(HeaderValue::len)
            .sum::<usize>();
        self.content.body().len() + lines.sum::<usize>() + tags
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
/// the counter, too: for a page outside of the processor's cache, each further counter would be a
/// cache miss. Returns the body.
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
