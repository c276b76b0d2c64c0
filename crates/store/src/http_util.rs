//! HTTP code that the layers of several crates need: problem bodies (RFC 9457), lists in headers, the host of a
//! request, and hop-by-hop headers. It uses nothing from the store, and is in this crate only because all those
//! crates depend on this one.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use serde_json::{Value, json};

/// Implements the accessors of a service with an inner service, as in tower-http.
#[doc(hidden)]
#[macro_export]
macro_rules! of_inner {
    ($service:ident, $layer:ident) => {
        impl<S> $service<S> {
            /// Wraps a service in a layer.
            pub fn new(inner: S, layer: $layer) -> Self {
                Self { inner, layer }
            }

            /// Returns the inner service.
            pub fn get_ref(&self) -> &S {
                &self.inner
            }

            /// Returns the inner service, to be changed.
            pub fn get_mut(&mut self) -> &mut S {
                &mut self.inner
            }

            /// Returns the inner service.
            pub fn into_inner(self) -> S {
                self.inner
            }
        }
    };
}

/// Returns a response with a problem body (RFC 9457).
pub fn problem(
    status: StatusCode,
    detail: &str,
    members: &[(&str, &str)],
    retry_in: Option<Duration>,
) -> Response<Bytes> {
    let mut object = json!({
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": detail,
    });
    for (name, value) in members.iter().filter(|(_, value)| !value.is_empty()) {
        object[*name] = Value::from(*value);
    }
    let body = object.to_string();
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let media_type = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, media_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(time) = retry_in {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(time)));
    }
    response
}

/// Returns the value of `Retry-After`: whole seconds, at least one.
pub fn seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil().max(1.0) as u64
}

/// Returns the host of a request, in lowercase. If the URI has a host, that one counts, and `Host` is ignored
/// (RFC 9112 §3.2.2).
pub fn host(uri: &Uri, headers: &HeaderMap) -> Option<Vec<u8>> {
    hosts(uri, headers).next().map(<[u8]>::to_ascii_lowercase)
}

/// Returns the host of a request, in lowercase. `None` means that the request names no host, or several hosts.
/// With several, an application that reads `Host` alone would generate the page of one host, and it would be
/// stored as the page of the other.
pub fn only_host(uri: &Uri, headers: &HeaderMap) -> Option<Vec<u8>> {
    let mut hosts = hosts(uri, headers);
    let host = hosts.next()?;
    hosts
        .all(|other| other.eq_ignore_ascii_case(host))
        .then(|| host.to_ascii_lowercase())
}

fn hosts<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
    // Without the user information before the host.
    let of_uri = uri
        .authority()
        .and_then(|it| it.as_str().rsplit('@').next());
    let of_headers = headers.get_all(header::HOST).into_iter();
    let of_uri = of_uri.map(str::as_bytes).into_iter();
    of_uri.chain(of_headers.map(HeaderValue::as_bytes))
}

/// Returns the trimmed members of a list header, from all its lines.
pub fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Cow<'a, str>> {
    members(headers, name).map(String::from_utf8_lossy)
}

/// Returns the members of a list header as bytes; see [`list`].
pub fn members<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).into_iter();
    let members = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    members.map(<[u8]>::trim_ascii)
}

/// Returns true if the headers describe the length of the body in at most one way: by `Content-Length`, or by
/// the transfer coding `chunked`.
pub fn is_well_framed(headers: &HeaderMap, body: &Bytes) -> bool {
    let length = body.len().to_string();
    let mut lengths = list(headers, &header::CONTENT_LENGTH).peekable();
    let mut codings = list(headers, &header::TRANSFER_ENCODING).peekable();
    (lengths.peek().is_none() || codings.peek().is_none())
        && lengths.all(|other| other == length)
        && codings.all(|coding| coding.eq_ignore_ascii_case("chunked"))
}

/// Removes the hop-by-hop headers, which apply to one connection only (RFC 9110 §7.6.1).
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
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
