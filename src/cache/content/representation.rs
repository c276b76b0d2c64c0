//! The representations of a version (RFC 9110 §8): its content, plain or in a content coding, with everything
//! that a hit needs prepared once.
//!
//! A hit copies one header map and fills a few places in it: to insert the same headers for each request would
//! cost more than everything else that a hit does. So a [`Representation`] keeps the headers only in the form
//! that a hit sends. The headers of the generated response are made from that form, for the few callers that
//! ask for them.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use httpdate::HttpDate;
use perennial_store::{Fence, StoredEntry};

#[cfg(feature = "compression")]
use crate::cache::content::codings::Codings;
use crate::{
    cache::{
        Meta, Metadata, Page, Version,
        entry::{Origin, SameContent},
        metadata::LastModified,
    },
    clock::{Tick, YEAR},
    holes::HolePlaces,
    http::{
        conditional::{Modified, Selected},
        entity_tag, terms,
    },
    policy::{GenerationTimes, Refresh},
};

/// A generated response in its representations.
#[derive(Clone)]
pub(crate) struct Representations {
    /// The response as generated.
    pub(crate) plain: Representation,
    /// The response in content codings, or `None` if its content is not worth compressing.
    #[cfg(feature = "compression")]
    pub(crate) codings: Option<Arc<Codings>>,
    /// The `Age` header of the generated response, in seconds.
    pub(crate) age_before: u64,
    /// The header that gave the response an entity tag different from the previous version's, although the body
    /// is the same.
    pub(crate) retagged_by: Option<HeaderName>,
    /// The holes of the content.
    holes: Option<Arc<HolePlaces>>,
    /// The content as `Perennial::content` or `Perennial::value` returns it, which is made once.
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
        let response_before = before.map(Self::response);
        let response_before = response_before.as_ref();
        #[cfg(feature = "compression")]
        let codings = match (before, response_before) {
            (Some(before), Some(other))
                if is_same(other, &response) && before.body.holes == metadata.holes =>
            {
                before.body.codings.clone()
            }
            _ => Codings::of(&response),
        };
        let holes = metadata.holes.clone();
        let retagged_by =
            response_before.and_then(|before| entity_tag::changed_by(before, &response).cloned());
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
                holes,
                decoded: OnceLock::new(),
            },
        }
    }

    /// Returns the response as it was generated. This makes its headers; for the content alone there are
    /// [`status`](Self::status) and [`content`](Self::content).
    pub(crate) fn response(&self) -> Response<Bytes> {
        self.body.plain.response()
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.body.plain.status
    }

    pub(crate) fn content(&self) -> &Bytes {
        &self.body.plain.body
    }

    /// Returns the holes, if the page has any.
    #[inline]
    pub(crate) fn holes(&self) -> Option<&Arc<HolePlaces>> {
        self.meta.stored.holes.as_ref()
    }

    /// Returns the content as a value. The value of the first requested type stays in memory; calls
    /// for further types decode each time.
    ///
    /// # Errors
    ///
    /// The error of `decode`.
    pub(crate) fn decoded<T: Send + Sync + 'static, E>(
        &self,
        decode: impl FnOnce(&Bytes) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        if let Some(decoded) = self.body.decoded.get()
            && let Ok(value) = Arc::clone(decoded).downcast()
        {
            return Ok(value);
        }
        let value = Arc::new(decode(self.content())?);
        // If another call was faster, its value stays: both were decoded from the same bytes.
        let _ = self.body.decoded.set(Arc::clone(&value) as _);
        Ok(value)
    }

    /// Returns the date of a response that was generated under the lease with this fence, for `Last-Modified`
    /// (RFC 9110 §8.8.2); `None` means that the handler has set one, or that the fence is not a time.
    ///
    /// It is a second before the lease was acquired, and so earlier than `Date`, which says when the
    /// generator had ended (§8.8.2.1). An unchanged page keeps the date of the page `before`. `dated_before`
    /// is the `Date` of that page, in seconds since 1970.
    ///
    /// A date has to belong to one version only. If two versions had the same date, a client that has the first
    /// one would be told that nothing was modified, although the second one is current. A client that got no
    /// `Last-Modified` may send `Date` instead, which can be a second later. So the date of a new version has
    /// to be later than the `Last-Modified` and the `Date` of the one before it.
    pub(crate) fn last_modified(
        response: &Response<Bytes>,
        fence: Fence,
        before: Option<&Self>,
        dated_before: Option<i64>,
    ) -> Option<LastModified> {
        let headers = response.headers();
        if headers.contains_key(header::LAST_MODIFIED) {
            return None;
        }
        // The entity tag in the headers of a hit was made from the content, so equal tags mean equal content.
        let is_same = |before: &&Self| {
            before.status() == response.status()
                && before.body.plain.hit.get(header::ETAG) == headers.get(header::ETAG)
        };
        if let Some(same) = before.filter(is_same)
            && let Some(date) = same.meta.stored.modified
        {
            return Some(date);
        }
        let seconds = fence.acquired_at().div_euclid(1_000_000) - 1;
        http_date(seconds)?;
        let before = before.and_then(|before| before.meta.stored.modified);
        let taken = [
            before.map(|before| before.seconds),
            dated_before.map(|date| date + 1),
        ];
        // `taken` is the latest date of all earlier versions, because each version's date is later than that of
        // the version before it.
        let taken = taken.into_iter().flatten().max();
        Some(match taken {
            Some(taken) if seconds <= taken => LastModified {
                seconds: taken,
                is_ambiguous: true,
            },
            _ => LastModified {
                seconds,
                is_ambiguous: false,
            },
        })
    }
}

impl Version {
    /// Makes a version of a stored entry. `asked` is the time at which the question was sent, so that the age
    /// counts the time that the answer took.
    pub(crate) fn stored(
        key: &str,
        entry: StoredEntry,
        asked: Tick,
        policy: &Refresh,
        before: Option<&Page>,
    ) -> Self {
        let metadata = Metadata::decode(entry.epoch, &entry.metadata);
        let mut page = Page::new(key, entry.content, metadata, before);
        let times = GenerationTimes {
            began: entry.fence.acquired_at(),
            published: entry.generated,
        };
        page.meta.timed(policy, times);
        let published_at = asked - entry.age;
        let version = Self::new(Arc::new(page), entry.fence, published_at, Origin::Stored);
        Self {
            age_unknown: entry.age_unknown,
            ..version
        }
    }
}

impl Version {
    /// Returns the time from which `Age` and `Date` count: that of the generation, or earlier if the
    /// generated response itself came with an age.
    pub(crate) fn made_at(&self) -> Tick {
        self.published_at - Duration::from_secs(self.page.body.age_before)
    }
}

impl Version {
    /// Returns a copy for one thread, or `None` for a page that is large, or that is still to be compressed.
    /// The copy shares with this version no value of the application, and nothing that a hit of a page
    /// without holes writes to.
    pub(crate) fn copied(&self) -> Option<Self> {
        let body = &self.page.body;
        if body.plain.body.len() > LARGEST_COPY {
            return None;
        }
        let meta = self.page.meta.copied();
        let body = Representations {
            plain: body.plain.copied(meta.stored.modified),
            #[cfg(feature = "compression")]
            codings: match &body.codings {
                Some(codings) => Some(Arc::new(codings.copied(meta.stored.modified)?)),
                None => None,
            },
            age_before: body.age_before,
            retagged_by: body.retagged_by.clone(),
            holes: body.holes.clone(),
            decoded: OnceLock::new(),
        };
        Some(Self {
            page: Arc::new(Page { meta, body }),
            ..self.clone()
        })
    }
}

impl SameContent for Representations {
    fn is_same(&self, new: &Self) -> bool {
        is_same(&self.plain.response(), &new.plain.response()) && self.holes == new.holes
    }
}

fn is_same(a: &Response<Bytes>, b: &Response<Bytes>) -> bool {
    a.status() == b.status() && a.headers() == b.headers() && a.body() == b.body()
}

/// Returns the HTTP date for a number of seconds since 1970. `None` means that the number is no plausible time.
/// A fence usually is a time, but a store may use other numbers.
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

/// Which headers of a hit have a place in [`Representation::hit`], beside `Age`. A response that brings its
/// own `Date`, `Cache-Control` or `Expires` keeps them, and its own `Cache-Status` stays before the layer's.
#[derive(Clone, Copy)]
struct Places {
    cache_status: bool,
    date: bool,
    cache_control: bool,
}

/// The most places, with that of `Age`.
const PLACES: usize = 4;

/// The headers of a hit that are not the content's own.
#[derive(Clone, Copy)]
pub(crate) struct HitHeaders<'a> {
    pub(crate) age: &'a HeaderValue,
    pub(crate) cache_status: Option<&'a HeaderValue>,
    pub(crate) date: Option<&'a HeaderValue>,
    /// `None` stands for `no-cache`, which is the value that the place has already.
    pub(crate) cache_control: Option<&'a HeaderValue>,
    /// The generated entity tag is weak.
    pub(crate) has_weak_tag: bool,
    /// There is a generated `Last-Modified`.
    pub(crate) is_dated: bool,
}

/// Content in one coding, with everything that a hit needs.
#[derive(Clone)]
pub(crate) struct Representation {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// The `Age` of the generated response, which a hit replaces with its own.
    age: Option<HeaderValue>,
    /// The headers of a hit: first `Age` and the [`Places`], in this order and with `no-cache` in each, then
    /// the generated validators, the tag in its strong form, and then the content's own headers. Copying them
    /// and filling the places takes fewer instructions than inserting headers.
    pub(crate) hit: HeaderMap,
    places: Places,
    /// The generated entity tag in its weak form.
    pub(crate) weak_tag: Option<HeaderValue>,
    /// The generated `Last-Modified`, in seconds since 1970.
    pub(crate) modified: Option<i64>,
}

impl Representation {
    pub(crate) fn new(content: Response<Bytes>, modified: Option<LastModified>) -> Self {
        let (mut head, body) = content.into_parts();
        let body = share(&mut head.headers, body);
        let handler_headers = &head.headers;
        let modified = modified
            .filter(|it| !it.is_ambiguous && !handler_headers.contains_key(header::LAST_MODIFIED))
            .and_then(|it| Some((it.seconds, http_date(it.seconds)?)));
        // The tag of coded content names the coded bytes, which no outer layer changes, so that it needs no
        // weak form.
        let is_plain = !handler_headers.contains_key(header::CONTENT_ENCODING);
        let tag = handler_headers.get(header::ETAG);
        let tag = tag.filter(|tag| is_plain && entity_tag::is_generated(tag));
        let places = Places {
            cache_status: !handler_headers.contains_key(header::CACHE_STATUS),
            date: !handler_headers.contains_key(header::DATE),
            cache_control: !handler_headers.contains_key(header::CACHE_CONTROL)
                && !handler_headers.contains_key(header::EXPIRES),
        };
        let mut hit = HeaderMap::with_capacity(handler_headers.len() + PLACES + 1);
        for (has_place, name) in [
            (true, header::AGE),
            (places.cache_status, header::CACHE_STATUS),
            (places.date, header::DATE),
            (places.cache_control, header::CACHE_CONTROL),
        ] {
            if has_place {
                hit.insert(name, HeaderValue::from_static("no-cache"));
            }
        }
        if let Some(tag) = tag {
            hit.insert(header::ETAG, tag.clone());
        }
        if let Some((_, date)) = &modified {
            hit.insert(header::LAST_MODIFIED, date.clone());
        }
        let is_set =
            |name: &HeaderName| *name == header::AGE || (*name == header::ETAG && tag.is_some());
        for (name, value) in handler_headers.iter().filter(|(name, _)| !is_set(name)) {
            hit.append(name, value.clone());
        }
        let weak_tag = tag.map(entity_tag::weak);
        Self {
            status: head.status,
            body,
            age: handler_headers.get(header::AGE).cloned(),
            // The clone is allocated for exactly these headers, which saves a third of the memory.
            hit: hit.clone(),
            places,
            weak_tag,
            modified: modified.map(|(seconds, _)| seconds),
        }
    }

    /// Returns the response as it was generated, with headers that are made from those of a hit.
    pub(crate) fn response(&self) -> Response<Bytes> {
        let Places {
            cache_status,
            date,
            cache_control,
        } = self.places;
        let places = [true, cache_status, date, cache_control].into_iter();
        let places = places.filter(|has_place| *has_place).count();
        let mut headers = HeaderMap::with_capacity(self.hit.keys().len());
        if let Some(age) = &self.age {
            headers.insert(header::AGE, age.clone());
        }
        for (name, value) in self.hit.iter().skip(places) {
            let is_generated = *name == header::LAST_MODIFIED && self.modified.is_some();
            if !is_generated {
                headers.append(name, value.clone());
            }
        }
        let mut response = Response::new(self.body.clone());
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        response
    }

    /// Returns a copy with buffers of its own. `modified` is the date of the version.
    pub(crate) fn copied(&self, modified: Option<LastModified>) -> Self {
        let response = self.response();
        Self::new(response.map(|body| Bytes::copy_from_slice(&body)), modified)
    }

    /// Returns what conditions are evaluated against. `modified` is the generated `Last-Modified`, where the response
    /// has one.
    pub(crate) fn selected(&self, modified: Option<i64>) -> Selected<'_> {
        let modified = match self.modified {
            Some(_) => modified.and_then(Modified::generated),
            None => Modified::of_handler(&self.hit),
        };
        Selected {
            status: self.status,
            headers: &self.hit,
            length: self.body.len(),
            modified,
        }
    }

    /// Returns true if the handler has said how long other caches may use the response.
    pub(crate) fn has_cache_control(&self) -> bool {
        !self.places.cache_control
    }

    /// Fills the places in a copy of [`hit`](Self::hit).
    #[inline(always)]
    pub(crate) fn fill(&self, headers: &mut HeaderMap, of_hit: &HitHeaders<'_>) {
        let Places {
            cache_status,
            date,
            cache_control,
        } = self.places;
        let mut values = headers.values_mut();
        let mut fill_next = |value: Option<&HeaderValue>| {
            if let (Some(place), Some(value)) = (values.next(), value) {
                place.clone_from(value);
            }
        };
        fill_next(Some(of_hit.age));
        if cache_status {
            fill_next(of_hit.cache_status);
        }
        if date {
            fill_next(of_hit.date);
        }
        if cache_control {
            fill_next(of_hit.cache_control);
        }
        // The place of the generated tag comes directly after the places that were filled above, so that it is found
        // without a search.
        if of_hit.has_weak_tag {
            fill_next(self.weak_tag.as_ref());
        }
        if !of_hit.is_dated && self.modified.is_some() {
            headers.remove(header::LAST_MODIFIED);
        }
        if of_hit.cache_status.is_none() || of_hit.date.is_none() || !cache_status {
            self.complete(headers, of_hit);
        }
    }

    /// Removes the headers that have no value in this hit. If the handler has set a `Cache-Status`, adds
    /// Perennial's to it.
    #[cold]
    fn complete(&self, headers: &mut HeaderMap, of_hit: &HitHeaders<'_>) {
        match of_hit.cache_status {
            None if self.places.cache_status => drop(headers.remove(header::CACHE_STATUS)),
            Some(status) if !self.places.cache_status => {
                headers.append(header::CACHE_STATUS, status.clone());
            }
            _ => {}
        }
        if of_hit.date.is_none() && self.places.date {
            headers.remove(header::DATE);
        }
    }

    /// Fills the places in a copy of [`hit`](Self::hit) for a generator whose result an outer layer
    /// stores, and removes the headers by which a layer speaks to a client.
    pub(crate) fn fill_for_generator(
        &self,
        headers: &mut HeaderMap,
        age: &HeaderValue,
        date: Option<&HeaderValue>,
    ) {
        let of_hit = HitHeaders {
            age,
            cache_status: None,
            date,
            cache_control: None,
            has_weak_tag: false,
            is_dated: false,
        };
        self.fill(headers, &of_hit);
        if self.places.cache_control {
            headers.remove(header::CACHE_CONTROL);
        }
        if self.weak_tag.is_some() {
            headers.remove(header::ETAG);
        }
    }

    /// Returns the approximate size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let lines = self
            .hit
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len());
        // For each header, the map has a hash, links and an index, in addition to the name and the value.
        let map = self.hit.len() * (size_of::<HeaderName>() + size_of::<HeaderValue>() + 40);
        let weak_tag = self.weak_tag.as_ref().map_or(0, HeaderValue::len);
        self.body.len() + lines.sum::<usize>() + map + weak_tag
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

/// The longest body of a copy for one thread. Sending a larger one costs much more than the copy saves.
const LARGEST_COPY: usize = 64 << 10;

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
        // This always succeeds, as the bytes were a header value before.
        if let Ok(shared) = shared {
            *value = shared;
        }
    }
    if is_copied { buffer } else { body }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// One regeneration: the pause since the end of the previous one and its length, both in microseconds, the
    /// error of its `Date` in seconds, and a letter that stands for its content.
    type Run = (i64, i64, i64, char);

    fn runs() -> impl Strategy<Value = Vec<Run>> {
        let pause = prop_oneof![0..2_000_000_i64, 0..20_000_000_i64];
        let letter = prop_oneof![Just('a'), Just('b'), Just('c')];
        vec((pause, 0..2_000_000_i64, -1..=1_i64, letter), 2..8)
    }

    proptest! {
        /// RFC 9110 §8.8.2.2: no date belongs to two versions, so a client cannot confuse them.
        #[test]
        fn date_names_one_version(start in 0..1_000_000_i64, runs in runs()) {
            let mut clock = 1_790_000_000_000_000 + start;
            let mut page: Option<Page> = None;
            let mut date = None;
            // The dates that a client may have got with an earlier response, each with the content of that response.
            let mut known = Vec::new();
            for (pause, took, error, letter) in runs {
                let fence = clock + pause;
                clock = fence + took;
                let mut response = Response::new(Bytes::from(letter.to_string()));
                let tag = HeaderValue::try_from(format!("\"{letter}\"")).expect("a value");
                response.headers_mut().insert(header::ETAG, tag);
                let modified = Page::last_modified(&response, Fence(fence), page.as_ref(), date);
                let modified = modified.expect("a plausible time");
                if !modified.is_ambiguous {
                    let shown = modified.seconds;
                    let other = known.iter().find(|(date, its)| *date == shown && *its != letter);
                    prop_assert_eq!(other, None);
                    known.push((shown, letter));
                }
                date = Some(clock.div_euclid(1_000_000));
                known.push((clock.div_euclid(1_000_000) + error, letter));
                let metadata = Metadata { modified: Some(modified), ..Metadata::default() };
                page = Some(Page::new("/", response, metadata, page.as_ref()));
            }
        }
    }

    /// Headers that a hit replaces, adds or moves, and others, each with a value of its own.
    fn header_lines() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
        let lines = [
            ("age", "7"),
            ("cache-control", "max-age=60"),
            ("cache-status", "inner; hit"),
            ("cache-status", "other; hit"),
            ("content-type", "text/html"),
            ("date", "Sat, 29 Oct 1994 19:43:31 GMT"),
            ("etag", "\"own\""),
            ("etag", "\"p-0123456789abcdef0123456789abcdef\""),
            ("expires", "0"),
            ("last-modified", "Sat, 29 Oct 1994 19:43:31 GMT"),
            ("link", "</a>"),
            ("link", "</b>"),
        ];
        proptest::sample::subsequence(lines.to_vec(), 0..lines.len()).prop_shuffle()
    }

    proptest! {
        /// The headers of the generated response are made from those of a hit.
        #[test]
        fn response_is_as_it_was_generated(
            lines in header_lines(),
            is_dated in any::<bool>(),
            is_ambiguous in any::<bool>(),
        ) {
            let mut response = Response::new(Bytes::from_static(b"body"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            for (name, value) in lines {
                let value = HeaderValue::from_static(value);
                match name {
                    // These have one value.
                    "age" | "etag" => drop(response.headers_mut().insert(name, value)),
                    _ => drop(response.headers_mut().append(name, value)),
                }
            }
            let modified = is_dated.then_some(LastModified { seconds: 1_790_000_000, is_ambiguous });
            let again = Representation::new(response.clone(), modified).response();
            prop_assert!(is_same(&again, &response), "{again:?} {response:?}");
            prop_assert_eq!(again.headers().len(), response.headers().len());
        }
    }

    #[test]
    fn page_that_has_not_changed_for_seconds_has_a_date() {
        let response = |body: &'static str| Response::new(Bytes::from_static(body.as_bytes()));
        let second = 1_790_000_000;
        let first = Page::last_modified(&response("a"), Fence(second * 1_000_000), None, None);
        let first = first.expect("a plausible time");
        assert_eq!((first.seconds, first.is_ambiguous), (second - 1, false));
        let metadata = Metadata {
            modified: Some(first),
            ..Metadata::default()
        };
        let mut tagged = response("b");
        let tag = HeaderValue::from_static("\"b\"");
        tagged.headers_mut().insert(header::ETAG, tag);
        let first = Page::new("/", response("a"), metadata, None);
        for (later, expected) in [(1, None), (2, None), (3, Some(second + 2))] {
            let fence = (second + later) * 1_000_000;
            let next = Page::last_modified(&tagged, Fence(fence), Some(&first), Some(second));
            let next = next.expect("a plausible time");
            let date = Some(next.seconds).filter(|_| !next.is_ambiguous);
            assert_eq!(date, expected, "{later}");
        }
    }
}
