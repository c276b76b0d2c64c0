//! Header fields that are lists (RFC 9110 §5.6.1).

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The members of a header that is a list, in all its lines.
pub(crate) fn list(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = String> {
    headers.get_all(name).into_iter().flat_map(|line| {
        let line = String::from_utf8_lossy(line.as_bytes());
        line.split(',').map(str::to_owned).collect::<Vec<_>>()
    })
}

/// Says that the response depends on this field of the request (RFC 9110 §12.5.5), unless that is said already.
pub(crate) fn say_vary(headers: &mut HeaderMap, field: &HeaderName) {
    let is_field = |said: String| said.trim().eq_ignore_ascii_case(field.as_str());
    if !list(headers, &header::VARY).any(is_field) {
        headers.append(header::VARY, HeaderValue::from(field.clone()));
    }
}
