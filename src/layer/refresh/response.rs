//! What the service answered: whether it is content, and as what it is stored.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use headers::{Date, HeaderMapExt};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::Body;
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};

use crate::{
    http::{
        fields::{ascii, list},
        terms,
    },
    key,
    layer::{ResponseBody, refresh::keying::Key},
    resource::Pass,
};

/// What is done with a response, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layer) enum Kind {
    /// Stored.
    Content,
    /// Given to nobody: the service answers each request itself.
    Pass(Pass),
    /// Given to those who wait, not stored; one that may not be shared, to whoever caused it.
    Failure { shareable: bool },
}

/// `honours`: the policy goes by what the response says of its own freshness.
pub(in crate::layer) fn kind(head: &Parts, key: &Key, honours: bool) -> Kind {
    let (status, headers) = (head.status, &head.headers);
    let unshareable = if !is_shareable(headers, honours) {
        Some(Pass::Private)
    } else if is_event_stream(headers) {
        Some(Pass::Stream)
    } else if !varies_by_key(headers, key) {
        Some(Pass::Vary)
    } else {
        None
    };
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        let shareable = unshareable.is_none();
        return Kind::Failure { shareable };
    }
    match unshareable {
        Some(why) => Kind::Pass(why),
        None if is_heuristically_cacheable(status) => Kind::Content,
        None => Kind::Pass(Pass::Status),
    }
}

/// Returns true if the body may never end: server-sent events.
fn is_event_stream(headers: &HeaderMap) -> bool {
    let essence = |value: &HeaderValue| {
        let value = value.to_str().unwrap_or_default();
        let essence = value.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("text/event-stream")
    };
    headers.get(header::CONTENT_TYPE).is_some_and(essence)
}

/// RFC 9110 §15.1, without 206, which is a part, and 501, which is a failure.
fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414
    )
}

/// RFC 9111 §3: what a shared cache may not store; and what is somebody's own by its nature.
fn is_shareable(headers: &HeaderMap, honours: bool) -> bool {
    !headers.contains_key(header::SET_COOKIE) && !terms::forbid_storing(headers, honours)
}

/// Whether all that the response says it depends on is in the key (RFC 9111 §4.1), or is of no matter: what has no content coding can be read
/// by everybody, whatever they accept.
fn varies_by_key(headers: &HeaderMap, key: &Key) -> bool {
    let plain = !headers.contains_key(header::CONTENT_ENCODING);
    let missing = list(headers, &header::VARY).find(|field| {
        let name = field.parse::<HeaderName>();
        let counts = |name| key.has(&name) || (plain && name == header::ACCEPT_ENCODING);
        !field.is_empty() && !name.is_ok_and(counts)
    });
    if let Some(field) = &missing {
        tracing::warn!(
            "a response says `Vary: {field}`, which is not in the key, so that it is not kept; if it is to be, a version for \
             each value, add `.key(Key::new().header(…))` for `{field}` to the layer"
        );
    }
    missing.is_none()
}

/// What headers take, names and values, in bytes.
pub(in crate::layer) fn size(headers: &HeaderMap) -> usize {
    let lines = headers.iter();
    lines
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum()
}

/// Whether a response ends where it says (RFC 9112 §6.3): else it was cut off, or is made to be read in two ways.
pub(in crate::layer) fn is_well_framed(headers: &HeaderMap, body: &Bytes) -> bool {
    let length = body.len().to_string();
    let mut lengths = list(headers, &header::CONTENT_LENGTH).peekable();
    let mut codings = list(headers, &header::TRANSFER_ENCODING).peekable();
    (lengths.peek().is_none() || codings.peek().is_none())
        && lengths.all(|said| said == length)
        && codings.all(|coding| coding.eq_ignore_ascii_case("chunked"))
}

/// A body that has been read.
pub(in crate::layer) enum Read<B> {
    Whole(Bytes),
    /// It has more than the limit: what has been read of it, and the rest.
    TooLarge(ResponseBody<B>),
}

/// Reads a body up to `limit` bytes.
pub(in crate::layer) async fn read<B>(body: B, limit: usize) -> Result<Read<B>, B::Error>
where
    B: Body<Data = Bytes>,
{
    if body.size_hint().lower() > limit as u64 {
        return Ok(Read::TooLarge(ResponseBody::streamed(body)));
    }
    let mut body = Box::pin(body);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers are not stored.
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        bytes.extend_from_slice(&data);
        if bytes.len() > limit {
            return Ok(Read::TooLarge(ResponseBody::resumed(bytes.into(), body)));
        }
    }
    // Boxed, it takes no more memory than it is weighed with.
    Ok(Read::Whole(bytes.into_boxed_slice().into()))
}

/// So much of an age is put down to clocks that differ, and to dates being whole seconds: equal content would differ by it.
const CLOCKS: Duration = Duration::from_secs(5);

/// A response to be kept, or to be given to several: without what belongs to one connection or one moment.
pub(in crate::layer) fn keepable(head: &Parts, body: Bytes) -> Response<Bytes> {
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    let headers = response.headers_mut();
    // Copied, as they may be parts of the buffer in which a whole response was read.
    for (name, value) in &head.headers {
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            headers.append(name, value);
        }
    }
    remove_hop_by_hop(headers);
    let now = SystemTime::now();
    let date = terms::date(headers, &header::DATE);
    // The apparent age (RFC 9111 §4.2.3), which nothing tells any more when the date is gone.
    let apparent = date.and_then(|date| now.duration_since(date).ok());
    if let Some(apparent) = apparent.filter(|apparent| *apparent > CLOCKS) {
        let age = apparent.as_secs().max(terms::age(headers));
        headers.insert(header::AGE, HeaderValue::from(age));
    }
    if !headers.contains_key(header::EXPIRES) {
        // Equal content would differ by it. A hit says it again, by the age.
        headers.remove(header::DATE);
    } else if date.is_none() {
        // From which `Expires` counts.
        headers.typed_insert(Date::from(now));
    }
    if head.status == StatusCode::NO_CONTENT {
        headers.remove(header::CONTENT_LENGTH);
    } else {
        // For HEAD, whose body doesn't tell.
        headers.insert(header::CONTENT_LENGTH, length);
    }
    response
}

/// Adds what lets clients ask for less than the whole of a stored response.
pub(super) fn validate(response: &mut Response<Bytes>) {
    if response.status() == StatusCode::OK {
        let bytes = HeaderValue::from_static("bytes");
        let headers = response.headers_mut();
        headers.entry(header::ACCEPT_RANGES).or_insert(bytes);
    }
    if !response.headers().contains_key(header::ETAG) {
        let etag = etag(response);
        response.headers_mut().insert(header::ETAG, etag);
    }
}

/// A strong validator (RFC 9110 §8.8.3): of the body, and of what says how it is to be read.
fn etag(response: &Response<Bytes>) -> HeaderValue {
    let mut digest = Sha256::new();
    for name in [
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::CONTENT_LANGUAGE,
    ] {
        for value in response.headers().get_all(name) {
            digest.update(value.as_bytes());
        }
        digest.update([0]);
    }
    digest.update(response.body());
    let digest = digest.finalize();
    ascii(format!("\"{}\"", key::hex(&digest[..16])))
}

/// RFC 9110 §7.6.1.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = list(headers, &header::CONNECTION)
        .filter_map(|name| name.parse().ok())
        .collect();
    let always = [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in nominated.into_iter().chain(always) {
        headers.remove(name);
    }
}
