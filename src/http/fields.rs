//! Values of headers, and headers that are lists (RFC 9110 §5.6.1).

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Returns the trimmed members of a list header, from all its lines.
pub(crate) fn list<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = Cow<'a, str>> {
    members(headers, name).map(String::from_utf8_lossy)
}

/// Returns the members of a list header as bytes; see [`list`].
pub(crate) fn members<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).into_iter();
    let members = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    members.map(<[u8]>::trim_ascii)
}

/// Adds the request header to `Vary` (RFC 9110 §12.5.5), unless `Vary` has it.
pub(crate) fn add_vary(headers: &mut HeaderMap, field: &HeaderName) {
    if !list(headers, &header::VARY).any(|name| name.eq_ignore_ascii_case(field.as_str())) {
        headers.append(header::VARY, HeaderValue::from(field.clone()));
    }
}

/// Creates a header value from visible ASCII characters.
pub(crate) fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("is visible ASCII")
}

/// Copies a value into memory of its own: the value may be a part of the buffer of a whole message.
pub(crate) fn copied(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).expect("is a value")
}

/// Returns the media type of a response, in lowercase and without parameters (RFC 9110 §8.3.1).
/// Empty: the header is missing.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns the value of `Retry-After` (RFC 9110 §10.2.3): whole seconds, at least one.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil().max(1.0) as u64
}
