//! Content codings (RFC 9110 §8.4.1): the negotiation with a request, the compressible types, and
//! the encoders.

use std::io::{self, Write};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use perennial_store::http_util::members;

use crate::{
    holes::HolePlaces,
    http::{
        coding::{is_text, member},
        fields::media_type,
        gzip_pieces::GzipPieces,
        terms,
    },
};

/// The smallest body to compress, in bytes. A smaller body fits into the first packets of a connection
/// uncompressed.
const LEAST: usize = 256;

/// The largest body for the slowest levels of the encoders, which take a few tenths of a second. Larger bodies
/// get levels that are linear in time.
const SMALL: usize = 128 << 10;

/// The content codings, in the order of preference among equal weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    pub(crate) const ALL: [Self; 2] = [Self::Br, Self::Gzip];

    pub(crate) fn token(self) -> &'static str {
        match self {
            Self::Br => "br",
            Self::Gzip => "gzip",
        }
    }

    /// Returns the content in this coding with its headers, or `None` if it would not be smaller.
    ///
    /// The result has an entity tag of its own (§8.8.3.3) and `Accept-Ranges: none`, because another release of
    /// an encoder may produce different bytes.
    pub(crate) fn encoded(self, content: &Response<Bytes>) -> Option<Response<Bytes>> {
        let body = match self.encode(content.body()) {
            Ok(body) if body.len() < content.body().len() => body,
            _ => return None,
        };
        let length = body.len();
        let body = Bytes::from(body.into_boxed_slice());
        let mut encoded = content.clone().map(|_| body);
        let headers = encoded.headers_mut();
        let token = HeaderValue::from_static(self.token());
        headers.insert(header::CONTENT_ENCODING, token);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
        if let Some(tag) = headers.remove(header::ETAG)
            && let Some(tag) = self.tag(&tag)
        {
            headers.insert(header::ETAG, tag);
        }
        Some(encoded)
    }

    /// Returns the entity tag of the compressed content: `"v1"` becomes `"v1-br"`. `plain` is the tag of the
    /// uncompressed content; if it is not an entity tag, there is none for the compressed one.
    fn tag(self, plain: &HeaderValue) -> Option<HeaderValue> {
        let plain = plain.as_bytes().strip_suffix(b"\"")?;
        let tag = [plain, b"-", self.token().as_bytes(), b"\""].concat();
        HeaderValue::from_bytes(&tag).ok()
    }

    /// Returns the pieces of a page with holes in gzip, or `None` if they would be no smaller.
    pub(crate) fn pieces(body: &[u8], holes: &HolePlaces) -> Option<GzipPieces> {
        GzipPieces::of(body, holes, gzip_level(body))
    }

    fn encode(self, body: &[u8]) -> io::Result<Vec<u8>> {
        let small = body.len() <= SMALL;
        match self {
            Self::Br => {
                let parameters = brotli::enc::BrotliEncoderParams {
                    quality: if small { 11 } else { 5 },
                    size_hint: body.len(),
                    ..Default::default()
                };
                let mut encoded = Vec::new();
                brotli::BrotliCompress(&mut &*body, &mut encoded, &parameters)?;
                Ok(encoded)
            }
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), gzip_level(body));
                encoder.write_all(body)?;
                encoder.finish()
            }
        }
    }
}

fn gzip_level(body: &[u8]) -> flate2::Compression {
    flate2::Compression::new(if body.len() <= SMALL { 9 } else { 6 })
}

/// The headers that depend on the bytes of a body (RFC 9530, RFC 9421).
const DIGESTS: [&str; 5] = [
    "content-digest",
    "content-md5",
    "digest",
    "repr-digest",
    "signature",
];

/// Returns true if the content may be compressed and is worth it: large enough, text, without a
/// coding or a digest, and without `no-transform` (RFC 9111 §5.2.2.6).
pub(crate) fn is_compressible(content: &Response<Bytes>) -> bool {
    let headers = content.headers();
    content.body().len() >= LEAST
        && !headers.contains_key(header::CONTENT_ENCODING)
        && !DIGESTS.iter().any(|digest| headers.contains_key(*digest))
        && !terms::directives(headers, &header::CACHE_CONTROL)
            .any(|(name, _)| name == "no-transform")
        && is_text(&media_type(headers))
}

/// Returns the one of these codings that a request prefers (RFC 9110 §12.5.3), or `None` for the content without a
/// coding (`identity`). A request that refuses even that gets it all the same, which §12.4.1 allows.
///
/// A request without the header accepts anything, and gets the content without a coding.
pub(crate) fn best(request: &HeaderMap, available: &[Coding]) -> Option<Coding> {
    let (mut codings, mut identity, mut others) = ([None; Coding::ALL.len()], None, None);
    for (name, weight) in members(request, &header::ACCEPT_ENCODING).filter_map(member) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let of = match name {
            b"*" => &mut others,
            _ if is("identity") => &mut identity,
            _ if is("br") => &mut codings[Coding::Br as usize],
            _ if is("gzip") || is("x-gzip") => &mut codings[Coding::Gzip as usize],
            _ => continue,
        };
        // Of two entries for one coding, a refusal wins.
        *of = match *of {
            Some(other) if other == 0 || weight == 0 => Some(0),
            other => other.max(Some(weight)),
        };
    }
    // The uncompressed content is acceptable unless it is denied, and is the last choice unless it
    // is named.
    let identity = identity.unwrap_or(u16::from(others != Some(0)));
    let weighed = available.iter().map(|coding| {
        let weight = codings[*coding as usize].or(others).unwrap_or(0);
        (*coding, weight)
    });
    let accepted = weighed.filter(|(_, weight)| *weight > 0 && *weight >= identity);
    // Of those with the greatest weight, the first one.
    let best = accepted.rev().max_by_key(|(_, weight)| *weight);
    best.map(|(coding, _)| coding)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use http::StatusCode;

    use super::*;

    fn best(lines: &[&str]) -> &'static str {
        let mut request = HeaderMap::new();
        for line in lines {
            let line = HeaderValue::from_str(line).expect("a value");
            request.append(header::ACCEPT_ENCODING, line);
        }
        super::best(&request, &Coding::ALL).map_or("identity", Coding::token)
    }

    #[test]
    fn the_coding_is_the_one_that_is_accepted_best() {
        let table = [
            ("gzip", "gzip|GZip|x-gzip|X-GZIP;Q=0.5|gzip, deflate"),
            (
                "gzip",
                "gzip;q=1.0|gzip;q=1.|gzip;q=0.001|gzip ; q=1|gzip;\tq=0.3|,gzip,",
            ),
            ("br", "br|BR|*|gzip, deflate, br|gzip, ,br"),
            ("gzip", "br;q=0.999, gzip;q=1.000|br;q=0, *"),
            (
                "identity",
                "|  |,|identity|deflate|compress, foo|gzipped|\"gzip\"",
            ),
            ("identity", "gzip;q=0|gzip;q=0.000|gzip;q=0."),
            (
                "gzip",
                "gzip;q=1.0, br;q=0.5|gzip;q=0.501, br;q=0.5|br;q=0, gzip",
            ),
            ("gzip", "br;q=0, deflate, *;q=0.1|*;q=0, gzip|gzip, *;q=0.5"),
            // The RFC's own examples.
            (
                "gzip",
                "compress, gzip|gzip;q=1.0, identity; q=0.5, *;q=0|compress;q=0.5, gzip;q=1.0",
            ),
            ("br", "*;q=0.5, gzip;q=0.4|br, gzip;q=0.9, *;q=0"),
            ("identity", "*;q=0, identity|*;q=0, identity;q=0.1"),
            // These requests accept none of the codings that are offered. They are answered as if the
            // header were missing.
            (
                "identity",
                "*;q=0|identity;q=0|identity;q=0, deflate|identity;q=0, *;q=0",
            ),
            (
                "br",
                "identity;q=0, *|identity;q=0, *;q=0.001|identity;q=0.5, *;q=0.5",
            ),
            (
                "gzip",
                "identity;q=0, gzip|identity;q=0.5, gzip;q=0.8|identity, gzip",
            ),
            (
                "identity",
                "identity, gzip;q=0.5|identity;q=0.8, gzip;q=0.5",
            ),
            // Malformed members are ignored.
            (
                "identity",
                "gzip;q = 1|gzip;q=0.:|gzip;q=0./|gzip; q= 1|gzip;q=2|gzip;q=1.001|gzip;q=0.1234|gzip;q=-1",
            ),
            (
                "identity",
                "gzip;q=abc|gzip;q=|gzip;q|gzip;foo=bar|gzip;q=1;x=y|gzip;q=.5",
            ),
            (
                "identity",
                "gzip;q=1.0a|identity;q=abc|*;q=abc|gzip;q=0.\u{e4}",
            ),
            ("br", "gzip;q=abc, br"),
            // Of two entries, a refusal or the greater weight wins.
            ("identity", "gzip;q=0, gzip;q=1|gzip;q=0, x-gzip"),
            ("gzip", "gzip;q=0.2, gzip;q=0.9, br;q=0.5"),
        ];
        for (expected, requests) in table {
            for request in requests.split('|') {
                assert_eq!(best(&[request]), expected, "{request:?}");
            }
        }
        assert_eq!(best(&[]), "identity");
        assert_eq!(best(&["", ""]), "identity");
        assert_eq!(best(&["", "gzip"]), "gzip");
        assert_eq!(best(&["gzip", "br"]), "br");
        assert_eq!(best(&["gzip;q=0.5", "identity;q=0"]), "gzip");
        let mut browser = HeaderMap::new();
        let accepted = HeaderValue::from_static("gzip, deflate, br, zstd");
        browser.insert(header::ACCEPT_ENCODING, accepted);
        assert_eq!(super::best(&browser, &[Coding::Gzip]), Some(Coding::Gzip));
        assert_eq!(super::best(&browser, &[]), None);
    }

    fn content(headers: &[(&'static str, &str)], body: impl Into<Bytes>) -> Response<Bytes> {
        let mut content = Response::new(body.into());
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).expect("a value");
            content.headers_mut().append(*name, value);
        }
        content
    }

    #[test]
    fn text_like_types_are_compressible() {
        let page = || vec![b'x'; LEAST];
        let text = "text/html|Text/HTML; charset=utf-8|text/css|application/json|\
            application/ld+json|image/svg+xml|application/wasm";
        let other = "text/event-stream|image/png|image/jpeg|font/woff2|application/zip|\
            application/octet-stream|video/mp4|";
        for (kinds, expected) in [(text, true), (other, false)] {
            for kind in kinds.split('|') {
                let content = content(&[("content-type", kind)], page());
                assert_eq!(is_compressible(&content), expected, "{kind}");
            }
        }
        let html = ("content-type", "text/html");
        for other in [
            ("content-encoding", "gzip"),
            ("content-encoding", "identity"),
            ("repr-digest", "sha-256=:x:"),
            ("cache-control", "max-age=5, No-Transform"),
        ] {
            assert!(
                !is_compressible(&content(&[html, other], page())),
                "{other:?}"
            );
        }
        assert!(!is_compressible(&content(&[], page())));
        assert!(!is_compressible(&content(&[html], vec![b'x'; LEAST - 1])));
    }

    fn decoded(coding: Coding, body: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        let read = match coding {
            Coding::Br => brotli::Decompressor::new(body, 4096).read_to_end(&mut plain),
            Coding::Gzip => flate2::read::GzDecoder::new(body).read_to_end(&mut plain),
        };
        read.expect("is readable");
        plain
    }

    #[test]
    fn encoded_content_is_the_same_with_a_tag_of_its_own() {
        let words = (0..3_000_000_u64).map(|i| format!("{:x} ", i * i % 9973));
        let long = words.collect::<String>().into_bytes();
        assert!(long.len() > 9 << 20);
        for length in [LEAST, SMALL, SMALL + 1, long.len()] {
            let mut plain = content(
                &[
                    ("etag", "\"v1\""),
                    ("content-length", "0"),
                    ("accept-ranges", "bytes"),
                    ("x-own", "1"),
                ],
                long[..length].to_vec(),
            );
            *plain.status_mut() = StatusCode::NOT_FOUND;
            for coding in Coding::ALL {
                let token = coding.token();
                let encoded = coding.encoded(&plain).expect("is smaller");
                assert_eq!(encoded.status(), StatusCode::NOT_FOUND);
                assert!(
                    decoded(coding, encoded.body()) == **plain.body(),
                    "{token} {length}"
                );
                let text = |name| encoded.headers()[name].to_str().expect("text");
                assert_eq!(text("content-encoding"), token);
                assert_eq!(text("content-length"), encoded.body().len().to_string());
                assert_eq!(text("etag"), format!("\"v1-{token}\""));
                assert_eq!(text("accept-ranges"), "none");
                assert_eq!(text("x-own"), "1");
            }
        }
    }

    #[test]
    fn a_weak_tag_stays_weak_and_what_is_none_is_left_out() {
        let body = vec![b'x'; LEAST];
        let tagged = |tag| Coding::Br.encoded(&content(&[("etag", tag)], body.clone()));
        let weak = tagged("W/\"v1\"").expect("is smaller");
        assert_eq!(weak.headers()["etag"], "W/\"v1-br\"");
        let none = tagged("v1").expect("is smaller");
        assert!(!none.headers().contains_key("etag"));
    }

    #[test]
    fn incompressible_content_stays_plain() {
        let noise: Vec<u8> = (0..64)
            .flat_map(|_| uuid::Uuid::new_v4().into_bytes())
            .collect();
        for coding in Coding::ALL {
            assert!(coding.encoded(&content(&[], noise.clone())).is_none());
        }
    }
}
