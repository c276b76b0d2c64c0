//! What becomes of a generated response, by its status and its headers: content to store, a bypass, or a
//! failure. It is decided in one place, for the layer and for explanations.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, StatusCode, header, response::Parts};

use crate::{
    event::Bypass,
    http::{
        fields::{list, media_type},
        stored::is_heuristically_cacheable,
        terms::forbid_storing,
    },
    layer::refresh::keying::Key,
};

/// The treatment of a response, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    /// The response is stored and served.
    Content,
    /// This response may not be shared, for the given reason. No visitor gets it: the service itself
    /// answers each request.
    Pass(Bypass),
    /// The response is not stored, and an old version stays. If no version may be served, the waiting
    /// visitors get the response if it is shareable, and a 503 otherwise.
    Failure { shareable: bool },
}

/// Decides what becomes of a response. With `by_headers`, the response's own freshness headers decide
/// whether it may be stored.
pub(super) fn disposition(head: &Parts, key: &Key, by_headers: bool) -> Disposition {
    let (status, headers) = (head.status, &head.headers);
    let unshareable =
        if headers.contains_key(header::SET_COOKIE) || forbid_storing(headers, by_headers) {
            Some(Bypass::Private)
        } else if media_type(headers) == "text/event-stream" {
            Some(Bypass::EventStream)
        } else if missing_in_key(headers, key).is_some() {
            Some(Bypass::Vary)
        } else {
            None
        };
    if is_failure(status) {
        let shareable = unshareable.is_none();
        return Disposition::Failure { shareable };
    }
    match unshareable {
        Some(why) => Disposition::Pass(why),
        None if is_heuristically_cacheable(status) => Disposition::Content,
        None => Disposition::Pass(Bypass::Status),
    }
}

/// Returns true for a status that says nothing of the content: another request may succeed.
pub(super) fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
}

/// Returns a header in `Vary` that is not in the key (RFC 9111 §4.1). `Accept-Encoding` is ignored if the
/// response has no content coding, as every client can read such a response.
pub(super) fn missing_in_key<'a>(headers: &'a HeaderMap, key: &Key) -> Option<Cow<'a, str>> {
    let plain = !headers.contains_key(header::CONTENT_ENCODING);
    list(headers, &header::VARY).find(|field| {
        let name = field.parse::<HeaderName>();
        let counts = |name| key.has(&name) || (plain && name == header::ACCEPT_ENCODING);
        !field.is_empty() && !name.is_ok_and(counts)
    })
}
