//! The identity of a request with an `Idempotency-Key`: the key, and digests of request and caller.

use std::collections::BTreeSet;

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};
use sha2::{Digest, Sha256};

use crate::{key::hex, layer::refresh::request::host};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The length of the longest accepted key, in bytes.
const LONGEST: usize = 255;

/// Digests of a request and its caller, for the parts that the lock's name does not identify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) request: String,
    pub(super) caller: String,
}

impl Fingerprint {
    /// `scoped`: the name of the lock identifies the caller.
    pub(super) fn new(parts: &Parts, body: &Bytes, scoped: bool) -> Self {
        Self {
            request: request(parts, body),
            caller: caller(parts, scoped),
        }
    }

    /// Returns the notes beside a stored response. `whole`: the response itself is stored.
    pub(super) fn metadata(&self, whole: bool) -> String {
        let mut pairs = Serializer::new(String::new());
        pairs.append_pair("request", &self.request);
        pairs.append_pair("caller", &self.caller);
        if whole {
            pairs.append_pair("whole", "");
        }
        pairs.finish()
    }

    /// The inverse of [`metadata`](Self::metadata).
    pub(super) fn from_metadata(metadata: &str) -> (Self, bool) {
        let (mut fingerprint, mut whole) = (Self::default(), false);
        for (name, value) in form_urlencoded::parse(metadata.as_bytes()) {
            match &*name {
                "request" => fingerprint.request = value.into_owned(),
                "caller" => fingerprint.caller = value.into_owned(),
                "whole" => whole = true,
                _ => {}
            }
        }
        (fingerprint, whole)
    }
}

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

/// Words in the names of headers that identify the caller.
const WORDS: [&str; 25] = [
    "account",
    "api",
    "auth",
    "cert",
    "client",
    "cookie",
    "customer",
    "device",
    "dpop",
    "email",
    "group",
    "identity",
    "jwt",
    "key",
    "member",
    "organi",
    "principal",
    "role",
    "secret",
    "session",
    "subject",
    "subscriber",
    "tenant",
    "token",
    "user",
];

/// The words that are parts of other words, and so count only as whole segments between `-` or `_`.
const SEGMENTS: [&str; 4] = ["dn", "org", "orgid", "orgs"];

/// Ends of names with the word `client` (`x-client-ip`) that identify a connection or a single try,
/// and not the caller.
const VOLATILE: [&str; 5] = ["ip", "port", "request-id", "trace-id", "correlation-id"];

/// Returns true if a header of this name identifies the caller.
fn identifies_caller(name: &str) -> bool {
    let named = |word: &&str| {
        name.contains(*word)
            && (*word != "client" || !VOLATILE.iter().any(|end| name.ends_with(end)))
    };
    !matches!(name, "idempotency-key" | "user-agent")
        && !name.starts_with("sec-")
        && (WORDS.iter().any(named) || name.split(['-', '_']).any(|part| SEGMENTS.contains(&part)))
}

/// Returns the part of a header's value that identifies the caller. A DPoP proof (RFC 9449) is new
/// for each request; its first part has the public key.
fn identity<'a>(name: &str, value: &'a HeaderValue) -> &'a [u8] {
    let value = value.as_bytes();
    match name {
        "dpop" => value.split(|byte| *byte == b'.').next().unwrap_or(value),
        _ => value,
    }
}

/// Returns the digest by which requests with the same key differ.
fn request(parts: &Parts, body: &Bytes) -> String {
    let media_type = parts.headers.get(header::CONTENT_TYPE);
    digest([
        parts.method.as_str().as_bytes(),
        parts.uri.query().unwrap_or_default().as_bytes(),
        media_type.map_or(b"", HeaderValue::as_bytes),
        body,
    ])
}

/// Returns the digest by which callers differ. If the layer has a scope, the lock's name identifies
/// the caller within a host, and only the host is digested: two hosts may use the same scope for
/// different callers.
fn caller(parts: &Parts, scoped: bool) -> String {
    // The host is the same in every version of HTTP.
    let mut values = vec![host(&parts.uri, &parts.headers).unwrap_or_default()];
    // Sorted, as the lines of different names may come in any order.
    let names = BTreeSet::from_iter(parts.headers.keys().map(HeaderName::as_str));
    let identifies = |name: &&str| !scoped && identifies_caller(name);
    for name in names.into_iter().filter(identifies) {
        let lines = parts.headers.get_all(name).iter();
        let lines: Vec<_> = lines.map(|line| identity(name, line)).collect();
        // HTTP/2 may send the cookies in pieces (RFC 9113 §8.2.3).
        values.extend([name.as_bytes().to_vec(), lines.join(&b"; "[..])]);
    }
    digest(values.iter().map(Vec::as_slice))
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
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

    #[test]
    fn headers_identify_the_caller_by_their_names() {
        for name in [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "x-forwarded-user",
            "x-auth-request-email",
            "x-forwarded-client-cert",
            "x-csrf-token",
            "x-tenant-id",
            "cf-access-jwt-assertion",
            "x-ssl-client-s-dn",
            "ssl-s-dn",
            "x-ms-client-principal-id",
            "x-client-id",
            "remote-email",
            "dpop",
            "x-org-id",
            "x-organization",
            "x-org_id",
            "x-member",
            "x-subscriber-number",
            "x-device-id",
            "x-roles",
            "x-groups",
        ] {
            assert!(identifies_caller(name), "{name}");
        }
        for name in [
            "user-agent",
            "idempotency-key",
            "accept",
            "traceparent",
            "x-request-id",
            "cf-ray",
            "x-forwarded-for",
            "x-amzn-trace-id",
            "b3",
            "sec-ch-ua",
            "content-length",
            "x-retry-count",
            "true-client-ip",
            "x-client-ip",
            "x-client-port",
            "x-ms-client-request-id",
            "x-idn",
            "x-forged",
            "origin",
            "cdn-loop",
        ] {
            assert!(!identifies_caller(name), "{name}");
        }
    }

    #[test]
    fn proofs_with_one_public_key_have_one_caller() {
        let called = |proof: &str| {
            let request = http::Request::builder().header("dpop", proof);
            caller(&request.body(()).expect("a request").into_parts().0, false)
        };
        assert_eq!(called("key.first.x"), called("key.second.y"));
        assert_ne!(called("key.first.x"), called("other.first.x"));
    }

    #[test]
    fn caller_is_the_same_in_every_version_of_http() {
        let called = |uri: &str, host: Option<&str>, cookie: &str| {
            let mut request = http::Request::builder().uri(uri).header("cookie", cookie);
            if let Some(host) = host {
                request = request.header("host", host);
            }
            caller(&request.body(()).expect("a request").into_parts().0, false)
        };
        let one = called("/pay", Some("shop.example"), "a");
        assert_eq!(called("https://Shop.example/pay", None, "a"), one);
        assert_eq!(
            called("https://shop.example/pay", Some("shop.example"), "a"),
            one
        );
        assert_ne!(called("/pay", Some("other.example"), "a"), one);
        assert_ne!(called("/pay", Some("shop.example"), "b"), one);
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
