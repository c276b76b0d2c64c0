//! The response of a version.

use std::{fmt, sync::Arc, time::SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use httpdate::HttpDate;

#[cfg(feature = "compression")]
use crate::resource::codings::Codings;
use crate::{
    clock::{self, YEAR},
    http::terms,
    resource::{Meta, Metadata, Page, Representation},
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
    /// The decoded value of the content, for `Perennial::value`.
    decoded: std::sync::OnceLock<Arc<dyn std::any::Any + Send + Sync>>,
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
            Some(before) if is_same(before.response(), &response) => before.body.codings.clone(),
            _ => codings,
        };
        #[cfg(not(feature = "compression"))]
        let _ = before;
        Self {
            meta: Meta::new(key, metadata).of_response(&response),
            body: Representations {
                age_before: terms::age(response.headers()),
                plain: Representation::new(response),
                #[cfg(feature = "compression")]
                codings,
                decoded: std::sync::OnceLock::new(),
            },
        }
    }

    /// Returns true if a part was stale, provisional itself, or missing, at any depth.
    pub(crate) fn is_provisional(&self) -> bool {
        self.meta.stored.is_provisional
    }

    pub(crate) fn response(&self) -> &Response<Bytes> {
        &self.body.plain.content
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

impl PartialEq for Representations {
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.plain.content, &other.plain.content)
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

impl fmt::Debug for Representations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Representations").finish_non_exhaustive()
    }
}
