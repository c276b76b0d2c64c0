//! What a visitor gets of a version, or in its place.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use headers::{Date, HeaderMapExt};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::{
    http::{
        cache_status::CACHE_STATUS,
        fields::{ascii, seconds},
    },
    layer::ResponseBody,
    policy::Client,
    resource::Said,
};

/// Of the headers of a whole response those that RFC 9110 §15.4.5 asks for in a 304, and what says how it came about.
pub(super) fn validating(whole: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    for (name, value) in whole {
        let asked_for = matches!(
            *name,
            header::AGE
                | header::CACHE_CONTROL
                | header::CONTENT_LOCATION
                | header::DATE
                | header::ETAG
                | header::EXPIRES
                | header::VARY
        );
        if asked_for || *name == CACHE_STATUS {
            headers.append(name, value.clone());
        }
    }
    headers
}

pub(super) fn response<B>(
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::stored(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// A 206 with a part of a kept response (RFC 9110 §15.3.7.1).
pub(super) fn part<B>(
    kept: &Response<Bytes>,
    mut headers: HeaderMap,
    part: Range<usize>,
) -> Response<ResponseBody<B>> {
    let all = kept.body().len();
    let content_range = format!("bytes {}-{}/{all}", part.start, part.end - 1);
    headers.insert(header::CONTENT_RANGE, ascii(content_range));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(part.len()));
    // They are of the whole (RFC 9530).
    for digest in ["content-digest", "content-md5"] {
        headers.remove(digest);
    }
    response(
        StatusCode::PARTIAL_CONTENT,
        headers,
        kept.body().slice(part),
    )
}

/// Says how old a version is, when it was made, and what clients may do with it, the latter two unless the response says so itself.
///
/// `Date` is when the content was made (RFC 9110 §6.6.1), not when it is given out: a recipient's apparent age, the time since
/// `Date`, and the `Age` are then the same, of which it takes the greater (RFC 9111 §4.2.3).
pub(super) fn say_age(headers: &mut HeaderMap, said: Said, age: Duration) {
    headers.insert(header::AGE, HeaderValue::from(said.age));
    if !headers.contains_key(header::DATE) {
        let made = SystemTime::now().checked_sub(age);
        // Older than what a date can say is nothing that a clock can be right about.
        let made = made.filter(|made| *made >= SystemTime::UNIX_EPOCH);
        if let Some(made) = made {
            headers.typed_insert(Date::from(made));
        }
    }
    if !headers.contains_key(header::CACHE_CONTROL) && !headers.contains_key(header::EXPIRES) {
        headers.insert(header::CACHE_CONTROL, freshness(said));
    }
}

/// What clients may do with it.
fn freshness(said: Said) -> HeaderValue {
    let Client::UntilStale(revalidating) = said.client else {
        return HeaderValue::from_static("no-cache");
    };
    // It counts from when it was made, as the age does.
    let fresh = said.age.saturating_add_signed(said.ttl.max(0));
    ascii(match revalidating.as_secs() {
        0 => format!("max-age={fresh}"),
        seconds => format!("max-age={fresh}, stale-while-revalidate={seconds}"),
    })
}

/// The kept response with these headers, for one visitor; `head`: who asked by HEAD.
pub(super) fn give<B>(
    kept: &Response<Bytes>,
    headers: HeaderMap,
    head: bool,
) -> Response<ResponseBody<B>> {
    let body = if head {
        Bytes::new()
    } else {
        kept.body().clone()
    };
    response(kept.status(), headers, body)
}

/// 503 with `Retry-After` (RFC 9110 §15.6.4).
pub(super) fn unavailable(retry_in: Duration) -> Response<Bytes> {
    let seconds = seconds(retry_in);
    let body = format!("This page is not ready. Please try again in {seconds} s.\n");
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, text);
    response
}
