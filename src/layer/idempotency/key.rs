//! The identity of a request: the client's key, and a digest of the request.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};
use sha2::{Digest, Sha256};

use crate::{
    key::hex,
    layer::refresh::request::{host, original_uri},
};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The length of the longest accepted key, in bytes.
const LONGEST: usize = 255;

/// Returns the client's key: a string of RFC 9651, or the raw value of the header; `None`: the
/// header is missing. The error tells the client a valid form.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(KEY).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err("there are two `Idempotency-Key` headers: send one");
    }
    let Ok(text) = line.to_str() else {
        return Err("the `Idempotency-Key` is not plain ASCII: send a UUID, say");
    };
    let text = text.trim();
    let quoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let key = match quoted {
        Some(string) => string.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => text.to_owned(),
    };
    match key.len() {
        0 => Err("the `Idempotency-Key` is empty: send a UUID, say"),
        1..=LONGEST => Ok(Some(key)),
        _ => Err("the `Idempotency-Key` is longer than 255 bytes: send a UUID, say"),
    }
}

/// Returns the fingerprint by which two requests with one key differ: a digest of the method, the
/// host and the path, and a digest of the rest, separated by a `/`.
pub(super) fn fingerprint(parts: &Parts, body: &Bytes) -> String {
    // Without the changes by nested routers. The host is the same in every version of HTTP.
    let uri = original_uri(parts);
    let host = host(&parts.uri, &parts.headers).unwrap_or_default();
    let media_type = parts.headers.get(header::CONTENT_TYPE);
    let target = digest([
        parts.method.as_str().as_bytes(),
        &host,
        uri.path().as_bytes(),
    ]);
    let content = digest([
        uri.query().unwrap_or_default().as_bytes(),
        media_type.map_or(b"", HeaderValue::as_bytes),
        body,
    ]);
    format!("{target}/{content}")
}

/// Returns true if two fingerprints are of the same method, host and path.
pub(super) fn have_one_target(one: &str, other: &str) -> bool {
    one.split('/').next() == other.split('/').next()
}

fn digest<const N: usize>(parts: [&[u8]; N]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(keys: &[&str]) -> HeaderMap {
        let keys = keys.iter();
        keys.map(|key| (KEY, HeaderValue::from_str(key).expect("a value")))
            .collect()
    }

    fn of(uri: &str, host: Option<&str>, body: &'static str) -> String {
        let mut request = http::Request::post(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(()).expect("a request");
        fingerprint(&request.into_parts().0, &Bytes::from(body))
    }

    #[test]
    fn fingerprint_is_the_same_in_every_version_of_http() {
        let one = of("/pay", Some("shop.example"), "x");
        for same in [
            of("https://Shop.example/pay", None, "x"),
            of("https://shop.example/pay", Some("shop.example"), "x"),
        ] {
            assert_eq!(same, one);
        }
        assert_ne!(of("/pay", Some("other.example"), "x"), one);
    }

    #[test]
    fn fingerprint_tells_the_target_from_the_rest() {
        let one = of("/pay?a=1", None, "x");
        for (other, is_same) in [
            (of("/pay?a=2", None, "x"), true),
            (of("/pay?a=1", None, "y"), true),
            (of("/order?a=1", None, "x"), false),
        ] {
            assert_ne!(other, one);
            assert_eq!(have_one_target(&other, &one), is_same);
        }
    }

    #[test]
    fn key_is_a_quoted_string_or_the_plain_value() {
        for (sent, key) in [
            ("\"a-b\"", "a-b"),
            ("a-b", "a-b"),
            (" a/b% ", "a/b%"),
            ("\"a\\\"b\\\\\"", "a\"b\\"),
            ("\"a", "\"a"),
        ] {
            let found = key_of(&headers(&[sent]));
            assert_eq!(found, Ok(Some(key.to_owned())), "{sent}");
        }
        assert_eq!(key_of(&headers(&[])), Ok(None));
        let long = "x".repeat(LONGEST + 1);
        for bad in [&["", ""][..1], &["\"\""], &["a", "b"], &["ä"], &[&long]] {
            assert!(key_of(&headers(bad)).is_err(), "{bad:?}");
        }
    }
}
