//! Storing in a shared cache (RFC 9111 §3): the storable responses, and their stored form.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use httpdate::fmt_http_date;
use perennial_store::http_util::remove_hop_by_hop;

use crate::{
    http::{
        coding::is_text,
        entity_tag::{self, is_generated},
        fields::{add_vary, ascii, copied, media_type},
        terms,
    },
    timing::CLOCK_TOLERANCE,
};

/// Returns true for the heuristically cacheable statuses of RFC 9110 §15.1, except 206, which is only a part,
/// and 501, which is a failure.
pub(crate) fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414
    )
}

/// Returns the size of the headers, names and values, in bytes.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    let lines = headers.iter();
    lines
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum()
}

/// Returns the response in the form in which it is stored, or given to several visitors: without its hop-by-hop
/// headers, and with `Date` and `Age` as of its arrival.
pub(crate) fn storable(head: &Parts, body: Bytes) -> Response<Bytes> {
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    let headers = response.headers_mut();
    // Values are copied, because they may be slices of the buffer of a whole response, and would keep all of it in
    // memory.
    for (name, value) in &head.headers {
        headers.append(name, copied(value));
    }
    remove_hop_by_hop(headers);
    let now = SystemTime::now();
    let date = terms::date(headers, &header::DATE);
    // The apparent age (RFC 9111 §4.2.3), which cannot be computed after `Date` is removed.
    let apparent = date.and_then(|date| now.duration_since(date).ok());
    if let Some(apparent) = apparent.filter(|apparent| *apparent > CLOCK_TOLERANCE) {
        let age = apparent.as_secs().max(terms::age(headers));
        headers.insert(header::AGE, HeaderValue::from(age));
    }
    if !headers.contains_key(header::EXPIRES) {
        // A stored `Date` would make two equal responses differ. Each hit computes `Date` from the age.
        headers.remove(header::DATE);
    } else if date.is_none() {
        // `Expires` counts from this date.
        headers.insert(header::DATE, ascii(fmt_http_date(now)));
    }
    if head.status == StatusCode::NO_CONTENT {
        headers.remove(header::CONTENT_LENGTH);
    } else {
        // The length is stored, as a later response to HEAD has no body to measure.
        headers.insert(header::CONTENT_LENGTH, length);
    }
    response
}

/// Removes the headers that describe the bytes of a body, because the bytes differ for each visitor: the
/// validators, the length, digests, ranges.
pub(crate) fn invalidate<B>(response: &mut Response<B>) {
    let headers = response.headers_mut();
    for name in [
        header::ACCEPT_RANGES,
        header::CONTENT_LENGTH,
        header::ETAG,
        header::LAST_MODIFIED,
    ] {
        headers.remove(name);
    }
    for name in ["content-digest", "content-md5", "repr-digest", "digest"] {
        headers.remove(name);
    }
}

/// Adds `Vary: Accept-Encoding` to a response that this layer or an outer one may compress. An outer one names the
/// header only where it compresses, and so not in the answer to a HEAD and not in a 304.
pub(crate) fn vary_by_coding(headers: &mut HeaderMap) {
    let kind = media_type(headers);
    let may_be_coded = is_text(&kind) || !kind.starts_with("image/");
    if may_be_coded && !headers.contains_key(header::CONTENT_ENCODING) {
        add_vary(headers, &header::ACCEPT_ENCODING);
    }
}

/// Adds the headers by which clients can ask for less than the whole of a stored response. `added` are the
/// names of the headers that the response gets when it is served.
///
/// A tag that an inner layer has generated is replaced, as a middleware between the two layers may have
/// changed what the tag covers.
pub(crate) fn validate(response: &mut Response<Bytes>, added: &[HeaderName]) {
    let is_ok = response.status() == StatusCode::OK;
    let headers = response.headers_mut();
    let kind = media_type(headers);
    // Nobody resumes the download of a text or seeks in one, and a client that accepts a coding gets a weak
    // tag, with which ranges cannot be combined. So ranges of texts are not offered. A client that asks for
    // one gets it all the same.
    if is_ok && !is_text(&kind) {
        let bytes = HeaderValue::from_static("bytes");
        headers.entry(header::ACCEPT_RANGES).or_insert(bytes);
    }
    if headers.get(header::ETAG).is_some_and(is_generated) {
        headers.remove(header::ETAG);
    }
    if !headers.contains_key(header::ETAG) {
        let tag = entity_tag::generate(response, added);
        response.headers_mut().insert(header::ETAG, tag);
    }
}
