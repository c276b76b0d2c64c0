//! What makes two requests the same one: the client's key, and a digest of everything else. The digest shows
//! when a client uses a key again for a different request.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header, request::Parts};
use perennial_store::{http_util::host, name::hex};
use sfv::{BareItem, Item, Parser};
use sha2::{Digest, Sha256};

const KEY: &str = "idempotency-key";

/// Returns the client's key: a string of RFC 9651, or the raw value of the header. `None` means that the header
/// is missing. The error tells the client what a valid key looks like.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(KEY).iter().map(HeaderValue::to_str);
    let text = match (lines.next(), lines.next()) {
        (None, _) => return Ok(None),
        (Some(Ok(text)), None) => text,
        (Some(Err(_)), None) => {
            return Err("The `Idempotency-Key` is not plain ASCII. Send a UUID, for example.");
        }
        (Some(_), Some(_)) => return Err("There are two `Idempotency-Key` headers. Send one."),
    };
    let item = Parser::new(text).parse::<Item>();
    let key = match item.map(|item| item.bare_item) {
        Ok(BareItem::String(string)) => string.into(),
        _ => text.trim().to_owned(),
    };
    match key.len() {
        0 => Err("The `Idempotency-Key` is empty. Send a UUID, for example."),
        1..=255 => Ok(Some(key)),
        _ => Err("The `Idempotency-Key` is longer than 255 bytes. Send a UUID, for example."),
    }
}

/// The parts in which two requests with the same key may differ, in the order of their digests in a
/// fingerprint.
const PARTS: [&str; 6] = ["method", "host", "path", "query", "`Content-Type`", "body"];

/// The number of hexadecimal digits in the digest of one part.
const PART_DIGITS: usize = 4;
const WHOLE_DIGITS: usize = 40;

/// Returns a digest that differs for two different requests with the same key. It begins with a short digest of
/// each part, which makes it possible to tell the client what differs. The digest of the whole request follows.
pub(super) fn fingerprint(parts: &Parts, body: &Bytes) -> String {
    // The URI is the original one, before nested routers changed it. The host is read in a way that works for
    // every version of HTTP.
    let uri = original_uri(parts);
    let host = host(&parts.uri, &parts.headers).unwrap_or_default();
    let media_type = parts.headers.get(header::CONTENT_TYPE);
    let parts: [&[u8]; PARTS.len()] = [
        parts.method.as_str().as_bytes(),
        &host,
        uri.path().as_bytes(),
        uri.query().unwrap_or_default().as_bytes(),
        media_type.map_or(b"", HeaderValue::as_bytes),
        body,
    ];
    let digits = |bytes: &[u8], count: usize| hex(&Sha256::digest(bytes))[..count].to_owned();
    let mut fingerprint: String = parts.iter().map(|part| digits(part, PART_DIGITS)).collect();
    // No part except the body contains a line feed.
    fingerprint.push_str(&digits(&parts.join(&b'\n'), WHOLE_DIGITS));
    fingerprint
}

/// Returns the names of the parts in which two requests differ, according to their fingerprints. The list may
/// be empty: in one of 65,536 cases, the short digests are the same although the parts differ. And a program
/// that does not use this crate may store fingerprints of another form.
pub(super) fn differing_parts(first: &str, second: &str) -> Vec<&'static str> {
    let digests = |fingerprint: &str, part: usize| {
        let is_own = fingerprint.len() == PARTS.len() * PART_DIGITS + WHOLE_DIGITS;
        let range = part * PART_DIGITS..(part + 1) * PART_DIGITS;
        is_own
            .then(|| fingerprint.get(range).map(str::to_owned))
            .flatten()
    };
    let differs = |part: usize| match (digests(first, part), digests(second, part)) {
        (Some(first), Some(second)) => first != second,
        _ => false,
    };
    let parts = PARTS.into_iter().enumerate();
    parts
        .filter_map(|(part, name)| differs(part).then_some(name))
        .collect()
}

/// Returns the URI of the request as axum's outermost router received it. Without axum, returns the
/// URI that the request has now.
fn original_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(original)) = parts.extensions.get() {
        return original;
    }
    &parts.uri
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(keys: &[&str]) -> HeaderMap {
        let keys = keys.iter();
        keys.map(|key| {
            (
                HeaderName::from_static(KEY),
                HeaderValue::from_str(key).expect("a value"),
            )
        })
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
    fn fingerprints_say_in_which_parts_two_requests_differ() {
        let one = of("/pay?a=1", Some("127.0.0.1:3000"), "x");
        for (other, parts) in [
            (of("/pay?a=1", Some("127.0.0.1:3001"), "x"), &["host"][..]),
            (
                of("/pay?a=2", Some("127.0.0.1:3000"), "y"),
                &["query", "body"],
            ),
            (of("/order?a=1", Some("127.0.0.1:3000"), "x"), &["path"]),
            (one.clone(), &[]),
            // Of another program.
            ("order 7".to_owned(), &[]),
        ] {
            assert_eq!(differing_parts(&one, &other), parts);
        }
        assert_eq!(one.len(), 64);
    }

    #[test]
    fn fingerprint_differs_by_each_part_of_a_request() {
        let one = of("/pay?a=1", None, "x");
        for other in [
            of("/pay?a=2", None, "x"),
            of("/pay?a=1", None, "y"),
            of("/order?a=1", None, "x"),
            of("/pay", None, "?a=1x"),
        ] {
            assert_ne!(other, one);
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
            ("\"a\\b\"", "\"a\\b\""),
            ("\"a\"; b=1", "a"),
        ] {
            let found = key_of(&headers(&[sent]));
            assert_eq!(found, Ok(Some(key.to_owned())), "{sent}");
        }
        assert_eq!(key_of(&headers(&[])), Ok(None));
        let long = "x".repeat(256);
        for bad in [&["", ""][..1], &["\"\""], &["a", "b"], &["ä"], &[&long]] {
            assert!(key_of(&headers(bad)).is_err(), "{bad:?}");
        }
    }
}
