//! What a visitor gets of a version, or in its place.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use httpdate::HttpDate;

use crate::{
    layer::{ResponseBody, refresh::cache_status::CACHE_STATUS},
    policy::Client,
    resource::Said,
};

/// Of the headers of a whole response those that RFC 9110 §15.4.5 asks for in a 304, and what says how it came about.
pub(in crate::layer) fn validating(whole: &HeaderMap) -> HeaderMap {
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

/// A 304 with these headers.
pub(in crate::layer) fn not_modified<B>(headers: HeaderMap) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::stored(Bytes::new()));
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    *response.headers_mut() = headers;
    response
}

/// A 412, which is nobody else's.
pub(in crate::layer) fn precondition_failed<B>() -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::stored(Bytes::new()));
    *response.status_mut() = StatusCode::PRECONDITION_FAILED;
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}

/// A 206 with a part of a kept response (RFC 9110 §15.3.7.1).
pub(in crate::layer) fn part<B>(
    kept: &Response<Bytes>,
    headers: HeaderMap,
    part: Range<usize>,
) -> Response<ResponseBody<B>> {
    let all = kept.body().len();
    let content_range = format!("bytes {}-{}/{all}", part.start, part.end - 1);
    let mut response = Response::new(ResponseBody::stored(kept.body().slice(part.clone())));
    *response.headers_mut() = headers;
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(part.len()));
    // They are of the whole (RFC 9530).
    for digest in ["content-digest", "content-md5"] {
        headers.remove(digest);
    }
    if let Ok(content_range) = HeaderValue::try_from(content_range) {
        headers.insert(header::CONTENT_RANGE, content_range);
    }
    response
}

/// Says how old a version is, when it was made, and what clients may do with it, the latter two unless the response says so itself.
///
/// `Date` is when the content was made (RFC 9110 §6.6.1), not when it is given out: a recipient's apparent age, the time since
/// `Date`, and the `Age` are then the same, of which it takes the greater (RFC 9111 §4.2.3).
pub(in crate::layer) fn say_age(headers: &mut HeaderMap, said: Said, age: Duration) {
    headers.insert(header::AGE, HeaderValue::from(said.age));
    if !headers.contains_key(header::DATE) {
        let made = SystemTime::now().checked_sub(age);
        // Older than what a date can say is nothing that a clock can be right about.
        let made = made.filter(|made| *made >= SystemTime::UNIX_EPOCH);
        let date = made.map(|made| HttpDate::from(made).to_string());
        if let Some(Ok(date)) = date.map(HeaderValue::try_from) {
            headers.insert(header::DATE, date);
        }
    }
    if !headers.contains_key(header::CACHE_CONTROL) && !headers.contains_key(header::EXPIRES) {
        headers.insert(header::CACHE_CONTROL, freshness(said));
    }
}

/// What clients may do with it.
fn freshness(said: Said) -> HeaderValue {
    let no_cache = HeaderValue::from_static("no-cache");
    match said.client {
        Client::Revalidate => no_cache,
        Client::UntilStale(revalidating) => {
            // It counts from when it was made, as the age does.
            let fresh = said.age.saturating_add_signed(said.ttl.max(0));
            let mut said = format!("max-age={fresh}");
            if !revalidating.is_zero() {
                said.push_str(&format!(
                    ", stale-while-revalidate={}",
                    revalidating.as_secs()
                ));
            }
            HeaderValue::try_from(said).unwrap_or(no_cache)
        }
    }
}

/// The kept response with these headers, for one visitor; `head`: who asked by HEAD.
pub(in crate::layer) fn give<B>(
    kept: &Response<Bytes>,
    headers: HeaderMap,
    head: bool,
) -> Response<ResponseBody<B>> {
    let body = if head {
        Bytes::new()
    } else {
        kept.body().clone()
    };
    let mut response = Response::new(ResponseBody::stored(body));
    *response.status_mut() = kept.status();
    *response.headers_mut() = headers;
    response
}

/// What a failed generator answered, for those who waited for it: with `Retry-After` (RFC 9110 §10.2.3), unless it says that itself.
pub(in crate::layer) fn failed(
    mut response: Response<Bytes>,
    retry_in: Duration,
) -> Response<Bytes> {
    let headers = response.headers_mut();
    headers
        .entry(header::RETRY_AFTER)
        .or_insert_with(|| seconds(retry_in));
    response
}

/// Whole seconds, at least one.
pub(in crate::layer) fn seconds(time: Duration) -> HeaderValue {
    HeaderValue::from(
        time.saturating_add(Duration::from_nanos(999_999_999))
            .as_secs()
            .max(1),
    )
}

/// 503 with `Retry-After` (RFC 9110 §15.6.4).
pub(in crate::layer) fn unavailable(retry_in: Duration) -> Response<Bytes> {
    let retry_after = seconds(retry_in);
    let body = format!(
        "This page is not ready. Please try again in {} s.\n",
        retry_after.to_str().unwrap_or_default()
    );
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, retry_after);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
