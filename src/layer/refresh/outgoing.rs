//! Responses to visitors.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use httpdate::HttpDate;

use crate::{
    http::{
        cache_status::CACHE_STATUS,
        fields::{Values, ascii, seconds},
    },
    layer::ResponseBody,
    policy::BrowserCache,
    resource::HitHeaders,
};

/// Returns the headers of a response that a 304 carries (RFC 9110 §15.4.5), and `Cache-Status`.
pub(super) fn validating(whole: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    for (name, value) in whole {
        let key_of_original = matches!(
            *name,
            header::AGE
                | header::CACHE_CONTROL
                | header::CONTENT_LOCATION
                | header::DATE
                | header::ETAG
                | header::EXPIRES
                | header::VARY
        );
        if key_of_original || *name == CACHE_STATUS {
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

/// Returns a 206 with a part of a stored response (RFC 9110 §15.3.7.1).
pub(super) fn part<B>(
    stored: &Response<Bytes>,
    mut headers: HeaderMap,
    part: Range<usize>,
) -> Response<ResponseBody<B>> {
    let all = stored.body().len();
    let content_range = format!("bytes {}-{}/{all}", part.start, part.end - 1);
    headers.insert(header::CONTENT_RANGE, ascii(content_range));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(part.len()));
    // These digests are of the whole body (RFC 9530).
    for digest in ["content-digest", "content-md5"] {
        headers.remove(digest);
    }
    response(
        StatusCode::PARTIAL_CONTENT,
        headers,
        stored.body().slice(part),
    )
}

/// Sets `Age`. Sets `Date` unless the response has one, and `Cache-Control` unless the response has
/// `Cache-Control` or `Expires`.
///
/// `Date` is the time of the generation (RFC 9110 §6.6.1), not of the hit. A recipient takes the
/// greater of `Age` and the time since `Date` (RFC 9111 §4.2.3), and here the two are equal.
pub(super) fn set_age(
    headers: &mut HeaderMap,
    hit: HitHeaders,
    age: Duration,
    values: &mut Values,
) {
    headers.insert(header::AGE, values.make(hit.age));
    if !headers.contains_key(header::DATE) {
        let made = SystemTime::now().checked_sub(age);
        // A date before 1970 means that the process's clock is wrong.
        let made = made.filter(|made| *made >= SystemTime::UNIX_EPOCH);
        if let Some(made) = made {
            headers.insert(header::DATE, values.make(HttpDate::from(made)));
        }
    }
    if !headers.contains_key(header::CACHE_CONTROL) && !headers.contains_key(header::EXPIRES) {
        headers.insert(header::CACHE_CONTROL, freshness(hit, values));
    }
}

/// Returns the `Cache-Control` of the policy.
fn freshness(hit: HitHeaders, values: &mut Values) -> HeaderValue {
    let BrowserCache::UntilStale(revalidating) = hit.browser_cache else {
        return HeaderValue::from_static("no-cache");
    };
    // `max-age` counts from the generation, as `Age` does.
    let fresh = hit.age.saturating_add_signed(hit.ttl.max(0));
    match revalidating.as_secs() {
        0 => values.make(format_args!("max-age={fresh}")),
        seconds => values.make(format_args!(
            "max-age={fresh}, stale-while-revalidate={seconds}"
        )),
    }
}

/// Returns the stored response with these headers. `head`: without the body.
pub(super) fn give<B>(
    stored: &Response<Bytes>,
    headers: HeaderMap,
    head: bool,
) -> Response<ResponseBody<B>> {
    let body = if head {
        Bytes::new()
    } else {
        stored.body().clone()
    };
    response(stored.status(), headers, body)
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
