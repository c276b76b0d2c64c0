//! Small functions on header fields that several modules need.

use http::{HeaderMap, HeaderName, HeaderValue, header};
pub(crate) use perennial_store::http_util::{list, seconds};

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

/// Returns the media type of a response, in lowercase and without parameters (RFC 9110 §8.3.1), or an empty
/// string if the response names none.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.unwrap_or_default().trim().to_ascii_lowercase()
}
