//! Makes responses from what is stored: the whole page, a part of it, a 304 or a 412; and the layer's own
//! 503 and 508. Sets the headers that other caches use.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use crate::{
    cache::Representation,
    http::{
        fields::{ascii, seconds},
        terms::mentions,
    },
    layer::{ResponseBody, refresh::hit_values::HitTimes},
};

/// The headers that say how to read the content of a 200, and so have no place in a 304: the entity
/// tag covers them, and a client has them already (RFC 9110 §15.4.5).
const CONTENT_HEADERS: [HeaderName; 9] = [
    header::ACCEPT_RANGES,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("repr-digest"),
];

/// Turns a whole response into a 304. It keeps all headers except those that describe the content and, if there
/// is an entity tag, the date of modification. A client replaces its own headers with these.
pub(super) fn leave_out<B>(response: &mut Response<ResponseBody<B>>) {
    let headers = response.headers_mut();
    for name in &CONTENT_HEADERS {
        headers.remove(name);
    }
    if headers.contains_key(header::ETAG) {
        headers.remove(header::LAST_MODIFIED);
    }
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    // The body's length is known to be 0, so that no outer layer compresses it. Axum then adds
    // `Content-Length: 0`. Clients ignore this header in a 304 when they update the stored page (RFC 9111
    // §3.2).
    *response.body_mut() = ResponseBody::default();
}

/// Turns a whole response into a 412. No cache may keep it, whatever the page says of itself.
pub(super) fn refuse<B>(response: &mut Response<ResponseBody<B>>) {
    leave_out(response);
    let headers = response.headers_mut();
    remove_targeted(headers);
    for name in [header::AGE, header::EXPIRES, header::LAST_MODIFIED] {
        headers.remove(name);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    *response.status_mut() = StatusCode::PRECONDITION_FAILED;
}

/// Lets a content delivery network use this version for `limit` from now, while it is fresh.
pub(super) fn allow_cdn(headers: &mut HeaderMap, hit: HitTimes, limit: Duration) {
    let fresh = hit.ttl.max(0).unsigned_abs().min(limit.as_secs());
    let value = match fresh {
        0 => HeaderValue::from_static("no-cache"),
        // Like `max-age`, this counts from the generation.
        fresh => ascii(format!("max-age={}", hit.age.saturating_add(fresh))),
    };
    headers.entry(header::CDN_CACHE_CONTROL).or_insert(value);
}

/// Keeps the response of one visitor out of shared caches, unless it has a `Cache-Control` of its
/// own: adds `private`, and removes headers such as `CDN-Cache-Control`, which take precedence over
/// `Cache-Control` (RFC 9213 §2.2).
pub(super) fn keep_private(headers: &mut HeaderMap) {
    if headers.contains_key(header::CACHE_CONTROL) {
        return;
    }
    remove_targeted(headers);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private"));
}

/// The `Cache-Control` of a response that is one visitor's own.
pub(super) const PERSONAL: HeaderValue = HeaderValue::from_static("private, no-cache");

/// Makes the response personal: no cache shares it. If a browser may keep it at all, the browser checks with
/// the site before showing it again.
pub(super) fn personal(headers: &mut HeaderMap) {
    remove_targeted(headers);
    headers.remove(header::EXPIRES);
    if !mentions(headers, &header::CACHE_CONTROL, "no-store") {
        headers.insert(header::CACHE_CONTROL, PERSONAL);
    }
}

/// Removes the headers that tell one kind of cache something other than `Cache-Control` does (RFC 9213).
fn remove_targeted(headers: &mut HeaderMap) {
    let is_targeted = |name: &HeaderName| {
        name.as_str().ends_with("-cache-control") || *name == "surrogate-control"
    };
    let names = headers.keys().filter(|name| is_targeted(name));
    let names: Vec<_> = names.cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Turns a whole response into a 206 with a part of the stored body (RFC 9110 §15.3.7.1).
pub(super) fn shorten<B>(
    response: &mut Response<ResponseBody<B>>,
    stored: &Representation,
    part: Range<usize>,
) {
    let body = &stored.body;
    let content_range = format!("bytes {}-{}/{}", part.start, part.end - 1, body.len());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_RANGE, ascii(content_range));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(part.len()));
    // A client joins the parts of a page by their strong tag (RFC 9110 §15.3.7.3). So a part has the strong tag
    // of the page, even for a client that accepts compressed responses and usually gets a weak one.
    if let Some(tag) = stored.hit.get(header::ETAG) {
        headers.insert(header::ETAG, tag.clone());
    }
    // These digests were computed for the whole body (RFC 9530), and this response sends a part of
    // it.
    for digest in ["content-digest", "content-md5"] {
        headers.remove(digest);
    }
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    *response.body_mut() = ResponseBody::stored(body.slice(part));
}

/// Returns a stored response with the headers of a hit, and for a HEAD without the body.
#[inline]
pub(super) fn give<B>(stored: &Representation, head: bool) -> Response<ResponseBody<B>> {
    give_as(stored.status, &stored.body, stored.hit.clone(), head)
}

/// Returns a response of these parts, and for a HEAD without the body.
#[inline]
pub(super) fn give_as<B>(
    status: StatusCode,
    body: &Bytes,
    headers: HeaderMap,
    head: bool,
) -> Response<ResponseBody<B>> {
    let mut response = Response::new(if head {
        ResponseBody::none()
    } else {
        ResponseBody::stored(body.clone())
    });
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Returns the application's own response instead of [`unavailable`]. If it lacks `Retry-After` or
/// `Cache-Control`, these are added.
pub(super) fn completed(mut response: Response<Bytes>, retry_in: Duration) -> Response<Bytes> {
    let headers = response.headers_mut();
    let after = HeaderValue::from(seconds(retry_in));
    headers.entry(header::RETRY_AFTER).or_insert(after);
    let no_store = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(no_store);
    response
}

/// Returns a 503 with `Retry-After` (RFC 9110 §15.6.4).
pub(super) fn unavailable(retry_in: Duration) -> Response<Bytes> {
    let seconds = seconds(retry_in);
    let body = format!("This page is not ready. Please try again in {seconds} s.\n");
    let mut response = message(StatusCode::SERVICE_UNAVAILABLE, body);
    let after = HeaderValue::from(seconds);
    response.headers_mut().insert(header::RETRY_AFTER, after);
    response
}

/// Returns the 500 that is sent instead of a page whose holes cannot be filled.
pub(super) fn unfilled() -> Response<Bytes> {
    let body = "This page could not be made. The server's log says why.\n";
    message(StatusCode::INTERNAL_SERVER_ERROR, body.to_owned())
}

/// Returns a 508 for the handler that has asked for its own page.
pub(super) fn waits_for_itself(key: &str) -> Response<Bytes> {
    let body = format!("The page {key} asks for itself while it is generated.\n");
    message(StatusCode::LOOP_DETECTED, body)
}

/// Returns a response of the layer's own, which nobody may store.
fn message(status: StatusCode, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, text);
    response
}
