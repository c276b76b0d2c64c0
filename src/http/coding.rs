//! Content codings (RFC 9110 §8.4.1), as far as they matter when layers outside of Perennial may compress:
//! which requests accept a coding, and for which media types the application's compression layers usually
//! use one.

use http::{HeaderMap, header};
use perennial_store::http_util::members;

/// Returns true if the request accepts a content coding, so that a layer around this one may answer with bytes
/// that differ from the stored ones.
///
/// A request without `Accept-Encoding` accepts any coding by RFC 9110 §12.5.3, but no layer compresses for it.
pub(crate) fn is_accepted(request: &HeaderMap) -> bool {
    members(request, &header::ACCEPT_ENCODING)
        .filter_map(member)
        .any(|(name, weight)| weight > 0 && !name.eq_ignore_ascii_case(b"identity"))
}

/// Returns the name and the weight, in thousandths, of a member of `Accept-Encoding`. `None` means that the
/// member is empty or malformed, and is ignored.
pub(crate) fn member(member: &[u8]) -> Option<(&[u8], u16)> {
    let mut parts = member.splitn(2, |&byte| byte == b';');
    let name = parts.next()?.trim_ascii();
    if name.is_empty() {
        return None;
    }
    let Some(weight) = parts.next() else {
        return Some((name, 1000));
    };
    let [b'q' | b'Q', b'=', value @ ..] = weight.trim_ascii() else {
        return None;
    };
    // §12.4.2: up to three decimal places, from 0 to 1.
    let decimals = match value {
        [_] => &[],
        [_, b'.', decimals @ ..] if decimals.len() <= 3 => decimals,
        _ => return None,
    };
    let mut weight = match value[0] {
        b'0' => 0,
        b'1' => 1000,
        _ => return None,
    };
    for (decimal, worth) in decimals.iter().zip([100, 10, 1]) {
        let digit = decimal.checked_sub(b'0').filter(|digit| *digit < 10)?;
        weight += u16::from(digit) * worth;
    }
    (weight <= 1000).then_some((name, weight))
}

/// Returns true if a media type, in lowercase, is text or a similarly compressible type.
pub(crate) fn is_text(kind: &str) -> bool {
    if let Some(text) = kind.strip_prefix("text/") {
        return text != "event-stream";
    }
    let suffixes = ["+json", "+xml", "+yaml", "+text"];
    let types = [
        "application/ecmascript",
        "application/javascript",
        "application/json",
        "application/rtf",
        "application/toml",
        "application/vnd.ms-fontobject",
        "application/wasm",
        "application/x-javascript",
        "application/x-ndjson",
        "application/xml",
        "application/xml-dtd",
        "application/yaml",
        "font/otf",
        "font/ttf",
        "image/bmp",
        "image/vnd.microsoft.icon",
        "image/x-icon",
    ];
    suffixes.iter().any(|suffix| kind.ends_with(suffix)) || types.contains(&kind)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_request_that_names_no_coding_but_identity_accepts_none() {
        let accepts = |lines: &[&'static str]| {
            let lines = lines.iter().map(|line| {
                let line = HeaderValue::from_static(line);
                (header::ACCEPT_ENCODING, line)
            });
            is_accepted(&lines.collect())
        };
        for none in [
            &[][..],
            &[""],
            &["identity"],
            &["Identity;q=1, *;q=0"],
            &["gzip;q=0"],
            &["gzip;q=0.000", "identity"],
            &[", ,"],
            // Malformed members are ignored.
            &["gzip;q=2"],
        ] {
            assert!(!accepts(none), "{none:?}");
        }
        for one in [
            &["gzip"][..],
            &["gzip, deflate, br, zstd"],
            &["*"],
            &["identity", "gzip;q=0.001"],
            &["unknown"],
        ] {
            assert!(accepts(one), "{one:?}");
        }
    }
}
