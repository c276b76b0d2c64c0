//! The entity tags that Perennial generates (RFC 9110 §8.8.3).
//!
//! A client that gets a 304 keeps its copy of the response, with the headers of the 304 in place of
//! its own (RFC 9111 §3.2). So a generated tag covers everything that a client keeps and that a 304
//! does not replace: the status, the body, and the names and values of all headers. The names count
//! because a 304 cannot remove a header. It does not cover the values of [`TRANSIENT`] headers,
//! which would give an unchanged page a new tag with each generation; they travel in the 304.
//!
//! A handler's own tag is kept, and what it covers is the handler's business.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header};
use perennial_store::name::hex;
use sha2::{Digest, Sha256};

use crate::http::fields::ascii;

/// The headers whose values change although the page does not: dates and ages, the ids of requests, and run
/// times.
pub(crate) const TRANSIENT: [&str; 31] = [
    "age",
    "b3",
    "cache-status",
    "correlation-id",
    "date",
    "expires",
    "last-modified",
    "request-id",
    "sentry-trace",
    "server-timing",
    "trace-id",
    "traceparent",
    "traceresponse",
    "tracestate",
    "x-amz-request-id",
    "x-amzn-requestid",
    "x-amzn-trace-id",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-spanid",
    "x-b3-traceid",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-generation-time",
    "x-process-time",
    "x-render-time",
    "x-request-id",
    "x-request-time",
    "x-response-time",
    "x-runtime",
    "x-trace-id",
];

/// The beginning of each generated tag, by which a later layer or release recognises it.
const MARK: &[u8] = b"\"p-";

/// Returns the strong tag of a response. `added` are the names of the headers that the response gets only
/// when it is served.
pub(crate) fn generate(response: &Response<Bytes>, added: &[HeaderName]) -> HeaderValue {
    let mut digest = Sha256::new();
    // Each string is preceded by its length, and each list by the number of its strings, so that two different
    // responses never make the same sequence of bytes.
    let mut add = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    add(response.status().as_str().as_bytes());
    let headers = response.headers();
    let mut names: Vec<_> = headers
        .keys()
        .chain(added)
        .map(HeaderName::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        add(name.as_bytes());
        let values = headers.get_all(name).iter();
        let values: Vec<_> = values.filter(|_| !TRANSIENT.contains(&name)).collect();
        add(&values.len().to_be_bytes());
        for value in values {
            add(value.as_bytes());
        }
    }
    add(response.body());
    let digest = digest.finalize();
    ascii(format!("\"p-{}\"", hex(&digest[..16])))
}

/// Returns true for a tag from [`generate`], or for one that was derived from it for a content coding.
pub(crate) fn is_generated(tag: &HeaderValue) -> bool {
    let tag = tag.as_bytes();
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    let digest = tag.strip_prefix(MARK).and_then(|rest| rest.get(..32));
    digest.is_some_and(|digest| digest.iter().all(u8::is_ascii_hexdigit))
}

/// Returns the weak form of a strong tag.
pub(crate) fn weak(strong: &HeaderValue) -> HeaderValue {
    let weak = [b"W/", strong.as_bytes()].concat();
    HeaderValue::from_bytes(&weak).unwrap_or_else(|_| strong.clone())
}

/// Returns the header because of which a response has a different generated tag from the previous one, although
/// its status and its body are the same. `None` means that the tag is the same, or differs for another reason.
pub(crate) fn changed_by<'a>(
    before: &'a Response<Bytes>,
    now: &'a Response<Bytes>,
) -> Option<&'a HeaderName> {
    let tags = [before, now].map(|response| response.headers().get(header::ETAG));
    let is_unchanged = before.status() == now.status() && before.body() == now.body();
    if !tags.iter().flatten().all(|tag| is_generated(tag)) || tags[0] == tags[1] || !is_unchanged {
        return None;
    }
    let mut names = now.headers().keys().chain(before.headers().keys());
    names.find(|name| {
        let [was, is] = [before, now].map(|response| response.headers().get_all(*name));
        let values_count = !TRANSIENT.contains(&name.as_str());
        let [was_there, is_there] = [&was, &is].map(|values| values.iter().next().is_some());
        *name != header::ETAG && (was_there != is_there || (values_count && was != is))
    })
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn response(
        status: u16,
        headers: &[(&'static str, &'static str)],
        body: &str,
    ) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(body.to_owned()));
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        for (name, value) in headers {
            let (name, value) = (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
            response.headers_mut().append(name, value);
        }
        response
    }

    fn tag(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> HeaderValue {
        generate(&response(status, headers, body), &[])
    }

    #[test]
    fn a_tag_covers_status_body_names_and_values() {
        let one = tag(200, &[("a", "1"), ("b", "2")], "body");
        assert_eq!(
            one,
            tag(200, &[("b", "2"), ("a", "1")], "body"),
            "the order of the headers"
        );
        for other in [
            tag(203, &[("a", "1"), ("b", "2")], "body"),
            tag(200, &[("a", "1"), ("b", "2")], "bodies"),
            tag(200, &[("a", "1")], "body"),
            tag(200, &[("a", "1"), ("b", "3")], "body"),
            tag(200, &[("a", "1"), ("b", "2"), ("b", "2")], "body"),
            tag(200, &[("a", "1"), ("a", "b"), ("a", "2")], "body"),
            tag(200, &[("a", "1"), ("c", "2")], "body"),
            tag(200, &[("a", "1b2")], "body"),
            tag(200, &[("a", "1"), ("b", "2"), ("date", "x")], "body"),
            generate(
                &response(200, &[("a", "1"), ("b", "2")], "body"),
                &[header::AGE],
            ),
        ] {
            assert_ne!(one, other);
        }
        for name in TRANSIENT {
            let [one, other] = ["1", "2"].map(|value| tag(200, &[(name, value)], "body"));
            assert_eq!(one, other, "{name}");
        }
    }

    #[test]
    fn generated_tags_are_told_from_those_of_handlers() {
        let own = tag(200, &[], "body");
        let coded = own.to_str().expect("text").trim_end_matches('"').to_owned() + "-br\"";
        for tag in [own.clone(), weak(&own), coded.parse().expect("a value")] {
            assert!(is_generated(&tag), "{tag:?}");
        }
        for tag in [
            "\"p-1\"",
            "\"v1\"",
            "W/\"v1\"",
            "p-",
            "\"p-0123456789abcdef0123456789abcdeg\"",
        ] {
            assert!(!is_generated(&HeaderValue::from_static(tag)), "{tag}");
        }
    }
}
