//! Which responses are stored, and how they are read and given out.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::Body;
use http_body_util::BodyExt;

use crate::layer::ResponseBody;

/// What is done with a response, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stored.
    Content,
    /// Given to nobody. `lasting`: because it says that it is somebody's own; otherwise by its status.
    Unshareable { lasting: bool },
    /// Given to those who wait, not stored; one that may not be shared is given to nobody.
    Failure { shareable: bool },
}

pub(super) fn kind(head: &Parts) -> Kind {
    let shareable = is_shareable(&head.headers);
    let status = head.status;
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        Kind::Failure { shareable }
    } else if shareable && is_heuristically_cacheable(status) {
        Kind::Content
    } else {
        Kind::Unshareable {
            lasting: !shareable,
        }
    }
}

/// RFC 9110 §15.1, without 206, which is a part, and 501, which is a failure.
fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414
    )
}

/// RFC 9111 §3: what a shared cache may not store; and what is somebody's own by its nature.
fn is_shareable(headers: &HeaderMap) -> bool {
    let forbids = |directive: String| {
        // `private="field"` is taken for `private`, as §5.2.2.7 allows.
        let name = directive.split('=').next().unwrap_or_default().trim();
        name.eq_ignore_ascii_case("private") || name.eq_ignore_ascii_case("no-store")
    };
    !headers.contains_key(header::SET_COOKIE)
        && !list(headers, &header::CACHE_CONTROL).any(forbids)
        && !list(headers, &header::VARY).any(|field| field.trim() == "*")
}

/// The members of a header that is a list, in all its lines.
fn list(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = String> {
    headers.get_all(name).into_iter().flat_map(|line| {
        let line = String::from_utf8_lossy(line.as_bytes());
        line.split(',').map(str::to_owned).collect::<Vec<_>>()
    })
}

/// A body that has been read.
pub(super) enum Read<B> {
    Whole(Bytes),
    /// It has more than the limit: what has been read of it, and the rest.
    TooLarge(ResponseBody<B>),
}

/// Reads a body up to `limit` bytes.
pub(super) async fn read<B>(body: B, limit: usize) -> Result<Read<B>, B::Error>
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

/// A response to be kept, or to be given to several: without what belongs to one connection or one moment.
pub(super) fn keepable(head: &Parts, body: Bytes) -> Response<Bytes> {
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
    // The server says when it answers; kept, equal content would differ by it.
    headers.remove(header::DATE);
    if head.status == StatusCode::NO_CONTENT {
        headers.remove(header::CONTENT_LENGTH);
    } else {
        // For HEAD, whose body doesn't tell.
        let length = HeaderValue::from(response.body().len());
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length);
    }
    response
}

/// RFC 9110 §7.6.1.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = list(headers, &header::CONNECTION)
        .filter_map(|name| name.trim().parse().ok())
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

/// The kept response, for one visitor; `head`: who asked by HEAD.
pub(super) fn give<B>(kept: &Response<Bytes>, head: bool) -> Response<ResponseBody<B>> {
    let body = if head {
        Bytes::new()
    } else {
        kept.body().clone()
    };
    let mut response = Response::new(ResponseBody::stored(body));
    *response.status_mut() = kept.status();
    *response.headers_mut() = kept.headers().clone();
    response
}

/// 503 with `Retry-After` (RFC 9110 §15.6.4).
pub(super) fn unavailable(retry_in: Duration) -> Response<Bytes> {
    let seconds = retry_in.as_secs_f64().ceil().max(1.0);
    let body = format!("This page is not ready. Please try again in {seconds} s.\n");
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    // A duration is below 2^64 s.
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds as u64));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
