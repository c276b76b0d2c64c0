//! The content of a version, and the notes beside the content.

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
use crate::resource::coded::Coded;
use crate::{
    clock::{self, YEAR},
    http::terms::{self, Terms},
    key,
    policy::Refresh,
    resource::{
        Failure, Invalidations, Notes, Representation, Seed,
        state::{Basis, Content, Freshness, List},
    },
};

/// The notes for a key, and the cached verdict of the invalidation list.
#[derive(Debug)]
pub(crate) struct Noted {
    key: Box<str>,
    pub(super) notes: Notes,
    /// The verdict (the lowest two bits) and the count of changes of the list for which the verdict
    /// holds.
    judged: AtomicU64,
}

impl Noted {
    pub(super) fn new(key: &str, notes: Notes) -> Self {
        Self {
            key: key.into(),
            notes,
            // The verdict before the first change.
            judged: AtomicU64::new(0),
        }
    }
}

impl List<Noted> for Invalidations {
    fn latest(&self) -> i64 {
        self.latest()
    }

    fn revision(&self) -> i64 {
        self.revision()
    }

    /// Judges the notes. A verdict never improves, as invalidations only grow in number.
    fn judge(&self, noted: &Noted) -> Freshness {
        let changes = self.changes();
        let was = noted.judged.load(Relaxed);
        let judged = if was >> 2 == changes {
            was & 3
        } else {
            let judged = (self.judge(&noted.key, &noted.notes) as u64).max(was & 3);
            noted.judged.store(changes << 2 | judged, Relaxed);
            judged
        };
        match judged {
            0 => Freshness::Fresh,
            1 => Freshness::Stale,
            _ => Freshness::Purged,
        }
    }
}

/// A generated response with its notes and codings.
pub(crate) struct Page {
    noted: Noted,
    /// The response as generated.
    pub(crate) plain: Representation,
    /// The response in content codings; `None`: not compressible.
    #[cfg(feature = "compression")]
    pub(super) coded: Option<Arc<Coded>>,
    /// The generator for later regenerations without a visitor.
    seed: Option<Arc<Seed>>,
    /// The freshness lifetime in the response's own headers.
    said: Option<Terms>,
    /// The `Age` header of the generated response, in seconds.
    pub(crate) age_before: u64,
    /// The key's place in the spread of `Refresh::jitter`.
    unit: f64,
}

impl Page {
    /// Creates a page. The codings of the page `before` are reused if the response is the same.
    pub(crate) fn new(
        key: &str,
        response: Response<Bytes>,
        notes: Notes,
        seed: Option<Arc<Seed>>,
        before: Option<&Self>,
    ) -> Self {
        #[cfg(feature = "compression")]
        let (response, coded) = Coded::of(response);
        #[cfg(feature = "compression")]
        let coded = match before {
            Some(before) if is_same(before.response(), &response) => before.coded.clone(),
            _ => coded,
        };
        #[cfg(not(feature = "compression"))]
        let _ = before;
        Self {
            noted: Noted::new(key, notes),
            said: terms::said(response.headers()),
            age_before: terms::age(response.headers()),
            plain: Representation::new(response),
            #[cfg(feature = "compression")]
            coded,
            seed,
            unit: key::unit(key),
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.noted.key
    }

    pub(crate) fn seed(&self) -> Option<&Arc<Seed>> {
        self.seed.as_ref()
    }

    pub(crate) fn response(&self) -> &Response<Bytes> {
        &self.plain.content
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
    type Notes = Noted;
    type Failure = Failure;
    type List = Invalidations;

    fn notes(&self) -> &Noted {
        &self.noted
    }

    fn basis(&self) -> Basis {
        let Notes {
            epoch, revision, ..
        } = self.noted.notes;
        Basis { epoch, revision }
    }

    #[inline]
    fn terms(&self, policy: &Refresh) -> Terms {
        let mut terms = match self.said.filter(|_| policy.honours) {
            Some(said) => said,
            None => Terms {
                interval: terms::interval_for(
                    self.response().status(),
                    policy.interval_at(self.unit),
                ),
                max_stale: policy.max_stale,
                if_error: Duration::ZERO,
            },
        };
        if let Some(interval) = self.noted.notes.refresh_after {
            terms.interval = interval;
        }
        terms
    }

    fn is_same(&self, other: &Self) -> bool {
        is_same(self.response(), other.response())
    }

    fn notes_without_content(key: &str, Basis { epoch, revision }: Basis) -> Noted {
        let notes = Notes {
            epoch,
            revision,
            ..Notes::default()
        };
        Noted::new(key, notes)
    }

    fn timed_out(policy: &Refresh) -> Failure {
        Failure::new(
            format!("it took longer than {:?}", policy.timeout),
            policy.cooldown(),
        )
    }
}

fn is_same(a: &Response<Bytes>, b: &Response<Bytes>) -> bool {
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
            .field("noted", &self.noted)
            .finish_non_exhaustive()
    }
}
