//! Values of header fields, among them lists (RFC 9110 §5.6.1).

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The members of a header that is a list, in all its lines, without the blanks around them.
pub(crate) fn list<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = Cow<'a, str>> {
    members(headers, name).map(String::from_utf8_lossy)
}

/// As [`list`], in bytes.
pub(crate) fn members<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).into_iter();
    let members = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    members.map(<[u8]>::trim_ascii)
}

/// Says that the response depends on this field of the request (RFC 9110 §12.5.5), unless that is said already.
pub(crate) fn say_vary(headers: &mut HeaderMap, field: &HeaderName) {
    if !list(headers, &header::VARY).any(|said| said.eq_ignore_ascii_case(field.as_str())) {
        headers.append(header::VARY, HeaderValue::from(field.clone()));
    }
}

/// A header's value of visible ASCII characters.
pub(crate) fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("is visible ASCII")
}

/// A value in memory of its own: it may be a part of the buffer in which a whole message was read.
pub(crate) fn copied(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).expect("is a value")
}

/// The media type of a response, in lowercase and without parameters (RFC 9110 §8.3.1). Empty: there is none.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.unwrap_or_default().trim().to_ascii_lowercase()
}

/// The value of `Retry-After` (RFC 9110 §10.2.3): whole seconds, at least one.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil().max(1.0) as u64
}
