//! The treatment of a response.

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
    /// Stored.
    Content,
    /// The response is given to no visitor: the service itself answers each request.
    Pass(Bypass),
    /// The response is not stored, and an old version stays. If no version may be served, the waiting
    /// visitors get the response if it is shareable, and a 503 otherwise.
    Failure { shareable: bool },
}

/// Decides the treatment. `from_headers`: the response's own freshness headers decide.
pub(super) fn disposition(head: &Parts, key: &Key, from_headers: bool) -> Disposition {
    let (status, headers) = (head.status, &head.headers);
    let unshareable =
        if headers.contains_key(header::SET_COOKIE) || forbid_storing(headers, from_headers) {
            Some(Bypass::Private)
        } else if media_type(headers) == "text/event-stream" {
            Some(Bypass::EventStream)
        } else if !varies_by_key(headers, key) {
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

/// Returns true if every header in `Vary` is in the key (RFC 9111 §4.1). `Accept-Encoding` is
/// ignored if the response has no content coding, as every client can read such a response.
fn varies_by_key(headers: &HeaderMap, key: &Key) -> bool {
    let plain = !headers.contains_key(header::CONTENT_ENCODING);
    let missing = list(headers, &header::VARY).find(|field| {
        let name = field.parse::<HeaderName>();
        let counts = |name| key.has(&name) || (plain && name == header::ACCEPT_ENCODING);
        !field.is_empty() && !name.is_ok_and(counts)
    });
    if let Some(field) = &missing {
        // The CORS layer of tower-http adds these.
        let cors = [
            "origin",
            "access-control-request-method",
            "access-control-request-headers",
        ];
        let remedy = match cors.iter().any(|it| field.eq_ignore_ascii_case(it)) {
            true => "Put the CORS layer outside of the layer, as visitors could invent any number of origins".to_owned(),
            false => format!(
                "To store a version for each value, add `.key(Key::new().header(…))` for `{field}` to the layer"
            ),
        };
        tracing::warn!(
            "a response has `Vary: {field}`, and the header is not in the key, so the response is not stored. {remedy}"
        );
    }
    missing.is_none()
}
