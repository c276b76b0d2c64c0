//! Header fields that are lists (RFC 9110 §5.6.1).

use std::borrow::Cow;

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
