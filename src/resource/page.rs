//! The content of a version, and the metadata beside the content.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use httpdate::HttpDate;

#[cfg(feature = "compression")]
use crate::resource::codings::Codings;
use crate::{
    clock::{self, YEAR},
    http::{
        fields::seconds,
        terms::{self, Terms},
    },
    key,
    policy::{self, Refresh},
    resource::{
        Failure, Invalidations, Metadata, Representation,
        state::{AsOf, Content, Freshness, List},
    },
    timing::{PROVISIONAL, random_unit},
};

/// The metadata for a key, and the cached verdict of the invalidation list.
#[derive(Debug)]
pub(crate) struct JudgedMetadata {
    key: Box<str>,
    pub(super) metadata: Metadata,
    /// The verdict (the lowest two bits) and the list's count of changes at the time of the
    /// verdict.
    verdict: AtomicU64,
}

impl JudgedMetadata {
    pub(super) fn new(key: &str, metadata: Metadata) -> Self {
        Self {
            key: key.into(),
            metadata,
            // The verdict before the first change.
            verdict: AtomicU64::new(0),
        }
    }
}

impl List<JudgedMetadata> for Invalidations {
    fn latest(&self) -> i64 {
        self.latest()
    }

    fn revision(&self) -> i64 {
        self.revision()
    }

    /// Judges the metadata. A verdict never improves, as invalidations only grow in number.
    fn judge(&self, judged: &JudgedMetadata) -> Freshness {
        let changes = self.changes();
        let cached = judged.verdict.load(Relaxed);
        let verdict = if cached >> 2 == changes {
            cached & 3
        } else {
            let verdict = match self.judge(&judged.key, &judged.metadata) {
                Freshness::Purged => 2,
                Freshness::Fresh => 0,
                _ => 1,
            };
            let verdict = verdict.max(cached & 3);
            judged.verdict.store(changes << 2 | verdict, Relaxed);
            verdict
        };
        match verdict {
            0 => Freshness::Fresh,
            1 => Freshness::Stale,
            _ => Freshness::Purged,
        }
    }
}

/// A generated response with its metadata and codings.
pub(crate) struct Page {
    metadata: JudgedMetadata,
    /// The response as generated.
    pub(crate) plain: Representation,
    /// The response in content codings; `None`: not compressible.
    #[cfg(feature = "compression")]
    pub(super) codings: Option<Arc<Codings>>,
    /// The interval and the limits of staleness that the response's headers declare; `None`: they
    /// declare nothing.
    declared: Option<Terms>,
    /// The `Age` header of the generated response, in seconds.
    pub(crate) age_before: u64,
    /// The key's place in the spread of `Refresh::jitter`.
    unit: f64,
    /// The interval by the policy's schedule.
    scheduled: Option<Duration>,
    /// The decoded value of the content, for `Perennial::value`.
    decoded: std::sync::OnceLock<Arc<dyn std::any::Any + Send + Sync>>,
    /// The random time by which this process regenerates earlier than `Refresh::early` says.
    lead: Duration,
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
        let (response, codings) = Codings::of(response);
        #[cfg(feature = "compression")]
        let codings = match before {
            Some(before) if is_same(before.response(), &response) => before.codings.clone(),
            _ => codings,
        };
        #[cfg(not(feature = "compression"))]
        let _ = before;
        Self {
            metadata: JudgedMetadata::new(key, metadata),
            declared: terms::declared(response.headers()),
            age_before: terms::age(response.headers()),
            plain: Representation::new(response),
            #[cfg(feature = "compression")]
            codings,
            unit: key::unit(key),
            scheduled: None,
            decoded: std::sync::OnceLock::new(),
            lead: Duration::ZERO,
        }
    }

    /// Sets the times that follow from the policy of the regeneration. `[began, written]`: the
    /// begin of the generator and the publish, in microseconds since 1970 by the database's clock.
    pub(super) fn timed(mut self, policy: &Refresh, times: [i64; 2]) -> Self {
        self.scheduled = policy.scheduled(times, self.unit);
        self.lead = policy::lead(self.metadata.metadata.took, random_unit());
        self
    }

    /// Returns true if a part was stale, provisional itself, or missing, at any depth.
    pub(crate) fn is_provisional(&self) -> bool {
        self.metadata.metadata.is_provisional
    }

    #[inline(always)]
    fn terms(&self, policy: &Refresh) -> Terms {
        let mut terms = match self.declared.filter(|_| policy.from_headers) {
            Some(declared) => declared,
            None => {
                let interval = self.scheduled;
                let interval = interval.unwrap_or_else(|| policy.interval_at(self.unit));
                let interval = terms::interval_for(self.response().status(), interval);
                Terms {
                    interval,
                    early: interval,
                    stale_while_revalidate: policy.stale_while_revalidate,
                    stale_if_error: policy.stale_if_error,
                }
            }
        };
        let metadata = &self.metadata.metadata;
        if let Some(interval) = metadata.refresh_after {
            terms.interval = interval;
        }
        if metadata.is_provisional {
            terms.interval = terms.interval.min(PROVISIONAL);
        }
        terms.early = policy.early_after(terms.interval, self.lead);
        terms
    }

    #[cfg(feature = "compression")]
    pub(super) fn key(&self) -> &str {
        &self.metadata.key
    }

    pub(crate) fn response(&self) -> &Response<Bytes> {
        &self.plain.content
    }

    /// Returns the content as a value. The first call for a type decodes the content, and a further
    /// type decodes with each call.
    ///
    /// # Errors
    ///
    /// The error of `decode`.
    pub(crate) fn decoded<T: Send + Sync + 'static, E>(
        &self,
        decode: impl FnOnce(&Response<Bytes>) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        if let Some(decoded) = self.decoded.get()
            && let Ok(value) = Arc::clone(decoded).downcast()
        {
            return Ok(value);
        }
        let value = Arc::new(decode(self.response())?);
        // Another call may have been faster.
        let _ = self.decoded.set(Arc::clone(&value) as _);
        Ok(value)
    }

    /// Adds `Last-Modified` to a response with a validator (RFC 9110 §8.8.2), unless the response
    /// has the header: the date of the page `before` if the validator is the same, or else the time
    /// of `fence` by the database's clock.
    pub(super) fn dated(
        mut response: Response<Bytes>,
        fence: i64,
        before: Option<&Self>,
    ) -> Response<Bytes> {
        let headers = response.headers();
        if !headers.contains_key(header::ETAG) || headers.contains_key(header::LAST_MODIFIED) {
            return response;
        }
        let before = before.map(|before| before.response().headers());
        let same = before.filter(|before| before.get(header::ETAG) == headers.get(header::ETAG));
        let date = match same.and_then(|before| before.get(header::LAST_MODIFIED)) {
            Some(date) => Some(date.clone()),
            None => http_date(fence),
        };
        if let Some(date) = date {
            response.headers_mut().insert(header::LAST_MODIFIED, date);
        }
        response
    }
}

impl Content for Arc<Page> {
    type Metadata = JudgedMetadata;
    type Failure = Failure;
    type List = Invalidations;

    fn metadata(&self) -> &JudgedMetadata {
        &self.metadata
    }

    fn as_of(&self) -> AsOf {
        let Metadata {
            epoch, revision, ..
        } = self.metadata.metadata;
        AsOf { epoch, revision }
    }

    #[inline(always)]
    fn terms(&self, policy: &Refresh) -> Terms {
        Page::terms(self, policy)
    }

    fn is_same(&self, other: &Self) -> bool {
        is_same(self.response(), other.response())
    }

    fn metadata_without_content(key: &str, AsOf { epoch, revision }: AsOf) -> JudgedMetadata {
        let metadata = Metadata {
            epoch,
            revision,
            ..Metadata::default()
        };
        JudgedMetadata::new(key, metadata)
    }

    fn timed_out(policy: &Refresh) -> Failure {
        Failure::new(format!(
            "the generator took longer than {:?}",
            policy.timeout
        ))
    }

    fn retrying(mut failure: Failure, retry_in: Duration) -> Failure {
        failure.retry_in = retry_in;
        if let Some(response) = &mut failure.response {
            let headers = Arc::make_mut(response).headers_mut();
            let retry_after = headers.entry(header::RETRY_AFTER);
            retry_after.or_insert_with(|| seconds(retry_in).into());
        }
        failure
    }
}

pub(super) fn is_same(a: &Response<Bytes>, b: &Response<Bytes>) -> bool {
    a.status() == b.status() && a.headers() == b.headers() && a.body() == b.body()
}

/// Returns the date of microseconds since 1970. `None`: the fence of a store that counts something
/// else.
fn http_date(micros: i64) -> Option<HeaderValue> {
    let since = clock::duration(micros);
    if since < 30 * YEAR || since > 8000 * YEAR {
        return None;
    }
    let date = HttpDate::from(SystemTime::UNIX_EPOCH.checked_add(since)?);
    HeaderValue::try_from(date.to_string()).ok()
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}
